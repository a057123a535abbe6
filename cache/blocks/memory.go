package blocks

import (
	"slices"
	"time"
)

const (
	// unreadTimeout is how long a prefetched block that has not been read ranks above others, and
	// how long a stream that does not advance counts as reading.
	unreadTimeout = 30 * time.Second
	// persistTimeout is how long Persist lets one write take.
	persistTimeout = 30 * time.Second
	// writeTimeout is how long a block may wait to be written before its memory may be used for
	// others. While one write takes longer than that, no block that was just fetched is queued to
	// be written.
	writeTimeout = 5 * time.Second
)

// An evictionRank orders the blocks in memory: those of the lowest rank are evicted first, and those
// from rankPending on are not evicted.
type evictionRank int

const (
	rankRead    evictionRank = iota // no reader is known to need it
	rankPassed                      // a stream needed it until just now: a thread may be behind
	rankWanted                      // a stream will need it
	rankOverdue                     // to be written: the directory should have it by now
	rankPending                     // to be written to the directory
	rankUnread                      // fetched, or being fetched, for a reader that has not read it yet
)

// evictionRank returns the rank of a block and, if streams need it, after how many batches they do.
// The caller holds Cache.mu.
func (b *cacheBlock) evictionRank() (rank evictionRank, batches uint64) {
	d, wanted := next(b.needs)
	switch {
	case !b.read && (wanted || len(b.needs) == 0 && (b.state != inMemory || time.Since(b.loaded) < unreadTimeout)):
		return rankUnread, d
	case b.pending && time.Since(b.loaded) < writeTimeout:
		return rankPending, 0
	case b.pending:
		return rankOverdue, 0
	case wanted:
		return rankWanted, d
	case slices.ContainsFunc(b.needs, need.isPassed):
		return rankPassed, 0
	}
	return rankRead, 0
}

// takeBuffer returns memory for a block, or nil if there is none yet. It may evict a block without
// readers. If now is false, because no reader waits, it evicts only a block that no reader is known
// to need. The caller holds mu.
func (c *Cache) takeBuffer(now bool) []byte {
	if n := len(c.free); n > 0 {
		buffer := c.free[n-1]
		c.free = c.free[:n-1]
		c.taken++
		return buffer
	}
	if c.taken < c.o.MaxBuffers() {
		c.taken++
		return make([]byte, c.o.BlockBytes)
	}
	// Among blocks of the same rank, the victim is the least recently read one. Of blocks that streams
	// will need, it is the one needed after the most batches, or of several the most recently read.
	var victim *cacheBlock
	var rank evictionRank
	var distance uint64 // batches until a stream needs victim
	for _, b := range c.cached {
		if b.state != inMemory || b.refs > 0 {
			continue
		}
		r, d := b.evictionRank()
		if victim == nil || r < rank || r == rank && (d > distance || d == distance && (b.order < victim.order) != (r == rankWanted)) {
			victim, rank, distance = b, r, d
		}
	}
	if victim == nil || rank >= rankPending || !now && rank > rankRead {
		return nil
	}
	if victim.pending {
		c.pending = slices.DeleteFunc(c.pending, func(b *cacheBlock) bool { return b == victim })
		c.count(ErrSlow)
	}
	c.remove(victim)
	if needs := later(victim.needs); len(needs) > 0 {
		c.add(victim.key, needs)
	}
	return victim.bytes[:c.o.BlockBytes]
}

// waitForBuffer returns memory for a block that a reader waits for, and reports whether it had to
// wait.
func (c *Cache) waitForBuffer() (buffer []byte, waited bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for buffer = c.takeBuffer(true); buffer == nil; buffer = c.takeBuffer(true) {
		c.wait()
		waited = true
	}
	return buffer, waited
}

// remove removes a block from memory, after which its file is read. The caller holds mu, and owns the
// buffer afterwards.
func (c *Cache) remove(b *cacheBlock) {
	delete(c.cached, b.key)
	b.key.object.files[b.key.index].Store(b.file)
}

func (c *Cache) release(b *cacheBlock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseLocked(b)
}

// releaseLocked is release for a caller that holds mu.
func (c *Cache) releaseLocked(b *cacheBlock) {
	if b.refs--; b.refs == 0 {
		c.changed.Broadcast()
		c.pump()
	}
}

// wait waits until changed is signaled, but not longer than writeTimeout, so that its caller can check
// again whether the disk is stuck. The caller holds mu.
func (c *Cache) wait() {
	defer time.AfterFunc(writeTimeout, c.changed.Broadcast).Stop()
	c.changed.Wait()
}

// enqueueWrite queues a block in memory to be written to the directory. The caller holds mu.
func (c *Cache) enqueueWrite(b *cacheBlock) {
	b.pending, b.outcome = true, nil
	c.pending = append(c.pending, b)
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
		b := c.pending[0]
		c.pending = c.pending[1:]
		b.refs++
		c.began = time.Now()
		c.mu.Unlock()
		file, err := c.disk.write(b.key, b.bytes)
		c.mu.Lock()
		b.pending, b.file, b.outcome = false, file, c.count(err) // before the release, which lets the block be evicted
		c.changed.Broadcast()
		c.releaseLocked(b)
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
	for c.writing && !c.stuck(writeTimeout) {
		c.wait()
	}
	for _, b := range c.pending {
		b.pending, b.outcome = false, c.count(ErrSlow)
	}
	c.pending = nil
	for _, b := range c.cached {
		if b.state == inMemory && b.refs == 0 {
			c.remove(b)
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
