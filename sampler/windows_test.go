package sampler

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"batchfs/cache/array"
	"batchfs/internal/wait"
)

// manyFiles are tokens in 10,000 files, of which only the runs are of use.
type manyFiles struct {
	Array
	runs []array.Run
}

func (manyFiles) DType() array.DType  { return array.Uint16 }
func (manyFiles) Axes() []int         { return nil }
func (m manyFiles) VocabSize() int64  { return 0 }
func (m manyFiles) Runs() []array.Run { return m.runs }

func newManyFiles() Source {
	var m manyFiles
	for i := range int64(10_000) {
		m.runs = append(m.runs, array.Run{Name: "train.bin", Start: i * 3000, Len: 3000})
	}
	return Source{Main: m}
}

// heap is the bytes that are in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // which also empties pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Sequences of one block size share their windows, whatever else they differ in and whichever sequence made them. What another
// sequence takes does not depend on the number of files.
func TestSequencesShareTheirWindows(t *testing.T) {
	const (
		count = 1000
		table = 10_000 * 16 // bytes of the table of a block size
		each  = 2 << 10     // bytes of a sequence, at most
	)
	base := Settings{Split: "train", BatchSize: 12, BlockSize: 1024, DType: array.Uint16, Layout: XY, Order: Random, World: 1, Weights: []float64{1, 2}}
	first, err := New([]Source{newManyFiles(), newManyFiles()}, base)
	must(t, err)
	before := heap()
	of := map[int]*Sequence{1024: first}
	all := []*Sequence{first}
	for i := range count {
		s := base
		s.Seed, s.World, s.Rank = uint64(i), 8, i%8
		s.BlockSize = []int{1024, 512, 2048}[i%3]
		s.Order = []Order{Random, Shuffle, Sequential}[i/3%3]
		s.Layout = []Layout{XY, WholeRows}[i/9%2]
		q, err := all[(i*7)%len(all)].With(s)
		must(t, err)
		all = append(all, q)
		if of[s.BlockSize] == nil {
			of[s.BlockSize] = q
		}
		for n := range q.sources {
			if q.sources[n].windows != of[s.BlockSize].sources[n].windows {
				t.Fatalf("sequence %d has windows of its own for source %d and block size %d", i, n, s.BlockSize)
			}
		}
	}
	if grown := heap() - before; grown > 2*2*table*5/4+count*each {
		t.Errorf("%d sequences took %d bytes, with the tables of 2 more block sizes of 2 sources, of %d bytes each", count, grown, table)
	}
	if first.sources[0].windows == first.sources[1].windows {
		t.Error("two sources have the same windows")
	}
	runtime.KeepAlive(all)
}

// Windows that no sequence uses any more are collected, and so is what was known of them.
func TestUnusedWindowsAreCollected(t *testing.T) {
	base := Settings{Split: "train", BatchSize: 12, BlockSize: 1024, DType: array.Uint16, Layout: XY, Order: Shuffle, World: 1}
	q, err := New([]Source{newManyFiles()}, base)
	must(t, err)
	before := heap()
	for size := range few(200, 1000) {
		s := base
		s.BlockSize = 1 + size
		_, err := q.With(s)
		must(t, err)
	}
	left := func() int {
		tables := q.sources[0].tables
		tables.mu.Lock()
		defer tables.mu.Unlock()
		return len(tables.made)
	}
	for deadline := time.Now().Add(time.Minute); left() > 1; {
		if time.Now().After(deadline) {
			t.Fatalf("%d block sizes are known, of which 1 is in use", left())
		}
		runtime.GC()
	}
	if grown := heap() - before; grown > 1<<20 {
		t.Errorf("%d bytes are left of many block sizes", grown)
	}
	same, err := q.With(base)
	must(t, err)
	if same.sources[0].windows != q.sources[0].windows {
		t.Error("windows that are in use were forgotten")
	}
}

// However many ask for a block size at once, while the windows come and go.
func TestWindowsAreMadeOnce(t *testing.T) {
	tables := newWindowTables([]array.Run{{Name: "train.bin", Len: 1000}})
	for range 100 {
		var together sync.WaitGroup
		got := make([]*windows, 8)
		for i := range got {
			together.Go(func() {
				w, err := tables.get(rowKind{window: ofBlock(7)})
				must(t, err)
				got[i] = w
			})
		}
		wait.End(t, "the readers", together.Wait)
		for _, w := range got {
			if w != got[0] || w.step != 7 {
				t.Fatalf("windows %p of %d tokens, want %p", w, w.step, got[0])
			}
		}
		clear(got)
		runtime.GC()
	}
}

// The tables of many block sizes take no more than the limit, and rows begin where they would with all of them.
func TestTablesAreBounded(t *testing.T) {
	const sizes, limit = 100, 10 * 160_000
	before := TableBytes()
	SetTableLimit(before + limit)
	defer SetTableLimit(64 << 20)
	base := Settings{Split: "train", BatchSize: 12, BlockSize: 1024, DType: array.Uint16, Layout: XY, Order: Random, World: 1}
	first, err := New([]Source{newManyFiles()}, base)
	must(t, err)
	var all []*Sequence
	for size := range sizes {
		s := base
		s.BlockSize, s.Order = 1+size, []Order{Random, Shuffle, Sequential}[size%3]
		q, err := first.With(s)
		must(t, err)
		all = append(all, q)
	}
	want := make([]int64, sizes)
	for i, q := range all {
		_, want[i] = q.Start(3, 5)
	}
	var together sync.WaitGroup
	for range 4 {
		together.Go(func() {
			for range few(3, 20) {
				for i, q := range all {
					if _, got := q.Start(3, 5); got != want[i] {
						t.Errorf("block size %d: row 5 of batch 3 begins at %d, and did at %d", q.BlockSize, got, want[i])
					}
					if n := TableBytes(); n > before+limit {
						t.Errorf("tables take %d bytes, may take %d", n-before, limit)
					}
				}
			}
		})
	}
	wait.End(t, "the readers", together.Wait)
	if n := TableBytes() - before; n < limit/2 {
		t.Errorf("tables take %d bytes, may take %d", n, limit)
	}
	// One that is used stays, whatever others do.
	kept := all[7].sources[0].windows
	kept.table()
	for _, q := range all {
		was := kept.slot.table.Load()
		q.Start(0, 0)
		if all[7].Start(0, 0); kept.slot.table.Load() != was {
			t.Fatal("the table that was used last was dropped")
		}
	}
	runtime.KeepAlive(all)
	all = nil
	for deadline := time.Now().Add(time.Minute); TableBytes() > before; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatalf("tables of nobody take %d bytes", TableBytes()-before)
		}
	}
	runtime.KeepAlive(first)
}

// A run that is too short is told at each attempt, and leaves nothing.
func TestNoWindowsOfAShortRun(t *testing.T) {
	tables := newWindowTables([]array.Run{{Name: "train.bin", Len: 1000}})
	for range 2 {
		const want = "train.bin: 1000 tokens, need at least block_size+1 = 1001"
		if _, err := tables.get(rowKind{window: ofBlock(1000)}); fmt.Sprint(err) != want || len(tables.made) != 0 {
			t.Errorf("error %v, want %s; %d tables", err, want, len(tables.made))
		}
	}
}

// ofBlock is the window of rows with x and y of a block size.
func ofBlock(size int) window { return (&Settings{BlockSize: size}).window() }
