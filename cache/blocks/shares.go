package blocks

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	failed  atomic.Int64 // how often in a row no room was found
	enough  atomic.Int64 // the limit that it needs, where it lacked room
	listed  *os.File     // the list that has it; guarded by disk.listing, as told
	told    int64        // enough, as the list has it
}

const (
	// Other processes are told so often that a share is read.
	noteEvery = 100 * time.Millisecond
	// Nothing but another share removes what a command has fetched, for so long.
	fillKeeps = time.Hour
	// For a command that fetches, a share whose reader has been silent for so long is not in use.
	fillWaits = time.Minute
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
	if noted := s.noted.Load(); now-noted > int64(noteEvery) && s.noted.CompareAndSwap(noted, now) {
		go s.note()
	}
}

// Fill says that a command fetches the share, which may be read later. It waits until other processes know that.
func (s *Share) Fill() {
	s.filling.Store(true)
	s.read.Store(time.Now().UnixNano())
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
	if err := d.timely(func(alive func()) error { return d.locked(alive, s.noteIn) }); err != nil && !errors.Is(err, errBusy) {
		d.fails(err)
	}
}

// noteIn is note for a caller that holds the lock.
func (s *Share) noteIn(root *os.Root) error {
	d, name := s.disk, filepath.Join(sharesDir, s.file)
	if s == &d.none {
		return nil
	}
	read := time.Unix(0, s.read.Load())
	if s.filling.Load() {
		read = read.Add(fillKeeps)
	}
	if root.Chtimes(name, read, read) != nil {
		text, _ := json.Marshal(knownShare{Name: s.Name, Needed: s.Needed, Spans: s.spans})
		root.RemoveAll(name)
		if err := cmp.Or(d.makeDir(root, sharesDir), d.createWith(root, name, text), root.Chtimes(name, read, read)); err != nil {
			return err
		}
	}
	d.listing.Lock()
	defer d.listing.Unlock()
	if d.list == nil || !isLinked(d.list) {
		list, err := d.newList(root)
		if err != nil {
			return err
		}
		d.list = list
	}
	enough := s.enough.Load()
	if s.listed == d.list && s.told == enough {
		return nil
	}
	s.listed, s.told = d.list, enough
	_, err := fmt.Fprintf(d.list, "%s %d %q\n", s.file, enough, s.Name)
	return err
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
	Spans  []span `json:"spans"`

	file    string
	readers map[string]int64 // in processes that live; the limit that it needs, where one lacked room
	read    time.Time
	filled  bool // and not read since
}

// sharesIn are the shares that a directory knows. Where it may tidy, which needs the lock, it removes what dead processes left.
func (d *disk) sharesIn(root *os.Root, tidy bool) (all []knownShare) {
	readers := readersIn(root, tidy)
	eachFile(root, sharesDir, func(file fs.FileInfo) bool {
		s := knownShare{file: file.Name(), readers: readers[file.Name()], read: file.ModTime()}
		if s.filled = s.read.After(time.Now()); s.filled {
			s.read = s.read.Add(-fillKeeps)
		}
		name := filepath.Join(sharesDir, s.file)
		forgotten := len(s.readers) == 0 && time.Since(s.read) > forgetShares
		if forgotten || json.Unmarshal([]byte(readText(root, name)), &s) != nil {
			if tidy {
				root.RemoveAll(name)
			}
			return true
		}
		d.mu.Lock()
		if own := d.shares[s.file]; own != nil && own.read.Load() > s.read.UnixNano() {
			s.read = time.Unix(0, own.read.Load())
		}
		d.mu.Unlock()
		all = append(all, s)
		return true
	})
	return all
}

// readersIn are the readers of shares in processes that live, by the share's file.
func readersIn(root *os.Root, tidy bool) map[string]map[string]int64 {
	all := map[string]map[string]int64{}
	eachFile(root, mountedDir, func(list fs.FileInfo) bool {
		name := filepath.Join(mountedDir, list.Name())
		f, err := openRegular(root, name)
		if err != nil {
			return true
		}
		defer f.Close()
		if owndir.Lock(f, unix.LOCK_SH|unix.LOCK_NB) == nil {
			if tidy {
				root.Remove(name)
			}
			return true
		}
		text, _ := io.ReadAll(f)
		for line := range strings.Lines(string(text)) {
			var share, reader string
			var enough int64
			if n, _ := fmt.Sscanf(line, "%s %d %q", &share, &enough, &reader); n < 3 {
				continue
			}
			if all[share] == nil {
				all[share] = map[string]int64{}
			}
			all[share][reader] = enough
		}
		return true
	})
	return all
}

// newList makes this process's file in mounted.
func (d *disk) newList(root *os.Root) (*os.File, error) {
	if err := d.makeDir(root, mountedDir); err != nil {
		return nil, err
	}
	list, err := d.create(root, filepath.Join(mountedDir, fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())))
	if err != nil {
		return nil, err
	}
	return list, owndir.Lock(list, unix.LOCK_EX)
}

func isLinked(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Nlink > 0
}
