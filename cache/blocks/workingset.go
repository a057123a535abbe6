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
	"batchfs/internal/privatedir"
)

// A WorkingSet is the blocks that a reader needs in an epoch. Readers of the same blocks have one
// working set. It is safe for concurrent use.
//
// A working set is in use until another one has done without room for a twentieth of its blocks since
// it was last read: readers that take turns keep what they have, and one that has stopped soon makes
// room. The order of reads decides that, not a clock.
type WorkingSet struct {
	Name   string // name of its reader, for people
	Needed int64  // bytes of the files of its blocks
	Blocks int64

	disk    *disk
	file    string // name in workingSetsDir
	spans   []span
	touched atomic.Int64 // time of the last read, in nanoseconds since 1970
	saved   atomic.Int64 // time when touched was last saved; in the far future while it is being saved

	refused atomic.Int64 // blocks that get no room before room is looked for again
	horizon atomic.Int64 // working sets last read before that time make room for it, in nanoseconds since 1970
	failed  atomic.Int64 // failed evictions in a row
	enough  atomic.Int64 // limit that it needs, in bytes; 0 if it never lacked room

	mu          sync.Mutex
	lock        *os.File // its file, with a lock of this process; guarded by mu, like savedEnough
	savedEnough int64    // enough, as the file has it
}

const (
	// saveEvery is how often the time of the last read is saved for other processes.
	saveEvery = 100 * time.Millisecond
	// idleTime is how long a reader has been silent that does not read now.
	idleTime = time.Minute
	// maxFailedEvictions is how often in a row no room is found before the log says so: blocks are
	// prefetched for a while for a reader that stops.
	maxFailedEvictions = 4
	// forgetAfter is how long a working set is remembered after its readers have ended. After that,
	// its blocks are evicted before all others.
	forgetAfter = 30 * 24 * time.Hour
)

// A span is the blocks [From, To) of an object.
type span struct {
	Object string `json:"object"` // name of its directory
	From   int64  `json:"from"`
	To     int64  `json:"to"`
}

// NewWorkingSet returns the working set of the blocks that hold ranges, or nil if there is no
// directory. name is the reader's.
func NewWorkingSet(name string, ranges []ObjectRange) *WorkingSet {
	if len(ranges) == 0 || ranges[0].Object.cache.disk == nil {
		return nil
	}
	d, size := ranges[0].Object.cache.disk, ranges[0].Object.cache.o.BlockBytes
	objects := map[string]*CachedObject{}
	var spans []span
	for _, r := range ranges {
		dir := r.Object.identity.name()
		objects[dir] = r.Object
		spans = append(spans, span{dir, r.From / size, (r.To + size - 1) / size})
	}
	s := &WorkingSet{Name: name, disk: d, spans: union(spans)}
	for _, of := range s.spans {
		s.Blocks += of.To - of.From
		s.Needed += min(of.To*size, objects[of.Object].Size) - of.From*size + (of.To-of.From)*trailerBytes
	}
	sum := sha256.Sum256(fmt.Append(nil, s.spans))
	s.file = hex.EncodeToString(sum[:16])
	d.mu.Lock()
	defer d.mu.Unlock()
	if known := d.sets[s.file]; known != nil {
		return known
	}
	d.sets[s.file] = s
	return s
}

func compareSpans(a, b span) int {
	return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.From, b.From))
}

// union sorts spans, and merges those that touch.
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

// workingSetOf returns the working set for which a block is fetched: the last read of those that need
// the block.
func (d *disk) workingSetOf(k key) *WorkingSet {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, object := &d.none, k.object.identity.name()
	for _, s := range d.sets {
		if s.touched.Load() > last.touched.Load() && holds(s.spans, object, k.index) {
			last = s
		}
	}
	return last
}

// Touch records that the working set is read. It does not wait.
func (s *WorkingSet) Touch() {
	now := time.Now().UnixNano()
	s.touched.Store(now)
	if saved := s.saved.Load(); now-saved > int64(saveEvery) && s.saved.CompareAndSwap(saved, math.MaxInt64) {
		go func() {
			s.save()
			s.saved.Store(now)
		}()
	}
}

// BeginFill records that a command fetches the working set, which takes the room of those that are
// not read now. It waits until that is saved.
func (s *WorkingSet) BeginFill() {
	now := time.Now()
	s.touched.Store(now.UnixNano())
	s.horizon.Store(now.Add(-idleTime).UnixNano())
	s.save()
}

// save tells other processes that the working set is read.
func (s *WorkingSet) save() {
	d := s.disk
	if s.Needed > d.limit {
		s.warnTooSmall(s.Needed)
	}
	if d.refusal() != nil {
		return
	}
	if err := d.locked(s.saveIn); err != nil {
		d.suspend(err)
	}
}

// saveIn is save for a caller that holds the lock.
func (s *WorkingSet) saveIn(root *os.Root) error {
	d, name := s.disk, filepath.Join(workingSetsDir, s.file)
	if s == &d.none {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	read, enough := time.Unix(0, s.touched.Load()), s.enough.Load()
	if s.lock != nil && isLinked(s.lock) && s.savedEnough == enough && root.Chtimes(name, read, read) == nil {
		return nil
	}
	f, err := openRegular(root, name)
	// The file is good if another process holds it, and this one may set its time.
	if err != nil || s.savedEnough != enough || root.Chtimes(name, read, read) != nil || privatedir.Lock(f, unix.LOCK_EX|unix.LOCK_NB) == nil {
		f.Close()
		text, _ := json.Marshal(SavedWorkingSet{Name: s.Name, Needed: s.Needed, Enough: enough, Spans: s.spans})
		root.RemoveAll(name)
		if err := cmp.Or(d.makeDir(root, workingSetsDir), d.createWith(root, name, text), root.Chtimes(name, read, read)); err != nil {
			return err
		}
		if f, err = openRegular(root, name); err != nil {
			return err
		}
	}
	s.lock.Close()
	s.lock, s.savedEnough = f, enough
	return privatedir.Lock(f, unix.LOCK_SH)
}

// warnTooSmall logs once that blocks are fetched again in every epoch, and the remedy.
func (s *WorkingSet) warnTooSmall(enough int64) {
	if s.enough.CompareAndSwap(0, enough) {
		s.disk.log.Warn("the block cache has no room for all that is read in an epoch: the rest is fetched again and again; raise store.cache_bytes",
			"dir", s.disk.dir, "reader", s.Name, "needed", s.Needed, "store.cache_bytes", s.disk.limit, "enough", enough)
	}
}

// A SavedWorkingSet is a working set that a process has read, as the directory has it.
type SavedWorkingSet struct {
	Name   string `json:"name"`   // name of its reader, or of one of several
	Needed int64  `json:"needed"` // bytes
	// Enough is the limit that it needs if it lacked room. Usage clears it unless the working set is
	// read now and still lacks room.
	Enough int64  `json:"enough,omitempty"`
	Spans  []span `json:"spans"`

	Stored  int64     `json:"-"` // bytes in the directory; set by Usage
	Live    bool      `json:"-"` // whether a process that has read it lives
	Touched time.Time `json:"-"` // time of the last read
	file    string
}

// savedIn returns the working sets that a directory knows, the last read first. If tidy is true,
// which needs the lock, it removes files that are none, or that were not read for long.
func (d *disk) savedIn(root *os.Root, tidy bool) (all []SavedWorkingSet) {
	eachFile(root, workingSetsDir, func(file fs.FileInfo) {
		s, name := SavedWorkingSet{file: file.Name(), Touched: file.ModTime()}, filepath.Join(workingSetsDir, file.Name())
		f, err := openRegular(root, name)
		if err == nil {
			err = json.NewDecoder(f).Decode(&s)
			s.Live = privatedir.Lock(f, unix.LOCK_EX|unix.LOCK_NB) != nil
			f.Close()
		}
		if err != nil || !s.Live && time.Since(s.Touched) > forgetAfter {
			if tidy {
				root.RemoveAll(name)
			}
			return
		}
		d.mu.Lock()
		if own := d.sets[s.file]; own != nil && own.touched.Load() > s.Touched.UnixNano() {
			s.Touched = time.Unix(0, own.touched.Load())
		}
		d.mu.Unlock()
		all = append(all, s)
	})
	slices.SortFunc(all, func(a, b SavedWorkingSet) int { return b.Touched.Compare(a.Touched) })
	return all
}

func isLinked(f *os.File) bool {
	var st unix.Stat_t
	return eintr.Retry(func() error { return unix.Fstat(int(f.Fd()), &st) }) == nil && st.Nlink > 0
}
