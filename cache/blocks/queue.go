package blocks

import "slices"

const maxLoading = 32 // blocks fetched ahead at a time

// AtOnce is how many blocks are fetched ahead at a time at most.
func (o Options) AtOnce() int { return min(o.aheadSlots(), maxLoading) }

// aheadSlots is how many blocks in memory may wait for their readers. The others are for readers that wait.
func (o Options) aheadSlots() int { return o.Slots() - max(o.Slots()/4, 1) }

// Want says when a block will be wanted, after the blocks of earlier calls. It does not wait. It returns false if there is no room for the
// block yet.
func (o *Object) Want(index int64, t Demand) bool {
	c, k := o.cache, key{o, index}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[k]; e != nil {
		e.needs = add(e.needs, t)
		return true
	}
	if o.IsOnDisk(index) {
		return true
	}
	queued := 0 // of the same stream
	for _, e := range c.queue {
		if len(e.needs) > 0 && e.needs[0].by == t.By || len(e.needs) == 0 && t.By == nil {
			queued++
		}
	}
	if queued >= c.o.Slots() {
		return false
	}
	c.enqueue(k, add(nil, t))
	c.pump()
	return true
}

// enqueue has a block loaded ahead. The caller holds mu.
func (c *Cache) enqueue(k key, needs []need) {
	e := c.add(k, needs)
	e.queued = true
	c.queue = append(c.queue, e)
}

func (c *Cache) unqueue(e *entry) {
	e.queued = false
	c.queue = slices.DeleteFunc(c.queue, func(of *entry) bool { return of == e })
}

// pump begins to load blocks that are wanted ahead, while there are slots. The caller holds mu.
func (c *Cache) pump() {
	for c.mayLoad() {
		e := c.nearest()
		if e == nil {
			return
		}
		if e.key.object.IsOnDisk(e.key.index) {
			delete(c.entries, e.key)
		} else {
			if e.bytes = c.slot(false); e.bytes == nil {
				return
			}
			e.ahead = true
			go c.load(e)
		}
		c.unqueue(e)
	}
}

// mayLoad reports whether one more block may be fetched ahead. The caller holds mu.
func (c *Cache) mayLoad() bool {
	loading, unread := 0, 0
	for _, e := range c.entries {
		if e.ahead && e.at == nil {
			loading++
		}
		if w, _ := e.worth(); w == isAhead && !e.queued {
			unread++
		}
	}
	return loading < maxLoading && unread < c.o.aheadSlots()
}

// nearest is the block of the queue that is needed first, or nil. It drops those that are needed no more. The caller holds mu.
func (c *Cache) nearest() (nearest *entry) {
	least := uint64(0)
	c.queue = slices.DeleteFunc(c.queue, func(e *entry) bool {
		d, ok := next(e.needs)
		if !ok && len(e.needs) > 0 {
			delete(c.entries, e.key)
			return true
		}
		if nearest == nil || d < least { // soon, where no stream needs it
			nearest, least = e, d
		}
		return false
	})
	return nearest
}
