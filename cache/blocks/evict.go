package blocks

import (
	"cmp"
	"encoding/hex"
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
	workingSetsDir = "shares"
)

// usedIn is the bytes of all blocks, for a caller that holds the lock.
func usedIn(root *os.Root) (used int64, known bool) {
	text, _ := root.ReadFile(usedFile)
	used, err := strconv.ParseInt(string(text), 10, 64)
	return max(used, 0), err == nil
}

func (d *disk) setUsed(root *os.Root, n int64) error {
	root.RemoveAll(usedFile)
	return d.createWith(root, usedFile, strconv.AppendInt(nil, n, 10))
}

// measure returns what the directory has of objects, its working sets, and the size of all blocks. It
// removes files that are no blocks, and what processes left that died.
func (d *disk) measure() (objects []ObjectUsage, sets []SavedWorkingSet, used int64, err error) {
	err = d.locked(func(root *os.Root) (err error) {
		if objects, err = usage(root, true); err != nil {
			return err
		}
		for _, o := range objects {
			if used += o.Bytes; o.Blocks == 0 {
				root.RemoveAll(o.dir)
			}
		}
		sets = d.savedIn(root, true)
		return d.setUsed(root, used)
	})
	return objects, sets, used, err
}

// makeRoom removes blocks until there is room for need more bytes. It removes blocks only from
// working sets not in use, the least recently read first, and returns ErrFull if they are not enough.
func (d *disk) makeRoom(s *WorkingSet, need int64) error {
	if s.refused.Load() > 0 {
		s.refused.Add(-1)
		return ErrFull
	}
	objects, sets, used, err := d.measure()
	over := used + need - d.limit
	if err != nil || over <= 0 {
		return err
	}
	now, horizon := time.Now().UnixNano(), s.horizon.Load()
	victims, inUse := victimsIn(objects, sets, func(other SavedWorkingSet) bool { return other.file == s.file || other.Touched.UnixNano() >= horizon })
	// Evicting more than needed saves measuring the directory for every block.
	removed, err := d.evict(victims, over+d.limit/64)
	if err != nil {
		return err
	}
	if removed >= over {
		s.failed.Store(0)
		return nil
	}
	if s != &d.none {
		if s.failed.Add(1) == maxFailedEvictions {
			enough := int64(0)
			for _, span := range inUse {
				enough += (span.To - span.From) * need
			}
			s.warnTooSmall(enough)
		}
		s.horizon.Store(now)
	}
	s.refused.Store(s.Blocks/20 - 1)
	return ErrFull
}

// A victim is a block that may be removed.
type victim struct {
	path  string
	bytes int64
	read  time.Time // last read of a working set that needs it
}

// victimsIn returns the blocks that no working set in use needs, and the spans that one does. sets are
// as savedIn returns them: blocks of the last one are the first victims.
func victimsIn(objects []ObjectUsage, sets []SavedWorkingSet, inUse func(SavedWorkingSet) bool) (victims []victim, spared []span) {
	for _, s := range sets {
		if inUse(s) {
			spared = append(spared, s.Spans...)
		}
	}
	spared = union(spared)
	for _, o := range objects {
		for index, bytes := range o.blocks {
			if holds(spared, o.dir, index) {
				continue
			}
			v := victim{path: filepath.Join(o.dir, strconv.FormatInt(index, 10)), bytes: bytes}
			if i := slices.IndexFunc(sets, func(s SavedWorkingSet) bool { return holds(s.Spans, o.dir, index) }); i >= 0 {
				v.read = sets[i].Touched
			}
			victims = append(victims, v)
		}
	}
	slices.SortFunc(victims, func(a, b victim) int { return cmp.Or(a.read.Compare(b.read), cmp.Compare(a.path, b.path)) })
	return victims, spared
}

// maxLockTime is how long evict holds the lock at most. It then leaves it free for as long, so that
// others need not wait for all blocks to be removed.
const maxLockTime = 50 * time.Millisecond

// evict removes blocks, one after the other, until at least atLeast bytes are removed. It returns the
// bytes removed. A process may have a block open: truncating it frees its space, and makes any read of
// it fail.
func (d *disk) evict(victims []victim, atLeast int64) (removed int64, err error) {
	for len(victims) > 0 && removed < atLeast && err == nil {
		err = d.locked(func(root *os.Root) error {
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
			used, _ := usedIn(root)
			return d.setUsed(root, max(used-(removed-before), 0))
		})
		if len(victims) > 0 && removed < atLeast {
			time.Sleep(maxLockTime)
		}
	}
	return removed, err
}

// An ObjectUsage is what a directory has of an object.
type ObjectUsage struct {
	Name   string // endpoint, bucket and key; "?" if the description is missing
	Size   int64  // bytes of the object
	Bytes  int64  // bytes of its blocks
	Blocks int64
	dir    string
	blocks map[int64]int64 // bytes of each block
}

// Usage returns what the directory has of objects, and the working sets, the last read first.
func Usage(o Options) (objects []ObjectUsage, sets []SavedWorkingSet, err error) {
	d := &disk{dir: o.Dir, groupWritable: o.GroupWritable}
	root, err := d.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	removeUnfinished(root)
	if objects, err = usage(root, false); err != nil {
		return nil, nil, err
	}
	sets = d.savedIn(root, false)
	for i := range sets {
		s := &sets[i]
		for _, o := range objects {
			for index, bytes := range o.blocks {
				if holds(s.Spans, o.dir, index) {
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

// Prune removes the blocks that no reader needs, and returns their size in bytes.
func Prune(o Options) (removed int64, err error) {
	d := &disk{dir: o.Dir, groupWritable: o.GroupWritable}
	if _, err := os.Stat(o.Dir); errors.Is(err, fs.ErrNotExist) { // measure would make it
		return 0, nil
	}
	objects, sets, _, err := d.measure()
	if err != nil {
		return 0, err
	}
	victims, _ := victimsIn(objects, sets, func(s SavedWorkingSet) bool { return s.Live })
	return d.evict(victims, math.MaxInt64)
}

// usage returns what a directory has of objects, by name. If mend is true, which needs the lock, it
// removes files that are no blocks.
func usage(root *os.Root, mend bool) (objects []ObjectUsage, err error) {
	err = eachFile(root, ".", func(file fs.FileInfo) {
		if raw, err := hex.DecodeString(file.Name()); err == nil && len(raw) == 16 && file.IsDir() {
			objects = append(objects, usageOf(root, file.Name(), mend))
		} else if mend && strings.HasPrefix(file.Name(), "new-") {
			root.RemoveAll(file.Name())
		}
	})
	slices.SortFunc(objects, func(a, b ObjectUsage) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.dir, b.dir)) })
	return objects, err
}

// usageOf returns what the directory has of an object.
func usageOf(root *os.Root, dir string, mend bool) ObjectUsage {
	o := ObjectUsage{dir: dir, Name: "?", blocks: map[int64]int64{}}
	var of identity
	if text, _ := root.ReadFile(filepath.Join(dir, objectFile)); json.Unmarshal(text, &of) == nil {
		o.Name, o.Size = of.Endpoint+"/"+of.Bucket+"/"+of.Key, of.Size
	}
	eachFile(root, dir, func(file fs.FileInfo) {
		switch {
		case file.Name() == objectFile:
		case of.isBlock(file):
			index, _ := strconv.ParseInt(file.Name(), 10, 64)
			o.blocks[index] = file.Size()
			o.Blocks++
			o.Bytes += file.Size()
		case mend:
			root.RemoveAll(filepath.Join(dir, file.Name()))
		}
	})
	return o
}

// isBlock reports whether a file may be a block of the object: a regular file of the right size.
func (i identity) isBlock(info fs.FileInfo) bool {
	index, err := strconv.ParseInt(info.Name(), 10, 64)
	return err == nil && info.Mode().IsRegular() && i.BlockBytes > 0 && index >= 0 && index <= i.Size/i.BlockBytes &&
		info.Size() == min(i.BlockBytes, i.Size-index*i.BlockBytes)+trailerBytes
}
