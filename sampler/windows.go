package sampler

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"weak"

	"batchfs/cache/array"
)

// A window is what a row takes of a source: some elements, and how many of them the next disjoint row does not take. For x and y
// these are T+1 and T.
type window struct{ len, step int64 }

// window is that of a row.
func (s *Settings) window() window {
	if s.Layout == Elements {
		return window{1, 1}
	}
	return window{int64(s.BlockSize) + 1, int64(s.BlockSize)}
}

// starts is how many windows begin in a run, and how many disjoint ones.
func (w window) starts(r array.Run) (all, disjoint int64) { return r.Len - w.len + 1, w.fit(r.Len) }

// fit is how many disjoint windows there are in n elements.
func (w window) fit(n int64) int64 { return max(n-w.len+w.step, 0) / w.step }

// holding are those of count disjoint windows that have element i, counted from the first of them: one, two where it is the last of
// one and the first of the next, or none.
func (w window) holding(i, count int64) (list []int64) {
	if i < 0 {
		return nil
	}
	if n := i/w.step - 1; i-n*w.step < w.len && n >= 0 && n < count {
		list = append(list, n)
	}
	if n := i / w.step; n < count {
		list = append(list, n)
	}
	return list
}

// windows are the positions in a source at which a window can begin.
type windows struct {
	window
	runs          []array.Run
	all, disjoint int64 // how many starts there are, and disjoint ones, a step apart
	slot          *slot
	pieces        *pieceRows // where a position is the number of one of these rows, or nil
}

func newWindows(runs []array.Run, of window) (*windows, error) {
	w := &windows{window: of, runs: runs, slot: newSlot()}
	for _, r := range runs {
		if r.Len < w.len {
			return nil, fmt.Errorf("%s: %d tokens, need at least block_size+1 = %d", r.Name, r.Len, w.len)
		}
		all, disjoint := w.starts(r)
		w.all += all
		w.disjoint += disjoint
	}
	return w, nil
}

// at is the position of start i of all.
func (w *windows) at(i int64) int64 {
	run, rest := w.table().all.find(i)
	return w.runs[run].Start + rest
}

// disjointAt is the position of the i-th disjoint window.
func (w *windows) disjointAt(i int64) int64 {
	run, rest := w.table().disjoint.find(i)
	return w.runs[run].Start + rest*w.step
}

// runAt is the run that holds a position, or the last one for the position behind all, and how many disjoint windows are before it.
func (w *windows) runAt(pos int64) (run array.Run, before int64) {
	i := sort.Search(len(w.runs), func(i int) bool { return w.runs[i].Start > pos }) - 1
	if i > 0 {
		before = w.table().disjoint[i-1]
	}
	return w.runs[i], before
}

// prefixSums are the running sums of counts.
type prefixSums []int64

// find returns which count i falls in, and how far.
func (s prefixSums) find(i int64) (which int, rest int64) {
	which = sort.Search(len(s), func(j int) bool { return i < s[j] })
	if which > 0 {
		i -= s[which-1]
	}
	return which, i
}

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

// A tableCache bounds what the tables of all windows take, and the groups of all pieceRows: of the larger ones it drops those that were
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

// windowTables are the windows of one source, so that all sequences with rows of one kind share theirs. Windows that
// no sequence uses any more are left to the collector. It is safe for concurrent use.
type windowTables struct {
	runs      []array.Run
	documents Documents
	counted   rowKind    // rows that were counted before,
	sums      prefixSums // and their counts

	mu   sync.Mutex                        // held while windows are made, so that they are made once; that of tables is taken under it
	made map[rowKind]weak.Pointer[windows] // guarded by mu
}

// A rowKind is all that the windows of a source depend on.
type rowKind struct {
	window
	rows Rows // "" for those of Windows
}

func (s *Settings) rowKind() rowKind {
	if s.ofPieces() {
		return rowKind{s.window(), s.Rows}
	}
	return rowKind{window: s.window()}
}

func newWindowTables(runs []array.Run) *windowTables {
	return &windowTables{runs: runs, made: map[rowKind]weak.Pointer[windows]{}}
}

// get returns the windows of one kind. The error names a run that is too short for one.
func (t *windowTables) get(of rowKind) (*windows, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.made[of].Value(); w != nil {
		return w, nil
	}
	w, err := t.make(of)
	if err != nil {
		return nil, err
	}
	t.made[of] = weak.Make(w)
	runtime.AddCleanup(w, t.forget, of)
	runtime.AddCleanup(w, tables.collected, w.slot)
	if w.pieces != nil {
		runtime.AddCleanup(w, tables.collectedGroups, w.pieces.made)
	}
	return w, nil
}

func (t *windowTables) make(of rowKind) (*windows, error) {
	if of.rows == "" {
		return newWindows(t.runs, of.window)
	}
	var sums prefixSums
	if of == t.counted {
		sums = t.sums
	}
	pieces, err := newPieceRows(t.documents, cut{of.rows, of.step}, sums)
	if err != nil {
		return nil, err
	}
	w, err := newWindows([]array.Run{{Name: t.runs[0].Name, Len: pieces.rows()}}, window{1, 1})
	if err != nil {
		return nil, err
	}
	w.pieces = pieces
	return w, nil
}

// forget drops the entry of windows that were collected, unless they have been made again since.
func (t *windowTables) forget(of rowKind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.made[of].Value() == nil {
		delete(t.made, of)
	}
}
