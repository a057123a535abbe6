// Package e2e mounts the built program for tests that use it as users do: with real files, real
// mounts, and readers in their own processes. Usually, the value of a token is its position.
package e2e

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"

	"batchfs/internal/process"
)

var (
	Batchfs       string // the program, built with the race detector if the tests are
	PlainBatchfs  string // the program as users have it
	FaultyBatchfs string // built with failpoints, at which BATCHFS_FAULTS can kill it
	CReader       string
	CStorm        string
	CCrowd        string
	Python        string // an interpreter with NumPy
)

// Main runs the tests of a package. Their working directory is test/.
func Main(m *testing.M) { os.Exit(run(m)) }

// run builds the programs and runs the tests. In a child of NewSlowFS, it serves the file system
// instead.
func run(m *testing.M) (status int) {
	if source := os.Getenv(slowFSVariable); source != "" {
		serveSlowFS(source, os.Getenv(slowFSVariable+"_DIR"))
		return 0
	}
	enterNamespace()
	// Without this, every program built with -race sleeps for a second when it exits.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	// Otherwise, NumPy and PyTorch compute with a thread for each processor. On a busy machine,
	// these wait for each other.
	os.Setenv("OPENBLAS_NUM_THREADS", "1")
	os.Setenv("OMP_NUM_THREADS", "1")
	dir, err := os.MkdirTemp("", "batchfs-test-")
	must(err)
	defer os.RemoveAll(dir)
	must(os.Chmod(dir, 0o755)) // some tests run programs as an ordinary user
	for _, err := os.Stat("clients"); err != nil; _, err = os.Stat("clients") {
		must(os.Chdir(".."))
	}
	if err := findPrograms(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// findPrograms finds a Python, and links the built programs into a directory. Each `go test` builds
// them once, in the user's cache directory, where Go links only what has changed.
func findPrograms(dir string) error {
	cache, err := os.UserCacheDir()
	must(err)
	here, err := os.Getwd()
	must(err)
	cache = filepath.Join(cache, "batchfs", fmt.Sprintf("test-%.4x", sha256.Sum256([]byte(here))))
	must(os.MkdirAll(cache, 0o755))
	defer lockFile(filepath.Join(cache, "lock"))()
	Batchfs = filepath.Join(dir, "batchfs")
	makefile, err := os.ReadFile("../Makefile")
	must(err)
	tags := string(regexp.MustCompile(`(?m)^BUILD_TAGS = (.+)$`).FindSubmatch(makefile)[1])
	programs := map[*string][2]string{
		&PlainBatchfs:  {"batchfs", `CGO_ENABLED=0 go build -tags ` + tags + ` -o "$0" ../cmd/batchfs`},
		&FaultyBatchfs: {"batchfs-faulty", `CGO_ENABLED=0 go build -tags ` + tags + `,faults -o "$0" ../cmd/batchfs`},
		&CReader:       {"reader", `cc -O2 -Wall -Wextra -o "$0" clients/reader.c`},
		&CStorm:        {"storm", `cc -O2 -Wall -Wextra -o "$0" clients/storm.c`},
		&CCrowd:        {"crowd", `cc -O2 -Wall -Wextra -pthread -o "$0" clients/crowd.c`},
	}
	if raceEnabled {
		programs[&Batchfs] = [2]string{"batchfs-race", `go build -race -tags ` + tags + ` -o "$0" ../cmd/batchfs`}
	}
	// The file built names the `go test` that built the programs in the cache, and its Python.
	built, run := filepath.Join(cache, "built"), goTest()
	record, _ := os.ReadFile(built)
	by, python, _ := strings.Cut(string(record), "\n")
	if run != "" && by == run {
		Python = python
	} else {
		if Python, err = findPython(); err != nil {
			return err
		}
		os.Remove(built) // in case this process is killed while it builds
		if err := build(cache, slices.Collect(maps.Values(programs))); err != nil {
			return err
		}
		must(os.WriteFile(built, []byte(run+"\n"+Python), 0o644))
	}
	for path, program := range programs {
		*path = filepath.Join(dir, program[0])
		cached := filepath.Join(cache, program[0])
		if os.Link(cached, *path) == nil {
			continue
		}
		// The cache is on another file system.
		if out, err := exec.Command("cp", cached, *path).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	return nil
}

// goTest identifies the `go test` that started this process. It returns "" if another program did,
// such as a debugger, during whose life the sources may change.
func goTest() string {
	parent := process.Dir(os.Getppid())
	name, _ := os.ReadFile(parent + "/comm")
	stat, err := process.ReadStat(parent)
	if string(name) != "go\n" || err != nil {
		return ""
	}
	return fmt.Sprint(os.Getppid(), " ", stat.StartTicks)
}

// build runs the commands that build programs, given as their names and commands, in a directory.
// It replaces programs rather than writing to them, because other tests may be running them.
func build(dir string, programs [][2]string) error {
	failed := make([]error, len(programs))
	var builds sync.WaitGroup
	for i, program := range programs {
		builds.Go(func() {
			path := filepath.Join(dir, program[0])
			if strings.HasPrefix(program[1], "cc ") {
				os.Remove(path) // some linkers write to the file; Go replaces it
			}
			if out, err := exec.Command("sh", "-c", program[1], path).CombinedOutput(); err != nil {
				failed[i] = fmt.Errorf("%s: %w\n%s", program[1], err, out)
			}
		})
	}
	builds.Wait()
	return errors.Join(failed...)
}

func findPython() (string, error) {
	for _, p := range []string{os.Getenv("PYTHON"), "python3", "/usr/bin/python3"} {
		if p != "" && exec.Command(p, "-c", "import numpy").Run() == nil {
			return p, nil
		}
	}
	return "", errors.New("the tests need Python with NumPy: apt-get install python3-numpy")
}

// init keeps the main goroutine on the main thread, until enterNamespace has used another one. The
// main thread never ends, so if it moved, the process would keep copies of all mounts.
func init() { runtime.LockOSThread() }

// enterNamespace moves this process into its own mount namespace, by executing it again. There, its
// mounts are invisible to other tests, whose namespaces would otherwise hold copies of them that
// keep the mounts alive; nsenter --mount --target PID shows them. enterNamespace does nothing in a
// process that may not change namespaces, or in a chroot, whose mounts cannot be kept from other
// namespaces.
func enterNamespace() {
	defer runtime.UnlockOSThread()
	own, err := os.Readlink("/proc/self/ns/mnt")
	must(err)
	if parent, _ := os.Readlink(process.Dir(os.Getppid()) + "/ns/mnt"); parent != own {
		return // moved already
	}
	program, err := os.Executable()
	must(err)
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // this thread alone moves; if that fails, it ends with the goroutine
		err := syscall.Unshare(syscall.CLONE_NEWNS)
		if err == nil {
			err = syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_SLAVE, "")
		}
		if err == nil {
			// A copy would keep a mount alive that somebody else unmounts.
			mounts, _ := mountinfo.GetMounts(mountinfo.FSTypeFilter("fuse.batchfs"))
			for _, m := range mounts {
				syscall.Unmount(m.Mountpoint, syscall.MNT_DETACH)
			}
			err = syscall.Exec(program, os.Args, os.Environ())
		}
		failed <- err
	}()
	<-failed
}

// lockFile waits until no other process holds a lock on a file.
func lockFile(path string) (unlock func() error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	must(err)
	must(syscall.Flock(int(file.Fd()), syscall.LOCK_EX))
	return file.Close
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
