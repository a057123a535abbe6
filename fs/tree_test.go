package fs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/cache/array"
	"batchfs/fs/guard"
	"batchfs/fs/state"
	"batchfs/internal/testwait"
)

// oneArray returns a batch of one array. bytes must be even.
func oneArray(bytes int64) array.Batch {
	return array.NewBatch(1, array.Descriptor{Name: "tokens", DType: array.Uint16, Shape: []int{1, int(bytes) / 2}})
}

// A fakeSequence is a Sequence whose methods a test may replace. At first, it has its own
// BatchList.
type fakeSequence struct {
	*fakeBatchList
	latest func(k uint64) (*fakeBatchList, error)
	with   func(settings string) (Sequence, error)

	mu       sync.Mutex // guards the fields below
	current  *fakeBatchList
	onChange func(BatchList)
}

// update calls latest and makes its result the current BatchList.
func (f *fakeSequence) update(k uint64) (BatchList, error) {
	b, err := f.latest(k)
	f.mu.Lock()
	defer f.mu.Unlock()
	if b != f.current {
		f.current = b
		f.onChange(b)
	}
	return b, err
}

func (f *fakeSequence) Current() BatchList {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

func (f *fakeSequence) Latest(<-chan struct{}) (BatchList, error) { return f.update(noBatch) }
func (f *fakeSequence) OnChange(change func(BatchList))           { f.onChange = change }
func (f *fakeSequence) Stalled() time.Duration                    { return 0 }
func (f *fakeSequence) With(settings string) (Sequence, error)    { return f.with(settings) }

func (f *fakeSequence) LatestWhole(<-chan struct{}) (BatchList, error)           { return f.update(anyBatch) }
func (f *fakeSequence) LatestFor(k uint64, _ <-chan struct{}) (BatchList, error) { return f.update(k) }

// Latest and LatestWhole call fakeSequence.latest with these arguments.
const (
	noBatch  = MaxBatches
	anyBatch = MaxBatches + 1
)

// A fakeBatchList is a BatchList whose methods a test may replace.
type fakeBatchList struct {
	spec
	read         func(dst []byte, k uint64, off int64) error
	check        func(k uint64) error
	batchJSONLen func() int64
	info         func() []byte
}

type spec = Spec

func (f *fakeBatchList) Spec() *Spec                                { return &f.spec }
func (f *fakeBatchList) Read(dst []byte, k uint64, off int64) error { return f.read(dst, k, off) }
func (f *fakeBatchList) Check(k uint64) error                       { return f.check(k) }
func (f *fakeBatchList) ReadTokens([]byte, int64) error {
	return cmp.Or(f.check(anyBatch), error(syscall.ENOSYS))
}
func (f *fakeBatchList) RowsOf(source int, k uint64) uint64 { return k + uint64(source) }

func (f *fakeBatchList) BatchJSONLen() int64 { return f.batchJSONLen() }
func (f *fakeBatchList) Info() []byte        { return f.info() }
func (f *fakeBatchList) InfoLen() int64      { return int64(len(f.info())) }

func (f *fakeBatchList) ReadBatchJSON(dst []byte, k uint64, off int64) error {
	copy(dst, fmt.Appendf(nil, "%20d\n", k)[off:])
	return nil
}

// countingBatches returns a sequence whose batches, placed back to back, have the value i%251 in
// byte i.
func countingBatches(name string, batchBytes int64) *fakeSequence {
	b := &fakeBatchList{
		spec: Spec{Name: name, Batch: oneArray(batchBytes), Batches: MaxBatches, Steps: 5, MaxSteps: 7},
		info: func() []byte { return []byte("{}\n") },
		read: func(dst []byte, k uint64, off int64) error {
			for i := range dst {
				dst[i] = byte((k*uint64(batchBytes) + uint64(off) + uint64(i)) % 251)
			}
			return nil
		},
		check:        func(uint64) error { return nil },
		batchJSONLen: func() int64 { return 21 },
	}
	s := &fakeSequence{fakeBatchList: b, current: b}
	s.latest = func(uint64) (*fakeBatchList, error) { return b, nil }
	s.with = func(settings string) (Sequence, error) {
		switch key, value, _ := strings.Cut(settings, "="); {
		case key != "seed":
			return nil, syscall.ENOENT
		case value == "bad":
			return nil, errors.New("bad value")
		case value == "own":
			return s, nil
		default:
			split, _, _ := strings.Cut(name, "/")
			return countingBatches(split+"/seed="+value, batchBytes), nil
		}
	}
	return s
}

func newTestTree(t testing.TB, splits ...Sequence) *tree {
	t.Helper()
	return takeOver(t, newShared(t), splits...)
}

func newShared(t testing.TB) *state.Shared {
	t.Helper()
	file, shared, err := state.New()
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	t.Cleanup(shared.Close)
	return shared
}

const maxTextBytes = 32 << 20

// takeOver returns the tree of a worker that continues from the shared state.
func takeOver(t testing.TB, shared *state.Shared, splits ...Sequence) *tree {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	o := Options{
		Memory: Memory{PrefetchBatches: 2, PrefetchBytes: 1 << 20, ReplyBytes: 64 << 20, TextBytes: maxTextBytes},
		Access: Permissions{Mode: 0o444},
		Status: Status{ProgramVersion: "test", JSON: func(LiveStatus) []byte {
			return fmt.Appendf(nil, `{"reads": %20d}`, shared.Sequences[1].Reads.Load())
		}},
		Timeout: time.Minute, Log: log,
	}
	var tr *tree
	_, err := guard.New(guard.Options{Splits: len(splits), ReplyBytes: o.Memory.ReplyBytes, Shared: shared, Timeout: time.Hour},
		func(g *guard.Guard) (_ guard.FileSystem, err error) {
			tr, err = newTree("/mnt", splits, shared, g, newLimitedLog(log), o)
			return tr, err
		})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func (t *tree) find(path string) inode {
	i := rootInode
	for name := range strings.SplitSeq(path, "/") {
		if isSettings(name) {
			_, number, _, _ := t.sequences.lookup(i, name, 0, lastUnique.Add(2), nil)
			i = settingsInode(number, i, name)
		} else {
			i = t.lookup(i, name)
		}
	}
	return i
}

// A reader is an open handle. It sends READs as the kernel does for read(2).
type reader struct {
	*tree
	node   inode
	fh     uint64
	unique uint64
}

var lastUnique atomic.Uint64

func (t *tree) openFile(tb testing.TB, path string, flags uint32) *reader {
	tb.Helper()
	r := &reader{tree: t, node: t.find(path)}
	in := &fuse.OpenIn{InHeader: fuse.InHeader{NodeId: uint64(r.node)}, Flags: flags}
	var out fuse.OpenOut
	if status := t.Open(nil, in, &out); !status.Ok() {
		tb.Fatalf("open %s: %v", path, status)
	}
	r.fh = out.Fh
	return r
}

func (r *reader) read(off int64, n int) ([]byte, fuse.Status) {
	r.unique = lastUnique.Add(2)
	return r.repeat(off, n)
}

// repeat sends a READ with the id of the last one.
func (r *reader) repeat(off int64, n int) ([]byte, fuse.Status) {
	header := fuse.InHeader{NodeId: uint64(r.node), Unique: r.unique}
	in := &fuse.ReadIn{InHeader: header, Fh: r.fh, Offset: uint64(off), Size: uint32(n), ReadFlags: fuse.READ_LOCKOWNER}
	result, status := r.HandleRead(nil, 0, in, make([]byte, n))
	if !status.Ok() {
		return nil, status
	}
	data, _ := result.Bytes(nil)
	data = bytes.Clone(data)
	r.Succeeded(in, result)
	result.Done()
	return data, status
}

func (r *reader) close() {
	r.Release(nil, &fuse.ReleaseIn{InHeader: fuse.InHeader{NodeId: uint64(r.node)}, Fh: r.fh})
}

// readBatch reads a whole file and returns which batch of a counting sequence it shows.
func (r *reader) readBatch(t testing.TB, size int64) int {
	t.Helper()
	data, status := r.read(0, int(size))
	if !status.Ok() || int64(len(data)) != size {
		t.Fatalf("read: %v, %d bytes", status, len(data))
	}
	return batchNumber(data, size)
}

// batchNumber returns which batch of a counting sequence data is. The number must be below 251, a
// prime.
func batchNumber(data []byte, size int64) int {
	for k := range 251 {
		if byte(int64(k)*size%251) == data[0] {
			return k
		}
	}
	return -1
}

func TestNamesOfBatches(t *testing.T) {
	tr := newTestTree(t, countingBatches("train", 100))
	for name, want := range map[string]inode{
		"0": makeInode(batchRaw, 1, 0), "17.npy": makeInode(batchNPY, 1, 17), "1099511627775": makeInode(batchRaw, 1, MaxBatches-1),
		"1099511627776": 0, "18446744073709551616": 0, "-1": 0, "+1": 0, "01": 0, "": 0, ".npy": 0, "1.bin": 0, "1.npy.npy": 0, " 1": 0, "1e3": 0,
	} {
		if got := tr.lookup(tr.find("train/batch"), name); got != want {
			t.Errorf("batch/%s is inode %#x, want %#x", name, got, want)
		}
	}
}

// sequence.bin is not listed, so that programs that copy or search a directory end.
func TestListedNamesExist(t *testing.T) {
	tr := newTestTree(t, countingBatches("train", 100), countingBatches("val", 100))
	for _, dir := range []string{"", "train", "val"} {
		d := rootInode
		if dir != "" {
			d = tr.find(dir)
		}
		for _, e := range tr.listDir(d, 0) {
			if i := tr.lookup(d, e.Name); uint64(i) != e.Ino || i.kind() == 0 {
				t.Errorf("%s/%s is listed as %#x and found as %#x", dir, e.Name, e.Ino, i)
			}
		}
		list := make([]byte, 4096)
		tr.ReadDir(nil, &fuse.ReadIn{InHeader: fuse.InHeader{NodeId: uint64(d)}}, fuse.NewDirEntryList(list, 0))
		if bytes.Contains(list, []byte("tokens.bin")) != (d != rootInode) || bytes.Contains(list, []byte("sequence.bin")) {
			t.Errorf("%q lists %q", dir, list)
		}
	}
}

// An open sequence.bin keeps its size when the sequence becomes longer. Opened again, it is another
// file, because the kernel has cached the page in which the old one ends.
func TestLongerSequence(t *testing.T) {
	s := countingBatches("train", 1000)
	tr := newTestTree(t, s)
	old := tr.openFile(t, "train/sequence.bin", 0)
	s.MaxSteps = 9
	for steps, r := range map[int]*reader{7: old, 9: tr.openFile(t, "train/sequence.bin", 0)} {
		want := make([]byte, 1000*steps)
		s.Read(want, 0, 0)
		if got, status := r.read(0, 20_000); !status.Ok() || !bytes.Equal(got, want) || tr.size(r.node, s) != int64(len(want)) {
			t.Errorf("sequence.bin of %d batches: %v, %d bytes, size %d", steps, status, len(got), tr.size(r.node, s))
		}
	}
	if now := tr.find("train/sequence.bin"); now == old.node {
		t.Errorf("sequence.bin of two sizes is inode %#x", now)
	}
	var out fuse.EntryOut
	tr.Lookup(nil, &fuse.InHeader{NodeId: uint64(tr.find("train"))}, "sequence.bin", &out)
	if out.EntryValid != 0 || out.EntryValidNsec != 0 {
		t.Error("the kernel caches which file sequence.bin is")
	}
}

func TestNextAfterAnError(t *testing.T) {
	const size = 1000
	s := countingBatches("train", size)
	fine, failure := s.read, error(nil)
	s.read = func(dst []byte, k uint64, off int64) error {
		if failure != nil {
			return failure
		}
		return fine(dst, k, off)
	}
	tr := newTestTree(t, s)
	r := tr.openFile(t, "train/next", 0)
	for _, test := range []struct {
		err     error
		want    syscall.Errno
		failing bool
	}{{fmt.Errorf("a: %w", syscall.ESTALE), syscall.ESTALE, false}, {fmt.Errorf("a: %w", syscall.ENOENT), syscall.EIO, false}, {errors.New("broken"), syscall.EIO, true}} {
		failure = test.err
		if _, status := r.read(0, size); status != fuse.Status(test.want) {
			t.Errorf("%v: status %v, want %v", test.err, status, test.want)
		}
		if _, got := tr.shared.TextsOf(1); !strings.Contains(got, test.err.Error()) {
			t.Errorf("the last error is %q, want %q", got, test.err)
		}
		if got := tr.shared.Failing(1); got != test.failing {
			t.Errorf("%v: failing is %v, want %v", test.err, got, test.failing)
		}
	}
	failure = nil
	tr.openFile(t, "train/batch/0.json", 0).read(0, 100)
	if tr.shared.Failing(1) {
		t.Error("a read of batch/0.json leaves the sequence failing")
	}
	tr.shared.SetFailing(1, true)
	if got := tr.openFile(t, "train/next", 0).readBatch(t, size); got != 0 {
		t.Errorf("after errors another handle gets batch %d: 0 is lost", got)
	}
	if got := r.readBatch(t, size); got != 1 {
		t.Errorf("the handle that failed then gets batch %d, want 1", got)
	}
	if s := &tr.shared.Sequences[1]; s.Reads.Load() != 2 || s.Errors.Load() != 3 || tr.shared.Failing(1) {
		t.Errorf("%d reads and %d errors are counted, want 2 and 3; failing is %v", s.Reads.Load(), s.Errors.Load(), tr.shared.Failing(1))
	}

	// A handle keeps a batch that it has delivered in part.
	r.read(0, 100)
	failure = errors.New("broken")
	r.read(100, size-100)
	failure = nil
	if got := tr.openFile(t, "train/next", 0).readBatch(t, size); got != 3 {
		t.Errorf("batch %d went to two handles", got)
	}
	if data, status := r.read(100, size-100); !status.Ok() || data[0] != byte((2*size+100)%251) {
		t.Errorf("the rest of batch 2: %v", status)
	}
}

func TestNextFailsAtOpen(t *testing.T) {
	s := countingBatches("train", 1000)
	tr := newTestTree(t, s)
	fine := s.latest
	for err, want := range map[error]fuse.Status{
		fmt.Errorf("a.bin changed (%w)", syscall.ESTALE): fuse.Status(syscall.ESTALE), syscall.ENOENT: fuse.EIO, nil: fuse.OK,
	} {
		s.latest = func(uint64) (*fakeBatchList, error) { return s.fakeBatchList, err }
		for _, name := range []string{"train/next", "train/next.npy", "train/next.safetensors"} {
			in := &fuse.OpenIn{InHeader: fuse.InHeader{NodeId: uint64(tr.find(name))}}
			if status := tr.Open(nil, in, &fuse.OpenOut{}); status != want {
				t.Errorf("%s, %v: %v, want %v", name, err, status, want)
			}
		}
		s.latest = fine
	}
}

// README has what Spec.Note says now.
func TestReadmeHasNotes(t *testing.T) {
	s := countingBatches("train", 1000)
	tr := newTestTree(t, s)
	for _, note := range []string{"", "3 of 4 documents are cut", "a note of another length"} {
		s.spec.Note = note
		r := tr.openFile(t, "README", 0)
		text, status := r.read(0, 1<<16)
		if want := "1000 bytes\n  tokens = numpy.load(\"/mnt/train/next.npy\")\n" + strings.TrimPrefix("  "+note+"\n", "  \n"); !status.Ok() || !strings.Contains(string(text), want+"\n") {
			t.Errorf("%v, want %q in\n%s", status, want, text)
		}
		r.close()
	}
}

func TestUncachedFilesRejectPageCacheReads(t *testing.T) {
	tr := newTestTree(t, countingBatches("train", 1000))
	for path, want := range map[string]fuse.Status{
		"train/next": fuse.EINVAL, "train/next.npy": fuse.EINVAL, "train/cursor": fuse.EINVAL, "status.json": fuse.EINVAL,
		"train/batch/3": fuse.OK, "train/batches.npy": fuse.OK, "README": fuse.EINVAL, "train/info.json": fuse.EINVAL,
		"train/batch/3.json": fuse.OK, "train/next.safetensors": fuse.EINVAL,
	} {
		r := tr.openFile(t, path, 0)
		in := &fuse.ReadIn{InHeader: fuse.InHeader{NodeId: uint64(r.node)}, Fh: r.fh, Size: 10}
		if _, status := tr.HandleRead(nil, 0, in, make([]byte, 10)); status != want {
			t.Errorf("%s: %v, want %v", path, status, want)
		}
	}
}

func TestOpenTextsDoNotChange(t *testing.T) {
	tr := newTestTree(t, countingBatches("train", 1000))
	cursor, status := tr.openFile(t, "train/cursor", 0), tr.openFile(t, "status.json", 0)
	before, _ := status.read(0, 4096)
	tr.openFile(t, "train/next", 0).readBatch(t, 1000)
	if text, _ := cursor.read(0, 100); string(text) != "0\n" {
		t.Errorf("cursor shows %q", text)
	}
	if text, _ := tr.openFile(t, "train/cursor", 0).read(0, 100); string(text) != "1\n" {
		t.Errorf("cursor then shows %q", text)
	}
	after, _ := tr.openFile(t, "status.json", 0).read(0, 4096)
	if bytes.Equal(before, after) || len(before) != len(after) || len(after) != int(tr.size(tr.find("status.json"), nil)) {
		t.Errorf("status.json:\n%s\nand then\n%s", before, after)
	}
	if err := json.Unmarshal(after, &struct{}{}); err != nil {
		t.Error(err)
	}
	if again, _ := status.read(0, 4096); !bytes.Equal(before, again) {
		t.Error("an open status.json changed")
	}
}

// A lookup checks the token files from which a file is read, so that stat returns its current size.
func TestLookupsCheckFiles(t *testing.T) {
	s := countingBatches("train", 1000)
	var checked []uint64
	s.FollowsChanges = true
	s.latest = func(k uint64) (*fakeBatchList, error) {
		checked = append(checked, k)
		return s.fakeBatchList, nil
	}
	tr := newTestTree(t, s)
	for path, want := range map[string]uint64{"batches.bin": anyBatch, "tokens.bin": anyBatch, "batch/3": 3, "batch/7.npy": 7} {
		dir, name := "train", path
		if parent, child, ok := strings.Cut(path, "/"); ok {
			dir, name = "train/"+parent, child
		}
		checked = nil
		if status := tr.Lookup(nil, &fuse.InHeader{NodeId: uint64(tr.find(dir)), Unique: lastUnique.Add(2)}, name, &fuse.EntryOut{}); !status.Ok() {
			t.Fatalf("%s: %v", path, status)
		}
		if !slices.Equal(checked, []uint64{want}) {
			t.Errorf("%s: checked the files of batches %d, want %d", path, checked, want)
		}
	}
}

// The lookup that notices changed token files finds sequence.bin with their length.
func TestSequenceOfChangedTokens(t *testing.T) {
	s, changed := countingBatches("train", 1000), countingBatches("train", 1000).fakeBatchList
	s.FollowsChanges, changed.FollowsChanges, changed.Version, changed.MaxSteps = true, true, 1, 3
	tr := newTestTree(t, s)
	s.latest = func(uint64) (*fakeBatchList, error) { return changed, nil }
	var out fuse.EntryOut
	tr.Lookup(nil, &fuse.InHeader{NodeId: uint64(tr.find("train")), Unique: lastUnique.Add(2)}, "sequence.bin", &out)
	if want := tr.find("train/sequence.bin"); out.Attr.Size != 3000 || inode(out.NodeId) != want {
		t.Errorf("inode %#x of %d bytes, want %#x of 3000", out.NodeId, out.Attr.Size, want)
	}
}

// Beyond the last batch, opens and reads fail and take no number. If the sequence becomes longer,
// next continues with the first new batch.
func TestEnd(t *testing.T) {
	const size = 1000
	s := countingBatches("train", size)
	s.Batches = 5
	tr := newTestTree(t, s)
	var handles []*reader
	for range 8 {
		handles = append(handles, tr.openFile(t, "train/next", 0))
	}
	for k := range 5 {
		if got := handles[0].readBatch(t, size); got != k {
			t.Fatalf("got batch %d, want %d", got, k)
		}
	}
	var all sync.WaitGroup
	for _, r := range handles {
		all.Go(func() {
			if _, status := r.HandleRead(nil, 0, &fuse.ReadIn{InHeader: fuse.InHeader{NodeId: uint64(r.node), Unique: lastUnique.Add(2)}, Fh: r.fh, Size: size,
				ReadFlags: fuse.READ_LOCKOWNER}, make([]byte, size)); status != fuse.Status(syscall.ENODATA) {
				t.Errorf("a read beyond the end: %v", status)
			}
		})
	}
	testwait.End(t, "the readers", all.Wait)
	for path, want := range map[string]syscall.Errno{"next": syscall.ENODATA, "batch/4": 0, "batch/5.npy": syscall.ENODATA, "batches.bin": 0} {
		in := &fuse.OpenIn{InHeader: fuse.InHeader{NodeId: uint64(tr.find("train/" + path)), Unique: lastUnique.Add(2)}}
		if status := tr.Open(nil, in, &fuse.OpenOut{}); status != fuse.Status(want) {
			t.Errorf("open %s: %v, want %v", path, status, want)
		}
	}
	s.Batches = 6
	if got := handles[7].readBatch(t, size); got != 5 {
		t.Errorf("the longer sequence continues with batch %d, want 5", got)
	}
}

// A handle opened with O_NONBLOCK returns its number if it is closed in the middle of the batch and
// no later number was taken.
func TestNonblockingHandles(t *testing.T) {
	tr := newTestTree(t, countingBatches("train", 1000))
	readPart := func() *reader {
		r := tr.openFile(t, "train/next", syscall.O_NONBLOCK)
		r.read(0, 100)
		return r
	}
	expect := func(when string, cursor, returned uint64) {
		t.Helper()
		seq := &tr.shared.Sequences[1]
		if c, n := seq.Cursor.Load(), seq.NumbersReturned.Load(); c != cursor || n != returned {
			t.Errorf("%s, the cursor is %d, and %d numbers were returned, want %d and %d", when, c, n, cursor, returned)
		}
	}
	first := readPart()
	expect("at the first read", 1, 0)
	first.close()
	expect("after a part of a batch", 0, 1)
	readPart().readBatch(t, 1000)
	second := readPart()
	tr.openFile(t, "train/next", 0).readBatch(t, 1000)
	second.close()
	expect("after a later number was taken", 3, 1)
}
