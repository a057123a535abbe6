package blocks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"batchfs/cache/localfile"
	"batchfs/internal/clock"
	"batchfs/internal/testwait"
)

func used(t *testing.T, o Options) (n int64) {
	t.Helper()
	objects, _, err := Usage(o)
	must(t, err)
	for _, o := range objects {
		n += o.StoredBytes
	}
	return n
}

// A full directory does not change, and saves as many fetches per epoch as it has blocks. Blocks
// that no reader needs are evicted.
func TestFull(t *testing.T) {
	s := newFakeStore(20 * blockBytes)
	o := options(t, 10)
	a := s.open(t, o, io.Discard, "a")
	for range 3 {
		touchedSet(a, 0, 20)
		readAll(t, s, a)
		a.cache.Flush()
	}
	if n := s.fetched.Load(); n != 20+10+10 {
		t.Errorf("three epochs fetched %d blocks, want %d", n, 40)
	}
	if full, _, failed, slow := a.outcomes(); full != 3*10 || failed+slow > 0 {
		t.Errorf("for %d blocks there was no room, %d failed, and %d were slow; want 30, 0 and 0", full, failed, slow)
	}
	if err := a.Persist(19); !errors.Is(err, ErrFull) {
		t.Errorf("a block that has no room: %v, want ErrFull", err)
	}
	b := s.open(t, o, io.Discard, "b")
	readAll(t, s, b) // b has no working set yet
	b.cache.Flush()
	objects, sets, err := Usage(o)
	if err != nil || len(objects) != 1 || objects[0].Name != "http://store/bucket/a" || objects[0].Blocks != 10 {
		t.Errorf("the directory has %+v (%v), want 10 blocks of a", objects, err)
	}
	if len(sets) != 1 || !sets[0].Live || sets[0].Needed != 2*o.Limit || sets[0].Stored != o.Limit || sets[0].Enough != 2*o.Limit {
		t.Errorf("the directory has %+v, want one working set of 20 blocks, which has room for 10", sets)
	}
	for range 2 {
		touchedSet(b, 0, 20)
		readAll(t, s, b)
		b.cache.Flush()
	}
	if n := used(t, o); n != o.Limit {
		t.Errorf("the directory has %d bytes, want %d", n, o.Limit)
	}
	before := s.fetched.Load()
	readAll(t, s, s.open(t, o, io.Discard, "b"))
	if n := s.fetched.Load() - before; n != 10 {
		t.Errorf("another epoch of b fetched %d blocks, want 10", n)
	}
	if removed, err := Prune(o); err != nil || removed != 0 {
		t.Errorf("Prune removed %d bytes (%v) of what is read", removed, err)
	}
	b.endProcess()
	if removed, err := Prune(o); err != nil || removed != o.Limit {
		t.Errorf("Prune removed %d bytes (%v) of what nobody reads, want %d", removed, err, o.Limit)
	}
}

// Bytes are right, whatever happens to the files.
func TestDamage(t *testing.T) {
	s := newFakeStore(10*blockBytes + 5)
	o := options(t, 100)
	first := s.open(t, o, io.Discard, "a")
	readAll(t, s, first)
	first.cache.Flush()
	for i, damage := range []func(path string) error{
		func(path string) error { return os.Truncate(path, 100) },
		func(path string) error { return os.Truncate(path, 1<<20) },
		func(path string) error { return os.WriteFile(path, nil, 0o644) },
		func(path string) error {
			raw, err := os.ReadFile(path)
			raw[len(raw)/2] ^= 1
			return errors.Join(err, os.WriteFile(path, raw, 0o644))
		},
		func(path string) error { // replaced by another block
			raw, err := os.ReadFile(filepath.Join(filepath.Dir(path), "9"))
			return errors.Join(err, os.WriteFile(path, raw, 0o644))
		},
		os.Remove,
		func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
		func(path string) error { return os.RemoveAll(o.Dir) },
	} {
		if err := damage(filepath.Join(o.Dir, key{first, 3}.path())); err != nil {
			t.Fatal(err)
		}
		before := s.fetched.Load()
		again := s.open(t, o, io.Discard, "a")
		readAll(t, s, again)
		again.cache.Flush()
		want := int64(1)
		if i >= 6 {
			want = again.blockCount()
		}
		if n := s.fetched.Load() - before; n != want {
			t.Errorf("damage %d: %d blocks were fetched, want %d", i, n, want)
		}
	}
}

// A disk that returns other bytes than were written is not reported as a changed token file.
func TestDiskReturnsOtherBytes(t *testing.T) {
	s, o := newFakeStore(blockBytes), options(t, 1)
	object := s.open(t, o, io.Discard, "a")
	must(t, object.Persist(0))
	object.cache.Flush()
	err := object.Read([]localfile.Range{{To: 1}}, func(int, []byte) error {
		return os.Chtimes(filepath.Join(o.Dir, key{object, 0}.path()), time.Time{}, time.Now())
	})
	if !strings.Contains(fmt.Sprint(err), "other bytes than were written") || errors.Is(err, syscall.ESTALE) {
		t.Errorf("error %v", err)
	}
}

// What a killed process leaves behind does not count as used, and is not served.
func TestLeftovers(t *testing.T) {
	s := newFakeStore(10 * blockBytes)
	o := options(t, 10)
	first := s.open(t, o, io.Discard, "a")
	readAll(t, s, first)
	first.cache.Flush()
	if err := os.Remove(filepath.Join(o.Dir, key{first, 4}.path())); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		must(t, os.WriteFile(filepath.Join(o.Dir, fmt.Sprintf("new-%d", rand.Int())), s.content, 0o644))
	}
	must(t, os.WriteFile(filepath.Join(o.Dir, "used"), []byte("999999999"), 0o644))
	again := s.open(t, o, io.Discard, "a")
	readAll(t, s, again)
	again.cache.Flush()
	if left, _ := filepath.Glob(filepath.Join(o.Dir, "new-*")); used(t, o) != o.Limit || len(left) > 0 {
		t.Errorf("%d bytes are used, want %d; %q are left", used(t, o), o.Limit, left)
	}
}

// If the size of all blocks is unknown, an eviction leaves it unknown instead of taking it for 0.
func TestEvictWithUnknownSize(t *testing.T) {
	s, o := newFakeStore(20*blockBytes), options(t, 10)
	object := s.open(t, o, io.Discard, "a")
	for i := range int64(10) {
		must(t, object.Persist(i))
	}
	d := object.cache.disk
	objects, sets, _, err := d.measure()
	must(t, err)
	// This is what a process leaves that cannot write the file.
	must(t, os.Truncate(filepath.Join(o.Dir, usedFile), 0))
	victims, _ := victimsIn(objects, sets, func(SavedWorkingSet) bool { return false })
	_, err = d.evict(victims, 1)
	must(t, err)
	for i := range object.blockCount() {
		must(t, object.Persist(i))
		if n := used(t, o); n > o.Limit {
			t.Fatalf("the directory has %d bytes, may have %d", n, o.Limit)
		}
	}
}

// The blocks of an object are not lost if its ID was not written completely, as on a full disk.
func TestIncompleteID(t *testing.T) {
	s, o := newFakeStore(10*blockBytes), options(t, 10)
	object := s.open(t, o, io.Discard, "a")
	must(t, object.Persist(0))
	must(t, os.Truncate(filepath.Join(o.Dir, object.id.name(), objectFile), 5))
	for i := range object.blockCount() {
		must(t, object.Persist(i))
	}
	_, _, n, err := object.cache.disk.measure()
	must(t, err)
	if n != o.Limit || used(t, o) != o.Limit {
		t.Errorf("the directory has %d bytes, and %d after they were measured, want %d", used(t, o), n, o.Limit)
	}
}

// A block that a killed process was writing is removed when the next one is written and when the
// directory is pruned, but not when its usage is asked for.
func TestUnfinishedBlock(t *testing.T) {
	s := newFakeStore(10 * blockBytes)
	o := options(t, 10)
	object := s.open(t, o, io.Discard, "a")
	must(t, object.Persist(0))
	unfinished := filepath.Join(o.Dir, unfinishedFile)
	for what, do := range map[string]func(){
		"writing a block": func() { must(t, object.Persist(1)) },
		"Prune": func() {
			_, err := Prune(o)
			must(t, err)
		},
	} {
		must(t, os.WriteFile(unfinished, s.content, 0o600))
		used(t, o)
		if _, err := os.Stat(unfinished); err != nil {
			t.Errorf("an unfinished block after Usage: error %v, want none", err)
		}
		do()
		if _, err := os.Stat(unfinished); !os.IsNotExist(err) {
			t.Errorf("an unfinished block after %s: error %v, want one that it does not exist", what, err)
		}
	}
}

// If the disk does not respond, readers still get their bytes. Once it responds again, blocks are
// written again.
func TestSilentDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	t.Parallel()
	s := newFakeStore(10 * blockBytes)
	o := options(t, 100)
	var log bytes.Buffer
	object := s.open(t, o, &log, "a")
	must(t, os.Mkdir(o.Dir, 0o700))
	// This file system has no server, so every access to it waits.
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		defer fuse.Close()
		err = syscall.Mount("none", o.Dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse.Fd()))
	}
	if err != nil {
		t.Skipf("no filesystem that hangs: %v", err)
	}
	defer syscall.Unmount(o.Dir, syscall.MNT_DETACH)
	for range 3 {
		readAll(t, s, object)
	}
	object.cache.Flush()
	if !strings.Contains(log.String(), "does not respond") {
		t.Errorf("the log says %q", log.String())
	}
	syscall.Unmount(o.Dir, syscall.MNT_DETACH)
	fuse.Close()
	object.cache.disk.pausedUntil.Store(0)
	testwait.Until(t, "five blocks are kept after the disk answers again", func() (any, bool) {
		readAll(t, s, object)
		bytes := used(t, o)
		return fmt.Sprintf("%d bytes", bytes), bytes >= 5*(blockBytes+trailerBytes)
	})
	readAll(t, s, s.open(t, o, io.Discard, "a"))
}

// If the directory fails, readers still get their bytes, blocks in it that can be read are not
// fetched again, and one warning is logged. Later, blocks are written again.
func TestDirectoryFails(t *testing.T) {
	const blocks = 40
	for _, test := range []struct {
		name       string
		says       string
		breakIt    func(t *testing.T, dir string)
		mend       func(t *testing.T, dir string)
		fetchAgain int64 // blocks in the directory that are fetched again
	}{
		{"full", "no space left",
			func(t *testing.T, dir string) {
				if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 32<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
					t.Fatal(err)
				}
			},
			func(_ *testing.T, dir string) { os.Remove(filepath.Join(dir, "fill")) }, 0},
		{"read-only", "read-only",
			func(t *testing.T, dir string) {
				for _, flags := range []uintptr{syscall.MS_BIND, syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY} {
					must(t, syscall.Mount(dir, dir, "", flags, ""))
				}
			},
			func(_ *testing.T, dir string) { syscall.Unmount(dir, syscall.MNT_DETACH) }, 0},
		{"in the way", "not a directory",
			func(t *testing.T, dir string) {
				os.RemoveAll(filepath.Join(dir, "cache"))
				must(t, os.WriteFile(filepath.Join(dir, "cache"), nil, 0o600))
			},
			func(_ *testing.T, dir string) { os.Remove(filepath.Join(dir, "cache")) }, 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
				t.Skipf("no tmpfs: %v", err)
			}
			t.Cleanup(func() {
				for syscall.Unmount(dir, syscall.MNT_DETACH) == nil { // a bind mount may cover it
				}
			})
			s := newFakeStore(blocks * blockBytes)
			o := Options{Dir: filepath.Join(dir, "cache"), Limit: 1 << 30, BlockBytes: blockBytes, Memory: 4 * blockBytes}
			before := s.open(t, o, io.Discard, "a")
			for i := range int64(10) {
				s.checkBlock(t, before, i)
				before.cache.Flush()
			}
			s.fetched.Store(0)
			test.breakIt(t, dir)
			var said bytes.Buffer
			after := s.open(t, o, &said, "a")
			for range 2 {
				readAll(t, s, after)
			}
			for i := range int64(10) {
				s.checkBlock(t, before, i)
			}
			after.cache.Flush()
			if n := s.fetched.Load(); test.fetchAgain == 0 && n > 2*(blocks-10) {
				t.Errorf("%d blocks were fetched in two rounds, of which the directory has all but %d", n, blocks-10)
			}
			if err := after.Persist(20); err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), o.Dir) {
				t.Errorf("a block that cannot be written: %v, want %q of %s", err, test.says, o.Dir)
			}
			if full, _, failed, slow := after.outcomes(); full+slow > 0 || failed == 0 {
				t.Errorf("for %d blocks there was no room, %d failed, and %d were slow; want failures alone", full, failed, slow)
			}
			if strings.Count(said.String(), "level=WARN") != 1 || !strings.Contains(said.String(), test.says) {
				t.Errorf("want one warning that says %q, got:\n%s", test.says, said.String())
			}
			test.mend(t, dir)
			after.cache.disk.pausedUntil.Store(0) // half a minute has passed
			after.cache.disk.writesPausedUntil.Store(0)
			for i := range after.blockCount() {
				s.checkBlock(t, after, i)
				after.cache.Flush()
			}
			s.fetched.Store(0)
			readAll(t, s, s.open(t, o, io.Discard, "a"))
			if n := s.fetched.Load(); n != 0 || !strings.Contains(said.String(), "works again") {
				t.Errorf("%d blocks are not in the directory that works again; the log:\n%s", n, said.String())
			}
		})
	}
}

// The clock may be set while the directory is left alone after a failure.
func TestPauseIsMonotonic(t *testing.T) {
	s, o := newFakeStore(blockBytes), options(t, 1)
	d := s.open(t, o, io.Discard, "a").cache.disk
	for _, test := range []struct {
		failure error
		until   *atomic.Int64
	}{{syscall.ENOSPC, &d.writesPausedUntil}, {syscall.ETIMEDOUT, &d.pausedUntil}} {
		d.suspend(test.failure)
		if left := time.Duration(test.until.Load() - clock.Now()); left <= 0 || left > pauseTime {
			t.Errorf("after %v, the pause ends in %v, want %v", test.failure, left, pauseTime)
		}
	}
}

// Processes of different versions share a directory, so this one reads the files of an earlier
// version, and writes the same ones. If this fails, mend the code instead of the files. Only a
// working set may have more fields.
func TestDirectoryOfAnEarlierVersion(t *testing.T) {
	const blockBytes, name = 64, "1136e6d71ece9a664334a016ad435d57"
	s := &fakeStore{content: []byte(strings.Repeat("0123456789", 10))}
	earlier := map[string]string{
		"used":           "116",
		name + "/object": `{"endpoint":"http://store","bucket":"bucket","key":"a","etag":"1","size":100,"block_bytes":64}`,
		name + "/0":      string(s.content[:blockBytes]) + "\x119N\xb9BFB1",
		name + "/1":      string(s.content[blockBytes:]) + "k\xc1/\xdaBFB1",
		"shares/8f6c80c6db3fce41560963caa6300bff": `{"name":"reader","needed":116,"spans":[{"object":"` + name + `","from":0,"to":2}]}`,
	}
	for _, which := range []string{"earlier", "new"} {
		o := Options{Dir: t.TempDir(), Limit: 1000, BlockBytes: blockBytes, Memory: 1000}
		want := int64(2)
		if which == "earlier" {
			want = 0
			must(t, os.Chmod(o.Dir, 0o700))
			for file, content := range earlier {
				must(t, os.MkdirAll(filepath.Join(o.Dir, filepath.Dir(file)), 0o700))
				must(t, os.WriteFile(filepath.Join(o.Dir, file), []byte(content), 0o600))
			}
			if _, sets, err := Usage(o); err != nil || len(sets) != 1 || sets[0].Name != "reader" || sets[0].Needed != 116 || sets[0].Stored != 116 {
				t.Errorf("the working sets of an earlier version are %+v (%v)", sets, err)
			}
		}
		before := s.fetched.Load()
		object := s.open(t, o, io.Discard, "a")
		set := NewWorkingSet("reader", []ObjectRange{{object, 0, 100}})
		set.save()
		for i := range int64(2) {
			must(t, object.Persist(i))
			s.checkBlock(t, object, i)
		}
		if n := s.fetched.Load() - before; n != want {
			t.Errorf("with a directory that is %s, %d blocks are fetched, want %d", which, n, want)
		}
		files := map[string]string{}
		must(t, filepath.WalkDir(o.Dir, func(path string, file fs.DirEntry, err error) error {
			if err == nil && !file.IsDir() {
				var content []byte
				content, err = os.ReadFile(path)
				files[path[len(o.Dir)+1:]] = string(content)
			}
			return err
		}))
		if !maps.Equal(files, earlier) {
			t.Errorf("the %s directory has the files\n%q, and had in an earlier version\n%q", which, files, earlier)
		}
		object.endProcess()
	}
}
