package blocks

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
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

	"golang.org/x/sys/unix"
)

const (
	usedFile   = "used"
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
		mounted(root, true)
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
			used += o.Bytes
		}
		d.measured.Store(true)
		return d.setUsed(root, used)
	})
	return kept, used, err
}

// makeRoom removes blocks of objects that nobody has mounted, those that were mounted longest ago first, until there is room for a block.
func (d *disk) makeRoom(need int64, alive func()) error {
	kept, used, err := d.measure(alive)
	if over := used + need - d.limit; err == nil && over > 0 {
		_, err = d.evict(kept, over+d.limit/64, alive) // so that not every block needs to be measured
	}
	return err
}

// The lock is held for so long at most, and then free for as long, so that others need not wait for all that is removed.
const portion = 50 * time.Millisecond

// evict removes blocks of objects that nobody has mounted, one after the other, until so many bytes are removed. It returns how many.
func (d *disk) evict(kept []Kept, atLeast int64, alive func()) (removed int64, err error) {
	for len(kept) > 0 && removed < atLeast && err == nil {
		err = d.locked(alive, func(root *os.Root) error {
			inUse, end, before := mounted(root, false), time.Now().Add(portion), removed
			for len(kept) > 0 && removed < atLeast && time.Now().Before(end) {
				done := inUse[kept[0].dir]
				if !done {
					var n int64
					n, done = kept[0].remove(root, atLeast-removed, end)
					removed += n
				}
				if done {
					kept = kept[1:]
				}
				alive()
			}
			used, _ := usedIn(root)
			return d.setUsed(root, max(used-(removed-before), 0))
		})
		if len(kept) > 0 && removed < atLeast {
			time.Sleep(portion)
		}
	}
	return removed, err
}

// remove removes blocks of an object until so many bytes are removed, or until end. done is true if the object has none left.
func (o Kept) remove(root *os.Root, atLeast int64, end time.Time) (removed int64, done bool) {
	done = true
	eachFile(root, o.dir, func(block fs.FileInfo) bool {
		if done = removed < atLeast && time.Now().Before(end); done && block.Name() != objectFile && root.RemoveAll(filepath.Join(o.dir, block.Name())) == nil {
			removed += block.Size()
		}
		return done
	})
	if done {
		root.RemoveAll(o.dir)
	}
	return removed, done
}

// mount says, to all processes, that this one has an object mounted: now, or as soon as that can be said.
func (d *disk) mount(i identity) {
	name := i.name()
	d.mu.Lock()
	if d.names[name] {
		d.mu.Unlock()
		return
	}
	if d.names == nil {
		d.names = map[string]bool{}
	}
	d.names[name] = true
	d.unlisted = append(d.unlisted, name)
	retrying := d.retrying
	d.mu.Unlock()
	if !retrying && !d.listNow() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.retrying {
			d.retrying = true
			go d.listLater()
		}
	}
}

// listNow lists what is mounted, and reports whether all of it is listed.
func (d *disk) listNow() bool {
	if d.usable() {
		err := d.timely(func(alive func()) error { return d.locked(alive, d.listIn) })
		if err != nil && !errors.Is(err, errBusy) {
			d.fails(err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.unlisted) == 0
}

func (d *disk) listLater() {
	for {
		time.Sleep(retryTime)
		d.listNow()
		d.mu.Lock()
		if len(d.unlisted) == 0 {
			d.retrying = false
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
	}
}

// listIn lists what is mounted, for a caller that holds the lock: all of it where the directory was deleted meanwhile.
func (d *disk) listIn(root *os.Root) error {
	d.listing.Lock()
	defer d.listing.Unlock()
	anew := d.list == nil || !isLinked(d.list)
	d.mu.Lock()
	names, listed := slices.Clone(d.unlisted), len(d.unlisted)
	if anew {
		names = slices.Collect(maps.Keys(d.names))
	}
	d.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	list := d.list
	if anew {
		var err error
		if list, err = d.newList(root); err != nil {
			return err
		}
	}
	if _, err := list.WriteString(strings.Join(names, "\n") + "\n"); err != nil {
		return err
	}
	d.list = list
	for _, name := range names {
		root.Chtimes(filepath.Join(name, objectFile), time.Now(), time.Now()) // where it is
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unlisted = d.unlisted[listed:]
	return nil
}

func isLinked(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Nlink > 0
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
	return list, flock(list, unix.LOCK_EX)
}

// Kept is what a directory has of an object.
type Kept struct {
	Name    string // s3://bucket/key of an endpoint; or what there is instead of its description
	ETag    string
	Size    int64 // of the object
	Blocks  int64
	Bytes   int64 // of the blocks
	Mounted bool  // some process has it mounted
	Since   time.Time
	dir     string
}

// Usage is what the directory has, what was mounted longest ago first.
func Usage(o Options) ([]Kept, error) {
	root, err := (&disk{dir: o.Dir, shared: o.Shared}).open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return usage(root, false, func() {})
}

// Prune removes blocks of all objects that nobody has mounted, and returns how many bytes that were.
func Prune(o Options) (removed int64, err error) {
	d := &disk{dir: o.Dir, shared: o.Shared}
	if _, err := os.Stat(d.dir); errors.Is(err, fs.ErrNotExist) { // which measure would make
		return 0, nil
	}
	kept, _, err := d.measure(func() {})
	if err != nil {
		return 0, err
	}
	return d.evict(kept, math.MaxInt64, func() {})
}

// usage is what a directory has, what was mounted longest ago first. It mends the directory: it removes what is no block.
func usage(root *os.Root, mend bool, alive func()) (kept []Kept, err error) {
	inUse := mounted(root, false)
	err = eachFile(root, ".", func(dir fs.FileInfo) bool {
		if raw, err := hex.DecodeString(dir.Name()); err == nil && len(raw) == 16 && dir.IsDir() {
			kept = append(kept, usageOf(root, dir.Name(), mend, alive))
			kept[len(kept)-1].Mounted = inUse[dir.Name()]
		}
		return true
	})
	slices.SortFunc(kept, func(a, b Kept) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.dir, b.dir)) })
	return kept, err
}

// usageOf is what the directory has of an object.
func usageOf(root *os.Root, dir string, mend bool, alive func()) Kept {
	o := Kept{dir: dir, Name: "?"}
	var of identity
	if json.Unmarshal([]byte(readText(root, filepath.Join(dir, objectFile))), &of) == nil {
		o.Name, o.ETag, o.Size = of.Endpoint+"/"+of.Bucket+"/"+of.Key, of.ETag, of.Size
	}
	eachFile(root, dir, func(file fs.FileInfo) bool {
		alive()
		switch {
		case file.Name() == objectFile:
			o.Since = file.ModTime()
		case of.isBlock(file):
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

// mounted are the objects that processes have mounted. Where it may tidy, which needs the lock, it removes the lists of dead ones.
func mounted(root *os.Root, tidy bool) map[string]bool {
	all := map[string]bool{}
	eachFile(root, mountedDir, func(list fs.FileInfo) bool {
		name := filepath.Join(mountedDir, list.Name())
		f, err := openRegular(root, name)
		if err != nil {
			return true
		}
		defer f.Close()
		if flock(f, unix.LOCK_SH|unix.LOCK_NB) != nil {
			text, _ := io.ReadAll(f)
			for name := range strings.FieldsSeq(string(text)) {
				all[name] = true
			}
		} else if tidy {
			root.Remove(name)
		}
		return true
	})
	return all
}
