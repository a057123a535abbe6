package blocks

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	usedFile   = "used"
	sharesDir  = "shares"
	mountedDir = "mounted"
)

// usedIn is the bytes of all blocks, for a caller that holds the lock. A process measures the directory once, and where the file is gone.
func usedIn(root *os.Root) (used int64, known bool) {
	used, err := strconv.ParseInt(readText(root, usedFile), 10, 64)
	return max(used, 0), err == nil
}

func (d *disk) setUsed(root *os.Root, n int64) error {
	root.RemoveAll(usedFile)
	return d.createWith(root, usedFile, strconv.AppendInt(nil, n, 10))
}

// readText is what a small file has, or empty.
func readText(root *os.Root, name string) string {
	f, err := openRegular(root, name)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, _ := io.ReadAll(f)
	return string(text)
}

// measure returns what the directory has, and how many bytes that are. It removes what is no block, and what processes left that died. It reads
// without the lock; what others write meanwhile counts, perhaps twice until the next time.
func (d *disk) measure(alive func()) (kept []Kept, used int64, err error) {
	err = d.locked(alive, func(root *os.Root) error {
		used, _ = usedIn(root)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	root, err := d.open()
	if err != nil {
		return nil, 0, err
	}
	defer root.Close()
	if kept, err = usage(root, true, alive); err != nil {
		return nil, 0, err
	}
	err = d.locked(alive, func(root *os.Root) error {
		d.sharesIn(root, true)
		err := eachFile(root, ".", func(info fs.FileInfo) bool {
			if strings.HasPrefix(info.Name(), "new-") {
				root.RemoveAll(info.Name())
			}
			return true
		})
		if err != nil {
			return err
		}
		now, _ := usedIn(root)
		used = max(now-used, 0)
		for _, o := range kept {
			if used += o.Bytes; o.Blocks == 0 {
				empty := true // or a block was written just now
				eachFile(root, o.dir, func(file fs.FileInfo) bool {
					empty = file.Name() == objectFile
					return empty
				})
				if empty {
					root.RemoveAll(o.dir)
				}
			}
		}
		d.measured.Store(true)
		return d.setUsed(root, used)
	})
	return kept, used, err
}

// makeRoom removes blocks of shares that are not in use, those that were read longest ago first, until there is room for a block of one that is.
func (d *disk) makeRoom(s *Share, need int64, alive func()) error {
	if s.refused.Load() > 0 {
		s.refused.Add(-1)
		return errFull
	}
	kept, used, err := d.measure(alive)
	over := used + need - d.limit
	if err != nil || over <= 0 {
		return err
	}
	root, err := d.open()
	if err != nil {
		return err
	}
	defer root.Close()
	now, filling, inUse := time.Now(), s.filling.Load(), []span{}
	victims := victimsIn(kept, d.sharesIn(root, false), func(of knownShare) bool {
		is := of.file == s.file || of.read.UnixNano() >= s.horizon.Load()
		if filling {
			is = of.file == s.file || len(of.readers) > 0 && now.Sub(of.read) < fillWaits
		}
		if is {
			inUse = append(inUse, of.Spans...)
		}
		return is
	})
	removed, err := d.evict(victims, over+d.limit/64, alive) // so that not every block needs to be measured
	if err != nil {
		return err
	}
	if removed >= over {
		s.failed.Store(0)
		return nil
	}
	if s != &d.none {
		if s.failed.Add(1) == seldom {
			enough := int64(0)
			for _, of := range union(inUse) {
				enough += (of.To - of.From) * need
			}
			s.lacks(enough)
		}
		s.horizon.Store(now.UnixNano())
	}
	s.refused.Store(s.Blocks/20 - 1)
	return errFull
}

// A victim is a block that may be removed.
type victim struct {
	path  string
	bytes int64
	read  time.Time // when a share that needs it was last read
}

// victimsIn are the blocks that no share in use needs. Blocks of the shares that were read longest ago are first.
func victimsIn(kept []Kept, shares []knownShare, inUse func(knownShare) bool) (victims []victim) {
	slices.SortFunc(shares, func(a, b knownShare) int { return b.read.Compare(a.read) })
	var spared []span
	for _, s := range shares {
		if inUse(s) {
			spared = append(spared, s.Spans...)
		}
	}
	spared = union(spared)
	for _, o := range kept {
		for index, bytes := range o.blocks {
			if holds(spared, o.dir, index) {
				continue
			}
			v := victim{path: filepath.Join(o.dir, strconv.FormatInt(index, 10)), bytes: bytes}
			if i := slices.IndexFunc(shares, func(s knownShare) bool { return holds(s.Spans, o.dir, index) }); i >= 0 {
				v.read = shares[i].read
			}
			victims = append(victims, v)
		}
	}
	slices.SortFunc(victims, func(a, b victim) int { return cmp.Or(a.read.Compare(b.read), cmp.Compare(a.path, b.path)) })
	return victims
}

// The lock is held for so long at most, and then free for as long, so that others need not wait for all that is removed.
const portion = 50 * time.Millisecond

// evict removes blocks, one after the other, until so many bytes are removed. It returns how many.
func (d *disk) evict(victims []victim, atLeast int64, alive func()) (removed int64, err error) {
	for len(victims) > 0 && removed < atLeast && err == nil {
		err = d.locked(alive, func(root *os.Root) error {
			end, before := time.Now().Add(portion), removed
			for ; len(victims) > 0 && removed < atLeast && time.Now().Before(end); victims = victims[1:] {
				if root.Remove(victims[0].path) == nil {
					removed += victims[0].bytes
				}
				alive()
			}
			used, _ := usedIn(root)
			return d.setUsed(root, max(used-(removed-before), 0))
		})
		if len(victims) > 0 && removed < atLeast {
			time.Sleep(portion)
		}
	}
	return removed, err
}

// Kept is what a directory has of an object.
type Kept struct {
	Name   string // s3://bucket/key of an endpoint; or what there is instead of its description
	ETag   string
	Size   int64 // of the object
	Bytes  int64 // of the blocks
	Blocks int64
	dir    string
	blocks map[int64]int64 // bytes of each
}

// ShareUse is what a directory has of a share.
type ShareUse struct {
	Name         string
	Readers      []string // that live
	Needed, Kept int64    // bytes
	Room         int64    // bytes that it may have, beside what other shares have that are read now
	Enough       int64    // what the limit must be, where it is read now and lacks room
	Read         time.Time
}

// Usage is what the directory has of objects, and of shares, what was read last first.
func Usage(o Options) (kept []Kept, shares []ShareUse, err error) {
	d := &disk{dir: o.Dir, shared: o.Shared}
	root, err := d.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	if kept, err = usage(root, false, func() {}); err != nil {
		return nil, nil, err
	}
	known := d.sharesIn(root, false)
	isNow := func(s knownShare) bool { return len(s.readers) > 0 && time.Since(s.read) < fillWaits }
	slices.SortFunc(known, func(a, b knownShare) int { return b.read.Compare(a.read) })
	for _, s := range known {
		u := ShareUse{Name: s.Name, Readers: slices.Sorted(maps.Keys(s.readers)), Needed: s.Needed, Room: o.Limit, Read: s.read}
		var others []span
		for _, other := range known {
			if other.file != s.file && isNow(other) {
				others = append(others, other.Spans...)
			}
		}
		others = union(others)
		for _, o := range kept {
			for index, bytes := range o.blocks {
				if holds(s.Spans, o.dir, index) {
					u.Kept += bytes
				} else if holds(others, o.dir, index) {
					u.Room -= bytes
				}
			}
		}
		for _, enough := range s.readers {
			if isNow(s) && u.Kept < u.Needed && enough > o.Limit {
				u.Enough = max(u.Enough, enough)
			}
		}
		shares = append(shares, u)
	}
	return kept, shares, nil
}

// Prune removes blocks that no reader needs, and that no command has fetched lately, and returns how many bytes that were.
func Prune(o Options) (removed int64, err error) {
	d := &disk{dir: o.Dir, shared: o.Shared}
	root, err := d.open()
	if errors.Is(err, fs.ErrNotExist) { // which measure would make
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer root.Close()
	kept, _, err := d.measure(func() {})
	if err != nil {
		return 0, err
	}
	victims := victimsIn(kept, d.sharesIn(root, false), func(s knownShare) bool { return len(s.readers) > 0 || s.filled })
	return d.evict(victims, math.MaxInt64, func() {})
}

// usage is what a directory has, by name. It mends the directory: it removes what is no block.
func usage(root *os.Root, mend bool, alive func()) (kept []Kept, err error) {
	err = eachFile(root, ".", func(dir fs.FileInfo) bool {
		if raw, err := hex.DecodeString(dir.Name()); err == nil && len(raw) == 16 && dir.IsDir() {
			kept = append(kept, usageOf(root, dir.Name(), mend, alive))
		}
		return true
	})
	slices.SortFunc(kept, func(a, b Kept) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.dir, b.dir)) })
	return kept, err
}

// usageOf is what the directory has of an object.
func usageOf(root *os.Root, dir string, mend bool, alive func()) Kept {
	o := Kept{dir: dir, Name: "?", blocks: map[int64]int64{}}
	var of identity
	if json.Unmarshal([]byte(readText(root, filepath.Join(dir, objectFile))), &of) == nil {
		o.Name, o.ETag, o.Size = of.Endpoint+"/"+of.Bucket+"/"+of.Key, of.ETag, of.Size
	}
	eachFile(root, dir, func(file fs.FileInfo) bool {
		alive()
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
		return true
	})
	return o
}

// isBlock reports whether a file may be a block of the object: a regular file of the right size.
func (i identity) isBlock(info fs.FileInfo) bool {
	index, err := strconv.ParseInt(info.Name(), 10, 64)
	return err == nil && info.Mode().IsRegular() && i.BlockBytes > 0 && index >= 0 && index <= i.Size/i.BlockBytes &&
		info.Size() == min(i.BlockBytes, i.Size-index*i.BlockBytes)+trailerBytes
}
