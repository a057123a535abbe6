package sampler

import (
	"fmt"
	"runtime"
	"sort"
	"sync"
	"weak"

	"batchfs/cache"
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
func (w window) starts(r cache.Run) (all, disjoint int64) { return r.Len - w.len + 1, w.fit(r.Len) }

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
	runs          []cache.Run
	all, disjoint int64 // how many starts there are, and disjoint ones, a step apart
	slot          *slot
	segments      *segmentRows // where a position is the number of one of these rows, or nil
}

func newWindows(runs []cache.Run, of window) (*windows, error) {
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
func (w *windows) runAt(pos int64) (run cache.Run, before int64) {
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

// windowTables are the windows of one source, so that all sequences with rows of one kind share theirs. Windows that
// no sequence uses any more are left to the collector. It is safe for concurrent use.
type windowTables struct {
	runs      []cache.Run
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
	if s.ofSegments() {
		return rowKind{s.window(), s.Rows}
	}
	return rowKind{window: s.window()}
}

func newWindowTables(runs []cache.Run) *windowTables {
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
	if w.segments != nil {
		runtime.AddCleanup(w, tables.collectedGroups, w.segments.made)
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
	segments, err := newSegmentRows(t.documents, cut{of.rows, of.step}, sums)
	if err != nil {
		return nil, err
	}
	w, err := newWindows([]cache.Run{{Name: t.runs[0].Name, Len: segments.rows()}}, window{1, 1})
	if err != nil {
		return nil, err
	}
	w.segments = segments
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
