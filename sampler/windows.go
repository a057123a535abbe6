package sampler

import (
	"fmt"
	"runtime"
	"sort"
	"sync"
	"weak"

	"batchfs/cache"
)

// windows are the positions in a source's tokens at which a row of T tokens and the one after can begin. They take 16 bytes for
// each run, and are never written once they are made.
type windows struct {
	runs     []cache.Run
	size     int64      // T
	all      prefixSums // of each run's len-T starts
	disjoint prefixSums // of each run's (len-1)/T starts, T apart
}

func newWindows(runs []cache.Run, blockSize int) (*windows, error) {
	w := &windows{runs: runs, size: int64(blockSize), all: make(prefixSums, 0, len(runs)), disjoint: make(prefixSums, 0, len(runs))}
	for _, r := range runs {
		if r.Len <= w.size {
			return nil, fmt.Errorf("%s: %d tokens, need at least block_size+1 = %d", r.Name, r.Len, w.size+1)
		}
		w.all.add(r.Len - w.size)
		w.disjoint.add((r.Len - 1) / w.size)
	}
	return w, nil
}

// at is the position of start i of all.
func (w *windows) at(i int64) int64 {
	run, rest := w.all.find(i)
	return w.runs[run].Start + rest
}

// disjointAt is the position of the i-th disjoint window.
func (w *windows) disjointAt(i int64) int64 {
	run, rest := w.disjoint.find(i)
	return w.runs[run].Start + rest*w.size
}

// holding are the disjoint windows whose T+1 tokens have pos among them: one, two where pos is the last of one and the
// first of the next, or none in the tail of a run.
func (w *windows) holding(pos int64) (list []int64) {
	run := sort.Search(len(w.runs), func(i int) bool { return w.runs[i].Start > pos }) - 1
	first := int64(0)
	if run > 0 {
		first = w.disjoint[run-1]
	}
	count, in := w.disjoint[run]-first, pos-w.runs[run].Start
	if i := in/w.size - 1; in%w.size == 0 && i >= 0 && i < count {
		list = append(list, first+i)
	}
	if i := in / w.size; i < count {
		list = append(list, first+i)
	}
	return list
}

// prefixSums are the running sums of counts.
type prefixSums []int64

func (s *prefixSums) add(n int64) { *s = append(*s, s.total()+n) }

func (s prefixSums) total() int64 {
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1]
}

// find returns which count i falls in, and how far.
func (s prefixSums) find(i int64) (which int, rest int64) {
	which = sort.Search(len(s), func(j int) bool { return i < s[j] })
	if which > 0 {
		i -= s[which-1]
	}
	return which, i
}

// windowTables are the windows of one source by block size, so that all sequences of one block size share theirs. A table that
// no sequence uses any more is left to the collector. It is safe for concurrent use.
type windowTables struct {
	runs []cache.Run

	mu     sync.Mutex                    // held while a table is made, so that it is made once; no other lock is taken under it
	bySize map[int]weak.Pointer[windows] // guarded by mu
}

func newWindowTables(runs []cache.Run) *windowTables {
	return &windowTables{runs: runs, bySize: map[int]weak.Pointer[windows]{}}
}

// get returns the windows for a block size. The error names a run that is too short for it.
func (t *windowTables) get(blockSize int) (*windows, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.bySize[blockSize].Value(); w != nil {
		return w, nil
	}
	w, err := newWindows(t.runs, blockSize)
	if err != nil {
		return nil, err
	}
	t.bySize[blockSize] = weak.Make(w)
	runtime.AddCleanup(w, t.forget, blockSize)
	return w, nil
}

// forget drops the entry of a table that was collected, unless it has been made again since.
func (t *windowTables) forget(blockSize int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bySize[blockSize].Value() == nil {
		delete(t.bySize, blockSize)
	}
}
