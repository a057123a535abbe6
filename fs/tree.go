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
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Sequence is what the tree needs to know of one: its shape, and the bytes of any batch.
type Sequence struct {
	Name       string // of its directory
	DType      string // NumPy's name of the type of a token
	Shape      []int  // of one batch
	BatchBytes int64
	Steps      uint64 // batches in batches.*
	Start      uint64 // first number that next takes
	Info       []byte // info.json

	// Read fills dst with the bytes of batches k, k+1, … one after the other, from byte off of batch k on. An error that
	// is syscall.ESTALE reaches the reader as that, any other as EIO. It is called concurrently.
	Read func(dst []byte, k uint64, off int64) error

	batchHeader, batchesHeader []byte // of the .npy files
}

// tree implements fuse.RawFileSystem: each method translates a request into inodes and offsets.
type tree struct {
	fuse.RawFileSystem // ENOSYS for the rest, after which the kernel does not ask again
	table              *table
	sequences          []*Sequence // 1 to len: index 0 is the mount itself
	readme             []byte
	version            string
	log                *slog.Logger
	began              time.Time
	uid, gid           uint32
	peekLogged         sync.Once
	fullLogged         sync.Once

	textMu sync.Mutex
	texts  map[uint64][]byte // what open handles of cursor and status.json show, by handle
	lastFh uint64            // of those handles
	faults map[int]string    // by sequence, the last error, so that one that repeats is logged once
}

// attributes that never change may be remembered for as long as the kernel can express.
const forever = time.Duration(1<<31) * time.Second

func newTree(mountpoint, version string, sequences []*Sequence, log *slog.Logger) (*tree, error) {
	if len(sequences) >= maxSequences {
		return nil, fmt.Errorf("%d splits, more than %d", len(sequences), maxSequences-1)
	}
	table, err := newTable()
	if err != nil {
		return nil, err
	}
	t := &tree{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		table:         table,
		sequences:     append([]*Sequence{nil}, sequences...),
		readme:        readme(mountpoint, sequences),
		version:       version,
		log:           log,
		began:         time.Now(),
		uid:           uint32(os.Getuid()),
		gid:           uint32(os.Getgid()),
		texts:         map[uint64][]byte{},
		faults:        map[int]string{},
	}
	for i, s := range sequences {
		t.table.states[i+1].cursor.Store(s.Start)
		s.batchHeader = NPYHeader(s.DType, s.Shape...)
		s.batchesHeader = NPYHeader(s.DType, append([]int{int(s.Steps)}, s.Shape...)...)
	}
	return t, nil
}

func (t *tree) sequence(i inode) *Sequence { return t.sequences[i.sequence()] }

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
		for i, s := range t.sequences[1:] {
			list = append(list, entry{s.Name, makeInode(splitDir, i+1, 0)})
		}
		return list
	case splitDir:
		s := dir.sequence()
		return []entry{
			{"next", makeInode(nextRaw, s, 0)},
			{"next.npy", makeInode(nextNPY, s, 0)},
			{"cursor", makeInode(cursorFile, s, 0)},
			{"batch", makeInode(batchDir, s, 0)},
			{"batches.bin", makeInode(batchesRaw, s, 0)},
			{"batches.npy", makeInode(batchesNPY, s, 0)},
			{"info.json", makeInode(infoFile, s, 0)},
		}
	}
	return nil
}

// lookup finds name in a directory.
func (t *tree) lookup(dir inode, name string) inode {
	if dir.kind() == batchDir {
		digits, npy := strings.CutSuffix(name, ".npy")
		k, err := strconv.ParseUint(digits, 10, 64)
		switch {
		case err != nil || k >= MaxBatches || strconv.FormatUint(k, 10) != digits:
			return noSuchInode
		case npy:
			return makeInode(batchNPY, dir.sequence(), k)
		}
		return makeInode(batchRaw, dir.sequence(), k)
	}
	for _, e := range t.entries(dir) {
		if e.name == name {
			return e.inode
		}
	}
	return noSuchInode
}

// header is what stands before the batches of a file.
func (t *tree) header(i inode) []byte {
	switch i.kind() {
	case nextNPY, batchNPY:
		return t.sequence(i).batchHeader
	case batchesNPY:
		return t.sequence(i).batchesHeader
	}
	return nil
}

// text is the content of a file without batches, and nil for the others.
func (t *tree) text(i inode) []byte {
	switch i.kind() {
	case readmeFile:
		return t.readme
	case statusFile:
		return t.status()
	case infoFile:
		return t.sequence(i).Info
	case cursorFile:
		return fmt.Appendln(nil, t.table.states[i.sequence()].cursor.Load())
	}
	return nil
}

func (t *tree) size(i inode) int64 {
	k := i.kind()
	if k.isDir() {
		return 0
	}
	if text := t.text(i); text != nil {
		return int64(len(text))
	}
	s, batches := t.sequence(i), int64(1)
	if k == batchesRaw || k == batchesNPY {
		batches = int64(s.Steps)
	}
	return int64(len(t.header(i))) + batches*s.BatchBytes
}

func (t *tree) attributes(i inode, out *fuse.Attr) {
	*out = fuse.Attr{Ino: uint64(i), Size: uint64(t.size(i)), Mode: syscall.S_IFREG | 0o444, Nlink: 1}
	if i.kind().isDir() {
		out.Mode, out.Nlink = syscall.S_IFDIR|0o555, 2
	}
	out.Blocks = (out.Size + 511) / 512
	// Said, because otherwise it is a page, which is larger on some machines.
	out.Blksize = stdioBlock
	out.Owner = fuse.Owner{Uid: t.uid, Gid: t.gid}
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
	i := t.lookup(inode(header.NodeId), name)
	out.NodeId = uint64(i) // 0, with a timeout, makes the kernel remember that there is no such file
	out.SetEntryTimeout(forever)
	if i != noSuchInode {
		t.attributes(i, &out.Attr)
		out.SetAttrTimeout(lasting(i))
	}
	return fuse.OK
}

func (t *tree) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	i := inode(in.NodeId)
	t.attributes(i, &out.Attr)
	out.SetTimeout(lasting(i))
	return fuse.OK
}

func (t *tree) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return fuse.OK
}

func (t *tree) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	dir, up := inode(in.NodeId), rootInode
	if dir.kind() == batchDir {
		up = makeInode(splitDir, dir.sequence(), 0)
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

func (t *tree) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	i := inode(in.NodeId)
	switch k := i.kind(); {
	case in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY:
		return fuse.EROFS
	case k.isNext():
		var state uint64
		if in.Flags&syscall.O_NONBLOCK != 0 {
			state = peeks
			t.logPeek(i, in.Pid)
		}
		fh, ok := t.table.open(i, state)
		if !ok {
			t.fullLogged.Do(func() { t.log.Error("too many open handles of next: opens fail with ENFILE", "most", maxHandles) })
			return fuse.Status(syscall.ENFILE)
		}
		out.Fh, out.OpenFlags = fh, fuse.FOPEN_DIRECT_IO|fuse.FOPEN_NOFLUSH
	case k.isLiveText():
		out.Fh, out.OpenFlags = t.openText(i), fuse.FOPEN_DIRECT_IO|fuse.FOPEN_NOFLUSH
	default:
		out.OpenFlags = fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH
	}
	return fuse.OK
}

func (t *tree) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	switch k := inode(in.NodeId).kind(); {
	case k.isNext():
		t.table.release(in.Fh)
	case k.isLiveText():
		t.textMu.Lock()
		delete(t.texts, in.Fh)
		t.textMu.Unlock()
	}
}

// openText keeps what the file shows now for the life of the handle.
func (t *tree) openText(i inode) (fh uint64) {
	text := t.text(i)
	t.textMu.Lock()
	defer t.textMu.Unlock()
	t.lastFh++
	t.texts[t.lastFh] = text
	return t.lastFh
}

func (t *tree) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	i := inode(in.NodeId)
	k := i.kind()
	// What changes from handle to handle cannot lie in the page cache, which all handles share. Only read(2) comes with
	// the owner of the handle's locks; a read for the page cache (sendfile, or a private mapping) has none.
	if (k.isNext() || k.isLiveText()) && in.ReadFlags&fuse.READ_LOCKOWNER == 0 {
		return nil, fuse.EINVAL
	}
	if text := t.openedText(i, in.Fh); text != nil {
		off := min(in.Offset, uint64(len(text)))
		return fuse.ReadResultData(buf[:copy(buf, text[off:])]), fuse.OK
	}
	off := int64(in.Offset)
	size := t.size(i)
	buf = buf[:min(int64(len(buf)), max(size-off, 0))]
	if len(buf) == 0 {
		return fuse.ReadResultData(nil), fuse.OK
	}
	number, cursor, r := i.batch(), &t.table.states[i.sequence()].cursor, span{off, int64(len(buf)), size}
	if k.isNext() {
		number = t.table.number(in.Fh, cursor, in.Unique, r)
	}
	if err := t.read(i, number, off, buf); err != nil {
		if k.isNext() {
			t.table.failed(in.Fh, cursor, number, r)
		}
		return nil, t.fault(i, number, err)
	}
	return fuse.ReadResultData(buf), fuse.OK
}

// openedText is what a file without batches shows on a handle, and nil for the others.
func (t *tree) openedText(i inode, fh uint64) []byte {
	if i.kind().isLiveText() {
		t.textMu.Lock()
		text, kept := t.texts[fh]
		t.textMu.Unlock()
		if kept {
			return text
		}
	}
	return t.text(i)
}

// read fills buf, which lies within the file, from byte off of a file that begins with batch number.
func (t *tree) read(i inode, number uint64, off int64, buf []byte) error {
	header := t.header(i)
	rest := buf
	if off < int64(len(header)) {
		n := copy(buf, header[off:])
		rest, off = buf[n:], off+int64(n)
	}
	if len(rest) > 0 {
		if err := t.sequence(i).Read(rest, number, off-int64(len(header))); err != nil {
			return err
		}
	}
	state := &t.table.states[i.sequence()]
	state.reads.Add(1)
	state.bytes.Add(uint64(len(buf)))
	return nil
}

// fault turns the error of a read into an errno, and puts its words into the log and status.json.
func (t *tree) fault(i inode, number uint64, err error) fuse.Status {
	n, s := i.sequence(), t.sequence(i)
	t.table.states[n].errors.Add(1)
	t.textMu.Lock()
	repeats := t.faults[n] == err.Error()
	t.faults[n] = err.Error()
	t.textMu.Unlock()
	errno := syscall.EIO
	if errors.Is(err, syscall.ESTALE) {
		errno = syscall.ESTALE
	}
	if !repeats {
		t.log.Error("a read failed; the same again is counted in status.json", "split", s.Name, "batch", number, "errno", errno.Error(), "err", err)
	}
	return fuse.Status(errno)
}

func (t *tree) logPeek(i inode, pid uint32) {
	t.peekLogged.Do(func() {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		t.log.Info("next was opened with O_NONBLOCK: such a handle looks at the batch that comes next and takes none (said once)",
			"split", t.sequence(i).Name, "pid", pid, "program", strings.TrimSpace(string(comm)))
	})
}
