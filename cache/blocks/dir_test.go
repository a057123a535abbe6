package blocks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"batchfs/internal/require"
	"batchfs/internal/testwait"
)

const nobody = 65534

func skipUnlessRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root has directories of others")
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	require.NoError(t, errors.Join(errs...))
}

// A directory is used only if it belongs to the user and nobody else may write to it, or if it
// belongs to a group and is configured as shared.
func TestWhoseDirectory(t *testing.T) {
	skipUnlessRoot(t)
	of := func(uid, gid int, mode os.FileMode) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			must(t, os.Mkdir(dir, 0o700), os.Chown(dir, uid, gid), os.Chmod(dir, mode))
		}
	}
	for _, test := range []struct {
		name   string
		make   func(t *testing.T, dir string)
		shared bool
		says   string      // part of the error; empty: the directory is used
		mode   os.FileMode // directory mode once it is used
	}{
		{"absent", func(*testing.T, string) {}, false, "", 0o700},
		{"absent, shared", func(*testing.T, string) {}, true, "", 0o770 | os.ModeSetgid},
		{"own", of(0, 0, 0o755), false, "", 0o700},
		{"own, shared", of(0, nobody, 0o775), true, "", 0o770 | os.ModeSetgid},
		{"a link to one's own", func(t *testing.T, dir string) { must(t, os.Mkdir(dir+"-real", 0o755), os.Symlink(dir+"-real", dir)) }, false, "", 0o700},
		{"own, everybody writes", of(0, 0, 0o777), false, "others may write to", 0},
		{"own, a group writes", of(0, 0, 0o770), false, "others may write to", 0},
		{"another's", of(nobody, 0, 0o700), false, "belongs to user 65534, and this is user 0", 0},
		{"another's, shared by another group", of(nobody, nobody, 0o770), true, "not in that group", 0},
		{"another's, everybody writes", of(nobody, 0, 0o777), true, "others may write to", 0},
		{"another's, shared", of(nobody, 0, 0o770), true, "", 0o770},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, o := newFakeStore(3*blockBytes), options(t, 10)
			o.GroupWritable = test.shared
			test.make(t, o.Dir)
			object := s.open(t, o, io.Discard, "a")
			before, _ := os.Stat(o.Dir)
			err := object.cache.Check()
			Usage(o)
			if after, _ := os.Stat(o.Dir); before != nil && (before.Mode() != after.Mode() || before.ModTime() != after.ModTime()) {
				t.Errorf("Check and Usage changed the directory from %v to %v", before, after)
			}
			if got := fmt.Sprint(err); test.says == "" && err != nil || !strings.Contains(got, test.says) {
				t.Errorf("the error is %q, want one that says %q", got, test.says)
			}
			touchedSet(object, 0, 3)
			readAll(t, s, object)
			object.cache.Flush()
			entries, _ := os.ReadDir(o.Dir) // the object's directory, "used" and "shares"
			if test.says != "" && len(entries) > 0 {
				t.Errorf("%v is in a directory that was rejected", entries)
			}
			if info, err := os.Stat(o.Dir); test.says == "" && (err != nil || info.Mode()&^os.ModeDir != test.mode || len(entries) != 3) {
				t.Errorf("the directory has %v and is %v (%v), want mode %v", entries, info, err, test.mode)
			}
		})
	}
}

// TestOther is the other process that TestShared starts. It reads an object and removes it, or
// saves that it reads a working set, and ends with its standard input.
func TestOther(t *testing.T) {
	dir := os.Getenv("BLOCKS_TEST_DIR")
	if dir == "" {
		return
	}
	syscall.Umask(0o077)
	s := newFakeStore(10 * blockBytes)
	o := Options{Dir: dir, GroupWritable: true, Limit: 1 << 30, BlockBytes: blockBytes, Memory: 4 * blockBytes}
	object := s.open(t, o, os.Stdout, "a")
	must(t, object.cache.Check())
	if os.Getenv("BLOCKS_TEST_SET") != "" {
		touchedSet(object, 0, 10)
		fmt.Println("saved")
		io.Copy(io.Discard, os.Stdin)
		return
	}
	for i := range object.blockCount() {
		s.checkBlock(t, object, i)
		object.cache.Flush()
	}
	fmt.Printf("fetched %d\n", s.fetched.Load())
	if os.Getenv("BLOCKS_TEST_PRUNE") != "" {
		removed, err := Prune(o)
		must(t, err)
		fmt.Printf("removed %d\n", removed/(blockBytes+trailerBytes))
	}
}

// Users of a group share a directory, whatever their umask. Other users cannot look into it.
func TestShared(t *testing.T) {
	skipUnlessRoot(t)
	const group = 54321
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, 0, group), os.Chmod(dir, 0o770|os.ModeSetgid))
	other := func(uid uint32, env string) *exec.Cmd {
		cmd := testwait.Command(t, "/proc/self/exe", "-test.run=^TestOther$")
		cmd.Dir = "/"
		cmd.Env = append(os.Environ(), "BLOCKS_TEST_DIR="+dir, env)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: []uint32{group}}}
		return cmd
	}
	as := func(uid uint32, prune, want string) {
		t.Helper()
		if out, err := other(uid, "BLOCKS_TEST_PRUNE="+prune).CombinedOutput(); err != nil || !strings.HasPrefix(string(out), want) {
			t.Fatalf("user %d: %v, want %q, got:\n%s", uid, err, want, out)
		}
	}
	as(54001, "", "fetched 10\n")
	as(54002, "1", "fetched 0\nremoved 10\n")
	as(54002, "", "fetched 10\n")
	as(54001, "1", "fetched 0\nremoved 10\n")
	var ends []func()
	for uid := range uint32(2) { // both read the same working set
		cmd := other(54001+uid, "BLOCKS_TEST_SET=1")
		stdin, err := cmd.StdinPipe()
		must(t, err)
		stdout, err := cmd.StdoutPipe()
		must(t, err, cmd.Start())
		if _, err := io.ReadFull(stdout, make([]byte, len("saved\n"))); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, func() { must(t, stdin.Close(), cmd.Wait()) })
	}
	ends[1]()
	if _, sets, err := Usage(Options{Dir: dir, GroupWritable: true}); err != nil || len(sets) != 1 || !sets[0].Live {
		t.Errorf("the directory has %+v (%v), want the working set that one user still reads", sets, err)
	}
	ends[0]()
	cmd := testwait.Command(t, "ls", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54003, Gid: 54003}}
	if cmd.Run() == nil {
		t.Error("a user who is not of the group can look into the directory")
	}
}

// A directory that was private becomes that of the group, with its blocks, but without other files.
func TestSharedLater(t *testing.T) {
	skipUnlessRoot(t)
	const group = 54321
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, 0, group))
	foreign := map[string]os.FileMode{"tool.sh": 0o700, ".ssh/id_rsa": 0o600}
	must(t, os.Mkdir(dir+"/.ssh", 0o700))
	for name, mode := range foreign {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, mode))
	}
	s := newFakeStore(10 * blockBytes)
	o := Options{Dir: dir, Limit: 1 << 30, BlockBytes: blockBytes, Memory: 4 * blockBytes}
	for _, o.GroupWritable = range []bool{false, true} {
		object := s.open(t, o, io.Discard, "a")
		touchedSet(object, 0, 10)
		readAll(t, s, object)
		object.cache.Flush()
	}
	cmd := testwait.Command(t, "/proc/self/exe", "-test.run=^TestOther$")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "BLOCKS_TEST_DIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54001, Gid: 54001, Groups: []uint32{group}}}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "fetched 0\n") {
		t.Errorf("another user: %v, want fetched 0, got:\n%s", err, out)
	}
	foreign[".ssh"] = os.ModeDir | 0o700
	for name, mode := range foreign {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != mode || info.Sys().(*syscall.Stat_t).Gid != 0 {
			t.Errorf("%s: mode %v, group %d, %v", name, info.Mode(), info.Sys().(*syscall.Stat_t).Gid, err)
		}
	}
}

// Files that are not blocks are removed and do no harm: links are not followed, and the remaining
// blocks are served.
func TestBadEntries(t *testing.T) {
	s, o := newFakeStore(10*blockBytes), options(t, 100)
	first := s.open(t, o, io.Discard, "a")
	readAll(t, s, first)
	first.cache.Flush()
	outside, block := filepath.Join(t.TempDir(), "outside"), func(i int64) string { return filepath.Join(o.Dir, key{first, i}.path()) }
	in := func(name string) string { return filepath.Join(o.Dir, name) }
	must(t, os.Mkdir(outside, 0o700), os.Rename(block(1), outside+"/1"), os.Symlink(outside+"/1", block(1)),
		os.Remove(block(2)), os.MkdirAll(block(2)+"/deep", 0o700),
		os.Remove(block(3)), syscall.Mkfifo(block(3), 0o600),
		os.Remove(block(4)), os.Symlink("5", block(4)),
		os.Truncate(block(6), 100),
		os.WriteFile(block(10)+"x", []byte("x"), 0o600),
		os.WriteFile(outside+"/used", []byte("precious"), 0o600), os.Remove(in(usedFile)), os.Symlink(outside+"/used", in(usedFile)),
		os.RemoveAll(in(workingSetsDir)), os.Symlink(outside, in(workingSetsDir)))
	before, err := os.ReadDir(outside)
	must(t, err)
	s.fetched.Store(0)
	var log bytes.Buffer
	again := s.open(t, o, &log, "a")
	touchedSet(again, 0, 10)
	readAll(t, s, again)
	again.cache.Flush()
	if n := s.fetched.Load(); n != 5 || strings.Contains(log.String(), "fails") {
		t.Errorf("%d blocks were fetched, want 5; the log:\n%s", n, &log)
	}
	after, _ := os.ReadDir(outside)
	precious, _ := os.ReadFile(outside + "/used")
	if string(precious) != "precious" || len(after) != len(before) {
		t.Errorf("outside there are %v with %q, were %v", after, precious, before)
	}
	if n := used(t, o); n != 10*(blockBytes+trailerBytes) {
		t.Errorf("%d bytes are kept, want 10 blocks", n)
	}
	if _, err := os.Lstat(block(10) + "x"); err == nil {
		t.Error("a file that is no block stays among them")
	}
	outer := s.open(t, o, io.Discard, "b") // the directory of b is a link
	must(t, os.Symlink(outside, in(outer.id.name())))
	readAll(t, s, outer)
	outer.cache.Flush()
	if after, _ := os.ReadDir(outside); len(after) != len(before) {
		t.Errorf("outside there are %v, were %v", after, before)
	}
}

// A syncBuffer is a log that may be read while goroutines write to it.
type syncBuffer struct {
	mu   sync.Mutex
	text []byte
}

func (b *syncBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, text...)
	return len(text), nil
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.text)
}

// While another process holds the lock for a long time, blocks in the directory are still read.
// Afterwards, the time of the last read is saved.
func TestHeldLock(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	t.Parallel()
	s, o := newFakeStore(10*blockBytes), options(t, 100)
	first := s.open(t, o, io.Discard, "a")
	touchedSet(first, 0, 10)
	for i := range int64(5) {
		s.checkBlock(t, first, i)
		first.cache.Flush()
	}
	first.endProcess()
	holder := testwait.Command(t, "flock", o.Dir, "sh", "-c", "echo locked; cat")
	hold, err := holder.StdinPipe()
	must(t, err)
	says, err := holder.StdoutPipe()
	must(t, err, holder.Start())
	if _, err := io.ReadFull(says, make([]byte, len("locked\n"))); err != nil {
		t.Fatal(err)
	}
	s.fetched.Store(0)
	var log syncBuffer
	object := s.open(t, o, &log, "a")
	NewWorkingSet("reader", []ObjectRange{{object, 0, 10 * blockBytes}}).Touch()
	for range 3 {
		readAll(t, s, object)
		object.cache.Flush()
	}
	objects, sets, err := Usage(o)
	if n := s.fetched.Load(); n > 3*5 || log.String() != "" || err != nil || len(objects) != 1 || objects[0].Blocks != 5 || sets[0].Live {
		t.Errorf("%d blocks were fetched, want 15 at most; the directory has %+v, %+v (%v); the log:\n%s", n, objects, sets, err, &log)
	}
	if full, _, failed, slow := object.outcomes(); full+failed > 0 || slow == 0 {
		t.Errorf("for %d blocks there was no room, %d failed, and %d were slow; want slow ones alone", full, failed, slow)
	}
	hold.Close()
	must(t, holder.Wait())
	testwait.Until(t, "the working set is saved as read", func() (any, bool) {
		_, sets, err = Usage(o)
		must(t, err)
		return fmt.Sprintf("%+v", sets), len(sets) > 0 && sets[0].Live
	})
	if removed, err := Prune(o); err != nil || removed != 0 {
		t.Errorf("Prune removed %d bytes (%v) of what is read", removed, err)
	}
}
