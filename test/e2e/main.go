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
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

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

// Main runs the tests of a package, alongside those of other packages. Their working directory is
// test/.
func Main(m *testing.M) { os.Exit(run(m, syscall.LOCK_SH)) }

// MainExclusive runs the tests of a package while no others run on this machine.
func MainExclusive(m *testing.M) { os.Exit(run(m, syscall.LOCK_EX)) }

// run builds the programs and runs the tests. In a child of NewSlowFS, it serves the file system
// instead.
func run(m *testing.M, lock int) (status int) {
	if source := os.Getenv(slowFSVariable); source != "" {
		serveSlowFS(source, os.Getenv(slowFSVariable+"_DIR"))
		return 0
	}
	// Without this, every program built with -race sleeps for a second when it exits.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
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
	defer lockFile(filepath.Join(os.TempDir(), "batchfs-test.lock"), lock)()
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
	defer lockFile(filepath.Join(cache, "lock"), syscall.LOCK_EX)()
	Batchfs = filepath.Join(dir, "batchfs")
	programs := map[*string][2]string{
		&PlainBatchfs:  {"batchfs", `go build -o "$0" ../cmd/batchfs`},
		&FaultyBatchfs: {"batchfs-faulty", `go build -tags faults -o "$0" ../cmd/batchfs`},
		&CReader:       {"reader", `cc -O2 -Wall -Wextra -o "$0" clients/reader.c`},
		&CStorm:        {"storm", `cc -O2 -Wall -Wextra -o "$0" clients/storm.c`},
		&CCrowd:        {"crowd", `cc -O2 -Wall -Wextra -pthread -o "$0" clients/crowd.c`},
	}
	if raceEnabled {
		programs[&Batchfs] = [2]string{"batchfs-race", `go build -race -o "$0" ../cmd/batchfs`}
	}
	// built holds the `go test` that built the programs in the cache, and its Python.
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

// lockFile waits for a lock of flock(2).
func lockFile(path string, how int) (unlock func() error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	must(err)
	must(syscall.Flock(int(file.Fd()), how))
	return file.Close
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
