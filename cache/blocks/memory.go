package blocks

import (
	"slices"
	"time"
)

const (
	// unreadTimeout is how long a prefetched block keeps rankUnread if no stream needs it, and how
	// long a stream that does not advance counts as active.
	unreadTimeout = 30 * time.Second
	// persistTimeout is how long Persist waits for one write.
	persistTimeout = 30 * time.Second
	// writeTimeout is how long a block may wait to be written before its memory may be reused.
	// While a single write takes longer, newly fetched blocks are not queued to be written.
	writeTimeout = 5 * time.Second
)

// An evictionRank orders the blocks in memory for eviction, lower ranks first. Blocks of
// rankPending are not evicted, and of rankUnread only those that exceed Options.maxUnread.
type evictionRank int

const (
	rankRead    evictionRank = iota // not known to be needed
	rankPassed                      // not needed any more, unless a thread of the reader lags
	rankWanted                      // needed by a batch that a stream will read
	rankOverdue                     // waiting longer than writeTimeout to be written
	rankPending                     // waiting to be written
	rankUnread                      // not read yet, but expected to be
)

// evictionRank returns the rank of a block and, for rankWanted and rankUnread, the number of
// batches before the next one that needs it. The caller holds Cache.mu.
func (b *cacheBlock) evictionRank() (rank evictionRank, batches uint64) {
	d, wanted := nearestNeed(b.needs)
	switch {
	case !b.requested && (wanted || len(b.needs) == 0 && (b.state != inMemory || time.Since(b.loadedAt) < unreadTimeout)):
		return rankUnread, d
	case b.writePending && time.Since(b.loadedAt) < writeTimeout:
		return rankPending, 0
	case b.writePending:
		return rankOverdue, 0
	case wanted:
		return rankWanted, d
	case slices.ContainsFunc(b.needs, need.isPassed):
		return rankPassed, 0
	}
	return rankRead, 0
}

// takeBuffer returns a buffer, or nil if none is available yet. It may evict a block that is not
// being read: one that is not known to be needed or, if urgent is true because a reader is waiting,
// one that a stream will need. The caller holds mu.
func (c *Cache) takeBuffer(urgent bool) []byte {
	if n := len(c.freeBuffers); n > 0 {
		buffer := c.freeBuffers[n-1]
		c.freeBuffers = c.freeBuffers[:n-1]
		c.usedBuffers++
		return buffer
	}
	if c.usedBuffers < c.o.MaxBuffers() {
		c.usedBuffers++
		return make([]byte, c.o.BlockBytes)
	}
	// The victim is the least recently read block of the lowest rank. For rankWanted, it is instead
	// the block needed last and, among several needed last, the most recently read.
	var victim *cacheBlock
	var rank evictionRank
	var distance uint64 // number of batches before a stream needs victim
	for _, b := range c.cached {
		if b.state != inMemory || b.refs > 0 {
			continue
		}
		r, d := b.evictionRank()
		if victim == nil || r < rank || r == rank && (d > distance || d == distance && (b.order < victim.order) != (r == rankWanted)) {
			victim, rank, distance = b, r, d
		}
	}
	// Unread blocks may hold more buffers than they are allowed: a stream can need blocks again
	// that it had passed, and a write can get stuck.
	isSpare := rank < rankPending || rank == rankUnread && c.heldBuffers() > c.o.maxUnread()
	if victim == nil || !isSpare || !urgent && rank > rankRead {
		return nil
	}
	if victim.writePending {
		c.writeQueue = slices.DeleteFunc(c.writeQueue, func(b *cacheBlock) bool { return b == victim })
		c.countOutcome(ErrSlow)
	}
	c.remove(victim)
	if needs := remainingNeeds(victim.needs); len(needs) > 0 {
		c.enqueuePrefetch(victim.key, needs)
	}
	return victim.bytes[:c.o.BlockBytes]
}

// waitForBuffer returns a buffer for a block that a reader waits for, and whether it had to wait.
// Readers get buffers in the order in which they call it, and prefetches get none before them.
func (c *Cache) waitForBuffer() (buffer []byte, waited bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	turn := c.nextTurn
	c.nextTurn++
	for buffer == nil {
		if turn == c.turn {
			buffer = c.takeBuffer(true)
		}
		if buffer == nil {
			c.wait()
			waited = true
		}
	}
	c.turn++
	c.changed.Broadcast() // for the reader whose turn it is now
	c.startPrefetches()
	return buffer, waited
}

// remove removes a block from memory, so that reads use its file. The caller holds mu, and owns
// the block's buffer afterwards.
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
		c.startPrefetches()
	}
}

// wait waits for changed, but at most for writeTimeout, so that the caller can check whether the
// disk is stuck. The caller holds mu.
func (c *Cache) wait() {
	defer time.AfterFunc(writeTimeout, c.changed.Broadcast).Stop()
	c.changed.Wait()
}

// enqueueWrite queues a block to be written. The caller holds mu.
func (c *Cache) enqueueWrite(b *cacheBlock) {
	b.writePending, b.writeErr = true, nil
	c.writeQueue = append(c.writeQueue, b)
	if !c.writing {
		c.writing, c.writeBegan = true, time.Now()
		go c.write()
	}
}

// write writes the queued blocks until none is left.
func (c *Cache) write() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.writeQueue) > 0 {
		b := c.writeQueue[0]
		c.writeQueue = c.writeQueue[1:]
		b.refs++
		c.writeBegan = time.Now()
		c.mu.Unlock()
		file, err := c.disk.write(b.key, b.bytes)
		c.mu.Lock()
		// Set these before the release, after which the block may be evicted.
		b.writePending, b.file, b.writeErr = false, file, c.countOutcome(err)
		c.changed.Broadcast()
		c.releaseLocked(b)
	}
	c.writing = false
	c.changed.Broadcast()
}

// isWriteStuck reports whether the current write has taken longer than limit, because the disk is
// slow or another process holds the lock. The caller holds mu.
func (c *Cache) isWriteStuck(limit time.Duration) bool {
	return c.writing && time.Since(c.writeBegan) > limit
}

// Flush waits until each fetched block is written to the directory or given up, and frees the
// memory of blocks that are not being read.
func (c *Cache) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.writing && !c.isWriteStuck(writeTimeout) {
		c.wait()
	}
	for _, b := range c.writeQueue {
		b.writePending, b.writeErr = false, c.countOutcome(ErrSlow)
	}
	c.writeQueue = nil
	for _, b := range c.cached {
		if b.state == inMemory && b.refs == 0 {
			c.remove(b)
			c.usedBuffers--
		}
	}
	c.freeBuffers = nil
}

// MemoryBytes returns the size of all buffers for blocks.
func (c *Cache) MemoryBytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(c.usedBuffers+len(c.freeBuffers)) * c.o.BlockBytes
}
