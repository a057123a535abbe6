package fs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/failpoint"
)

// A connection is the kernel's side of one, as far as files are registered.
type connection struct {
	mu     sync.Mutex
	errno  syscall.Errno // of who registers
	last   int32
	known  map[int32]bool
	opened int // files were
}

func (c *connection) RegisterBackingFd(*fuse.BackingMap) (int32, syscall.Errno) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.errno != 0 {
		return 0, c.errno
	}
	c.last++
	c.known[c.last] = true
	return c.last, 0
}

func (c *connection) UnregisterBackingFd(id int32) syscall.Errno {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known[id] {
		return syscall.ENOENT
	}
	delete(c.known, id)
	return 0
}

// oneFile is a sequence whose tokens.bin is a file as it stands.
func (c *connection) oneFile(t *testing.T, v Version) *Sequence {
	t.Helper()
	path := filepath.Join(t.TempDir(), "train.bin")
	if err := os.WriteFile(path, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	s := counting("train", 1000)
	s.Version, s.TokensLen = v, 100
	s.OpenTokens = func() (*os.File, error) {
		c.mu.Lock()
		c.opened++
		c.mu.Unlock()
		return os.Open(path)
	}
	return s
}

// openTokens opens a tokens.bin. The id is 0 where the file is read through this process.
func (t *tree) openTokens(path string) (id int32, status fuse.Status) {
	in := &fuse.OpenIn{}
	in.NodeId = uint64(t.find(path))
	var out fuse.OpenOut
	status = t.Open(nil, in, &out)
	if (out.OpenFlags&fuse.FOPEN_PASSTHROUGH != 0) != (out.BackingID > 0) || out.BackingID > 0 && out.OpenFlags&fuse.FOPEN_KEEP_CACHE != 0 {
		status = fuse.EINVAL
	}
	return out.BackingID, status
}

// All opens of a version of the tokens are answered alike, whichever directory and worker they go to, also if a worker died while it
// registered the file. What the version before had registered is let go.
func TestPassthrough(t *testing.T) {
	c := &connection{known: map[int32]bool{}}
	s := c.oneFile(t, 0)
	tr := plant(t, s)
	tr.kernel = c

	defer func(was func(string)) { failpoint.Hit = was }(failpoint.Hit)
	failpoint.Hit = func(at string) {
		if at == "registered" {
			panic("killed")
		}
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no worker died")
			}
		}()
		tr.openTokens("train/tokens.bin")
	}()
	failpoint.Hit = func(string) {}
	const lost = 1
	next := func(s *Sequence) {
		t.Helper()
		tr = grow(t, tr.shared, s)
		tr.kernel = c
		tr.resumeBackings()
	}
	next(s)

	var all sync.WaitGroup
	var ids [8]int32
	for i := range ids {
		all.Go(func() {
			var status fuse.Status
			if ids[i], status = tr.openTokens("train/tokens.bin"); !status.Ok() {
				t.Error(status)
			}
		})
	}
	all.Wait()
	next(s)
	for _, id := range ids {
		if again, status := tr.openTokens("train/tokens.bin"); id <= lost || id != ids[0] || again != id || !status.Ok() {
			t.Errorf("ids %d, and then %d, %v", ids, again, status)
		}
	}
	if len(c.known) != 2 { // the one that a killed worker lost, and the one that is used
		t.Errorf("the kernel knows %v", c.known)
	}
	c.opened = 0
	number := tr.sequences.mustLookUp(t, tr.find("train"), "seed=own")
	in := &fuse.OpenIn{}
	in.NodeId = uint64(makeInode(tokensFile, number, 0))
	var out fuse.OpenOut
	if status := tr.Open(nil, in, &out); !status.Ok() || out.BackingID != ids[0] || c.opened != 0 {
		t.Errorf("under settings: %v, id %d, and the file was opened %d times", status, out.BackingID, c.opened)
	}

	fresh := c.oneFile(t, 1)
	s.Now, s.Follows = func(uint64) (*Sequence, error) { return fresh, nil }, true
	if _, status := tr.openTokens("train/tokens.bin"); status != fuse.Status(syscall.ESTALE) {
		t.Errorf("old tokens are opened: %v", status)
	}
	id, status := tr.openTokens("train/tokens.bin")
	if !status.Ok() || id <= ids[0] || !c.known[ids[0]] {
		t.Errorf("new tokens: %v, id %d; the kernel knows %v", status, id, c.known)
	}
	next(fresh)
	if c.known[ids[0]] || !c.known[id] {
		t.Errorf("after a change, the kernel knows %v", c.known)
	}
}

// Where the kernel does not take the file, or it is not all of tokens.bin, readers ask this process, and status.json says why. That
// stays until the tokens change: a file that is open cannot be passed through later.
func TestNoPassthrough(t *testing.T) {
	for name, test := range map[string]struct {
		errno syscall.Errno
		ends  func(s *Sequence)
		why   string
	}{
		"no right":      {errno: syscall.EPERM, why: "needs CAP_SYS_ADMIN"},
		"overlayfs":     {errno: syscall.ELOOP, why: "stacked on others"},
		"old kernel":    {errno: syscall.ENOTTY, why: "needs Linux 6.9"},
		"another error": {errno: syscall.ENOMEM, why: syscall.ENOMEM.Error()},
		"several files": {ends: func(s *Sequence) { s.OpenTokens = nil }, why: "not one token file"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &connection{known: map[int32]bool{}, errno: test.errno}
			s := c.oneFile(t, 0)
			if test.ends != nil {
				test.ends(s)
			}
			tr := plant(t, s)
			tr.kernel = c
			for range 2 {
				if id, status := tr.openTokens("train/tokens.bin"); id != 0 || !status.Ok() {
					t.Errorf("id %d, %v", id, status)
				}
				c.errno = 0
			}
			if c.opened > 1 || len(c.known) > 0 {
				t.Errorf("opened %d times; the kernel knows %v", c.opened, c.known)
			}
			if status := tr.status(); !strings.Contains(status, test.why) {
				t.Errorf("status.json does not say %q: %s", test.why, status)
			}
		})
	}
}

// A file that changed, or that changes while it is registered, is not handed over.
func TestPassthroughChecks(t *testing.T) {
	c := &connection{known: map[int32]bool{}}
	s := c.oneFile(t, 0)
	tr := plant(t, s)
	tr.kernel = c
	open, changed := s.OpenTokens, errors.Join(errors.New("train.bin has changed"), syscall.ESTALE)
	s.OpenTokens = func() (*os.File, error) { return nil, changed }
	if _, status := tr.openTokens("train/tokens.bin"); status != fuse.Status(syscall.ESTALE) {
		t.Errorf("a file that changed: %v", status)
	}
	s.OpenTokens = func() (*os.File, error) {
		s.Now = func(uint64) (*Sequence, error) { return s, changed }
		return open()
	}
	if _, status := tr.openTokens("train/tokens.bin"); status != fuse.Status(syscall.ESTALE) || len(c.known) > 0 {
		t.Errorf("a file that changes: %v; the kernel knows %v", status, c.known)
	}
	s.OpenTokens, s.Now = open, func(uint64) (*Sequence, error) { return s, nil }
	if id, status := tr.openTokens("train/tokens.bin"); !status.Ok() || !c.known[id] {
		t.Errorf("a file that was put back: %v", status)
	}
	// A worker that is replaced meanwhile hears from /dev/null, not from the kernel.
	next := c.oneFile(t, 1)
	s.Now = func(uint64) (*Sequence, error) { return next, nil }
	tr.sequences.now(1, NoBatch)
	c.errno = syscall.ENOTTY
	tr.leaving.Store(true)
	tr.openTokens("train/tokens.bin")
	if b := tr.shared.Sequences[1].Backing(1); b != 0 {
		t.Errorf("a worker that was replaced chose %v", b)
	}
}
