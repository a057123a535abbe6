package sampler

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// A table says in which run a window lies. It is never written once it is made.
type table struct {
	all      prefixSums // of each run's starts
	disjoint prefixSums // of each run's disjoint starts
}

func (w *windows) newTable() *table {
	t := &table{make(prefixSums, len(w.runs)), make(prefixSums, len(w.runs))}
	var all, disjoint int64
	for i, r := range w.runs {
		more, moreDisjoint := w.starts(r)
		all, disjoint = all+more, disjoint+moreDisjoint
		t.all[i], t.disjoint[i] = all, disjoint
	}
	return t
}

// bytes is the size of the table.
func (w *windows) bytes() int64 { return 16 * int64(len(w.runs)) }

// table makes the table at its first use, and again when it was dropped.
func (w *windows) table() *table {
	s := w.slot
	t := s.table.Load()
	if t == nil {
		return tables.make(w)
	}
	s.touch()
	return t
}

// A slot holds the table of windows while it is one of those that stay in memory.
type slot struct {
	table atomic.Pointer[table]
	use
}

func newSlot() *slot {
	s := new(slot)
	s.forget = func() { s.table.Store(nil) }
	return s
}

// A use says when something that tables keeps in memory was used last.
type use struct {
	at     atomic.Int64 // what the clock of the tables said then
	bytes  int64        // what it takes; guarded by the mu of the tables
	forget func()       // drops it
}

func (u *use) touch() {
	if now := tables.clock.Load(); u.at.Load() != now { // most often it is: a store would take the cache line from other readers
		u.at.Store(now)
	}
}

// smallTable is the bytes of a table that is not worth dropping: its windows, and a sequence, take as much.
const smallTable = 1 << 10

// A tableCache bounds what the tables of all windows take, and the groups of all segmentRows: of the larger ones it drops those that were
// not used for longest. They are made again when they are wanted. A read that uses a dropped one keeps it.
type tableCache struct {
	clock atomic.Int64 // counts what was made

	mu    sync.Mutex // held while a table is made, so that it is made once; under it, that of a groupCache is taken
	most  int64      // bytes
	bytes int64      // of all in kept
	kept  map[*use]struct{}
}

var tables = tableCache{most: 64 << 20, kept: map[*use]struct{}{}}

// TableBytes is how much memory tables take that say where rows begin: 16 bytes for each file and block size in use, and of the
// documents that rows were made of lately some 32 bytes for each. Small tables, of up to 64 files, are not counted.
func TableBytes() int64 {
	tables.mu.Lock()
	defer tables.mu.Unlock()
	return tables.bytes
}

// SetTableLimit bounds TableBytes, which is 64 MiB at most until it is called. The table that was made last stays whatever its size.
// A smaller limit holds when the next table is made.
func SetTableLimit(bytes int64) {
	tables.mu.Lock()
	defer tables.mu.Unlock()
	tables.most = bytes
}

func (c *tableCache) make(w *windows) *table {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := w.slot
	if t := s.table.Load(); t != nil {
		return t
	}
	t := w.newTable()
	s.table.Store(t)
	if w.bytes() <= smallTable {
		return t
	}
	c.add(&s.use, w.bytes())
	return t
}

// keep keeps something that was made.
func (c *tableCache) keep(u *use, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(u, bytes)
}

func (c *tableCache) add(u *use, bytes int64) {
	u.at.Store(c.clock.Add(1))
	u.bytes = bytes
	c.bytes += bytes
	if c.bytes > c.most {
		c.dropOldest()
	}
	c.kept[u] = struct{}{}
}

// dropOldest drops a quarter more than it must, so that it does not sort all uses each time.
func (c *tableCache) dropOldest() {
	byUse := make([]*use, 0, len(c.kept))
	used := map[*use]int64{} // as it was, because readers go on
	for u := range c.kept {
		byUse, used[u] = append(byUse, u), u.at.Load()
	}
	slices.SortFunc(byUse, func(a, b *use) int { return cmp.Compare(used[a], used[b]) })
	for _, u := range byUse {
		if c.bytes <= c.most-c.most/4 {
			return
		}
		c.drop(u)
	}
}

func (c *tableCache) drop(u *use) {
	u.forget()
	c.bytes -= u.bytes
	delete(c.kept, u)
}

// collected drops the table of windows that nobody has any more.
func (c *tableCache) collected(s *slot) { c.collect(&s.use) }

// collectedGroups drops the groups of windows that nobody has any more.
func (c *tableCache) collectedGroups(groups *groupCache) { c.collect(groups.uses()...) }

func (c *tableCache) collect(uses ...*use) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range uses {
		if _, has := c.kept[u]; has {
			c.drop(u)
		}
	}
}

// A groupCache is the groups of a source that stay in memory.
type groupCache struct {
	mu    sync.Mutex // no other lock is taken under it
	slots map[int64]*groupSlot
}

type groupSlot struct {
	group *group
	use
}

func (c *groupCache) get(g int64) *group {
	c.mu.Lock()
	s := c.slots[g]
	c.mu.Unlock()
	if s == nil {
		return nil
	}
	s.touch()
	return s.group
}

// put keeps a group that was made. Two readers may make the same one at once: it is made without a lock, because the disk may not
// answer.
func (c *groupCache) put(g int64, made *group) {
	s := &groupSlot{group: made}
	s.forget = func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.slots[g] == s {
			delete(c.slots, g)
		}
	}
	c.mu.Lock()
	was := c.slots[g]
	if was == nil {
		c.slots[g] = s
	}
	c.mu.Unlock()
	if was == nil {
		tables.keep(&s.use, made.bytes())
	}
}

// uses are those of all groups.
func (c *groupCache) uses() (list []*use) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.slots {
		list = append(list, &s.use)
	}
	return list
}
