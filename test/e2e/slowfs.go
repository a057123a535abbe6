package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"batchfs/internal/testwait"
)

// A SlowFS is a file system that passes requests through to another directory, and delays,
// interrupts or blocks those that a test picks, or kills the process that makes them. The kernel
// caches neither its entries nor its attributes. A separate process serves it, so that a test may
// access its files too. A SlowFS is safe for concurrent use.
//
// Requests are "lookup", "getattr", "open" or "read", or one of the changes "create", "mkdir",
// "rename", "unlink", "rmdir", "write", "setattr", "fsync" or "fsyncdir". A stat is a lookup for
// each element of the path below Dir, followed by a getattr. A file name stands for the lookups of
// that name, which also count as "lookup".
type SlowFS struct {
	Dir string // mountpoint

	mu     sync.Mutex // guards client
	client *Client
}

// NewSlowFS mounts a file system that shows the directory source. It is unmounted at the end of the
// test, after everything that was mounted later.
func NewSlowFS(t testing.TB, source string) *SlowFS {
	t.Helper()
	NeedFUSE(t)
	s := &SlowFS{Dir: t.TempDir()}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), slowFSVariable+"="+source, slowFSVariable+"_DIR="+s.Dir)
	s.client = StartClient(t, cmd)
	t.Cleanup(func() {
		s.client.End(t)
		syscall.Unmount(s.Dir, syscall.MNT_FORCE|syscall.MNT_DETACH) // in case the server did not
	})
	s.client.AwaitReady(t)
	return s
}

// Delay makes every request of one kind take at least d.
func (s *SlowFS) Delay(t testing.TB, request string, d time.Duration) {
	t.Helper()
	s.tell(t, "delay", request, int64(d), 0)
}

// Hang makes every request of one kind wait, until Delay is called for it. The test ends with such
// a call, before earlier mounts are unmounted.
func (s *SlowFS) Hang(t testing.TB, request string) {
	t.Helper()
	t.Cleanup(func() { s.Delay(t, request, 0) })
	s.Delay(t, request, untilChanged)
}

// AwaitHanging waits until a request of one kind hangs.
func (s *SlowFS) AwaitHanging(t testing.TB, request string) {
	t.Helper()
	Await(t, "a request "+request+" that hangs", func() (any, bool) {
		n := s.tell(t, "hanging", request, 0, 0)
		return n + " that hang", n != "0"
	})
}

// Interrupt answers n of every m requests of one kind with EINTR.
func (s *SlowFS) Interrupt(t testing.TB, request string, n, m int) {
	t.Helper()
	s.tell(t, "interrupt", request, int64(n), m)
}

// Count returns the number of requests of one kind, including those that were interrupted.
func (s *SlowFS) Count(t testing.TB, request string) int {
	t.Helper()
	return Must(strconv.Atoi(s.tell(t, "count", request, 0, 0)))(t)
}

// KillAt kills the process that asks for the n-th change from now, before anything changes. From
// then on, all changes fail, until KillAt is called again. n is 0 to kill no process.
func (s *SlowFS) KillAt(t testing.TB, n int) {
	t.Helper()
	s.tell(t, "kill", "process", int64(n), 0)
}

// Changes returns the changes that were made since KillAt was last called, such as "write a/b" or
// "rename a/b c", with paths below Dir.
func (s *SlowFS) Changes(t testing.TB) []string {
	t.Helper()
	return strings.Split(s.tell(t, "changes", "all", 0, 0), "\t")
}

// tell sends a command to the server, which slowServer.executeCommand executes, and returns the
// reply.
func (s *SlowFS) tell(t testing.TB, command, request string, n int64, m int) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	Must(fmt.Fprintln(s.client.In, command, request, n, m))(t)
	return s.client.ReadLine(t)
}

// slowFSVariable is the environment variable that names the source directory. If it is set, the
// test binary serves a SlowFS and runs no tests.
const slowFSVariable = "BATCHFS_TEST_SLOWFS"

// A slowServer serves a SlowFS in its own process.
type slowServer struct {
	fuse.RawFileSystem

	mu      sync.Mutex                // guards the fields below
	changed *sync.Cond                // uses mu
	kinds   map[string]*slowedRequest // keyed by kind of request, such as "read"
	changes changeLog
}

// untilChanged is the delay of requests that wait until another delay is set.
const untilChanged = -1

// A slowedRequest describes one kind of request.
type slowedRequest struct {
	delay   time.Duration
	n, m    int // n of every m requests are interrupted; m is 0 if none are
	count   int // requests received
	hanging int // requests that wait until delay changes
}

// serveSlowFS serves source at dir until standard input ends, and then unmounts.
func serveSlowFS(source, dir string) {
	runtime.GOMAXPROCS(256) // because each delayed request occupies one
	root, err := gofs.NewLoopbackRoot(source)
	must(err)
	slow := &slowServer{RawFileSystem: gofs.NewNodeFS(root, &gofs.Options{}), kinds: map[string]*slowedRequest{}}
	slow.changes.paths = map[uint64]string{fuse.FUSE_ROOT_ID: ""}
	slow.changed = sync.NewCond(&slow.mu)
	server, err := fuse.NewServer(slow, dir, &fuse.MountOptions{FsName: "slow", Name: "slow", DirectMount: true, MaxWrite: 1 << 20, DisableReadDirPlus: true})
	must(err)
	go server.Serve()
	must(server.WaitMount())
	fmt.Println("ready")
	for commands := bufio.NewScanner(os.Stdin); commands.Scan(); {
		fmt.Println(slow.executeCommand(commands.Text()))
	}
	// A killed process keeps its files open until the kernel has cleaned up the process. The test
	// waits for a longer time.
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		if err = server.Unmount(); err == nil || time.Since(began) > testwait.Limit/2 {
			break
		}
	}
	must(err)
}

// kind returns what is known about a kind of request. The caller holds mu.
func (s *slowServer) kind(name string) *slowedRequest {
	if s.kinds[name] == nil {
		s.kinds[name] = new(slowedRequest)
	}
	return s.kinds[name]
}

// executeCommand executes a command from SlowFS.tell, and returns how many requests of its kind
// were received, how many hang, or the changes.
func (s *slowServer) executeCommand(command string) any {
	var verb, name string
	var n int64
	var m int
	_, err := fmt.Fscan(strings.NewReader(command), &verb, &name, &n, &m)
	must(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.kind(name)
	switch verb {
	case "delay":
		r.delay = time.Duration(n)
		s.changed.Broadcast()
	case "hanging":
		return r.hanging
	case "interrupt":
		r.n, r.m = int(n), m
	case "kill":
		s.changes.made, s.changes.killAt, s.changes.killed = nil, int(n), false
	case "changes":
		return strings.Join(s.changes.made, "\t")
	}
	return r.count
}

// countAndDelay counts a request, delays it, and returns EINTR or OK. It calls nanosleep(2),
// because time.Sleep may take a millisecond longer.
func (s *slowServer) countAndDelay(name string) fuse.Status {
	s.mu.Lock()
	kind := s.kind(name)
	kind.count++
	for kind.delay == untilChanged {
		kind.hanging++
		s.changed.Wait()
		kind.hanging--
	}
	r := *kind
	s.mu.Unlock()
	for left := unix.NsecToTimespec(int64(r.delay)); r.delay > 0 && unix.Nanosleep(&left, &left) == unix.EINTR; {
	}
	if r.m > 0 && r.count%r.m < r.n {
		return fuse.EINTR
	}
	return fuse.OK
}

// Init hides the server from the inner file system. Otherwise, FUSE passthrough would let the
// kernel read files without sending requests.
func (s *slowServer) Init(*fuse.Server) {}

func (s *slowServer) Lookup(cancel <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	for _, kind := range []string{"lookup", name} {
		if status := s.countAndDelay(kind); !status.Ok() {
			return status
		}
	}
	status := s.RawFileSystem.Lookup(cancel, header, name, out)
	if status.Ok() {
		s.setPath(out.NodeId, s.pathOf(header.NodeId, name))
	}
	return status
}

func (s *slowServer) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if status := s.countAndDelay("getattr"); !status.Ok() {
		return status
	}
	return s.RawFileSystem.GetAttr(cancel, in, out)
}

func (s *slowServer) Statx(cancel <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	if status := s.countAndDelay("getattr"); !status.Ok() {
		return status
	}
	return s.RawFileSystem.Statx(cancel, in, out)
}

func (s *slowServer) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if status := s.countAndDelay("open"); !status.Ok() {
		return status
	}
	return s.RawFileSystem.Open(cancel, in, out)
}

func (s *slowServer) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if status := s.countAndDelay("read"); !status.Ok() {
		return nil, status
	}
	return s.RawFileSystem.Read(cancel, in, buf)
}
