package blocks

import (
	"slices"
	"time"
)

const (
	// patience is how long a prefetched block that has not been read is worth more than others, and
	// how long Keep lets one write take.
	patience = 30 * time.Second
	// slowest is how long a block may wait to be written before its memory may be used for others.
	// While one write takes longer than that, no block that was just fetched is queued to be
	// written.
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

// slot returns memory for a block, or nil if there is none yet. It evicts a block without readers,
// unless the block should still be written or was prefetched and not yet read. If now is false,
// because no reader waits, it evicts only a block that no reader is known to need. The caller holds
// mu.
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
	// The victim is the block that is worth the least; among equals, the least recently wanted one,
	// or the one that streams will need after the most batches.
	var victim *entry
	var worth int
	var distance uint64 // batches until a stream needs victim
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

// waitForSlot returns memory for a block that a reader waits for, and reports whether it had to
// wait.
func (c *Cache) waitForSlot() (slot []byte, waited bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for slot = c.slot(true); slot == nil; slot = c.slot(true) {
		c.wait()
		waited = true
	}
	return slot, waited
}

// remove removes an entry from memory. The caller holds mu, and owns the slot afterwards.
func (c *Cache) remove(e *entry) {
	c.recent.Remove(e.at)
	delete(c.entries, e.key)
}

func (c *Cache) release(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseLocked(e)
}

// releaseLocked is release for a caller that holds mu.
func (c *Cache) releaseLocked(e *entry) {
	if e.refs--; e.refs == 0 {
		c.changed.Broadcast()
		c.pump()
	}
}

// wait waits until changed is signaled, but not longer than slowest, so that its caller can check
// again whether the disk is stuck. The caller holds mu.
func (c *Cache) wait() {
	defer time.AfterFunc(slowest, c.changed.Broadcast).Stop()
	c.changed.Wait()
}

// pend queues a block in memory to be written to the directory. The caller holds mu.
func (c *Cache) pend(e *entry) {
	e.pending, e.outcome = true, nil
	c.pending = append(c.pending, e)
	if !c.writing {
		c.writing, c.began = true, time.Now()
		go c.write()
	}
}

// write writes the pending blocks to the directory, one after the other.
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
		c.mu.Lock()
		e.pending, e.outcome = false, c.note(err) // before the release, which lets the block be evicted
		c.changed.Broadcast()
		c.releaseLocked(e)
	}
	c.writing = false
	c.changed.Broadcast()
}

// stuck reports whether the current write has taken longer than limit, because the disk is slow or
// another process holds the lock. The caller holds mu.
func (c *Cache) stuck(limit time.Duration) bool { return c.writing && time.Since(c.began) > limit }

// Flush waits until the directory has every fetched block, or is known not to take it, and frees
// the memory that no reader uses.
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

// MemoryBytes returns the memory allocated for blocks, in bytes.
func (c *Cache) MemoryBytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(c.taken+len(c.free)) * c.o.BlockBytes
}
