package blocks

// maxLoading is how many prefetched blocks may be loading at a time.
const maxLoading = 32

// MaxPrefetches returns the maximum number of blocks prefetched at a time.
func (o Options) MaxPrefetches() int { return min(o.maxUnread(), maxLoading) }

// maxUnread returns how many buffers prefetched blocks may hold before they are read, and a block
// whose write is stuck. The rest are for readers that wait.
func (o Options) maxUnread() int { return o.MaxBuffers() - max(o.MaxBuffers()/4, 1) }

// Prefetch queues the blocks of r to be fetched, unless they are known to be in the directory, and
// does not wait. If it returns false, there was no room for all of them, and the caller may repeat
// the call later.
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
		b.needs = addDemand(b.needs, d)
		return true
	}
	before := 0 // number of blocks queued for the same stream
	for _, b := range c.cached {
		if b.state == queued && (len(b.needs) > 0 && b.needs[0].stream == d.By || len(b.needs) == 0 && d.By == nil) {
			before++
		}
	}
	if before >= c.o.MaxBuffers() {
		return false
	}
	c.enqueuePrefetch(k, addDemand(nil, d))
	c.startPrefetches()
	return true
}

// startPrefetches starts loading queued blocks while buffers are available and no reader waits for
// one. The caller holds mu.
func (c *Cache) startPrefetches() {
	for c.queuedBlocks > 0 && c.turn == c.nextTurn && c.mayPrefetch() {
		b := c.nearestQueued()
		if b == nil {
			return
		}
		if b.key.object.files[b.key.index].Load() != nil {
			c.dropQueued(b)
			continue
		}
		if b.bytes = c.takeBuffer(false); b.bytes == nil {
			return
		}
		b.prefetched = true
		c.startLoad(b)
	}
}

// mayPrefetch reports whether the limits allow one more prefetch. The caller holds mu.
func (c *Cache) mayPrefetch() bool {
	fetching := 0
	for _, b := range c.cached {
		if b.prefetched && b.state == loading {
			fetching++
		}
	}
	return fetching < maxLoading && c.heldBuffers() < c.o.maxUnread()
}

// heldBuffers returns how many buffers no reader will free: those of blocks that nobody has read,
// and of a block whose write is stuck. The caller holds mu.
func (c *Cache) heldBuffers() (n int) {
	for _, b := range c.cached {
		rank, _ := b.evictionRank()
		if rank == rankUnread && b.state != queued || rank == rankOverdue && b.refs > 0 {
			n++
		}
	}
	return n
}

// nearestQueued returns the queued block that is needed first, or nil, and drops blocks that are no
// longer needed. The caller holds mu.
func (c *Cache) nearestQueued() (nearest *cacheBlock) {
	least := uint64(0)
	for _, b := range c.cached {
		if b.state != queued {
			continue
		}
		d, ok := nearestNeed(b.needs) // 0 if no stream needs it
		switch {
		case !ok && len(b.needs) > 0:
			c.dropQueued(b)
		case nearest == nil || d < least || d == least && b.order < nearest.order:
			nearest, least = b, d
		}
	}
	return nearest
}
