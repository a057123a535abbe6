// Package e2e mounts the built program for tests that use it as users do: with real files, real
// mounts, and readers in their own processes. Usually, the value of a token is its position.
package e2e

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
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
	for _, p := range []string{"/usr/bin/python3", "python3", os.Getenv("PYTHON")} {
		if p != "" && exec.Command(p, "-c", "import numpy").Run() == nil {
			Python = p
		}
	}
	if Python == "" {
		fmt.Fprintln(os.Stderr, "the tests need Python with NumPy: apt-get install python3-numpy")
		return 1
	}
	if !build(dir) {
		return 1
	}
	defer lockFile(filepath.Join(os.TempDir(), "batchfs-test.lock"), lock)()
	return m.Run()
}

// build builds the programs into a directory, and reports whether it succeeded. It links them in
// the user's cache directory, where Go links only what has changed.
func build(dir string) bool {
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
	var builds sync.WaitGroup
	failed := make(chan error, len(programs))
	for path, program := range programs {
		*path = filepath.Join(dir, program[0])
		builds.Go(func() {
			if out, err := exec.Command("sh", "-c", program[1]+` && cp "$0" "$1"`, filepath.Join(cache, program[0]), *path).CombinedOutput(); err != nil {
				failed <- fmt.Errorf("%s: %w\n%s", program[1], err, out)
			}
		})
	}
	builds.Wait()
	close(failed)
	built := len(failed) == 0
	for err := range failed {
		fmt.Fprintln(os.Stderr, err)
	}
	return built
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
