package blocks

import (
	"slices"
	"time"
)

const (
	// A block that was loaded ahead, and has not been read for so long, is worth no more than others.
	patience = 30 * time.Second
	// A block that was not written for so long is not, because others need the memory. None is to be written meanwhile.
	slowest = 5 * time.Second
)

// What a block in memory is worth.
const (
	isRead    = iota // no reader is known to need it
	isPassed         // a stream needed it until just now: a thread may be behind
	isWanted         // a stream will need it
	isLate           // to be written: the directory should have it by now
	isPending        // to be written to the directory
	isAhead          // fetched, or being fetched, before its reader needs it, who has not read it yet
)

// worth is what the block is worth, and if it is wanted, after how many batches. The caller holds Cache.mu.
func (e *entry) worth() (worth int, batches uint64) {
	d, wanted := next(e.needs)
	switch {
	case !e.read && (wanted || len(e.needs) == 0 && (e.at == nil || time.Since(e.loaded) < patience)):
		return isAhead, d
	case e.pending && time.Since(e.loaded) < slowest:
		return isPending, 0
	case e.pending:
		return isLate, 0
	case wanted:
		return isWanted, d
	case slices.ContainsFunc(e.needs, need.isPassed):
		return isPassed, 0
	}
	return isRead, 0
}

// slot returns memory for a block, or nil if there is none yet. It evicts a block that has no reader, need not be written and was not fetched
// ahead in vain; unless now is set, because a reader waits, only one that was read. The caller holds mu.
func (c *Cache) slot(now bool) []byte {
	if n := len(c.free); n > 0 {
		slot := c.free[n-1]
		c.free = c.free[:n-1]
		c.taken++
		return slot
	}
	if c.taken < c.o.Slots() {
		c.taken++
		return make([]byte, c.o.BlockBytes)
	}
	var victim *entry
	var worth int       // of victim: of those that are worth less, the first; of those that are wanted ahead, the one wanted last
	var distance uint64 // of victim
	for at := c.recent.Front(); at != nil; at = at.Next() {
		if e := at.Value.(*entry); e.refs == 0 {
			if w, d := e.worth(); victim == nil || w < worth || w == worth && w == isWanted && d >= distance {
				victim, worth, distance = e, w, d
			}
		}
	}
	if victim == nil || worth >= isPending || !now && worth > isRead {
		return nil
	}
	if victim.pending {
		c.pending = slices.DeleteFunc(c.pending, func(e *entry) bool { return e == victim })
		c.note(ErrSlow)
	}
	c.remove(victim)
	if needs := later(victim.needs); len(needs) > 0 {
		c.enqueue(victim.key, needs)
	}
	return victim.bytes[:c.o.BlockBytes]
}

// waitForSlot returns memory for a block that a reader waits for, and whether it had to wait for that.
func (c *Cache) waitForSlot() (slot []byte, waited bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for slot = c.slot(true); slot == nil; slot = c.slot(true) {
		c.wait()
		waited = true
	}
	return slot, waited
}

// remove takes an entry out of memory. Its slot is the caller's, who holds mu.
func (c *Cache) remove(e *entry) {
	c.recent.Remove(e.at)
	delete(c.entries, e.key)
}

func (c *Cache) release(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.refs--; e.refs == 0 {
		c.changed.Broadcast()
		c.pump()
	}
}

// wait waits for a change, or until what is to be written has waited for too long. The caller holds mu.
func (c *Cache) wait() {
	defer time.AfterFunc(slowest, c.changed.Broadcast).Stop()
	c.changed.Wait()
}

// pend has a block in memory written to the directory. The caller holds mu.
func (c *Cache) pend(e *entry) {
	e.pending, e.outcome = true, nil
	c.pending = append(c.pending, e)
	if !c.writing {
		c.writing, c.began = true, time.Now()
		go c.write()
	}
}

// write writes what is pending to the directory.
func (c *Cache) write() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.pending) > 0 {
		e := c.pending[0]
		c.pending = c.pending[1:]
		e.refs++
		c.began = time.Now()
		c.mu.Unlock()
		written, err := c.disk.write(e.key, e.bytes)
		if err == nil {
			e.key.object.onDisk[e.key.index].Store(written)
		}
		c.release(e)
		c.mu.Lock()
		e.pending, e.outcome = false, c.note(err)
		c.changed.Broadcast()
	}
	c.writing = false
	c.changed.Broadcast()
}

// stuck reports whether one block has waited longer than limit for the disk, or for the lock of another process. The caller holds mu.
func (c *Cache) stuck(limit time.Duration) bool { return c.writing && time.Since(c.began) > limit }

// Flush returns when the directory has what was fetched, or is known not to take it, and frees unused memory.
func (c *Cache) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.writing && !c.stuck(slowest) {
		c.wait()
	}
	for _, e := range c.pending {
		e.pending, e.outcome = false, c.note(ErrSlow)
	}
	c.pending = nil
	for at := c.recent.Front(); at != nil; {
		e := at.Value.(*entry)
		at = at.Next()
		if e.refs == 0 {
			c.remove(e)
			c.taken--
		}
	}
	c.free = nil
}

// MemoryBytes is the memory of blocks.
func (c *Cache) MemoryBytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(c.taken+len(c.free)) * c.o.BlockBytes
}
