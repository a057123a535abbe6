package blocks

import "slices"

const maxLoading = 32 // blocks prefetched at a time

// AtOnce returns the maximum number of blocks that are prefetched at a time.
func (o Options) AtOnce() int { return min(o.maxUnread(), maxLoading) }

// maxUnread returns how many buffers prefetched blocks may hold until they are read. The others are
// for readers that wait.
func (o Options) maxUnread() int { return o.MaxBuffers() - max(o.MaxBuffers()/4, 1) }

// Prefetch has blocks fetched that are not known to be in the directory, after the blocks of earlier
// calls, and does not wait. It returns false if there is no room yet for all of them: the caller must
// then repeat the call later.
func (r ObjectRange) Prefetch(d Demand) (room bool) {
	for i := range r.Blocks() {
		if r.Object.files[i].Load() == nil && !r.Object.cache.prefetch(key{r.Object, i}, d) {
			return false
		}
	}
	return true
}

func (c *Cache) prefetch(k key, d Demand) (room bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.cached[k]; b != nil {
		b.needs = add(b.needs, d)
		return true
	}
	queued := 0 // blocks that the same stream needs
	for _, b := range c.queue {
		if len(b.needs) > 0 && b.needs[0].by == d.By || len(b.needs) == 0 && d.By == nil {
			queued++
		}
	}
	if queued >= c.o.MaxBuffers() {
		return false
	}
	c.enqueue(k, add(nil, d))
	c.pump()
	return true
}

// enqueue queues a block to be prefetched. The caller holds mu.
func (c *Cache) enqueue(k key, needs []need) {
	b := c.add(k, needs)
	b.queued = true
	c.queue = append(c.queue, b)
}

func (c *Cache) unqueue(b *cacheBlock) {
	b.queued = false
	c.queue = slices.DeleteFunc(c.queue, func(other *cacheBlock) bool { return other == b })
}

// pump begins to load queued blocks while there are buffers. The caller holds mu.
func (c *Cache) pump() {
	for c.mayLoad() {
		b := c.nearest()
		if b == nil {
			return
		}
		if b.key.object.files[b.key.index].Load() != nil {
			delete(c.cached, b.key)
		} else {
			if b.bytes = c.takeBuffer(false); b.bytes == nil {
				return
			}
			b.prefetched = true
			go c.load(b)
		}
		c.unqueue(b)
	}
}

// mayLoad reports whether one more block may be prefetched. The caller holds mu.
func (c *Cache) mayLoad() bool {
	loading, unread := 0, 0
	for _, b := range c.cached {
		if b.prefetched && b.at == nil {
			loading++
		}
		if rank, _ := b.evictionRank(); rank == rankUnread && !b.queued {
			unread++
		}
	}
	return loading < maxLoading && unread < c.o.maxUnread()
}

// nearest returns the queued block that is needed first, or nil if there is none. It drops blocks
// that are no longer needed. The caller holds mu.
func (c *Cache) nearest() (nearest *cacheBlock) {
	least := uint64(0)
	c.queue = slices.DeleteFunc(c.queue, func(b *cacheBlock) bool {
		d, ok := next(b.needs)
		if !ok && len(b.needs) > 0 {
			delete(c.cached, b.key)
			return true
		}
		if nearest == nil || d < least { // d is 0 if no stream needs it
			nearest, least = b, d
		}
		return false
	})
	return nearest
}
