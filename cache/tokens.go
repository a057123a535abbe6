// Package cache reads tokens from the files that hold them.
//
// [Open] makes one array of tokens out of lists of files; [Tokens.Read] hands out windows of it. How the bytes are
// fetched is an [Access]; every access gives the same bytes. Nothing is kept of a file between two reads but, where
// the access says so, its mapping, and a file that is no longer the one that was opened is an error, never other tokens.
package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Options say how tokens are stored and fetched.
type Options struct {
	Width         int    // bytes of a token in the files, 2 or 4, little-endian
	Join          bool   // windows may cross from one file into the next
	Access        Access // how the bytes of a window are fetched
	DropPageCache bool   // give the kernel's page cache back after every read

	// Was are the same files before they changed. One that is being overwritten is refused: its time of change is that
	// at which a write began, so what was read of it until the write ends could be of both.
	Was *Tokens
}

// Tokens is an array of tokens kept in files. It is safe for concurrent use.
type Tokens struct {
	Options
	shards      []*shard
	runs        []Run
	fingerprint string
	pool        sync.Pool             // *[]byte, scratch for the windows of one Read
	changed     atomic.Pointer[shard] // one that was found changed, until it is put back
	checked     atomic.Int64          // when Check last looked at all of many files, in nanoseconds
}

// Window is Len tokens from Start on. Tag is the caller's.
type Window struct {
	Start int64
	Len   int
	Tag   int
}

// Run is a stretch of the array that a window must not leave: one file, or all those of a source where they are joined.
type Run struct {
	Name   string // the file, or the first of those joined
	Source int
	Start  int64
	Len    int64
}

// Place is where a token of the array stands.
type Place struct {
	Path   string
	Index  int64 // in the file
	Source int
}

// A shard is one file, as it was when it was opened.
type shard struct {
	path   string
	cpath  *byte // path and a zero byte, because to make one in each read is to allocate
	source int
	start  int64 // of its first token in the array
	len    int64 // tokens
	id     identity

	keep sync.Mutex // held while the first read of an access that keeps a mapping makes it
	kept *mapping   // guarded by keep
}

// ChangedError says that a token file is not the one that was opened. errors.Is(err, syscall.ESTALE) holds for it.
type ChangedError struct {
	Path string
	How  string
}

func (e *ChangedError) Error() string {
	return fmt.Sprintf("%s has changed since it was opened: %s; put it back, or mount anew to serve the new one, which on_change = \"follow\" does by itself", e.Path, e.How)
}

func (e *ChangedError) Is(target error) bool { return target == syscall.ESTALE }

// Open checks every file and makes one array of their tokens, in the order given: the files of each source, source after
// source.
func Open(sources [][]string, o Options) (*Tokens, error) {
	m := Manifest{Sources: make([][]File, len(sources))}
	sum, n := sha256.New(), 0
	blocks := samples(len(slices.Concat(sources...)))
	for source, paths := range sources {
		for _, path := range paths {
			id, err := inspect(path, o.Was.shard(n), sum, blocks)
			if err != nil {
				return nil, err
			}
			m.Sources[source] = append(m.Sources[source], File{[]byte(path), id})
			n++
		}
	}
	m.Fingerprint = hex.EncodeToString(sum.Sum(nil)[:16])
	return Reopen(m, o)
}

// openFlags have O_NONBLOCK because to open a named pipe is else to wait for its writer.
const openFlags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK

// shard is the i-th one, or nil.
func (t *Tokens) shard(i int) *shard {
	if t == nil || i >= len(t.shards) {
		return nil
	}
	return t.shards[i]
}

// inspect opens a file, checks that it can be read, and adds it to the fingerprint.
func inspect(path string, was *shard, sum hash.Hash, blocks int64) (id identity, err error) {
	f, err := os.OpenFile(path, openFlags, 0)
	if err != nil {
		return id, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return id, err
	case info.IsDir():
		return id, fmt.Errorf("%s is a directory, not a token file; name the files in it, e.g. %s/*.bin", path, path)
	case !info.Mode().IsRegular():
		return id, fmt.Errorf("%s is not a regular file, and only those can be read at any position", path)
	}
	var busy error
	if was != nil {
		// A lease is refused while somebody has the file open for writing, and while it is held nobody opens it for that.
		// It takes the file's owner or CAP_LEASE, and a filesystem that has leases.
		_, busy = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	}
	id, err = identify(int(f.Fd()))
	if was != nil && busy == nil {
		unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	}
	switch {
	case err != nil:
		return id, &os.PathError{Op: "stat", Path: path, Err: err}
	case busy == unix.EAGAIN && was.overwritten(id):
		return id, fmt.Errorf("%s is being overwritten: a process has it open for writing", path)
	}
	sum.Write(append([]byte(filepath.Base(path)), 0))
	sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(id.Size)))
	// A file that opens may still not be readable: a FUSE or network filesystem answers at the first read.
	return id, sample(f, id.Size, blocks, sum)
}

// sampleSize is the bytes of a block of a file that the fingerprint covers.
const sampleSize = 4096

// samples is how many blocks of each of so many files the fingerprint covers: few enough to open terabytes at once.
func samples(files int) int64 { return int64(max(2, 64/max(files, 1))) }

// sample adds blocks to sum that lie evenly from a file's first byte to its last, or all of a file that is no larger.
func sample(f io.ReaderAt, size, blocks int64, sum hash.Hash) error {
	if size <= blocks*sampleSize {
		_, err := io.Copy(sum, io.NewSectionReader(f, 0, size))
		return err
	}
	block := make([]byte, sampleSize)
	for i := range blocks {
		// (size-sampleSize) * i / (blocks-1), which might overflow
		whole, rest := (size-sampleSize)/(blocks-1), (size-sampleSize)%(blocks-1)
		if _, err := f.ReadAt(block, whole*i+rest*i/(blocks-1)); err != nil {
			return err
		}
		sum.Write(block)
	}
	return nil
}

func identify(fd int) (identity, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return identity{uint64(st.Dev), st.Ino, st.Size, int64(st.Mtim.Sec), int64(st.Mtim.Nsec)}, err
}

// overwritten says whether now is the same file changed other than by appending to it.
func (s *shard) overwritten(now identity) bool {
	was := s.id
	return now != was && now.Dev == was.Dev && now.Ino == was.Ino && now.Size <= was.Size
}

// same returns a ChangedError unless now is the file that was opened.
func (s *shard) same(now identity) error {
	was := s.id
	if now == was {
		return nil
	}
	e := &ChangedError{Path: s.path}
	switch {
	case now.Size != was.Size:
		e.How = fmt.Sprintf("%d bytes, was %d", now.Size, was.Size)
	case now.Ino != was.Ino || now.Dev != was.Dev:
		e.How = "another file stands in its place"
	default:
		e.How = fmt.Sprintf("written to at %s", time.Unix(now.Sec, now.Nsec).UTC().Format(time.RFC3339Nano))
	}
	return e
}

// Len is the number of tokens.
func (t *Tokens) Len() int64 {
	last := t.shards[len(t.shards)-1]
	return last.start + last.len
}

// Files are the paths of each source, in order.
func (t *Tokens) Files() [][]string {
	var paths [][]string
	for _, s := range t.shards {
		if s.source == len(paths) {
			paths = append(paths, nil)
		}
		paths[s.source] = append(paths[s.source], s.path)
	}
	return paths
}

// Runs are the stretches that windows must stay within, in order.
func (t *Tokens) Runs() []Run { return t.runs }

// Fingerprint tells data from other data, in 32 hexadecimal digits: the first half of the SHA-256 of each file's base
// name and a zero byte, its size as a little-endian uint64, and blocks of its content (see sample).
func (t *Tokens) Fingerprint() string { return t.fingerprint }

// Locate is where token pos stands.
func (t *Tokens) Locate(pos int64) Place {
	s := t.shards[t.shardOf(pos)]
	return Place{s.path, pos - s.start, s.source}
}

// Of so many files all are looked at in each Check, and of more once a second.
const fewShards = 64

// Check looks at the files without reading them. It returns a ChangedError if one is not the one that was opened.
func (t *Tokens) Check() error {
	if err := t.checkChanged(); err != nil {
		return err
	}
	if len(t.shards) > fewShards {
		now, last := time.Now().UnixNano(), t.checked.Load()
		if now-last < int64(time.Second) || !t.checked.CompareAndSwap(last, now) {
			return nil
		}
	}
	for _, s := range t.shards {
		if err := s.unchangedAtPath(); err != nil {
			return t.noting(s, err)
		}
	}
	return nil
}

// checkChanged looks again at a file that was found changed: the others are of no use until it is put back.
func (t *Tokens) checkChanged() error {
	s := t.changed.Load()
	if s == nil {
		return nil
	}
	if err := s.unchangedAtPath(); err != nil {
		return err
	}
	t.changed.CompareAndSwap(s, nil)
	return nil
}

// noting returns err and remembers a shard that it says has changed.
func (t *Tokens) noting(s *shard, err error) error {
	if errors.Is(err, syscall.ESTALE) {
		t.changed.Store(s)
	}
	return err
}

func (t *Tokens) shardOf(pos int64) int {
	return sort.Search(len(t.shards), func(i int) bool { return t.shards[i].start > pos }) - 1
}

// Read fetches windows and calls visit once for each, in any order, with its tokens as they stand in the file. raw is
// valid during the call only. Read sorts ws. An error of visit ends the read and is returned, unless the file changed,
// which then explains it.
func (t *Tokens) Read(ws []Window, visit func(w Window, raw []byte) error) error {
	if err := t.checkChanged(); err != nil || len(ws) == 0 {
		return err
	}
	if len(t.shards) == 1 {
		return t.readShard(t.shards[0], ws, visit)
	}
	// In order of position, so that each file is opened once.
	slices.SortFunc(ws, func(a, b Window) int { return int(min(max(a.Start-b.Start, -1), 1)) })
	for len(ws) > 0 {
		i := t.shardOf(ws[0].Start)
		s := t.shards[i]
		n := 0
		for n < len(ws) && ws[n].Start+int64(ws[n].Len) <= s.start+s.len {
			n++
		}
		if n > 0 {
			if err := t.readShard(s, ws[:n], visit); err != nil {
				return err
			}
			ws = ws[n:]
			continue
		}
		if err := t.readAcross(i, ws[0], visit); err != nil {
			return err
		}
		ws = ws[1:]
	}
	return nil
}

// readAcross reads a window that begins in shard i and ends in a later one.
func (t *Tokens) readAcross(i int, w Window, visit func(Window, []byte) error) error {
	whole := make([]byte, 0, w.Len*t.Width)
	for part := w; part.Len > 0; i++ {
		s := t.shards[i]
		here := part
		here.Len = int(min(int64(part.Len), s.start+s.len-part.Start))
		err := t.readShard(s, []Window{here}, func(_ Window, raw []byte) error {
			whole = append(whole, raw...)
			return nil
		})
		if err != nil {
			return err
		}
		part.Start += int64(here.Len)
		part.Len -= here.Len
	}
	return visit(w, whole)
}

// open opens the file and checks that it is the one that was opened first.
func (s *shard) open() (fd int, err error) {
	cwd, errno := unix.AT_FDCWD, unix.EINTR
	for errno == unix.EINTR {
		var n uintptr
		n, _, errno = unix.Syscall6(unix.SYS_OPENAT, uintptr(cwd), uintptr(unsafe.Pointer(s.cpath)), openFlags, 0, 0, 0)
		fd = int(n)
	}
	if errno != 0 {
		return -1, &os.PathError{Op: "open", Path: s.path, Err: errno}
	}
	if err := s.unchanged(fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// unchanged is asked before a read and after it, so that no read mixes what a file was with what it became.
func (s *shard) unchanged(fd int) error {
	now, err := identify(fd)
	if err != nil {
		return &os.PathError{Op: "stat", Path: s.path, Err: err}
	}
	return s.same(now)
}

// because returns why a read failed: err, unless the file changed meanwhile, which then explains it.
func (s *shard) because(err error, fd int) error {
	if changed := s.unchanged(fd); changed != nil {
		return changed
	}
	return err
}

// bytes is where a window lies in its file.
func (t *Tokens) bytes(s *shard, w Window) (from, to int64) {
	from = (w.Start - s.start) * int64(t.Width)
	return from, from + int64(w.Len*t.Width)
}

// pages is bytes, widened to whole pages.
func (t *Tokens) pages(s *shard, w Window) (from, to int64) {
	page := int64(os.Getpagesize())
	from, to = t.bytes(s, w)
	return from &^ (page - 1), (to + page - 1) &^ (page - 1)
}
