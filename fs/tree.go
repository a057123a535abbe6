// Package fs is the tree of files that a mount shows, and the mount itself.
//
// A file is an [inode] number: its kind, its sequence and, in batch/, its number. Every file of batches is a header,
// which may be empty, and a stretch of its sequence behind it. What a batch holds is decided elsewhere: a [Sequence]
// brings a function for that. Only next* depend on who asks; what they need is in the [block].
package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Sequence is what the tree needs to know of one: its shape, and the bytes of any batch. It is of the tokens as they are
// at some time; when they change, another takes its place.
type Sequence struct {
	Name       string // of a split's directory, or of what settings in a path make of it: "train/rank=3,world=8"
	DType      string // NumPy's name of the type of a token
	Shape      []int  // of one batch
	BatchBytes int64
	Steps      uint64            // batches in batches.*
	Start      uint64            // first number that next takes
	Metadata   map[string]string // of .safetensors files, besides the batch's number
	Changes    uint64            // how often its tokens have changed since the mount began
	Follows    bool              // whether Now may return another sequence

	// Read fills dst with the bytes of batches k, k+1, … one after the other, from byte off of batch k on. An error that
	// is syscall.ESTALE reaches the reader as that, any other as EIO. It is called concurrently, as are those below.
	Read func(dst []byte, k uint64, off int64) error

	Info       func() []byte         // info.json
	Provenance func(k uint64) []byte // batch/<k>.json; nil if there is none

	// Now looks at the files of the tokens. It returns this sequence, or if they changed and that is to be followed the
	// one of the new tokens; or this one and an error, as of Read.
	Now func() (*Sequence, error)

	// With is the sequence under the settings of a path, "rank=3,world=8". The same settings give the same Name. The error
	// is syscall.ENOENT where a setting is unknown.
	With func(settings string) (*Sequence, error)
}

// tree implements fuse.RawFileSystem: each method translates a request into inodes and offsets.
type tree struct {
	fuse.RawFileSystem // ENOSYS for the rest, after which the kernel does not ask again
	table              *table
	sequences          *sequences
	ahead              ahead
	watch              watch
	giveUp             func() // another process is to serve
	readme             []byte
	version            string
	log                *slog.Logger
	began              time.Time
	mode               uint32 // of files
	owner              fuse.Owner
	peekLogged         sync.Once
	fullLogged         sync.Once

	textMu sync.Mutex
	texts  map[uint64][]byte // what open handles of texts made for them show, by handle
	opened uint64            // of those handles, the last one
}

// attributes that never change may be remembered for as long as the kernel can express.
const forever = time.Duration(1<<31) * time.Second

// Options are what a mount depends on besides its sequences.
type Options struct {
	Version    string
	Ahead      int           // batches made ready for each reader of next* or batch/<k> in order
	AheadBytes int64         // that all of these may take
	Timeout    time.Duration // within which every request has an answer
	Mode       uint32        // permission bits of files; a directory can be searched by who may read
	UID, GID   uint32        // who owns the files
	Log        *slog.Logger
}

// newTree makes the tree of a mount, which serves from goOn on.
func newTree(mountpoint string, splits []*Sequence, o Options) *tree {
	return &tree{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		ahead:         ahead{batches: o.Ahead, bytes: o.AheadBytes, log: o.Log},
		readme:        readme(mountpoint, splits),
		version:       o.Version,
		log:           o.Log,
		mode:          o.Mode,
		owner:         fuse.Owner{Uid: o.UID, Gid: o.GID},
		texts:         map[uint64][]byte{},
	}
}

// goOn goes on from what is in a block, in which nobody else works any more.
func (t *tree) goOn(splits []*Sequence, b *block, o Options) (err error) {
	t.table = newTable(b)
	if t.sequences, err = newSequences(splits, t.table, o.Log); err != nil {
		return err
	}
	t.watch.limit, t.watch.table, t.watch.stuck = o.Timeout, t.table, map[int]int{}
	t.watch.fault = func(i inode, err error) { t.fault(i, err) }
	t.began = time.Unix(0, b.began)
	workers := b.workers.Add(1)
	t.opened = workers << 20 // those of earlier workers may still be open
	if workers > 1 {
		cut("succeed")
	}
	return nil
}

func (t *tree) sequence(i inode) *Sequence { return t.sequences.get(i.sequence()) }

// An entry is a name in a directory.
type entry struct {
	name  string
	inode inode
}

// entries are what readdir lists. Batches are without number and are not.
func (t *tree) entries(dir inode) []entry {
	switch dir.kind() {
	case rootDir:
		list := []entry{{"README", makeInode(readmeFile, 0, 0)}, {"status.json", makeInode(statusFile, 0, 0)}}
		for n := 1; n <= t.sequences.splits; n++ {
			list = append(list, entry{t.sequences.get(n).Name, makeInode(splitDir, n, 0)})
		}
		return list
	case splitDir:
		s := dir.sequence()
		return []entry{
			{"next", makeInode(nextRaw, s, 0)},
			{"next.npy", makeInode(nextNPY, s, 0)},
			{"next.safetensors", makeInode(nextSafe, s, 0)},
			{"cursor", makeInode(cursorFile, s, 0)},
			{"batch", makeInode(batchDir, s, dir.batch())},
			{"batches.bin", t.numbered(batchesRaw, s, 0)},
			{"batches.npy", t.numbered(batchesNPY, s, 0)},
			{"info.json", makeInode(infoFile, s, 0)},
		}
	}
	return nil
}

// numbered is the inode of a numbered file of the tokens as they were last seen.
func (t *tree) numbered(k kind, sequence int, batch uint64) inode {
	return makeInode(k, sequence, batch).changed(t.sequences.get(sequence).Changes)
}

// lookup finds name in a directory, but for settings.
func (t *tree) lookup(dir inode, name string) inode {
	if dir.kind() == batchDir {
		digits, suffix, _ := strings.Cut(name, ".")
		k, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || k >= MaxBatches || strconv.FormatUint(k, 10) != digits {
			return noSuchInode
		}
		switch {
		case name == digits:
			return t.numbered(batchRaw, dir.sequence(), k)
		case suffix == "npy":
			return t.numbered(batchNPY, dir.sequence(), k)
		case suffix == "safetensors":
			return t.numbered(batchSafe, dir.sequence(), k)
		case suffix == "json" && t.sequence(dir).Provenance != nil:
			return t.numbered(batchJSON, dir.sequence(), k)
		}
		return noSuchInode
	}
	for _, e := range t.entries(dir) {
		if e.name == name {
			return e.inode
		}
	}
	return noSuchInode
}

// header is what stands before the batches of a file that begins with batch number.
func (s *Sequence) header(k kind, number uint64) []byte {
	switch k {
	case nextNPY, batchNPY:
		return NPYHeader(s.DType, s.Shape...)
	case batchesNPY:
		return NPYHeader(s.DType, append([]int{int(s.Steps)}, s.Shape...)...)
	case nextSafe, batchSafe:
		return s.safetensorsHeader(number)
	}
	return nil
}

// text is the content of a file without batches, and nil for the others. s is the file's sequence.
func (t *tree) text(i inode, s *Sequence) []byte {
	switch i.kind() {
	case readmeFile:
		return t.readme
	case statusFile:
		return t.status()
	case infoFile:
		s, _ := t.sequences.now(i.sequence()) // an error is for those to tell who read batches
		return s.Info()
	case cursorFile:
		return fmt.Appendln(nil, t.table.states[i.sequence()].cursor.Load())
	case batchJSON:
		return s.Provenance(i.batch())
	}
	return nil
}

func (t *tree) size(i inode, s *Sequence) int64 {
	k := i.kind()
	if k.isDir() {
		return 0
	}
	if text := t.text(i, s); text != nil {
		return int64(len(text))
	}
	size := s.BatchBytes
	if k.isBatches() {
		size *= int64(s.Steps)
	}
	if !k.isRaw() {
		size += stdioBlock // the header
	}
	return size
}

func (t *tree) attributes(i inode, s *Sequence, out *fuse.Attr) {
	*out = fuse.Attr{Ino: uint64(i), Size: uint64(t.size(i, s)), Mode: syscall.S_IFREG | t.mode, Nlink: 1}
	if i.kind().isDir() {
		out.Mode, out.Nlink = syscall.S_IFDIR|t.mode|t.mode>>2, 2
	}
	out.Blocks = (out.Size + 511) / 512
	// Said, because otherwise it is a page, which is larger on some machines.
	out.Blksize = stdioBlock
	out.Owner = t.owner
	began := t.began
	out.SetTimes(&began, &began, &began)
}

// lasting is how long the kernel may remember a file's attributes.
func lasting(i inode) time.Duration {
	if i.kind().isLiveText() {
		return 0
	}
	return forever
}

func (t *tree) String() string { return "batchfs" }

func (t *tree) Lookup(_ <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	dir := inode(header.NodeId)
	c, err := t.watch.begin(header.Unique, dir)
	if err != nil {
		return t.fault(dir, err)
	}
	defer t.watch.end(c)
	timeout := forever
	var i inode
	var s *Sequence // one for all that is said here, because another may take its place meanwhile
	if dir.kind() == splitDir && isSettings(name) {
		number, errno := t.sequences.lookUp(dir, name)
		if errno != 0 {
			return fuse.Status(errno)
		}
		i = as(number, dir, name)
	} else {
		i = t.lookup(dir, name)
		s = t.sequence(i)
		if i.kind().isNumbered() && s.Follows {
			s, _ = t.sequences.now(i.sequence()) // an error is for Open to tell
			i = i.changed(s.Changes)
			timeout = 0 // of other tokens it is another file
		}
		if i != noSuchInode {
			t.table.states[i.sequence()].lookups.Add(1)
		}
	}
	out.NodeId = uint64(i) // 0, with a timeout, makes the kernel remember that there is no such file
	out.SetEntryTimeout(timeout)
	if i != noSuchInode {
		if i.kind().isNumbered() {
			out.Generation = s.Changes // the changes that are part of an inode come round again
		}
		t.attributes(i, s, &out.Attr)
		out.SetAttrTimeout(lasting(i))
	}
	return fuse.OK
}

// Forget comes when the kernel no longer knows a file that it looked up so many times.
func (t *tree) Forget(node, lookups uint64) { t.sequences.forget(inode(node).sequence(), lookups) }

func (t *tree) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	i := inode(in.NodeId)
	c, err := t.watch.begin(in.Unique, i)
	if err != nil {
		return t.fault(i, err)
	}
	defer t.watch.end(c)
	s := t.sequence(i)
	if i.outdated(s) {
		return fuse.Status(syscall.ESTALE)
	}
	t.attributes(i, s, &out.Attr)
	out.SetTimeout(lasting(i))
	return fuse.OK
}

// outdated says whether i is a numbered file of tokens that are not those of s.
func (i inode) outdated(s *Sequence) bool {
	return i.kind().isNumbered() && i != i.changed(s.Changes)
}

func (t *tree) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return fuse.OK
}

func (t *tree) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	dir, up := inode(in.NodeId), rootInode
	if dir.kind() == batchDir {
		up = makeInode(splitDir, dir.sequence(), dir.batch())
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
	out.Bsize, out.Frsize, out.NameLen = stdioBlock, stdioBlock, 255
	return fuse.OK
}

// fault turns the error of a file of a sequence into an errno, and puts its words into the log and status.json.
func (t *tree) fault(i inode, err error) fuse.Status {
	errno := syscall.EIO
	for _, e := range []syscall.Errno{syscall.ESTALE, syscall.ETIMEDOUT} {
		if errors.Is(err, e) {
			errno = e
		}
	}
	if repeats := t.sequences.fault(i.sequence(), err.Error()); !repeats {
		t.log.Error("a read failed; the same again is counted in status.json", "sequence", t.sequence(i).Name, "errno", errno.Error(), "err", err)
	}
	return fuse.Status(errno)
}
