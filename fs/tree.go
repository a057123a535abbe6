// Package fs is the tree of files that a mount shows.
//
// A file is an [inode] number: its kind, its sequence and, in batch/, its batch number; kinds.go has a row for each kind. Every
// file of batches is an optional header and then the bytes of batches. What a batch holds is decided elsewhere:
// [Sequence.Read], a function that the caller of [Serve] sets. Only next, next.npy and next.safetensors keep state per open
// file; that state is in package state, so that another process can continue from it. [Serve] answers the kernel's requests.
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
	"batchfs/fs/failpoint"
	"batchfs/fs/mount"
	"batchfs/fs/state"
)

// tree implements fuse.RawFileSystem: each method translates a request into inodes and offsets.
type tree struct {
	fuse.RawFileSystem // ENOSYS for the rest, after which the kernel does not ask again
	shared             *state.Shared
	handles            *state.Handles
	sequences          *sequences
	texts              texts
	prefetcher         prefetcher
	deadlines          deadlines
	turns, places      *turns
	giveUp             func() // another process should serve
	leaving            atomic.Bool
	log                *limitedLog
	mode               uint32 // of files
	owner              fuse.Owner
	failures           failures
	uncachedLogged     sync.Once
	fullLogged         sync.Once
}

// attributes that never change may be remembered for as long as the kernel can express.
const forever = time.Duration(1<<31) * time.Second

// Options are what a mount depends on besides its sequences.
type Options struct {
	ProgramVersion  string                      // for status.json
	Ahead           int                         // batches made before they are asked for, for each reader of next* or batch/<k> in order
	AheadBytes      int64                       // that all of these may take
	ReplyBytes      int64                       // that replies may take, besides those of batches made ahead
	TextBytes       int64                       // that the texts which open files show may take
	TableBytes      func() int64                // memory that the sequences take
	Budget          int64                       // bytes for all of these
	Store           func() *StoreUse            // nil: nothing lies in a store, as where it returns nil
	Remaps          func() (mapped, busy int64) // reads of token files with a mapping, and those that had none because another read had one
	Timeout         time.Duration               // within which every request has an answer
	Mode            uint32                      // permission bits of files; who may read files may list directories
	UID, GID        uint32                      // who owns the files
	SettingsPerUser int                         // directories of settings that each user may have, except root and UID
	Log             *slog.Logger
}

// A StoreUse is what this process has read of objects in stores, for status.json.
type StoreUse struct {
	Requests, Bytes int64 // sent, and fetched
	Hits, Waits     int64 // blocks that were there when they were read, and that were fetched meanwhile
	Waited          time.Duration
	Unkept          int64 // blocks for which the block cache had no room, or which it failed to keep
	Memory          int64 // bytes
}

// newTree makes the tree of a mount, which can answer requests after resume.
func newTree(mountpoint string, splits []*Sequence, o Options) *tree {
	log := newLimitedLog(o.Log)
	turns, places := newTurns(len(splits), maxTurns, minTurns), newTurns(len(splits), int(o.ReplyBytes/mount.MaxRequest), minPlaces)
	return &tree{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		texts: texts{
			readme: readmeOf(mountpoint, splits), programVersion: o.ProgramVersion,
			most: int(o.TextBytes), open: map[uint64]*keptText{}, infos: map[*Sequence]*keptText{},
		},
		prefetcher: prefetcher{batches: o.Ahead, bytes: o.AheadBytes, turns: turns, places: places, log: log},
		turns:      turns,
		places:     places,
		log:        log,
		mode:       o.Mode,
		owner:      fuse.Owner{Uid: o.UID, Gid: o.GID},
	}
}

// resume goes on from the shared state, in which nobody else works any more. sequences.index must follow, and may take a while.
func (t *tree) resume(splits []*Sequence, shared *state.Shared, o Options) (err error) {
	t.shared, t.handles = shared, state.NewHandles(shared)
	if t.sequences, err = newSequences(splits, shared, o); err != nil {
		return err
	}
	d := &t.deadlines
	d.limit, d.shared, d.handles, d.stuck = o.Timeout, shared, t.handles, map[int]int{}
	d.splitOf, d.turns, d.suspects = t.sequences.splitOf, t.turns, make(chan struct{}, 1)
	t.texts.memory = func() memoryUse { return t.memoryUse(o) }
	d.fault = func(i inode, err error) { t.fault(i, err) }
	t.texts.began, t.texts.shared, t.texts.sequences = time.Unix(0, shared.Began), shared, t.sequences
	workers := shared.Workers.Add(1)
	shared.Blame()
	if workers > 1 {
		failpoint.Hit("succeed")
	}
	return nil
}

// memoryUse is what is taken of each part of the budget.
func (t *tree) memoryUse(o Options) memoryUse {
	m := memoryUse{budget: o.Budget, tables: o.TableBytes()}
	m.mapped, m.busy = o.Remaps()
	if o.Store != nil {
		m.store = o.Store()
	}
	t.texts.mu.Lock()
	m.texts = int64(t.texts.bytes)
	t.texts.mu.Unlock()
	t.prefetcher.mu.Lock()
	m.ahead = t.prefetcher.used
	t.prefetcher.mu.Unlock()
	for split := range t.places.queues {
		places, turns := &t.places.queues[split], &t.turns.queues[split]
		m.replies += int64(places.taken.Load()) * mount.MaxRequest
		m.waiting += int(places.waiting.Load() + turns.waiting.Load())
	}
	return m
}

// passLocks takes and releases each lock that requests need. It blocks if one is never released.
func (t *tree) passLocks() {
	t.handles.Pass()
	for _, mu := range []*sync.Mutex{&t.sequences.mu, &t.prefetcher.mu, &t.deadlines.mu, &t.texts.mu, &t.turns.mu, &t.places.mu} {
		mu.Lock()
		mu.Unlock() //lint:ignore SA2001 only whether it can be taken matters
	}
}

// sequence is the sequence of a file, or nil for a file of the whole mount.
func (t *tree) sequence(i inode) *Sequence { return t.sequences.get(i.sequence()) }

// isForgotten says whether i is a file of a sequence, s, that the kernel has forgotten: only a handler that was late asks for it.
func (t *tree) isForgotten(i inode, s *Sequence) bool { return s == nil && i.sequence() > 0 }

// A dirEntry is a name in a directory.
type dirEntry struct {
	name  string
	inode inode
}

// entries are what readdir lists. Batches are without number, and are not listed.
func (t *tree) entries(dir inode) (list []dirEntry) {
	for _, r := range rows {
		switch {
		case r.in != dir.kind() || r.in == batchDir:
		case r.kind == splitDir:
			for n := 1; n <= t.sequences.splits; n++ {
				list = append(list, dirEntry{t.sequences.get(n).Name, makeInode(splitDir, n, 0)})
			}
		case r.shows == namedArray:
			s := t.sequences.get(dir.sequence())
			for n, a := range beside(s) {
				i := makeArrayInode(r.kind, dir.sequence(), s.Batch.Main+n, 0).ofVersion(s.Version)
				list = append(list, dirEntry{strings.Replace(r.name, "%", a.Name, 1), i})
			}
		case r.kind.isNumbered():
			list = append(list, dirEntry{r.name, t.numbered(r.kind, dir.sequence(), 0)})
		case r.kind == batchDir:
			list = append(list, dirEntry{r.name, makeInode(batchDir, dir.sequence(), dir.rest())})
		default:
			list = append(list, dirEntry{r.name, makeInode(r.kind, dir.sequence(), 0)})
		}
	}
	return list
}

// beside are the arrays of a batch that have files of their own.
func beside(s *Sequence) []array.Array { return s.Batch.Arrays[s.Batch.Main:] }

// numbered is the inode of a numbered file of the tokens as they were last seen.
func (t *tree) numbered(k kind, sequence int, batch uint64) inode {
	return makeInode(k, sequence, batch).ofVersion(t.sequences.get(sequence).Version)
}

// lookup finds a name in a directory, but for settings.
func (t *tree) lookup(dir inode, name string) inode {
	if dir.kind() == batchDir {
		return t.lookupBatch(dir.sequence(), name)
	}
	for _, e := range t.entries(dir) {
		if e.name == name {
			return e.inode
		}
	}
	return noSuchInode
}

// lookupBatch finds a name in the directory batch of a sequence: a number, and what follows it.
func (t *tree) lookupBatch(sequence int, name string) inode {
	digits := name[:len(name)-len(strings.TrimLeft(name, "0123456789"))]
	k, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || k >= MaxBatches || strconv.FormatUint(k, 10) != digits {
		return noSuchInode
	}
	for _, r := range rows {
		switch {
		case r.in != batchDir:
		case r.shows == namedArray:
			s := t.sequences.get(sequence)
			for n, a := range beside(s) {
				if k < 1<<arrayShift && strings.Replace(r.name, "%", a.Name, 1) == name[len(digits):] {
					return makeArrayInode(r.kind, sequence, s.Batch.Main+n, k).ofVersion(s.Version)
				}
			}
		case r.name == name[len(digits):]:
			return t.numbered(r.kind, sequence, k)
		}
	}
	return noSuchInode
}

// size is the size of a file in bytes. s is the file's sequence.
func (t *tree) size(i inode, s *Sequence) int64 {
	switch r := i.kind().row(); {
	case r.content == directory:
		return 0
	case r.len != nil:
		return r.len(&t.texts, i)
	case r.text != nil:
		text, _ := r.text(&t.texts, i)
		return int64(len(text))
	default:
		return i.size(s)
	}
}

// The st_blksize of files is what C's stdio reads at once, and what it seeks to a multiple of.
const (
	// A page is larger on some machines.
	stdioBlock = headerBytes
	// Of next, whose first block comes with a new batch when it is read again. x or y, or all of a small batch, is larger than
	// a small block, so that stdio reads what it was asked for and no more. Files with a header need none: what is not the
	// header begins behind their first block.
	nextBlock = 512
)

func (t *tree) attributes(i inode, s *Sequence, out *fuse.Attr) {
	*out = fuse.Attr{Ino: uint64(i), Size: uint64(t.size(i, s)), Mode: syscall.S_IFREG | t.mode, Nlink: 1}
	if i.kind().isDir() {
		out.Mode, out.Nlink = syscall.S_IFDIR|t.mode|t.mode>>2, 2
	}
	out.Blocks = (out.Size + 511) / 512
	out.Blksize = stdioBlock
	if i.kind() == nextRaw {
		out.Blksize = nextBlock
	}
	out.Owner = t.owner
	began := t.texts.began
	out.SetTimes(&began, &began, &began)
}

// attributesLast is how long the kernel may remember a file's attributes.
func attributesLast(i inode) time.Duration {
	if i.kind().isLiveText() {
		return 0
	}
	return forever
}

func (t *tree) String() string { return "batchfs" }

func (t *tree) Lookup(_ <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if len(name) > maxNameLen { // which the kernel does not check, and the shared state has no room for
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	dir := inode(header.NodeId)
	r, err := t.deadlines.begin(header.Unique, dir)
	if err != nil {
		return t.fault(dir, err)
	}
	defer t.ends(r)
	timeout := forever
	var i inode
	var s *Sequence // one for the whole answer, because another may replace it meanwhile
	if dir.kind() == splitDir && isSettings(name) {
		if err := t.takeTurn(r, header.Caller); err != nil {
			return t.fault(dir, err)
		}
		s, errno := t.sequences.with(dir, name)
		if errno != 0 {
			return fuse.Status(errno)
		}
		t.endTurns(r)
		number, errno := t.sequences.lookUp(s, dir, name, header.Unique, header.Uid)
		if errno != 0 {
			return fuse.Status(errno)
		}
		i = settingsDir(number, dir, name)
		r.undo = func() { t.sequences.forget(number, 1) }
	} else {
		i = t.lookup(dir, name)
		s = t.sequence(i)
		if i.kind().isNumbered() && s.Follows {
			if err := t.takeTurn(r, header.Caller); err != nil {
				return t.fault(i, err)
			}
			if s, err = t.sequences.now(i.sequence(), i.batches()); s == nil { // another error is for Open to tell
				return t.fault(i, err)
			}
			i = i.ofVersion(s.Version)
			timeout = 0 // of other tokens it is another file
		}
	}
	out.NodeId = uint64(i) // 0, with a timeout, makes the kernel remember that there is no such file
	out.SetEntryTimeout(timeout)
	if i != noSuchInode {
		if i.kind().isNumbered() {
			out.Generation = uint64(s.Version) // the version that is part of an inode comes round again
		}
		t.attributes(i, s, &out.Attr)
		out.SetAttrTimeout(attributesLast(i))
		if r.undo == nil { // last, because what is above may wait
			t.sequences.countLookup(i.sequence(), header.Unique)
			r.undo = func() { t.sequences.forget(i.sequence(), 1) }
		}
	}
	return fuse.OK
}

// Forget comes when the kernel no longer knows a file that it looked up so many times.
func (t *tree) Forget(node, lookups uint64) { t.sequences.forget(inode(node).sequence(), lookups) }

func (t *tree) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	i := inode(in.NodeId)
	r, err := t.deadlines.begin(in.Unique, i)
	if err != nil {
		return t.fault(i, err)
	}
	defer t.ends(r)
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
	for _, e := range t.entries(dir) {
		mode := uint32(syscall.S_IFREG)
		if e.inode.kind().isDir() {
			mode = syscall.S_IFDIR
		}
		list = append(list, fuse.DirEntry{Name: e.name, Mode: mode, Ino: uint64(e.inode)})
	}
	for n := int(in.Offset); n < len(list) && out.AddDirEntry(list[n]); n++ {
	}
	return fuse.OK
}

func (t *tree) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	out.Bsize, out.Frsize, out.NameLen = stdioBlock, stdioBlock, maxNameLen
	return fuse.OK
}

// fault turns the error of a request into an errno, and puts its words into the log and status.json.
func (t *tree) fault(i inode, err error) fuse.Status {
	if err == errLate { // its reader has an answer, of which the log has the error
		return fuse.Status(syscall.ETIMEDOUT)
	}
	errno := syscall.EIO
	for _, e := range []syscall.Errno{syscall.ESTALE, syscall.ETIMEDOUT} {
		if errors.Is(err, e) {
			errno = e
		}
	}
	name := t.sequences.fault(i.sequence(), err.Error())
	t.log.limited(slog.LevelError, "a request failed", "sequence", name, "errno", errno.Error(), "err", err)
	return fuse.Status(errno)
}
