package fs

import (
	"errors"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/cache/array"
	"batchfs/fs/guard"
	"batchfs/fs/mount"
	"batchfs/fs/state"
	"batchfs/internal/wait"
)

// late is the channel of a request that is late.
var late = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// blocked is a split whose token files give no answer until release is called.
func blocked() (s *fake, waits <-chan struct{}, release func()) {
	s = counting("train", 1000)
	entered, gate := make(chan struct{}, 100), make(chan struct{})
	s.now = func(uint64) (Sequence, error) {
		entered <- struct{}{}
		<-gate
		return s, nil
	}
	s.info = func() []byte { return []byte("{}\n") }
	return s, entered, sync.OnceFunc(func() { close(gate) })
}

// guarded is a Guard around the tree, whose requests are never late.
func (t *tree) guarded(splits int) *guard.Guard {
	return guard.New(t, guard.Options{Limits: guard.NewLimits(splits, 64<<20), Shared: t.shared, Timeout: time.Hour,
		Panicked: func(any) fuse.Status { return fuse.EIO }})
}

// The number of a read that is late goes to the next reader, whether it was assigned before or after.
func TestLateReadGivesItsNumberBack(t *testing.T) {
	const size, id = 1000, 1_000_000
	whole := state.Span{Off: 0, Len: size, Size: size}
	for _, first := range []string{"assigned", "late"} {
		tr := plant(t, counting("train", size))
		read := state.Read{FH: tr.reader(t, "train/next", 0).fh, ID: id, Span: whole}
		if first == "assigned" {
			if k, err := tr.reads.assign(read, nil); k != 0 || err != nil {
				t.Fatal(k, err)
			}
		}
		tr.GiveBack(id)
		if first == "late" {
			if _, err := tr.reads.assign(read, late); err != guard.ErrLate {
				t.Fatal(err)
			}
		}
		next := tr.reader(t, "train/next", 0)
		if got := next.batch(t, size); got != 0 {
			t.Errorf("%s first: the next reader got batch %d, want 0", first, got)
		}
		tr.Answered(next.unique)
		if n := len(tr.reads.assigned); n > 0 {
			t.Errorf("%s first: %d reads are under way", first, n)
		}
	}
}

// A read that panics is an error, and its number goes to the next reader.
func TestPanickingRead(t *testing.T) {
	s := counting("train", 1000)
	whole, panics := s.read, true
	s.read = func(dst []byte, k uint64, off int64) error {
		if panics {
			panic("at the disco")
		}
		return whole(dst, k, off)
	}
	tr := plant(t, s)
	r := tr.reader(t, "train/next", 0)
	in := &fuse.ReadIn{Fh: r.fh, Size: 1000, ReadFlags: fuse.READ_LOCKOWNER}
	in.NodeId, in.Unique = uint64(r.node), lastUnique.Add(2)
	if _, status := tr.guarded(1).Read(nil, in, make([]byte, 1000)); status != fuse.EIO {
		t.Error(status)
	}
	panics = false
	if got := tr.reader(t, "train/next", 0).batch(t, 1000); got != 0 {
		t.Errorf("the next reader gets batch %d, want 0", got)
	}
}

// Which requests look at token files, and how much reads read.
func TestRowsOfRequests(t *testing.T) {
	s := counting("train", 8000)
	row := array.Array{Name: "tokens", DType: array.Uint16, Shape: []int{40, 100}}
	s.Batch, s.Follows = array.NewBatch(1, row), true
	tr := plant(t, s)
	for path, want := range map[string]int64{
		"README": 0, "status.json": 0, "train/cursor": 0, "train/info.json": 1, "train/next": 1, "train/batch/3": 1, "train/batches.bin": 1, "train/tokens.bin": 1,
	} {
		if got := tr.OpenRows(uint64(tr.find(path))); got != want {
			t.Errorf("open of %s: %d rows, want %d", path, got, want)
		}
	}
	for dir, names := range map[string]map[string]int64{
		"train":       {"seed=1": 1, "next": 0, "cursor": 0, "batch": 0, "batches.bin": 1},
		"train/batch": {"3": 1, "3.npy": 1},
	} {
		for name, want := range names {
			if got := tr.LookupRows(uint64(tr.find(dir)), name); got != want {
				t.Errorf("lookup of %s in %s: %d rows, want %d", name, dir, got, want)
			}
		}
	}
	type read struct {
		path string
		off  uint64
		size uint32
	}
	for r, want := range map[read][2]int64{
		{"train/next", 0, 1 << 20}: {40, 8000}, {"train/next", 7900, 200}: {1, 100}, {"train/next", 8000, 200}: {0, 0},
		{"train/batches.bin", 0, 1 << 20}: {200, 40_000}, {"train/batch/7", 100, 300}: {2, 300}, {"README", 0, 4096}: {0, 0}, {"train/cursor", 0, 10}: {0, 0},
	} {
		in := &fuse.ReadIn{Offset: r.off, Size: r.size}
		in.NodeId = uint64(tr.find(r.path))
		if rows, bytes := tr.ReadRows(in); [2]int64{rows, int64(bytes)} != want {
			t.Errorf("%v: %d rows, %d bytes, want %v", r, rows, bytes, want)
		}
	}
}

// A handler that is late may find that the kernel has forgotten its file. Its request is an error then, and ends no process.
func TestLateHandlerOfAForgottenFile(t *testing.T) {
	s, waits, release := blocked()
	other := counting("train/seed=1", 1000)
	other.now = func(uint64) (Sequence, error) { return s.Now(array.NoBatch) }
	s.with = func(string) (Sequence, error) { return other, nil }
	tr := plant(t, s)
	defer release()
	number := tr.sequences.add(other, 0)
	tr.shared.CountLookup(number, 2)
	fh, _ := tr.handles.Open(number, false, 4)
	status := make(chan fuse.Status, 1)
	go func() {
		in := &fuse.ReadIn{Fh: fh, Size: 100, ReadFlags: fuse.READ_LOCKOWNER}
		in.NodeId, in.Unique = uint64(makeInode(nextNPY, number, 0)), 6
		_, st := tr.Read(nil, in, make([]byte, 100))
		status <- st
	}()
	wait.For(t, "a handler that waits for token files", waits)
	tr.handles.Release(fh)
	tr.sequences.forget(number, 1)
	release()
	stale := fuse.Status(syscall.ESTALE)
	if st := wait.For(t, "the answer to the read", status); st != stale {
		t.Errorf("its read: %v, want ESTALE", st)
	}
	in := &fuse.GetAttrIn{}
	in.NodeId = uint64(makeInode(nextNPY, number, 0))
	if st := tr.GetAttr(nil, in, &fuse.AttrOut{}); st != stale {
		t.Errorf("its attributes: %v, want ESTALE", st)
	}
	if st := tr.Lookup(nil, &fuse.InHeader{NodeId: uint64(makeInode(batchDir, number, 0))}, "3", &fuse.EntryOut{}); st != stale {
		t.Errorf("a lookup: %v, want ESTALE", st)
	}
	if _, err := tr.sequences.now(number, array.NoBatch); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("its tokens: %v, want ESTALE", err)
	}
}

// A batch that is made ahead is read in parts no longer than a request, however long its rows are.
func TestBatchesAheadAreReadInParts(t *testing.T) {
	for _, shape := range [][]int{{1, 3 << 20}, {3, 300_000}, {1000, 1}, {5, 700, 300}} {
		batch := array.NewBatch(1, array.Array{Name: "rows", DType: array.Uint8, Shape: shape})
		s := counting("train", batch.Bytes())
		s.Batch = batch
		whole, largest, read := s.read, 0, 0
		s.read = func(dst []byte, k uint64, off int64) error {
			if int64(off) != int64(read) {
				t.Errorf("%v: byte %d is read after %d", shape, off, read)
			}
			largest, read = max(largest, len(dst)), read+len(dst)
			return whole(dst, k, off)
		}
		got, want := make([]byte, batch.Bytes()), make([]byte, batch.Bytes())
		if err := readInParts(s, got, 3); err != nil {
			t.Fatal(err)
		}
		whole(want, 3, 0)
		if !slices.Equal(got, want) || int64(read) != batch.Bytes() || largest > mount.MaxRequest {
			t.Errorf("%v: %d bytes of %d are read, %d at once", shape, read, batch.Bytes(), largest)
		}
	}
}
