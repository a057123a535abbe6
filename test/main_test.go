package test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"

	"batchfs/internal/wait"
)

var (
	batchfs       string // the program, built with the race detector if the tests are
	plainBatchfs  string // the program as users have it
	faultyBatchfs string // one that dies where a test wants it to
	cReader       string
	cStorm        string
	cCrowd        string
	goSignals     string
	python        string // one that has NumPy
)

// limit bounds every wait of a test, for a command or for a state.
const limit = wait.Limit

func TestMain(m *testing.M) {
	os.Exit(func() int {
		os.Setenv("GORACE", "atexit_sleep_ms=0") // or every program waits a second at its end
		dir, err := os.MkdirTemp("", "batchfs-test-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		os.Chmod(dir, 0o755) // also for the tests' ordinary user
		program := func(name string) string { return filepath.Join(dir, name) }
		plainBatchfs, faultyBatchfs = program("batchfs"), program("batchfs-faulty")
		cReader, cStorm, cCrowd, goSignals = program("reader"), program("storm"), program("crowd"), program("signals")
		commands := [][]string{
			{"go", "build", "-o", plainBatchfs, "../cmd/batchfs"},
			{"go", "build", "-tags", "faults", "-o", faultyBatchfs, "../cmd/batchfs"},
			{"go", "build", "-o", goSignals, "./clients/signals"},
			{"cc", "-O2", "-Wall", "-Wextra", "-o", cReader, "clients/reader.c"},
			{"cc", "-O2", "-Wall", "-Wextra", "-o", cStorm, "clients/storm.c"},
			{"cc", "-O2", "-Wall", "-Wextra", "-pthread", "-o", cCrowd, "clients/crowd.c"},
		}
		batchfs = plainBatchfs
		if raceEnabled {
			batchfs = program("batchfs-race")
			commands = append(commands, []string{"go", "build", "-race", "-o", batchfs, "../cmd/batchfs"})
		}
		if !build(commands) {
			return 1
		}
		for _, p := range []string{os.Getenv("PYTHON"), "python3", "/usr/bin/python3"} {
			if p != "" && exec.Command(p, "-c", "import numpy").Run() == nil {
				python = p
				break
			}
		}
		if python == "" {
			fmt.Fprintln(os.Stderr, "the tests need Python with NumPy: apt-get install python3-numpy")
			return 1
		}
		return m.Run()
	}())
}

// build runs the commands in parallel and reports whether all of them succeeded.
func build(commands [][]string) bool {
	var all sync.WaitGroup
	var failed atomic.Bool
	for _, args := range commands {
		all.Go(func() {
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n%s", strings.Join(args, " "), err, out)
				failed.Store(true)
			}
		})
	}
	all.Wait()
	return !failed.Load()
}

// needFUSE skips a test on a machine that cannot mount, and fails it in CI.
func needFUSE(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		f.Close()
		return
	}
	lack(t, "no FUSE: %v", err)
}

// lack skips a test for want of something, unless CI must have it.
func lack(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("BATCHFS_REQUIRE_FUSE") == "1" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// long skips a slow test under -short, which `make test` sets. `make check` runs every test.
func long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("long")
	}
}

// inSoak reports BATCHFS_SOAK=1, which `make soak` sets. Tests then last longer, and they assert times, because nothing else
// uses the machine.
func inSoak() bool { return os.Getenv("BATCHFS_SOAK") == "1" }

// inTime logs how long something took. In a soak it fails the test if that was longer than most. Elsewhere it never fails,
// because on a busy machine everything takes longer.
func inTime(t testing.TB, what string, took, most time.Duration) {
	t.Helper()
	if inSoak() && took > most {
		t.Errorf("%s took %v, may take %v", what, took, most)
	} else {
		t.Logf("%s took %v", what, took)
	}
}

var await = wait.Until

// awaitNone waits until left returns nothing. It fails the test after limit.
func awaitNone(t testing.TB, what string, left func() []string) {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		switch list := left(); {
		case len(list) == 0:
			return
		case time.Now().After(end):
			t.Fatalf("%s: %q are left", what, list)
		}
	}
}

// tokens writes a file of n tokens of width bytes that are their own positions, wrapping.
func tokens(t testing.TB, path string, n, width int) string {
	t.Helper()
	buf := make([]byte, 0, n*width)
	for i := range n {
		if width == 2 {
			buf = binary.LittleEndian.AppendUint16(buf, uint16(i))
		} else {
			buf = binary.LittleEndian.AppendUint32(buf, uint32(i))
		}
	}
	write(t, path, buf)
	return path
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// A mounted is a running `batchfs mount`.
type mounted struct {
	dir  string // the mountpoint
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	out  logFile       // its standard output and error
}

// mount mounts with the given arguments on a fresh directory. It is unmounted at the end of the test.
func mount(t testing.TB, args ...string) *mounted {
	t.Helper()
	return mountProgram(t, exec.Command(batchfs), args...)
}

func mountProgram(t testing.TB, cmd *exec.Cmd, args ...string) *mounted {
	t.Helper()
	return mountAt(t, t.TempDir(), cmd, args...)
}

func mountAt(t testing.TB, dir string, cmd *exec.Cmd, args ...string) *mounted {
	t.Helper()
	needFUSE(t)
	m := &mounted{dir: dir, cmd: cmd, done: make(chan struct{})}
	cmd.Args = append(append(cmd.Args, "mount"), append(args, m.dir)...)
	m.start(t)
	await(t, "a mount that is ready", func() bool {
		if m.ended() {
			t.Fatalf("mount %s ended:\n%s", args, m.out)
		}
		return strings.Contains(m.out.String(), "stop with Ctrl-C")
	})
	return m
}

// A logFile is what a process has printed, to a file: what it says before it answers is there when the answer is.
type logFile string

func (f logFile) String() string {
	text, _ := os.ReadFile(string(f))
	return string(text)
}

// start starts the process and sees to it that it is stopped at the end of the test.
func (m *mounted) start(t testing.TB) {
	t.Helper()
	if m.cmd.Stdout == nil {
		file, err := os.CreateTemp(t.TempDir(), "log")
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		m.out = logFile(file.Name())
		m.cmd.Stdout, m.cmd.Stderr = file, file
	}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.stop(t) })
	go func() {
		m.cmd.Wait()
		close(m.done)
	}()
}

func (m *mounted) ended() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// awaitEnd waits until the process has ended by itself.
func (m *mounted) awaitEnd(t testing.TB) {
	t.Helper()
	await(t, "the end of the mount", m.ended)
}

// stop ends the mount, whatever state it is in, and fails the test if it did not go as it should.
func (m *mounted) stop(t testing.TB) {
	t.Helper()
	m.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-m.done:
	case <-time.After(limit):
		t.Error("mount did not end on SIGTERM")
		m.cmd.Process.Kill()
		<-m.done
	}
	if isMounted(t, m.dir) {
		t.Errorf("%s is still mounted", m.dir)
		syscall.Unmount(m.dir, syscall.MNT_DETACH)
	}
	if strings.Contains(m.out.String(), "DATA RACE") {
		t.Error("data race")
	}
	if t.Failed() {
		t.Logf("the mount said:\n%s", m.out)
	}
}

func isMounted(t testing.TB, dir string) bool {
	t.Helper()
	list, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir))
	if err != nil {
		t.Fatal(err)
	}
	return len(list) > 0
}

// path is that of a file in the mount.
func (m *mounted) path(name string) string { return filepath.Join(m.dir, name) }

// cursor is what a split's cursor says.
func (m *mounted) cursor(t testing.TB, split string) string {
	t.Helper()
	return strings.TrimSpace(run(t, "cat", m.path(split+"/cursor")))
}

// command is exec.Command of a program that should end soon. One that runs for limit is killed, which fails the test.
func command(t testing.TB, name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error {
		if ctx.Err() == context.DeadlineExceeded {
			t.Errorf("%s: no end after %v", cmd.Args, limit)
		}
		return cmd.Process.Kill()
	}
	cmd.WaitDelay = limit // for whoever has its pipes
	return cmd
}

// answersSoon kills a program after limit, which fails the test, unless stop is called before: a read of what it prints ends then.
func answersSoon(t testing.TB, cmd *exec.Cmd) (stop func() bool) {
	return time.AfterFunc(limit, func() {
		t.Errorf("%s: no answer in %v", cmd.Args, limit)
		cmd.Process.Kill()
	}).Stop
}

// run runs a command that must succeed and returns its standard output.
func run(t testing.TB, args ...string) string {
	t.Helper()
	out, stderr, err := try(t, args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, stderr)
	}
	return out
}

func try(t testing.TB, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := command(t, args[0], args[1:]...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// read reads a file with one of the methods of clients/readers.py and returns its lines, "<bytes> <sha256>" each.
func read(t testing.TB, method, path string, args ...string) []string {
	t.Helper()
	return strings.Split(strings.TrimSpace(run(t, append([]string{python, "clients/readers.py", method, path}, args...)...)), "\n")
}

// line is what clients/readers.py prints of data.
func line(data []byte) string { return fmt.Sprintf("%d %x", len(data), sha256.Sum256(data)) }

// cat is what `batchfs cat` writes.
func cat(t testing.TB, args ...string) []byte {
	t.Helper()
	return []byte(run(t, append([]string{plainBatchfs, "cat"}, args...)...))
}
