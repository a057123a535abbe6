package blocks

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// used is the bytes of all blocks. A process scans the directory once, and where the file is gone.
func (d *disk) used() (int64, error) {
	if d.scanned {
		text, _ := os.ReadFile(filepath.Join(d.dir, "used"))
		if used, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			return used, nil
		}
	}
	return d.scan()
}

func (d *disk) setUsed(n int64) error {
	return os.WriteFile(filepath.Join(d.dir, "used"), strconv.AppendInt(nil, n, 10), 0o644)
}

// scan measures the directory. It removes what processes left that died while they wrote.
func (d *disk) scan() (int64, error) {
	left, _ := filepath.Glob(filepath.Join(globEscaped(d.dir), "new-*"))
	for _, path := range left {
		os.Remove(path)
	}
	kept, err := usage(d.dir)
	if err != nil {
		return 0, err
	}
	used := int64(0)
	for _, o := range kept {
		used += o.Bytes
	}
	d.scanned = true
	return used, d.setUsed(used)
}

var globEscaped = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace

// makeRoom removes blocks of objects that nobody has mounted, those that were mounted longest ago first, until there is room for a block. It returns
// the bytes that are used then, or errFull.
func (d *disk) makeRoom(need int64) (int64, error) {
	used, err := d.scan()
	if err != nil {
		return 0, err
	}
	kept, err := usage(d.dir)
	if err != nil {
		return 0, err
	}
	for _, o := range kept {
		if used+need <= d.limit {
			break
		}
		if !o.Mounted {
			used -= o.remove(d.dir, used+need-d.limit+d.limit/64) // so that not every block needs a scan
		}
	}
	if err := d.setUsed(used); err != nil {
		return 0, err
	}
	if used+need > d.limit {
		return used, errFull
	}
	return used, nil
}

// mount says, to all processes, that this one has an object mounted.
func (d *disk) mount(i identity) {
	if !d.usable() {
		return
	}
	name := i.name()
	err := d.timely(func() error {
		return d.locked(func() error {
			if d.lines[name] {
				return nil
			}
			if d.list == nil {
				if err := d.openList(); err != nil {
					return err
				}
			}
			if _, err := d.list.WriteString(name + "\n"); err != nil {
				return err
			}
			d.lines[name] = true
			now := time.Now()
			os.Chtimes(filepath.Join(d.dir, name, objectFile), now, now) // where it is
			return nil
		})
	})
	if err != nil {
		d.fails(err)
	}
}

// openList makes this process's file in mounted.
func (d *disk) openList() error {
	dir := filepath.Join(d.dir, "mounted")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	list, err := os.CreateTemp(dir, fmt.Sprintf("%d-", os.Getpid()))
	if err != nil {
		return err
	}
	if err := unix.Flock(int(list.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		list.Close()
		return &os.PathError{Op: "flock", Path: list.Name(), Err: err}
	}
	d.list, d.lines = list, map[string]bool{}
	return nil
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

// Usage is what a directory has, what was mounted longest ago first.
func Usage(dir string) (kept []Kept, err error) {
	if _, err := os.Stat(dir); err != nil { // which locked would make
		return nil, err
	}
	d := &disk{dir: dir}
	err = d.locked(func() (err error) {
		kept, err = usage(dir)
		return err
	})
	return kept, err
}

// Prune removes blocks of all objects that nobody has mounted, and returns how many bytes that were.
func Prune(dir string) (removed int64, err error) {
	if _, err := os.Stat(dir); err != nil {
		return 0, err
	}
	d := &disk{dir: dir}
	return removed, d.locked(func() error {
		kept, err := usage(dir)
		if err != nil {
			return err
		}
		for _, o := range kept {
			if !o.Mounted {
				removed += o.remove(dir, o.Bytes)
			}
		}
		_, err = d.scan()
		return err
	})
}

// usage is Usage for a caller that has locked the directory.
func usage(dir string) (kept []Kept, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	mounted := mountedIn(dir)
	for _, entry := range entries {
		if raw, err := hex.DecodeString(entry.Name()); err != nil || len(raw) != 16 || !entry.IsDir() {
			continue
		}
		o := Kept{dir: entry.Name(), Mounted: mounted[entry.Name()], Name: "?"}
		path := filepath.Join(dir, entry.Name())
		if text, err := os.ReadFile(filepath.Join(path, objectFile)); err == nil {
			var i identity
			if json.Unmarshal(text, &i) == nil {
				o.Name, o.ETag, o.Size = i.Endpoint+"/"+i.Bucket+"/"+i.Key, i.ETag, i.Size
			}
		}
		if info, err := os.Stat(filepath.Join(path, objectFile)); err == nil {
			o.Since = info.ModTime()
		}
		blocks, _ := os.ReadDir(path)
		for _, block := range blocks {
			if info, err := block.Info(); err == nil && block.Name() != objectFile {
				o.Blocks++
				o.Bytes += info.Size()
			}
		}
		kept = append(kept, o)
	}
	slices.SortFunc(kept, func(a, b Kept) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.dir, b.dir)) })
	return kept, nil
}

// mountedIn are the objects that processes have mounted. It removes the lists of dead ones.
func mountedIn(dir string) map[string]bool {
	all := map[string]bool{}
	lists, _ := os.ReadDir(filepath.Join(dir, "mounted"))
	for _, entry := range lists {
		path := filepath.Join(dir, "mounted", entry.Name())
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
			os.Remove(path)
		} else if text, err := os.ReadFile(path); err == nil {
			for name := range strings.FieldsSeq(string(text)) {
				all[name] = true
			}
		}
		f.Close()
	}
	return all
}

// remove removes blocks of an object until so many bytes are free, and returns how many.
func (o Kept) remove(dir string, atLeast int64) (removed int64) {
	path := filepath.Join(dir, o.dir)
	blocks, _ := os.ReadDir(path)
	for _, block := range blocks {
		if removed >= atLeast {
			return removed
		}
		if info, err := block.Info(); err == nil && block.Name() != objectFile && os.Remove(filepath.Join(path, block.Name())) == nil {
			removed += info.Size()
		}
	}
	os.Remove(filepath.Join(path, objectFile))
	os.Remove(path) // which is empty, unless somebody writes to it
	return removed
}
