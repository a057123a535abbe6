// Package fs is the tree of files that a mount shows.
//
// A file is an [inode] number: its kind, its sequence and, in batch/, its batch number; kinds.go has an entry for each kind. Every
// file of batches is an optional header and then the bytes of batches, which a [Batches] decides. Only next, next.npy and
// next.safetensors keep state per open file; that state is in package state, so that another process can continue from it. [Serve]
// answers the kernel's requests.
package fs

import (
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/cache/array"
	"batchfs/fs/state"
)

// tree is the file system behind a guard of a mount: each method translates a request into inodes and offsets.
type tree struct {
	fuse.RawFileSystem // ENOSYS for the rest, after which the kernel does not ask again
	shared             *state.Shared
	handles            *state.Handles
	sequences          *sequenceTable
	readme             []byte
	texts              texts
	badNames           atomic.Pointer[[]BadName] // last ten names that were looked up in this worker and have no file, latest first
	makingStatus       sync.Mutex                // held while status.json or metrics is made, which may be long: one at a time; before every other lock
	prefetcher         *prefetcher
	log                *limitedLog
	o                  Options
}

// forever is the longest time that the kernel can remember attributes for.
const forever = time.Duration(1<<31) * time.Second

// newTree makes the tree of a mount. It continues from the shared state, in which no other process works any more.
func newTree(mountpoint string, splits []Batches, shared *state.Shared, log *limitedLog, o Options) (*tree, error) {
	sequences, err := newSequenceTable(splits, shared, o.Access, o.Log)
	if err != nil {
		return nil, err
	}
	t := &tree{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		shared:        shared,
		handles:       state.NewHandles(shared),
		sequences:     sequences,
		readme:        readmeOf(mountpoint, splits),
		texts:         texts{most: o.Memory.TextBytes, open: map[uint64][]byte{}},
		prefetcher:    &prefetcher{depth: o.Memory.PrefetchBatches, maxBytes: o.Memory.PrefetchBytes, log: log},
		log:           log,
		o:             o,
	}
	t.badNames.Store(new([]BadName))
	return t, nil
}

// sequence is the sequence of a file, or nil for a file of the whole mount.
func (t *tree) sequence(i inode) Batches { return t.sequences.get(i.sequence()) }

// isForgotten says whether i is a file of a sequence, s, that is gone: see errForgotten.
func (t *tree) isForgotten(i inode, s Batches) bool { return s == nil && i.sequence() > 0 }

// listDir returns the names in a directory. Those in batch/ begin with the number k, which is left
// out.
func (t *tree) listDir(dir inode, k uint64) []fuse.DirEntry {
	s := t.sequence(dir)
	if t.isForgotten(dir, s) {
		return nil
	}
	list := make([]fuse.DirEntry, 0, len(kindTable))
	add := func(name string, i inode) {
		list = append(list, fuse.DirEntry{Name: name, Mode: i.kind().mode(), Ino: uint64(i)})
	}
	for _, r := range kindTable {
		switch {
		case r.in != dir.kind():
		case r.kind == splitDir:
			for n := 1; n <= t.sequences.splits; n++ {
				add(t.sequences.get(n).Spec().Name, makeInode(splitDir, n, 0))
			}
		case r.kind.isOfOneArray() && k < 1<<arrayShift:
			for n, a := range rawArrays(s) {
				i := makeArrayInode(r.kind, dir.sequence(), s.Spec().Batch.Main+n, k).ofVersion(s.Spec().Version)
				add(strings.Replace(r.name, "%", a.Name, 1), i)
			}
		case r.kind.isOfOneArray():
		case r.kind.isNumbered():
			add(r.name, makeInode(r.kind, dir.sequence(), k).ofVersion(s.Spec().Version))
		case r.kind == batchDir:
			add(r.name, makeInode(batchDir, dir.sequence(), dir.rest()))
		default:
			add(r.name, makeInode(r.kind, dir.sequence(), 0))
		}
	}
	return list
}

func rawArrays(s Batches) []array.Array { return s.Spec().Batch.Arrays[s.Spec().Batch.Main:] }

// lookup finds a name in a directory, except settings.
func (t *tree) lookup(dir inode, name string) inode {
	var k uint64
	if dir.kind() == batchDir {
		digits := name[:len(name)-len(strings.TrimLeft(name, "0123456789"))]
		var err error
		if k, err = strconv.ParseUint(digits, 10, 64); err != nil || k >= MaxBatches || len(digits) > 1 && digits[0] == '0' {
			return noSuchInode
		}
		name = name[len(digits):]
	}
	for _, e := range t.listDir(dir, k) {
		if e.Name == name {
			return inode(e.Ino)
		}
	}
	return noSuchInode
}

func (t *tree) size(i inode, s Batches) int64 {
	return i.kind().entry().content.size(t, i, s)
}

// The st_blksize of files is what C's stdio reads at once, and what it seeks to a multiple of.
const (
	stdioBlock = headerBytes // a page is larger on some machines
	// Reading the first block of next again takes a new batch, so the block is smaller than what one reads from next. Files with a
	// header need no such block: their batches begin behind the first one.
	nextBlock = 512
)

func (t *tree) attributes(i inode, s Batches, out *fuse.Attr) {
	*out = fuse.Attr{Ino: uint64(i), Size: uint64(t.size(i, s)), Mode: i.kind().mode() | t.o.Access.Mode, Nlink: 1}
	if i.kind().isDir() {
		out.Mode, out.Nlink = out.Mode|t.o.Access.Mode>>2, 2
	}
	out.Blocks = (out.Size + 511) / 512
	out.Blksize = stdioBlock
	if i.kind() == nextRaw {
		out.Blksize = nextBlock
	}
	out.Owner = fuse.Owner{Uid: t.o.Access.UID, Gid: t.o.Access.GID}
	began := time.Unix(0, t.shared.Began)
	out.SetTimes(&began, &began, &began)
}

func attributesLast(i inode) time.Duration {
	if i.kind().isLiveText() {
		return 0
	}
	return forever
}

func (t *tree) Lookup(cancel <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if len(name) > maxNameLen { // which the kernel does not check, and the shared state has no room for
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	dir, timeout := inode(header.NodeId), forever
	if t.isForgotten(dir, t.sequence(dir)) {
		return t.FailRequest(header.Unique, header.NodeId, errForgotten)
	}
	if namesSettings(dir, name) {
		return t.lookupSettings(dir, header, name, cancel, out)
	}
	i := t.lookup(dir, name)
	s := t.sequence(i) // one for the whole answer, because another may replace it meanwhile
	if i.kind().isNumbered() && s.Spec().Follows {
		var err error
		if s, err = t.refresh(i, cancel); s == nil { // Open reports any other error
			return t.FailRequest(header.Unique, header.NodeId, err)
		}
		i, timeout = i.ofVersion(s.Spec().Version), 0 // of other tokens it is another file
	}
	if i == noSuchInode {
		t.recordBadName(dir, name, t.whyNot(dir, name))
	}
	t.fillEntry(i, s, timeout, out)
	t.sequences.countLookup(i.sequence(), header.Unique) // last, because what is above may wait
	return fuse.OK
}

func (t *tree) lookupSettings(dir inode, header *fuse.InHeader, name string, cancel <-chan struct{}, out *fuse.EntryOut) fuse.Status {
	s, number, errno, err := t.sequences.lookup(dir, name, header.Uid, header.Unique, cancel)
	if err != nil {
		t.recordBadName(dir, name, err.Error())
	}
	if errno == 0 {
		t.fillEntry(settingsDir(number, dir, name), s, forever, out)
	}
	return fuse.Status(errno)
}

// fillEntry describes file i, which the kernel may remember for so long: also that there is none.
func (t *tree) fillEntry(i inode, s Batches, timeout time.Duration, out *fuse.EntryOut) {
	out.NodeId = uint64(i)
	out.SetEntryTimeout(timeout)
	if i == noSuchInode {
		return
	}
	if i.kind().isNumbered() {
		out.Generation = uint64(s.Spec().Version) // the version in an inode repeats
	}
	t.attributes(i, s, &out.Attr)
	out.SetAttrTimeout(attributesLast(i))
}

func (t *tree) Forget(node, lookups uint64) { t.sequences.forget(inode(node).sequence(), lookups) }

func (t *tree) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	i := inode(in.NodeId)
	s := t.sequence(i)
	if t.isForgotten(i, s) || i.outdated(s) {
		return fuse.Status(syscall.ESTALE)
	}
	t.attributes(i, s, &out.Attr)
	out.SetTimeout(attributesLast(i))
	return fuse.OK
}

func (t *tree) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return fuse.OK
}

func (t *tree) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	dir, up := inode(in.NodeId), rootInode
	if dir.kind() == batchDir {
		up = makeInode(splitDir, dir.sequence(), dir.rest())
	}
	list := []fuse.DirEntry{{Name: ".", Mode: syscall.S_IFDIR, Ino: in.NodeId}, {Name: "..", Mode: syscall.S_IFDIR, Ino: uint64(up)}}
	if dir.kind() != batchDir { // batches are without number
		list = append(list, t.listDir(dir, 0)...)
	}
	for n := int(in.Offset); n < len(list) && out.AddDirEntry(list[n]); n++ {
	}
	return fuse.OK
}

func (t *tree) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	out.Bsize, out.Frsize, out.NameLen = stdioBlock, stdioBlock, maxNameLen
	return fuse.OK
}

func (t *tree) Rollback(id uint64) { t.handles.Rollback(id) }

// FailRequest turns the error of a request into an errno, and puts its text into the log and
// status.json. A request that timed out can fail again later, but counts once.
func (t *tree) FailRequest(id, node uint64, err error) fuse.Status {
	if err == state.ErrTimedOut { // its reader has an answer, and the log has that error
		return fuse.Status(syscall.ETIMEDOUT)
	}
	errno := syscall.EIO
	for _, e := range []syscall.Errno{syscall.ESTALE, syscall.ETIMEDOUT} {
		if errors.Is(err, e) {
			errno = e
		}
	}
	name := t.sequences.recordError(inode(node).sequence(), id, err.Error())
	t.log.limited(slog.LevelError, "a request failed", "sequence", name, "errno", errno.Error(), "err", err)
	return fuse.Status(errno)
}
