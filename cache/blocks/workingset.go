package blocks

import (
	"cmp"
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

	"batchfs/cache/localfile"
	"batchfs/internal/privatedir"
)

// A WorkingSet is the set of cache blocks that a reader needs in an epoch. Readers of the same
// blocks share one. It is safe for concurrent use.
//
// A working set is no longer in use if it is not read while another one, B, is refused room for a
// twentieth of B's blocks. Readers that take turns thus keep their blocks, and those of a reader
// that has stopped are soon evicted. The order of reads decides, not a clock, except in BeginFill.
type WorkingSet struct {
	Name   string // name of its reader, for messages
	Needed int64  // size of its block files, in bytes
	Blocks int64  // number of its blocks

	disk  *disk
	file  string // name in workingSetsDir
	spans []span

	// lastRead, lastSave and evictBefore are in nanoseconds since 1970.
	lastRead    atomic.Int64
	lastSave    atomic.Int64 // last time lastRead was saved; math.MaxInt64 during a save
	evictBefore atomic.Int64 // sets last read before this time make room for this one

	refusalsLeft    atomic.Int64 // number of blocks to refuse before room is sought again
	failedEvictions atomic.Int64 // number of failures in a row
	sufficientLimit atomic.Int64 // sufficient Options.Limit, in bytes; 0 if room was never lacking

	mu         sync.Mutex // guards the fields below
	lock       *os.File   // the open file, on which this process holds a shared lock
	savedLimit int64      // sufficientLimit in the file
}

const (
	// saveEvery is how often the time of the last read is saved for other processes.
	saveEvery = 100 * time.Millisecond
	// idleTime is how long a working set must go unread to count as idle.
	idleTime = time.Minute
	// refusalRounds divides the blocks of a working set: after makeRoom has found no room for one
	// block, it refuses the rest of a twentieth of the set without measuring the directory again.
	refusalRounds = 20
	// maxFailedEvictions is how many evictions in a row must fail before the log says that there is
	// no room. A few may fail while blocks are prefetched for a reader that is stopping.
	maxFailedEvictions = 4
	// forgetAfter is how long after its last read a working set is remembered once its processes
	// have ended. Then its blocks are evicted first.
	forgetAfter = 30 * 24 * time.Hour
)

// A span is the cache blocks [From, To) of an object.
type span struct {
	Object string `json:"object"` // name of its directory
	From   int64  `json:"from"`
	To     int64  `json:"to"`
}

// NewWorkingSet returns the working set of the blocks that hold ranges, or nil if there is no
// directory. name identifies the reader in messages.
func NewWorkingSet(name string, ranges []ObjectRange) *WorkingSet {
	if len(ranges) == 0 || ranges[0].Object.cache.disk == nil {
		return nil
	}
	d, size := ranges[0].Object.cache.disk, ranges[0].Object.cache.o.BlockBytes
	objects := map[string]*CachedObject{}
	var spans []span
	for _, r := range ranges {
		dir := r.Object.id.name()
		objects[dir] = r.Object
		spans = append(spans, span{dir, r.From / size, (r.To + size - 1) / size})
	}
	s := &WorkingSet{Name: name, disk: d, spans: union(spans)}
	for _, r := range s.spans {
		n := r.To - r.From
		s.Blocks += n
		s.Needed += min(r.To*size, objects[r.Object].Size) - r.From*size + n*trailerBytes
	}
	s.file = hashName(fmt.Append(nil, s.spans))
	d.mu.Lock()
	defer d.mu.Unlock()
	if known := d.workingSets[s.file]; known != nil {
		return known
	}
	d.workingSets[s.file] = s
	return s
}

func compareSpans(a, b span) int {
	return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.From, b.From))
}

// union returns the union of spans, sorted, as spans that do not touch. It sorts its argument.
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

// containsBlock reports whether a block is in spans, which union returned.
func containsBlock(spans []span, object string, index int64) bool {
	i, found := slices.BinarySearchFunc(spans, span{Object: object, From: index}, compareSpans)
	return found || i > 0 && spans[i-1].Object == object && index < spans[i-1].To
}

// workingSetOf returns the most recently read of the working sets that contain a block, or
// unclaimed.
func (d *disk) workingSetOf(k key) *WorkingSet {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, object := &d.unclaimed, k.object.id.name()
	for _, s := range d.workingSets {
		if s.lastRead.Load() > last.lastRead.Load() && containsBlock(s.spans, object, k.index) {
			last = s
		}
	}
	return last
}

// releaseSetsOf drops the locks of working sets with blocks of an object. Touch restores them.
func (d *disk) releaseSetsOf(object string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.workingSets {
		i, _ := slices.BinarySearchFunc(s.spans, span{Object: object}, compareSpans)
		// While s is being read, another goroutine may hold s.mu to save it.
		if i < len(s.spans) && s.spans[i].Object == object && s.mu.TryLock() {
			s.lock.Close()
			s.lock = nil
			s.mu.Unlock()
		}
	}
}

// Touch records that the working set is being read. It does not wait.
func (s *WorkingSet) Touch() {
	now := time.Now().UnixNano()
	s.lastRead.Store(now)
	saved := s.lastSave.Load()
	// If the clock was set back, the time of the last save may lie in the future.
	isDue := now-saved > int64(saveEvery) || saved-now > int64(saveEvery)
	if isDue && saved != math.MaxInt64 && s.lastSave.CompareAndSwap(saved, math.MaxInt64) {
		go func() {
			s.save()
			s.lastSave.Store(now)
		}()
	}
}

// BeginFill prepares for a command that fetches the whole working set: it saves that the set is
// being read, and lets idle ones make room for it.
func (s *WorkingSet) BeginFill() {
	now := time.Now()
	s.lastRead.Store(now.UnixNano())
	s.evictBefore.Store(now.Add(-idleTime).UnixNano())
	s.save()
}

// save records in the directory that the working set is being read.
func (s *WorkingSet) save() {
	d := s.disk
	if s.Needed > d.limit {
		s.warnCacheTooSmall(s.Needed)
	}
	if d.suspendedBy() != nil {
		return
	}
	if err := d.withLock(s.saveIn); err != nil {
		d.suspend(err)
	}
}

// saveIn is save for a caller that holds the lock of the directory.
func (s *WorkingSet) saveIn(root *os.Root) error {
	d, name := s.disk, filepath.Join(workingSetsDir, s.file)
	if s == &d.unclaimed {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	read, enough := time.Unix(0, s.lastRead.Load()), s.sufficientLimit.Load()
	if s.lock != nil && isLinked(s.lock) && s.savedLimit == enough && root.Chtimes(name, read, read) == nil {
		return nil
	}
	text, _ := json.Marshal(SavedWorkingSet{Name: s.Name, Needed: s.Needed, Enough: enough, Spans: s.spans})
	f, err := openRegular(root, name)
	// A file on which another process holds a lock is valid. It must not be replaced by a new file
	// without that lock, because its process would no longer seem alive.
	isHeld := err == nil && privatedir.Lock(f, unix.LOCK_EX|unix.LOCK_NB) != nil
	if isHeld && (s.savedLimit != enough || root.Chtimes(name, read, read) != nil) {
		err = overwrite(root, name, text) // sets the time of the file, too, even of another user's
	}
	if !isHeld || err != nil {
		f.Close()
		root.RemoveAll(name)
		if err := cmp.Or(d.makeDir(root, workingSetsDir), d.createWith(root, name, text), root.Chtimes(name, read, read)); err != nil {
			return err
		}
		if f, err = openRegular(root, name); err != nil {
			return err
		}
	}
	s.lock.Close()
	s.lock, s.savedLimit = f, enough
	return privatedir.Lock(f, unix.LOCK_SH)
}

// warnCacheTooSmall logs once that blocks are fetched again in every epoch, and suggests a limit.
func (s *WorkingSet) warnCacheTooSmall(enough int64) {
	if s.sufficientLimit.CompareAndSwap(0, enough) {
		s.disk.log.Warn("the block cache has no room for all that is read in an epoch: the rest is fetched again and again; raise store.cache_bytes",
			"dir", s.disk.dir, "reader", s.Name, "needed", s.Needed, "store.cache_bytes", s.disk.limit, "enough", enough)
	}
}

// A SavedWorkingSet is a working set as recorded in the directory.
type SavedWorkingSet struct {
	Name   string `json:"name"`   // name of one of its readers
	Needed int64  `json:"needed"` // bytes
	// Enough is the Options.Limit that would suffice, in bytes; 0 if room was never lacking. Usage
	// also returns 0 if the set is not being read, or no longer lacks room.
	Enough int64  `json:"enough,omitempty"`
	Spans  []span `json:"spans"`

	Stored  int64     `json:"-"` // bytes in the directory; set by Usage
	Live    bool      `json:"-"` // whether a process that has read it is alive
	Touched time.Time `json:"-"` // last read
	file    string
}

// String describes the working set for people.
func (s SavedWorkingSet) String() string {
	reader := s.Name
	if !s.Live {
		reader += " (no mount reads it)"
	}
	return fmt.Sprintf("%s: %d bytes needed, %d in the cache; last read at %s", reader, s.Needed, s.Stored, s.Touched.Format(time.DateTime))
}

// savedIn returns the working sets in the directory, most recently read first. If tidy is true, it
// removes invalid ones, and those not read for forgetAfter; the caller must then hold the lock.
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
		if own := d.workingSets[s.file]; own != nil && own.lastRead.Load() > s.Touched.UnixNano() {
			s.Touched = time.Unix(0, own.lastRead.Load())
		}
		d.mu.Unlock()
		all = append(all, s)
	})
	slices.SortFunc(all, func(a, b SavedWorkingSet) int { return b.Touched.Compare(a.Touched) })
	return all
}

// isLinked reports whether f still has a name in a directory.
func isLinked(f *os.File) bool {
	var st unix.Stat_t
	return localfile.Retry(func() error { return unix.Fstat(int(f.Fd()), &st) }) == nil && st.Nlink > 0
}
