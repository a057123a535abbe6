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

// canceled is the cancel channel of an abandoned request.
var canceled = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// guarded returns a Guard whose requests never time out.
func (t *tree) guarded(splits int) *guard.Guard {
	g, _ := guard.New(guard.Options{Splits: splits, ReplyBytes: t.opts.Memory.ReplyBytes, Shared: t.shared, Timeout: time.Hour,
		Panicked: func(any) fuse.Status { return fuse.EIO }}, func(*guard.Guard) (guard.FileSystem, error) { return t, nil })
	return g
}

// A READ that times out uses up no number: the next reader gets it, whether the handler took it
// before the timeout or tries to take it afterwards.
func TestTimedOutReadReturnsItsNumber(t *testing.T) {
	const size, id = 1000, 1_000_000
	whole := state.FileRange{Off: 0, Len: size, Size: size}
	for _, first := range []string{"assigned", "timed out"} {
		tr := newTestTree(t, countingBatches("train", size))
		read := state.NextRead{Batches: MaxBatches, FH: tr.openFile(t, "train/next", 0).fh, ID: id, FileRange: whole}
		if first == "assigned" {
			if k, err := tr.handles.AssignBatch(read, nil); k != 0 || err != nil {
				t.Fatal(k, err)
			}
		}
		tr.Rollback(id)
		if first == "timed out" {
			if _, err := tr.handles.AssignBatch(read, canceled); err != state.ErrAbandoned {
				t.Fatal(err)
			}
		}
		next := tr.openFile(t, "train/next", 0)
		if got := next.readBatch(t, size); got != 0 {
			t.Errorf("%s first: the next reader got batch %d, want 0", first, got)
		}
	}
}

// Requests that read or check token files have a cost. Computing it creates no Sequence.
func TestCosts(t *testing.T) {
	s := countingBatches("train", 8000)
	row := array.Descriptor{Name: "tokens", DType: array.Uint16, Shape: []int{40, 100}}
	s.Batch, s.FollowsChanges, s.TokensFileSize = array.NewBatch(1, row), true, 1000
	shared := newShared(t)
	number := takeOver(t, shared, s).find("train/seed=1").sequence()
	tr := takeOver(t, shared, s) // the next worker does not have the Sequence of seed=1 yet
	check := func(what string, got guard.Cost, rows int64, reply int) {
		t.Helper()
		if want := (guard.Cost{Split: got.Split, Rows: rows, ReplyBytes: reply, Pages: got.Pages}); got != want {
			t.Errorf("%s costs %v, want %v", what, got, want)
		}
	}
	for path, want := range map[string]struct{ open, read int64 }{ // rows; a row has 200 bytes
		"README": {}, "status.json": {}, "train/cursor": {}, "train/info.json": {1, 1}, "train/next": {1, 3}, "train/next.npy": {1, 3},
		"train/batch/3": {1, 3}, "train/batches.bin": {1, 3}, "train/sequence.bin": {1, 3}, "train/tokens.bin": {1, 3}, "train/batch/3.json": {1, 1},
	} {
		header := fuse.InHeader{NodeId: uint64(tr.find(path))}
		check("open of "+path, tr.CostOfOpen(&fuse.OpenIn{InHeader: header}), want.open, 0)
		in := &fuse.ReadIn{InHeader: header, Size: 500}
		reply := 0
		if !inode(header.NodeId).kind().isText() {
			reply = int(min(want.read*500, tr.replyLen(inode(header.NodeId), s, in)))
		}
		check("read of "+path, tr.CostOfRead(in), want.read, reply)
		in.Offset = 1 << 40
		check("read of the end of "+path, tr.CostOfRead(in), 0, 0)
	}
	settings := fuse.InHeader{NodeId: uint64(makeInode(splitDir, number, 0))}
	for _, lookup := range []struct {
		dir  inode
		name string
		rows int64
	}{
		{rootInode, "train", 0}, {rootInode, "status.json", 0}, {tr.find("train"), "seed=1", 1}, {tr.find("train"), "batches.bin", 1},
		{tr.find("train/batch"), "3.npy", 1}, {inode(settings.NodeId), "next", 1},
	} {
		header := &fuse.InHeader{NodeId: uint64(lookup.dir)}
		check("lookup of "+lookup.name, tr.CostOfLookup(header, lookup.name), lookup.rows, 0)
	}
	check("attributes under settings that this worker has not used yet", tr.CostOfGetAttr(&fuse.GetAttrIn{InHeader: settings}), 1, 0)
	check("attributes", tr.CostOfGetAttr(&fuse.GetAttrIn{InHeader: fuse.InHeader{NodeId: uint64(tr.find("train"))}}), 0, 0)
	info := tr.find("train/info.json")
	fh, _ := tr.openText(info, nil)
	check("read of a text in memory", tr.CostOfRead(&fuse.ReadIn{InHeader: fuse.InHeader{NodeId: uint64(info)}, Fh: fh, Size: 500}), 0, 0)
	list := func(dir inode) guard.Cost {
		return tr.CostOfReadDir(&fuse.ReadIn{InHeader: fuse.InHeader{NodeId: uint64(dir)}, Size: 4096})
	}
	check("list of the root", list(rootInode), 0, 0)
	check("list of train", list(tr.find("train")), 0, 0)
	check("list of settings that this worker has not used yet", list(inode(settings.NodeId)), 1, 0)
	settings.NodeId = uint64(makeInode(nextRaw, number, 0))
	in := &fuse.ReadIn{InHeader: settings, Size: 500}
	check("read under settings that this worker has not used yet", tr.CostOfRead(in), 500, 500)
	if tr.sequences.peek(number) != nil || tr.CostOfRead(in).Split != 1 {
		t.Errorf("the cost methods created a Sequence, or the split is %d", tr.CostOfRead(in).Split)
	}
	tr.sequences.get(number)
	check("the same read once it has", tr.CostOfRead(in), 1, 500)
}

// A READ costs no more rows than the batches that it touches have, whatever arrays they have.
func TestCostsOfSeveralArrays(t *testing.T) {
	s := countingBatches("train", 2)
	x := array.Descriptor{Name: "x", DType: array.Uint16, Shape: []int{40, 100}}
	y, logits := x, array.Descriptor{Name: "logits", DType: array.Float32, Shape: []int{40, 100, 8}}
	y.Name = "y"
	s.Batch, s.TokensFileSize = array.NewBatch(2, x, y, logits), 1<<20
	tr := newTestTree(t, s)
	const main, all = 2 * 8000, 2*8000 + 128_000 // bytes of x and y, and of a batch
	for _, read := range []struct {
		path      string
		off, size int
		rows      int64
	}{
		{"next", 0, main, 40}, {"next", 0, 4000, 20}, {"next", 4000, 8000, 40}, {"next.safetensors", 0, headerBytes + all, 40},
		{"batch/3", 0, main, 40}, {"batch/3.npy", 0, headerBytes + main, 40}, {"batch/3.safetensors", 0, headerBytes, 21},
		{"batch/3.logits.npy", headerBytes, 3200, 1}, {"batch/3.logits.npy", headerBytes, 128_000, 40},
		{"batches.bin", 0, main, 40}, {"batches.bin", main, 2 * main, 80}, {"batches.bin", main - 1, main, 80}, {"batches.bin", main - 1, 2, 1},
		{"batches.npy", 0, headerBytes + main, 40}, {"batches.npy", headerBytes, main, 40}, {"batches.npy", headerBytes + main - 2, main + 4, 81},
		{"batches.logits.npy", headerBytes, 2 * 128_000, 80}, {"sequence.bin", 0, all, 40}, {"sequence.bin", all - 2, all + 4, 120},
		{"tokens.bin", 0, 80_000, 400},
	} {
		in := &fuse.ReadIn{InHeader: fuse.InHeader{NodeId: uint64(tr.find("train/" + read.path))}, Offset: uint64(read.off), Size: uint32(read.size)}
		if got := tr.CostOfRead(in); got.Rows != read.rows || got.ReplyBytes != read.size {
			t.Errorf("%d bytes at %d of %s cost %d rows and %d bytes, want %d rows", read.size, read.off, read.path, got.Rows, got.ReplyBytes, read.rows)
		}
	}
}

// A handler that has timed out may find that the kernel has forgotten its file. Its request then
// fails with ESTALE.
func TestHandlerOfForgottenFile(t *testing.T) {
	s, other := countingBatches("train", 1000), countingBatches("train/seed=1", 1000)
	s.with = func(string) (Sequence, error) { return other, nil }
	tr := newTestTree(t, s)
	number := tr.sequences.mustLookUp(t, tr.find("train"), "seed=1")
	fh, _ := tr.handles.Open(number, 0, false, 4)
	other.latest = func(uint64) (*fakeBatchList, error) { // forgets the file during a request
		tr.handles.Release(fh)
		tr.sequences.forget(number, 1)
		return other.fakeBatchList, nil
	}
	node, stale := uint64(makeInode(nextNPY, number, 0)), fuse.Status(syscall.ESTALE)
	in := &fuse.ReadIn{InHeader: fuse.InHeader{NodeId: node, Unique: 6}, Fh: fh, Size: 100, ReadFlags: fuse.READ_LOCKOWNER}
	if _, st := tr.HandleRead(nil, 0, in, make([]byte, 100)); st != stale {
		t.Errorf("its read: %v, want ESTALE", st)
	}
	if st := tr.GetAttr(nil, &fuse.GetAttrIn{InHeader: in.InHeader}, &fuse.AttrOut{}); st != stale {
		t.Errorf("its attributes: %v, want ESTALE", st)
	}
	if st := tr.Lookup(nil, &fuse.InHeader{NodeId: uint64(makeInode(batchDir, number, 0))}, "3", &fuse.EntryOut{}); st != stale {
		t.Errorf("a lookup: %v, want ESTALE", st)
	}
	if n := len(tr.listDir(makeInode(splitDir, number, 0), 0)); n > 0 {
		t.Errorf("its directory lists %d files", n)
	}
}

func TestPrefetchReadsInParts(t *testing.T) {
	const size = 3*mount.MaxRequest + 100
	s := countingBatches("train", size)
	whole := s.read
	s.read = func(dst []byte, k uint64, off int64) error {
		if len(dst) > mount.MaxRequest {
			t.Errorf("%d bytes are read in one part", len(dst))
		}
		return whole(dst, k, off)
	}
	got, want := make([]byte, size), make([]byte, size)
	readInParts(s.fakeBatchList, got, 3)
	if whole(want, 3, 0); !slices.Equal(got, want) {
		t.Error("the bytes differ from those of a single read")
	}
}
