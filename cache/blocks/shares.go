package blocks

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/internal/owndir"
)

// A Share is the blocks that an epoch of a reader needs. Readers of the same blocks have one share.
//
// A share is in use until another one has done without room for a twentieth of its blocks since it was last read: readers that take turns keep
// what they have, and one that has stopped makes room soon. The order of reads decides that, and no clock.
type Share struct {
	Name   string // of its reader, as people know it
	Needed int64  // bytes of the files of its blocks
	Blocks int64

	disk  *disk
	file  string // in sharesDir
	spans []span
	read  atomic.Int64 // when it was read last, in nanoseconds since 1970
	noted atomic.Int64 // when other processes were last told of that

	filling atomic.Bool
	refused atomic.Int64 // so many more of its blocks get no room before it is looked for again
	horizon atomic.Int64 // shares that were last read before that time make room for it, in nanoseconds since 1970
	enough  atomic.Int64 // the limit that it needs, where it lacked room

	mu   sync.Mutex // within the lock on the directory, which keeps other processes out
	held *os.File   // its file, locked; guarded by mu, as told
	told int64      // enough, as the file has it
}

const (
	// Other processes are told so often that a share is read.
	noteEvery = 100 * time.Millisecond
	// For a command that fetches, a share whose reader has been silent for so long is not in use.
	fillWaits = time.Minute
	// A share whose readers have ended is forgotten after that time; its blocks make room before all others then.
	forgetShares = 30 * 24 * time.Hour
)

// A span is blocks of an object, from one to before another.
type span struct {
	Object string `json:"object"` // its directory
	From   int64  `json:"from"`
	To     int64  `json:"to"`
}

// A Part is bytes of an object.
type Part struct {
	Object   *Object
	From, To int64
}

// NewShare is the share of the blocks that hold some parts, or nil where nothing keeps blocks. name says who reads it.
func NewShare(name string, parts []Part) *Share {
	if len(parts) == 0 || parts[0].Object.cache.disk == nil {
		return nil
	}
	d := parts[0].Object.cache.disk
	objects, size := map[string]*Object{}, parts[0].Object.BlockBytes()
	var spans []span
	for _, p := range parts {
		dir := p.Object.identity.name()
		objects[dir] = p.Object
		spans = append(spans, span{dir, p.From / size, (p.To + size - 1) / size})
	}
	s := &Share{Name: name, disk: d, spans: union(spans)}
	for _, of := range s.spans {
		s.Blocks += of.To - of.From
		s.Needed += min(of.To*size, objects[of.Object].Size) - of.From*size + (of.To-of.From)*trailerBytes
	}
	sum := sha256.Sum256(fmt.Append(nil, s.spans))
	s.file = hex.EncodeToString(sum[:16])
	d.mu.Lock()
	defer d.mu.Unlock()
	if known := d.shares[s.file]; known != nil {
		return known
	}
	d.shares[s.file] = s
	return s
}

func compareSpans(a, b span) int {
	return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.From, b.From))
}

// union sorts spans, and makes one of those that touch.
func union(spans []span) (all []span) {
	slices.SortFunc(spans, compareSpans)
	for _, next := range spans {
		if last := len(all) - 1; last >= 0 && all[last].Object == next.Object && next.From <= all[last].To {
			all[last].To = max(all[last].To, next.To)
		} else {
			all = append(all, next)
		}
	}
	return all
}

// holds reports whether a block is one of a union of spans.
func holds(spans []span, object string, index int64) bool {
	i, found := slices.BinarySearchFunc(spans, span{Object: object, From: index}, compareSpans)
	return found || i > 0 && spans[i-1].Object == object && index < spans[i-1].To
}

// shareOf is the share for which a block is fetched: of those that need it, the one that was read last.
func (d *disk) shareOf(k key) *Share {
	d.mu.Lock()
	defer d.mu.Unlock()
	of, object := &d.none, k.object.identity.name()
	for _, s := range d.shares {
		if s.read.Load() > of.read.Load() && holds(s.spans, object, k.index) {
			of = s
		}
	}
	return of
}

// Read says that the share is read. It does not wait.
func (s *Share) Read() {
	if s == nil {
		return
	}
	now := time.Now().UnixNano()
	s.read.Store(now)
	if noted := s.noted.Load(); now-noted > int64(noteEvery) && s.noted.CompareAndSwap(noted, now) {
		go s.note()
	}
}

// Fill says that a command fetches the share, which may be read later. It waits until other processes know that.
func (s *Share) Fill() {
	now := time.Now()
	s.filling.Store(true)
	s.horizon.Store(now.Add(-fillWaits).UnixNano())
	s.read.Store(now.UnixNano())
	s.note()
}

// note tells other processes that the share is read: now, or when it is read again.
func (s *Share) note() {
	d := s.disk
	if s.Needed > d.limit {
		s.lacks(s.Needed)
	}
	if !d.writable() {
		return
	}
	if err := d.timely(func() error { return d.locked(s.noteIn) }); err != nil && !errors.Is(err, errBusy) {
		d.fails(err)
	}
}

// noteIn is note for a caller that holds the lock on the directory.
func (s *Share) noteIn(root *os.Root) error {
	if s == &s.disk.none {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := filepath.Join(sharesDir, s.file)
	if !s.isHeld(root, name) || s.told != s.enough.Load() {
		if err := s.describe(root, name); err != nil {
			return err
		}
	}
	read := time.Unix(0, s.read.Load())
	return root.Chtimes(name, read, read)
}

// isHeld reports whether the share's file is there, with this process's lock on it.
func (s *Share) isHeld(root *os.Root, name string) bool {
	if s.held == nil {
		return false
	}
	named, err := root.Lstat(name)
	own, e := s.held.Stat()
	return err == nil && e == nil && os.SameFile(named, own)
}

// describe writes the share's file. One that is there is written to, because other processes hold locks on it.
func (s *Share) describe(root *os.Root, name string) error {
	if err := s.disk.makeDir(root, sharesDir); err != nil {
		return err
	}
	if info, err := root.Lstat(name); err == nil && !info.Mode().IsRegular() {
		root.RemoveAll(name)
	}
	enough := s.enough.Load()
	text, err := json.Marshal(knownShare{Name: s.Name, Needed: s.Needed, Enough: enough, Spans: s.spans})
	if err != nil {
		return err
	}
	f, err := s.disk.create(root, name, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(text, 0)
	if err = cmp.Or(err, f.Truncate(int64(len(text))), owndir.Lock(f, unix.LOCK_SH)); err != nil {
		f.Close()
		return err
	}
	if s.held != nil {
		s.held.Close()
	}
	s.held, s.told = f, enough
	return nil
}

// lacks says once that blocks are fetched again in every epoch, and what helps.
func (s *Share) lacks(enough int64) {
	if s.enough.CompareAndSwap(0, enough) {
		s.disk.log.Warn("the block cache has no room for all that is read in an epoch: the rest is fetched again and again; raise store.cache_bytes",
			"dir", s.disk.dir, "reader", s.Name, "needed", s.Needed, "store.cache_bytes", s.disk.limit, "enough", enough)
	}
}

// A knownShare is a share that a process has read.
type knownShare struct {
	Name   string `json:"name"`
	Needed int64  `json:"needed"`
	Enough int64  `json:"enough"` // the limit that it needs, where it lacked room
	Spans  []span `json:"spans"`

	file string
	live bool // a process that lives has read it
	read time.Time
}

// sharesIn are the shares that a directory knows. Where it may tidy, which needs the lock, it removes old ones.
func (d *disk) sharesIn(root *os.Root, tidy bool) (all []knownShare) {
	files, _ := d.files(root, sharesDir) // or none: there is no such directory yet
	for _, file := range files {
		name := filepath.Join(sharesDir, file.Name())
		s := knownShare{file: file.Name(), read: file.ModTime(), live: isLocked(root, name)}
		forgotten := !s.live && time.Since(s.read) > forgetShares
		if forgotten || json.Unmarshal([]byte(readText(root, name)), &s) != nil {
			if tidy {
				root.RemoveAll(name)
			}
			continue
		}
		d.mu.Lock()
		if own := d.shares[s.file]; own != nil && own.read.Load() > s.read.UnixNano() {
			s.read = time.Unix(0, own.read.Load())
		}
		d.mu.Unlock()
		all = append(all, s)
	}
	return all
}

func isLocked(root *os.Root, name string) bool {
	f, err := openRegular(root, name)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(owndir.Lock(f, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}
