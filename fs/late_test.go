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
	return guard.New(t, guard.Options{Splits: splits, Shared: t.shared, Timeout: time.Hour,
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
			if k, err := tr.handles.AssignBatch(read, nil); k != 0 || err != nil {
				t.Fatal(k, err)
			}
		}
		tr.GiveBack(id)
		if first == "late" {
			if _, err := tr.handles.AssignBatch(read, late); err != state.ErrLate {
				t.Fatal(err)
			}
		}
		next := tr.reader(t, "train/next", 0)
		if got := next.batch(t, size); got != 0 {
			t.Errorf("%s first: the next reader got batch %d, want 0", first, got)
		}
	}
}

// While as many requests use a split's files as may, others that look at them wait until they are late, and those that do not are answered.
func TestRequestsWaitForFiles(t *testing.T) {
	s := counting("train", 8000)
	row := array.Array{Name: "tokens", DType: array.Uint16, Shape: []int{40, 100}}
	s.Batch, s.Follows, s.TokensLen = array.NewBatch(1, row), true, 1000
	tr := plant(t, s)
	paths := map[string]bool{ // and whether they look at token files
		"README": false, "status.json": false, "train/cursor": false, "train/info.json": true, "train/next": true, "train/batch/3": true,
		"train/batches.bin": true, "train/tokens.bin": true,
	}
	open := map[string]*reader{}
	for path := range paths {
		open[path] = tr.reader(t, path, 0)
	}
	for _, rows := range []int64{1, 1000} {
		for err := error(nil); err == nil; {
			_, err = tr.limits.Acquire(1, rows, 0, nil, late)
		}
	}
	waits := func(what string, status fuse.Status, want bool) {
		t.Helper()
		if got := status == fuse.Status(syscall.ETIMEDOUT); got != want || !got && !status.Ok() {
			t.Errorf("%s: %v; it should wait: %v", what, status, want)
		}
	}
	for path, looks := range paths {
		header := fuse.InHeader{NodeId: uint64(tr.find(path))}
		waits("open of "+path, tr.Open(late, &fuse.OpenIn{InHeader: header}, &fuse.OpenOut{}), looks)
		in := &fuse.ReadIn{InHeader: header, Fh: open[path].fh, Size: 100, ReadFlags: fuse.READ_LOCKOWNER}
		_, status := tr.Read(late, in, make([]byte, 100))
		waits("read of "+path, status, looks && path != "train/info.json")
		in.Offset = 1 << 40
		_, status = tr.Read(late, in, make([]byte, 100))
		waits("read of the end of "+path, status, false)
	}
	for dir, names := range map[string]map[string]bool{
		"":            {"train": false, "status.json": false},
		"train":       {"seed=1": true, "batches.bin": true},
		"train/batch": {"3": true, "3.npy": true},
	} {
		node := rootInode
		if dir != "" {
			node = tr.find(dir)
		}
		for name, looks := range names {
			waits("lookup of "+name, tr.Lookup(late, &fuse.InHeader{NodeId: uint64(node)}, name, &fuse.EntryOut{}), looks)
		}
	}
}

// A handler that is late may find that the kernel has forgotten its file. Its request is an error then, and ends no process.
func TestLateHandlerOfAForgottenFile(t *testing.T) {
	s, other := counting("train", 1000), counting("train/seed=1", 1000)
	s.with = func(string) (Sequence, error) { return other, nil }
	tr := plant(t, s)
	number := tr.sequences.mustLookUp(t, tr.find("train"), "seed=1")
	fh, _ := tr.handles.Open(number, 0, false, 4)
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
