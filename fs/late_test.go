package fs

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/cache/array"
	"batchfs/fs/guard"
	"batchfs/fs/mount"
	"batchfs/fs/state"
)

// late is the channel of a request that is late.
var late = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

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
		in := &fuse.ReadIn{InHeader: fuse.InHeader{NodeId: uint64(tr.find(r.path))}, Offset: r.off, Size: r.size}
		if rows, bytes := tr.ReadRows(in); [2]int64{rows, int64(bytes)} != want {
			t.Errorf("%v: %d rows, %d bytes, want %v", r, rows, bytes, want)
		}
	}
}

// A handler that is late may find that the kernel has forgotten its file. Its request is an error then, and ends no process.
func TestLateHandlerOfAForgottenFile(t *testing.T) {
	s, other := counting("train", 1000), counting("train/seed=1", 1000)
	s.with = func(string) (Sequence, error) { return other, nil }
	tr := plant(t, s)
	number := tr.sequences.mustLookUp(t, tr.find("train"), "seed=1")
	fh, _ := tr.handles.Open(number, false, 4)
	other.now = func(uint64) (Sequence, error) { // meanwhile
		tr.handles.Release(fh)
		tr.sequences.forget(number, 1)
		return other, nil
	}
	node, stale := uint64(makeInode(nextNPY, number, 0)), fuse.Status(syscall.ESTALE)
	in := &fuse.ReadIn{InHeader: fuse.InHeader{NodeId: node, Unique: 6}, Fh: fh, Size: 100, ReadFlags: fuse.READ_LOCKOWNER}
	if _, st := tr.Read(nil, in, make([]byte, 100)); st != stale {
		t.Errorf("its read: %v, want ESTALE", st)
	}
	if st := tr.GetAttr(nil, &fuse.GetAttrIn{InHeader: in.InHeader}, &fuse.AttrOut{}); st != stale {
		t.Errorf("its attributes: %v, want ESTALE", st)
	}
	if st := tr.Lookup(nil, &fuse.InHeader{NodeId: uint64(makeInode(batchDir, number, 0))}, "3", &fuse.EntryOut{}); st != stale {
		t.Errorf("a lookup: %v, want ESTALE", st)
	}
	if n := len(tr.entries(makeInode(splitDir, number, 0), 0)); n > 0 {
		t.Errorf("its directory lists %d files", n)
	}
}

// A batch that is made ahead is read in parts no longer than a request.
func TestBatchesAheadAreReadInParts(t *testing.T) {
	const size = 3*mount.MaxRequest + 100
	s := counting("train", size)
	whole := s.read
	s.read = func(dst []byte, k uint64, off int64) error {
		if len(dst) > mount.MaxRequest {
			t.Errorf("%d bytes are read at once", len(dst))
		}
		return whole(dst, k, off)
	}
	got, want := make([]byte, size), make([]byte, size)
	readInParts(s, got, 3)
	if whole(want, 3, 0); !slices.Equal(got, want) {
		t.Error("the bytes are others than those of a read at once")
	}
}
