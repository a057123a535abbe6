package blocks

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	usedFile       = "used"
	workingSetsDir = "shares" // the names in a cache directory never change
)

// usedBytes returns the recorded size of all blocks. The caller holds the lock.
func usedBytes(root *os.Root) (used int64, known bool) {
	text, _ := root.ReadFile(usedFile)
	used, err := strconv.ParseInt(string(text), 10, 64)
	return max(used, 0), err == nil
}

func (d *disk) setUsed(root *os.Root, n int64) error {
	root.RemoveAll(usedFile)
	return d.createWith(root, usedFile, strconv.AppendInt(nil, n, 10))
}

// measure returns the objects and working sets in the directory, and the size of all blocks, which
// it also records. It removes invalid files, and those that killed processes left.
func (d *disk) measure() (objects []ObjectUsage, sets []SavedWorkingSet, used int64, err error) {
	err = d.withLock(func(root *os.Root) (err error) {
		if objects, err = objectsIn(root, true); err != nil {
			return err
		}
		for _, o := range objects {
			if used += o.StoredBytes; o.Blocks == 0 {
				root.RemoveAll(o.dir)
			}
		}
		sets = d.savedIn(root, true)
		return d.setUsed(root, used)
	})
	return objects, sets, used, err
}

// makeRoom makes room for need bytes: a block of working set s. It removes only blocks that no
// working set in use contains, the least recently read first, and returns ErrFull if they are not
// enough.
func (d *disk) makeRoom(s *WorkingSet, need int64) error {
	if s.refusalsLeft.Load() > 0 {
		s.refusalsLeft.Add(-1)
		return ErrFull
	}
	objects, sets, used, err := d.measure()
	over := used + need - d.limit
	if err != nil || over <= 0 {
		return err
	}
	now, horizon := time.Now().UnixNano(), s.evictBefore.Load()
	if horizon > now { // possible only if the clock was set back
		horizon = 0
	}
	victims, inUse := victimsIn(objects, sets, func(other SavedWorkingSet) bool {
		// If the time of the last read lies in the future, the clock has been set back since then.
		read := other.Touched.UnixNano()
		return other.file == s.file || read >= horizon && read <= now+int64(idleTime)
	})
	// Evict more than needed, so that the directory is not measured again for every block.
	removed, err := d.evict(victims, over+d.limit/64)
	if err != nil {
		return err
	}
	if removed >= over {
		s.failedEvictions.Store(0)
		return nil
	}
	if s != &d.unclaimed {
		if s.failedEvictions.Add(1) == maxFailedEvictions {
			enough := int64(0)
			for _, span := range inUse {
				enough += (span.To - span.From) * need
			}
			s.warnCacheTooSmall(enough)
		}
		s.evictBefore.Store(now)
	}
	s.refusalsLeft.Store(s.Blocks/refusalRounds - 1)
	return ErrFull
}

type victim struct {
	path     string
	bytes    int64
	lastRead time.Time // last read of a working set that contains it; zero if none does
}

// victimsIn returns the blocks that no working set in use contains, in the order in which to evict
// them, and the spans of the working sets in use. sets must be sorted as savedIn sorts them.
func victimsIn(objects []ObjectUsage, sets []SavedWorkingSet, inUse func(SavedWorkingSet) bool) (victims []victim, spared []span) {
	for _, s := range sets {
		if inUse(s) {
			spared = append(spared, s.Spans...)
		}
	}
	spared = union(spared)
	for _, o := range objects {
		for index, bytes := range o.blocks {
			if containsBlock(spared, o.dir, index) {
				continue
			}
			v := victim{path: filepath.Join(o.dir, strconv.FormatInt(index, 10)), bytes: bytes}
			if i := slices.IndexFunc(sets, func(s SavedWorkingSet) bool { return containsBlock(s.Spans, o.dir, index) }); i >= 0 {
				v.lastRead = sets[i].Touched
			}
			victims = append(victims, v)
		}
	}
	slices.SortFunc(victims, func(a, b victim) int { return cmp.Or(a.lastRead.Compare(b.lastRead), cmp.Compare(a.path, b.path)) })
	return victims, spared
}

// maxLockTime is how long evict holds the lock at a time. It then leaves the lock to other
// processes for as long.
const maxLockTime = 50 * time.Millisecond

// evict removes victims in order until it has removed at least atLeast bytes. Another process may
// have a block open: truncating the file frees its space, and makes reads of it fail.
func (d *disk) evict(victims []victim, atLeast int64) (removed int64, err error) {
	for len(victims) > 0 && removed < atLeast && err == nil {
		err = d.withLock(func(root *os.Root) error {
			end, before := time.Now().Add(maxLockTime), removed
			for some := true; some; some = len(victims) > 0 && removed < atLeast && time.Now().Before(end) {
				v := victims[0]
				victims = victims[1:]
				if f, err := root.OpenFile(v.path, os.O_WRONLY|os.O_TRUNC|unix.O_NONBLOCK, 0); err == nil {
					f.Close()
				}
				if root.Remove(v.path) == nil {
					removed += v.bytes
				}
			}
			if used, known := usedBytes(root); known {
				return d.setUsed(root, max(used-(removed-before), 0))
			}
			return nil // the next write measures the directory
		})
		if len(victims) > 0 && removed < atLeast {
			time.Sleep(maxLockTime)
		}
	}
	return removed, err
}

// An ObjectUsage describes the blocks of one object in the directory.
type ObjectUsage struct {
	Name        string // endpoint, bucket and key; "?" if unknown
	Size        int64  // bytes
	StoredBytes int64  // size of its block files
	Blocks      int64
	dir         string
	blocks      map[int64]int64 // size of each block file, by index
}

// Usage returns the objects and working sets in the directory, with Stored and Enough set. Sets are
// in order of their last read, the latest first. Usage changes nothing.
func Usage(o Options) (objects []ObjectUsage, sets []SavedWorkingSet, err error) {
	d := &disk{dir: o.Dir, groupWritable: o.GroupWritable}
	root, err := d.look()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	if objects, err = objectsIn(root, false); err != nil {
		return nil, nil, err
	}
	sets = d.savedIn(root, false)
	for i := range sets {
		s := &sets[i]
		for _, object := range objects {
			for index, bytes := range object.blocks {
				if containsBlock(s.Spans, object.dir, index) {
					s.Stored += bytes
				}
			}
		}
		if !s.Live || time.Since(s.Touched) > idleTime || s.Stored >= s.Needed || s.Enough <= o.Limit {
			s.Enough = 0
		}
	}
	return objects, sets, nil
}

// Prune removes the blocks that no living process needs, and returns their size in bytes.
func Prune(o Options) (removed int64, err error) {
	d := &disk{dir: o.Dir, groupWritable: o.GroupWritable}
	if _, err := os.Stat(o.Dir); errors.Is(err, fs.ErrNotExist) { // measure would create it
		return 0, nil
	}
	objects, sets, _, err := d.measure()
	if err != nil {
		return 0, err
	}
	victims, _ := victimsIn(objects, sets, func(s SavedWorkingSet) bool { return s.Live })
	return d.evict(victims, math.MaxInt64)
}

// objectsIn returns the objects in the directory, sorted by name. If repair is true, it removes
// files that are not blocks; the caller must then hold the lock.
func objectsIn(root *os.Root, repair bool) (objects []ObjectUsage, err error) {
	err = eachFile(root, ".", func(file fs.FileInfo) {
		if isHashName(file.Name()) && file.IsDir() {
			objects = append(objects, objectIn(root, file.Name(), repair))
		} else if repair && strings.HasPrefix(file.Name(), "new-") {
			root.RemoveAll(file.Name())
		}
	})
	slices.SortFunc(objects, func(a, b ObjectUsage) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.dir, b.dir)) })
	return objects, err
}

func objectIn(root *os.Root, dir string, repair bool) ObjectUsage {
	o := ObjectUsage{dir: dir, Name: "?", blocks: map[int64]int64{}}
	var id objectID
	if text, _ := root.ReadFile(filepath.Join(dir, objectFile)); json.Unmarshal(text, &id) == nil {
		o.Name, o.Size = id.Endpoint+"/"+id.Bucket+"/"+id.Key, id.Size
	}
	eachFile(root, dir, func(file fs.FileInfo) {
		switch {
		case file.Name() == objectFile:
		case id.isBlock(file):
			index, _ := strconv.ParseInt(file.Name(), 10, 64)
			o.blocks[index] = file.Size()
			o.Blocks++
			o.StoredBytes += file.Size()
		case repair:
			root.RemoveAll(filepath.Join(dir, file.Name()))
		}
	})
	return o
}

// isBlock reports whether a file has the name and size of a block of the object.
func (id objectID) isBlock(info fs.FileInfo) bool {
	index, err := strconv.ParseInt(info.Name(), 10, 64)
	return err == nil && info.Mode().IsRegular() && id.BlockBytes > 0 && index >= 0 && index <= id.Size/id.BlockBytes &&
		info.Size() == min(id.BlockBytes, id.Size-index*id.BlockBytes)+trailerBytes
}
