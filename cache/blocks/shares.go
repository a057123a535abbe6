package blocks

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/internal/eintr"
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
	noted atomic.Int64 // when other processes were last told of that; in the far future while they are told

	refused atomic.Int64 // so many more of its blocks get no room before it is looked for again
	horizon atomic.Int64 // shares that were last read before that time make room for it, in nanoseconds since 1970
	failed  atomic.Int64 // how often in a row no room was found
	enough  atomic.Int64 // the limit that it needs, where it lacked room

	mu   sync.Mutex
	held *os.File // its file, with a lock of this process; guarded by mu, as told
	told int64    // enough, as the file has it
}

const (
	// Other processes are told so often that a share is read.
	noteEvery = 100 * time.Millisecond
	// A share whose reader has been silent for so long is not read now.
	silent = time.Minute
	// So often in a row, room is looked for in vain before the log says so: a reader that stops is read ahead for a while.
	seldom = 4
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
	if noted := s.noted.Load(); now-noted > int64(noteEvery) && s.noted.CompareAndSwap(noted, math.MaxInt64) {
		go func() {
			s.note()
			s.noted.Store(now)
		}()
	}
}

// Fill says that a command fetches the share, which takes the room of shares that are not read now. It waits until other processes know that.
func (s *Share) Fill() {
	now := time.Now()
	s.read.Store(now.UnixNano())
	s.horizon.Store(now.Add(-silent).UnixNano())
	s.note()
}

// note tells other processes that the share is read.
func (s *Share) note() {
	d := s.disk
	if s.Needed > d.limit {
		s.lacks(s.Needed)
	}
	if d.refusal() != nil {
		return
	}
	if err := d.locked(s.noteIn); err != nil {
		d.fails(err)
	}
}

// noteIn is note for a caller that holds the lock.
func (s *Share) noteIn(root *os.Root) error {
	d, name := s.disk, filepath.Join(sharesDir, s.file)
	if s == &d.none {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	read, enough := time.Unix(0, s.read.Load()), s.enough.Load()
	if s.held != nil && isLinked(s.held) && s.told == enough && root.Chtimes(name, read, read) == nil {
		return nil
	}
	f, err := openRegular(root, name)
	// The file is good if another process holds it, and this one may set its time.
	if err != nil || s.told != enough || root.Chtimes(name, read, read) != nil || owndir.Lock(f, unix.LOCK_EX|unix.LOCK_NB) == nil {
		f.Close()
		text, _ := json.Marshal(KnownShare{Name: s.Name, Needed: s.Needed, Enough: enough, Spans: s.spans})
		root.RemoveAll(name)
		if err := cmp.Or(d.makeDir(root, sharesDir), d.createWith(root, name, text), root.Chtimes(name, read, read)); err != nil {
			return err
		}
		if f, err = openRegular(root, name); err != nil {
			return err
		}
	}
	s.held.Close()
	s.held, s.told = f, enough
	return owndir.Lock(f, unix.LOCK_SH)
}

// lacks says once that blocks are fetched again in every epoch, and what helps.
func (s *Share) lacks(enough int64) {
	if s.enough.CompareAndSwap(0, enough) {
		s.disk.log.Warn("the block cache has no room for all that is read in an epoch: the rest is fetched again and again; raise store.cache_bytes",
			"dir", s.disk.dir, "reader", s.Name, "needed", s.Needed, "store.cache_bytes", s.disk.limit, "enough", enough)
	}
}

// A KnownShare is a share that a process has read.
type KnownShare struct {
	Name   string `json:"name"`             // of its reader, or of one of several
	Needed int64  `json:"needed"`           // bytes
	Enough int64  `json:"enough,omitempty"` // the limit that it needs, where it lacked room; of Usage, where it is read now and still lacks room
	Spans  []span `json:"spans"`

	Kept int64     `json:"-"` // bytes; set by Usage
	Live bool      `json:"-"` // a process lives that has read it
	Read time.Time `json:"-"`
	file string
}

// sharesIn are the shares that a directory knows, what was read last first. Where it may tidy, which needs the lock, it removes what is none, or
// was not read for long.
func (d *disk) sharesIn(root *os.Root, tidy bool) (all []KnownShare) {
	eachFile(root, sharesDir, func(file fs.FileInfo) {
		s, name := KnownShare{file: file.Name(), Read: file.ModTime()}, filepath.Join(sharesDir, file.Name())
		f, err := openRegular(root, name)
		if err == nil {
			err = json.NewDecoder(f).Decode(&s)
			s.Live = owndir.Lock(f, unix.LOCK_EX|unix.LOCK_NB) != nil
			f.Close()
		}
		if err != nil || !s.Live && time.Since(s.Read) > forgetShares {
			if tidy {
				root.RemoveAll(name)
			}
			return
		}
		d.mu.Lock()
		if own := d.shares[s.file]; own != nil && own.read.Load() > s.Read.UnixNano() {
			s.Read = time.Unix(0, own.read.Load())
		}
		d.mu.Unlock()
		all = append(all, s)
	})
	slices.SortFunc(all, func(a, b KnownShare) int { return b.Read.Compare(a.Read) })
	return all
}

func isLinked(f *os.File) bool {
	var st unix.Stat_t
	return eintr.Retry(func() error { return unix.Fstat(int(f.Fd()), &st) }) == nil && st.Nlink > 0
}
