// Package fs implements the files of a mount.
//
// A file is identified by its inode number, which contains its kind, its sequence and, in batch/,
// its batch number; kindTable has an entry for each kind. A file of batches is an optional header
// followed by the bytes of batches, which the current [BatchList] of a [Sequence] computes. Handles
// of next, next.npy and next.safetensors have state, which package state keeps, so that another
// process can continue from it. [Serve] answers the kernel's requests.
package fs

import (
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/guard"
	"batchfs/fs/state"
)

// A tree is the file system behind the guard of a mount. Its methods translate requests into inodes
// and offsets. It is safe for concurrent use.
type tree struct {
	fuse.RawFileSystem // rejects other requests with ENOSYS, so the kernel stops sending them
	shared             *state.Shared
	handles            *state.Handles
	sequences          *sequenceTable
	mountpoint         string
	texts              textCache
	badNames           atomic.Pointer[[]BadName] // last ten bad names of this worker, latest first

	// statusMu is held while status.json or metrics is rendered. It comes before all other locks.
	statusMu sync.Mutex

	prefetcher *prefetcher
	log        *limitedLog
	opts       Options
}

// forever is the longest attribute timeout that the kernel accepts.
const forever = time.Duration(1<<31) * time.Second

// newTree returns a tree that continues from the shared state, which no other worker may be using.
func newTree(
	mountpoint string, splits []Sequence, shared *state.Shared, p permits, log *limitedLog, o Options,
) (*tree, error) {
	sequences, err := newSequenceTable(splits, shared, o.Access, o.Log)
	if err != nil {
		return nil, err
	}
	t := &tree{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		shared:        shared,
		handles:       state.NewHandles(shared),
		sequences:     sequences,
		mountpoint:    mountpoint,
		texts:         textCache{maxBytes: o.Memory.TextBytes, byHandle: map[uint64][]byte{}},
		prefetcher:    &prefetcher{depth: o.Memory.PrefetchBatches, maxBytes: o.Memory.PrefetchBytes, permits: p, log: log},
		log:           log,
		opts:          o,
	}
	t.badNames.Store(new([]BadName))
	return t, nil
}

// current returns the current BatchList of a file's sequence, or nil for files of the whole mount.
// ok is false if the sequence is forgotten: see errForgotten.
func (t *tree) current(i inode) (b BatchList, ok bool) {
	if s := t.sequences.get(i.sequence()); s != nil {
		return s.Current(), true
	}
	return nil, i.sequence() == 0
}

// listDir returns the files in a directory. In batch/, it returns the files of batch k, without the
// number.
func (t *tree) listDir(dir inode, k uint64) []fuse.DirEntry {
	b, ok := t.current(dir)
	if !ok {
		return nil
	}
	list := make([]fuse.DirEntry, 0, len(kindTable))
	add := func(name string, i inode) {
		list = append(list, fuse.DirEntry{Name: name, Mode: i.kind().mode(), Ino: uint64(i)})
	}
	for _, e := range kindTable {
		switch {
		case e.parent != dir.kind():
		case e.kind == splitDir:
			for n := 1; n <= t.sequences.splitCount; n++ {
				add(t.sequences.peek(n).Current().Spec().Name, makeInode(splitDir, n, 0))
			}
		case e.kind.showsOneArray() && k < 1<<arrayShift:
			for n, a := range b.Spec().Batch.Arrays[b.Spec().Batch.Main:] {
				i := makeArrayInode(e.kind, dir.sequence(), b.Spec().Batch.Main+n, k).withVersion(b.Spec().Version)
				add(strings.Replace(e.name, "%", a.Name, 1), i)
			}
		case e.kind.showsOneArray(): // an inode has no room for such a large k
		case e.kind == sequenceFile:
			add(e.name, sequenceInode(dir.sequence(), b))
		case e.kind.isNumbered():
			add(e.name, makeInode(e.kind, dir.sequence(), k).withVersion(b.Spec().Version))
		case e.kind == batchDir:
			add(e.name, makeInode(batchDir, dir.sequence(), dir.rest()))
		default:
			add(e.name, makeInode(e.kind, dir.sequence(), 0))
		}
	}
	return list
}

// lookup returns the inode of a name in a directory, or noSuchInode. It does not find settings
// directories.
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

func (t *tree) size(i inode, b BatchList) int64 {
	return i.kind().entry().content.size(t, i, b)
}

// These are the values of st_blksize. C's stdio reads blocks of that size, and seeks to multiples
// of it.
const (
	stdioBlksize = headerBytes // not the page size, which is larger on some machines

	// nextBlksize is for next. Reading its first block again takes a new batch, so the block is
	// smaller than the pieces that programs read. In next.npy and next.safetensors, the first block
	// is the header, which programs read once.
	nextBlksize = 512
)

func (t *tree) attributes(i inode, b BatchList, out *fuse.Attr) {
	*out = fuse.Attr{Ino: uint64(i), Size: uint64(t.size(i, b)), Mode: i.kind().mode() | t.opts.Access.Mode, Nlink: 1}
	if i.kind().isDir() {
		out.Mode, out.Nlink = out.Mode|t.opts.Access.Mode>>2, 2
	}
	out.Blocks = (out.Size + 511) / 512
	out.Blksize = stdioBlksize
	if i.kind() == nextRaw {
		out.Blksize = nextBlksize
	}
	out.Owner = fuse.Owner{Uid: t.opts.Access.UID, Gid: t.opts.Access.GID}
	modified := time.Unix(0, t.shared.Began)
	switch {
	case i.kind() == tokensFile:
		modified = b.Spec().TokensModified
	case i.kind().isNumbered():
		modified = b.Spec().Modified
	}
	out.SetTimes(&modified, &modified, &modified)
}

func attrTimeout(i inode) time.Duration {
	if i.kind().isText() || i.kind() == batchJSON {
		return 0
	}
	return forever
}

func (t *tree) CostOfLookup(header *fuse.InHeader, name string) guard.Cost {
	dir := inode(header.NodeId)
	s := t.sequences.peek(dir.sequence())
	return t.cost(dir, isSettingsDir(dir, name) || s != nil && s.Current().Spec().FollowsChanges || t.needsSequence(dir))
}

func (t *tree) Lookup(cancel <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if len(name) > maxNameLen { // not checked by the kernel, and too long for the shared state
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	dir, timeout := inode(header.NodeId), forever
	if _, ok := t.current(dir); !ok {
		return t.FailRequest(header.Unique, header.NodeId, errForgotten)
	}
	if isSettingsDir(dir, name) {
		return t.lookupSettings(dir, header, name, cancel, out)
	}
	i := t.lookup(dir, name)
	b, ok := t.current(i) // once, because the sequence may get another BatchList
	if !ok {
		return t.FailRequest(header.Unique, header.NodeId, errForgotten)
	}
	if i.kind().isNumbered() && b.Spec().FollowsChanges {
		var err error
		if b, err = t.refresh(i, cancel); b == nil { // Open reports other errors
			return t.FailRequest(header.Unique, header.NodeId, err)
		}
		i, timeout = i.withVersion(b.Spec().Version), 0 // the inode depends on the version
	}
	if i.kind() == sequenceFile {
		// A restart that changes max_epochs also changes the inode.
		i, timeout = sequenceInode(i.sequence(), b), 0
	}
	if i == noSuchInode {
		timeout = time.Minute // a restart may bring a program that has more files
		t.recordBadName(dir, name, t.explainBadName(dir, name))
	}
	t.fillEntry(i, b, timeout, out)
	t.sequences.countLookup(i.sequence(), header.Unique) // last, because the steps above may block
	return fuse.OK
}

func (t *tree) lookupSettings(
	dir inode, header *fuse.InHeader, name string, cancel <-chan struct{}, out *fuse.EntryOut,
) fuse.Status {
	s, number, errno, err := t.sequences.lookup(dir, name, header.Uid, header.Unique, cancel)
	if err != nil {
		t.recordBadName(dir, name, err.Error())
	}
	if errno == 0 {
		t.fillEntry(settingsInode(number, dir, name), s.Current(), forever, out)
	}
	return fuse.Status(errno)
}

// fillEntry fills in the reply to a lookup that found i, or noSuchInode. The kernel may cache the
// reply for the timeout.
func (t *tree) fillEntry(i inode, b BatchList, timeout time.Duration, out *fuse.EntryOut) {
	out.NodeId = uint64(i)
	out.SetEntryTimeout(timeout)
	if i == noSuchInode {
		return
	}
	if i.kind().isNumbered() {
		out.Generation = uint64(b.Spec().Version) // the version in an inode wraps around
	}
	t.attributes(i, b, &out.Attr)
	out.SetAttrTimeout(attrTimeout(i))
}

func (t *tree) Forget(node, lookups uint64) { t.sequences.forget(inode(node).sequence(), lookups) }

func (t *tree) CostOfGetAttr(in *fuse.GetAttrIn) guard.Cost {
	i := inode(in.NodeId)
	return t.cost(i, t.needsSequence(i))
}

func (t *tree) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	i := inode(in.NodeId)
	b, ok := t.current(i)
	if !ok || i.outdated(b) {
		return fuse.Status(syscall.ESTALE)
	}
	t.attributes(i, b, &out.Attr)
	out.SetTimeout(attrTimeout(i))
	return fuse.OK
}

// uncachedFlags bypass the page cache, which all handles of a file share. They are for files whose
// handles differ in content.
const uncachedFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH

func (t *tree) CostOfOpen(in *fuse.OpenIn) guard.Cost {
	i := inode(in.NodeId)
	return t.cost(i, i.kind().isNext() || i.kind().isNumbered() || i.kind() == infoFile || t.needsSequence(i))
}

func (t *tree) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	i := inode(in.NodeId)
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH
	switch k := i.kind(); {
	case in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY:
		return fuse.EROFS
	case t.shared.Closing.Load() != 0:
		return fuse.Status(syscall.ESHUTDOWN)
	case k.isNext():
		return t.openNext(i, in, cancel, out)
	case k.isText():
		fh, err := t.openText(i, cancel)
		if err != nil {
			return t.FailRequest(in.Unique, in.NodeId, err)
		}
		out.Fh, out.OpenFlags = fh, uncachedFlags
	case k.isNumbered():
		b, err := t.refreshToOpen(i, cancel)
		if err != nil {
			return t.FailRequest(in.Unique, in.NodeId, err)
		}
		if i.outdated(b) {
			return fuse.Status(syscall.ESTALE) // makes the kernel look the path up again
		}
		out.Fh = uint64(b.Spec().Version)
		if k == batchJSON { // a restart can rename sources
			out.OpenFlags &^= fuse.FOPEN_KEEP_CACHE
		}
	}
	return fuse.OK
}

// refresh returns the latest BatchList of a file's sequence, after checking the token files from
// which the file will be read. It is nil if the sequence is forgotten.
func (t *tree) refresh(i inode, cancel <-chan struct{}) (BatchList, error) {
	s := t.sequences.get(i.sequence())
	switch {
	case s == nil:
		return nil, errForgotten
	case i.kind().spansBatches():
		return s.LatestWhole(cancel)
	}
	return s.LatestFor(t.batchOf(i), cancel)
}

// batchOf returns the number of a file's first batch. For next*, it is the number taken next.
func (t *tree) batchOf(i inode) uint64 {
	if i.kind().isNext() {
		return t.shared.Sequences[i.sequence()].Next()
	}
	return i.firstBatch()
}

// refreshToOpen is like refresh, but fails with state.EndedError if the file's batch is beyond the
// last one.
func (t *tree) refreshToOpen(i inode, cancel <-chan struct{}) (BatchList, error) {
	b, err := t.refresh(i, cancel)
	if err == nil && t.batchOf(i) >= b.Spec().Batches {
		err = state.EndedError(b.Spec().Batches)
	}
	return b, err
}

func (t *tree) openNext(i inode, in *fuse.OpenIn, cancel <-chan struct{}, out *fuse.OpenOut) fuse.Status {
	// Fail here, because some readers do not check whether a read failed.
	if _, err := t.refreshToOpen(i, cancel); err != nil {
		return t.FailRequest(in.Unique, in.NodeId, err)
	}
	fh, ok := t.handles.Open(i.sequence(), in.Pid, in.Flags&syscall.O_NONBLOCK != 0, in.Unique)
	if !ok {
		t.log.tryLog(slog.LevelError, "too many open handles of next: opens fail with ENFILE", "most", state.MaxHandles)
		return fuse.Status(syscall.ENFILE)
	}
	out.Fh, out.OpenFlags = fh, uncachedFlags
	return fuse.OK
}

func (t *tree) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	switch k := inode(in.NodeId).kind(); {
	case k.isNext():
		t.handles.Release(in.Fh)
	case k.isText():
		t.texts.release(in.Fh)
	}
}

func (t *tree) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return fuse.OK
}

func (t *tree) CostOfReadDir(in *fuse.ReadIn) guard.Cost {
	dir := inode(in.NodeId)
	return t.cost(dir, t.needsSequence(dir))
}

func (t *tree) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	dir, up := inode(in.NodeId), rootInode // also for settings directories: nothing relies on ".."
	if _, ok := t.current(dir); !ok {
		return t.FailRequest(in.Unique, in.NodeId, errForgotten)
	}
	if dir.kind() == batchDir {
		up = makeInode(splitDir, dir.sequence(), dir.rest())
	}
	list := []fuse.DirEntry{{Name: ".", Mode: syscall.S_IFDIR, Ino: in.NodeId}, {Name: "..", Mode: syscall.S_IFDIR, Ino: uint64(up)}}
	if dir.kind() != batchDir { // there are too many batches to list
		list = append(list, slices.DeleteFunc(t.listDir(dir, 0), func(e fuse.DirEntry) bool { return inode(e.Ino).kind().entry().isUnlisted })...)
	}
	for n := int(in.Offset); n < len(list) && out.AddDirEntry(list[n]); n++ {
	}
	return fuse.OK
}

// StatFs reports a file system that is as large as its files and has no free space. Without a size,
// df and file managers would take it for a pseudo file system.
func (t *tree) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	out.Bsize, out.Frsize, out.NameLen = stdioBlksize, stdioBlksize, maxNameLen
	for n := 1; n <= t.sequences.splitCount; n++ {
		out.Blocks += uint64(t.sequences.peek(n).Current().Spec().FilesSize)
	}
	out.Blocks = (out.Blocks + stdioBlksize - 1) / stdioBlksize
	return fuse.OK
}

// cost returns the cost of a request, apart from the batches that it reads. Like the methods that
// guard calls to learn what a request costs, it creates no Sequence, because the request is not
// admitted yet.
func (t *tree) cost(i inode, checksFiles bool) guard.Cost {
	c := guard.Cost{Split: t.sequences.splitOf(i.sequence())}
	if checksFiles {
		c.Rows = 1
	}
	return c
}

// needsSequence reports whether this worker must make the Sequence of a file, which may read token
// files, because the worker that made it has ended.
func (t *tree) needsSequence(i inode) bool {
	return i.sequence() > 0 && t.sequences.peek(i.sequence()) == nil
}

func (t *tree) Rollback(id uint64) { t.handles.Rollback(id) }

// FailRequest records the error of a request in the log and status.json, and returns its errno. A
// request that timed out may fail again later, but is counted once.
func (t *tree) FailRequest(id, node uint64, err error) fuse.Status {
	if err == state.ErrAbandoned { // the guard has replied, and has reported a timeout itself
		return fuse.Status(syscall.ETIMEDOUT)
	}
	errno := syscall.EIO
	for _, e := range []syscall.Errno{syscall.ESTALE, syscall.ETIMEDOUT, syscall.ENODATA} {
		if errors.Is(err, e) {
			errno = e
		}
	}
	number := inode(node).sequence()
	name := t.sequences.recordError(number, id, err.Error())
	t.shared.SetFailing(number, errno == syscall.EIO && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EACCES))
	t.log.tryLog(slog.LevelError, "a request failed", "sequence", name, "errno", errno.Error(), "err", err)
	return fuse.Status(errno)
}
