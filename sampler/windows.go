package sampler

import (
	"fmt"
	"maps"
	"sort"
	"sync"
	"sync/atomic"
	"weak"

	"batchfs/cache/array"
)

// A window is what a row takes of a source. Nothing else of the settings decides which windows there are.
type window struct {
	len, step int64 // elements, and how many of them the next disjoint row does not take: T+1 and T for x and y
	rows      Rows  // if rows are made of segments, which have len elements at most, else ""
}

func (s *Settings) window() window {
	w := window{len: int64(s.BlockSize) + 1, step: int64(s.BlockSize)}
	if s.Layout == Elements {
		w = window{len: 1, step: 1}
	} else if s.ofSegments() {
		w.rows = s.Rows
	}
	return w
}

// fit is how many disjoint windows there are in n elements.
func (w window) fit(n int64) int64 { return max(n-w.len+w.step, 0) / w.step }

type windows struct {
	window
	runs          []array.Run
	all, disjoint int64                       // how many starts there are, and disjoint ones, a step apart
	upTo          *atomic.Pointer[prefixSums] // the disjoint starts up to each run, if tables have them
	tables        *Tables
	segments      *segmentRows // where a position is the number of one of these rows, or nil
}

func newWindows(runs []array.Run, of window, tables *Tables) (*windows, error) {
	w := &windows{window: of, runs: runs, upTo: new(atomic.Pointer[prefixSums]), tables: tables}
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

// segmentsAt calls visit for each segment of the row at a position until it returns false.
func (w *windows) segmentsAt(pos int64, visit func(Segment) bool) error {
	if w.segments != nil {
		return w.segments.at(pos, visit)
	}
	visit(Segment{Start: pos, Len: int(w.len), Document: -1})
	return nil
}

// disjointUpTo makes the sums at their first use, and again when they were dropped.
func (w *windows) disjointUpTo() prefixSums {
	if sums := w.upTo.Load(); sums != nil {
		return *sums
	}
	sums, sum := make(prefixSums, len(w.runs)), int64(0)
	for i, r := range w.runs {
		sum += w.fit(r.Len)
		sums[i] = sum
	}
	keep(w.tables, w.upTo, &sums, 8*int64(len(sums)))
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
	counted window // the rows that Source.Groups counts

	mu   sync.Mutex                       // held while windows are made, so that they are made once
	made map[window]weak.Pointer[windows] // guarded by mu
}

func (k *windowKinds) get(kind window) (*windows, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.made[kind].Value(); w != nil {
		return w, nil
	}
	w, err := k.make(kind)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(k.made, func(_ window, made weak.Pointer[windows]) bool { return made.Value() == nil })
	k.made[kind] = weak.Make(w)
	return w, nil
}

func (k *windowKinds) make(kind window) (*windows, error) {
	runs := k.of.Main.Runs()
	if kind.rows == "" {
		return newWindows(runs, kind, k.of.Tables)
	}
	var sums prefixSums
	if kind == k.counted {
		sums = k.of.Groups
	}
	segments, err := newSegmentRows(k.of.Documents, kind, sums, k.of.Tables)
	if err != nil {
		return nil, err
	}
	w, err := newWindows([]array.Run{{Name: runs[0].Name, Len: segments.sums[len(segments.sums)-1]}}, window{len: 1, step: 1}, k.of.Tables)
	if err != nil {
		return nil, err
	}
	w.segments = segments
	return w, nil
}
