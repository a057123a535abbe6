package sampler

import (
	"fmt"
	"runtime"
	"sort"
	"sync"
	"weak"

	"batchfs/cache/array"
)

// A window is what a row takes of a source: some elements, and how many of them the next disjoint row does not take. For x and y
// these are T+1 and T.
type window struct{ len, step int64 }

func (s *Settings) window() window {
	if s.Layout == Elements {
		return window{1, 1}
	}
	return window{int64(s.BlockSize) + 1, int64(s.BlockSize)}
}

// fit is how many disjoint windows there are in n elements.
func (w window) fit(n int64) int64 { return max(n-w.len+w.step, 0) / w.step }

// holding are the numbers of the windows, of count disjoint ones, that have element i, counted from the first window's: one, two that share
// the element, or none.
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

type windows struct {
	window
	runs          []array.Run
	all, disjoint int64              // how many starts there are, and disjoint ones, a step apart
	upTo          *shelf[prefixSums] // one: the disjoint starts up to each run
	segments      *segmentRows       // where a position is the number of one of these rows, or nil
}

func newWindows(runs []array.Run, of window, tables *Tables) (*windows, error) {
	w := &windows{window: of, runs: runs, upTo: newShelf[prefixSums](tables, 1)}
	for _, r := range runs {
		if r.Len < w.len {
			return nil, fmt.Errorf("%s: %d tokens, need at least block_size+1 = %d", r.Name, r.Len, w.len)
		}
		w.all += r.Len - w.len + 1
		w.disjoint += w.fit(r.Len)
	}
	return w, nil
}

// at is the position of start i of all. Each run before has len-1 positions at which no window begins.
func (w *windows) at(i int64) int64 {
	run := sort.Search(len(w.runs), func(n int) bool { return i < w.runs[n].Start+w.runs[n].Len-int64(n+1)*(w.len-1) })
	return i + int64(run)*(w.len-1)
}

// disjointAt is the position of the i-th disjoint window.
func (w *windows) disjointAt(i int64) int64 {
	run, rest := w.disjointUpTo().find(i)
	return w.runs[run].Start + rest*w.step
}

// runAt is the run that holds a position, or the last one for the position behind all, and how many disjoint windows are before it.
func (w *windows) runAt(pos int64) (run array.Run, before int64) {
	i := sort.Search(len(w.runs), func(i int) bool { return w.runs[i].Start > pos }) - 1
	if i > 0 {
		before = w.disjointUpTo()[i-1]
	}
	return w.runs[i], before
}

// disjointUpTo makes the sums at their first use, and again when they were dropped.
func (w *windows) disjointUpTo() prefixSums {
	if sums, ok := w.upTo.get(0); ok {
		return sums
	}
	sums, sum := make(prefixSums, len(w.runs)), int64(0)
	for i, r := range w.runs {
		sum += w.fit(r.Len)
		sums[i] = sum
	}
	w.upTo.put(0, 8*int64(len(sums)), sums)
	return sums
}

type prefixSums []int64

// find returns which count i falls in, and how far.
func (s prefixSums) find(i int64) (which int, rest int64) {
	which = sort.Search(len(s), func(j int) bool { return i < s[j] })
	if which > 0 {
		i -= s[which-1]
	}
	return which, i
}

// windowKinds are the windows of one source by kind, which all its sequences share. The collector frees windows that no sequence uses any
// more. windowKinds are safe for concurrent use.
type windowKinds struct {
	of      Source
	counted rowKind // the rows that Source.Groups counts

	mu   sync.Mutex                        // held while windows are made, so that they are made once
	made map[rowKind]weak.Pointer[windows] // guarded by mu
}

func newWindowKinds(of Source, counted rowKind) *windowKinds {
	if of.Tables == nil {
		of.Tables = NewTables(defaultTables)
	}
	return &windowKinds{of: of, counted: counted, made: map[rowKind]weak.Pointer[windows]{}}
}

// A rowKind is all that the windows of a source depend on.
type rowKind struct {
	window
	rows Rows // "" for Windows
}

func (s *Settings) rowKind() rowKind {
	if s.ofSegments() {
		return rowKind{s.window(), s.Rows}
	}
	return rowKind{window: s.window()}
}

func (k *windowKinds) get(kind rowKind) (*windows, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.made[kind].Value(); w != nil {
		return w, nil
	}
	w, err := k.make(kind)
	if err != nil {
		return nil, err
	}
	k.made[kind] = weak.Make(w)
	runtime.AddCleanup(w, k.forget, kind)
	runtime.AddCleanup(w, (*shelf[prefixSums]).clear, w.upTo)
	if w.segments != nil {
		runtime.AddCleanup(w, (*shelf[*group]).clear, w.segments.made)
	}
	return w, nil
}

func (k *windowKinds) make(kind rowKind) (*windows, error) {
	runs := k.of.Main.Runs()
	if kind.rows == "" {
		return newWindows(runs, kind.window, k.of.Tables)
	}
	var sums prefixSums
	if kind == k.counted {
		sums = k.of.Groups
	}
	segments, err := newSegmentRows(k.of.Documents, cut{kind.rows, kind.step}, sums, k.of.Tables)
	if err != nil {
		return nil, err
	}
	w, err := newWindows([]array.Run{{Name: runs[0].Name, Len: segments.rows()}}, window{1, 1}, k.of.Tables)
	if err != nil {
		return nil, err
	}
	w.segments = segments
	return w, nil
}

func (k *windowKinds) forget(kind rowKind) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.made[kind].Value() == nil { // else they have been made again since
		delete(k.made, kind)
	}
}
