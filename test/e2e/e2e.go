package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"batchfs/internal/failure"
	"batchfs/internal/require"
	"batchfs/internal/testwait"
)

// NeedFUSE calls SkipOrFail if this machine cannot mount.
func NeedFUSE(t testing.TB) {
	t.Helper()
	printLogsOfFailure(t)
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		f.Close()
		return
	}
	SkipOrFail(t, "no FUSE: %v", err)
}

// PublicDir makes a directory that other users may enter, unlike t.TempDir(), and removes it at the
// end of the test.
func PublicDir(t testing.TB) string {
	t.Helper()
	dir := Must(os.MkdirTemp("", "batchfs-user-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// SkipOrFail skips a test because something is missing on this machine. In CI, it fails the test.
func SkipOrFail(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("BATCHFS_REQUIRE_FUSE") == "1" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// HasModule reports whether Python has a module. It does not import it, because to import PyTorch
// takes seconds.
func HasModule(t testing.TB, module string) bool {
	t.Helper()
	return Run(t, Python, "-c", `
import importlib.util, sys
try:
    print(importlib.util.find_spec(sys.argv[1]) is not None)
except ModuleNotFoundError: # a package that contains it
    print(False)`, module) == "True\n"
}

// NeedPython calls SkipOrFail if Python lacks a module.
func NeedPython(t testing.TB, module string) {
	t.Helper()
	if !HasModule(t, module) {
		SkipOrFail(t, "Python has no module %s", module)
	}
}

// SkipIfShort skips a slow test under -short, which `make test` sets. `make check` runs every test.
func SkipIfShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("long")
	}
}

// InSoak reports whether BATCHFS_SOAK is 1, as in `make soak`. Tests then run longer, and limit
// durations, because the machine is otherwise idle.
func InSoak() bool { return os.Getenv("BATCHFS_SOAK") == "1" }

// SkipUnlessSoak skips a test whose result is meaningful only on an idle machine.
func SkipUnlessSoak(t testing.TB) {
	t.Helper()
	if !InSoak() {
		t.Skip("for make soak")
	}
}

// CheckDuration logs a duration. In a soak, it fails the test if the duration is longer than limit.
func CheckDuration(t testing.TB, what string, took, limit time.Duration) {
	t.Helper()
	if InSoak() && took > limit {
		t.Errorf("%s took %v, may take %v", what, took, limit)
	} else {
		t.Logf("%s took %v", what, took)
	}
}

// Every wait of a test is one of these, or uses them.
var (
	Await        = testwait.Until
	AwaitSuccess = testwait.Success
	Command      = testwait.Command
	Job          = testwait.Job
)

// AwaitRun waits until a command succeeds.
func AwaitRun(t testing.TB, args ...string) {
	t.Helper()
	Await(t, "the success of "+strings.Join(args, " "), func() (any, bool) {
		_, stderr, err := Try(t, args...)
		return stderr, err == nil
	})
}

// AwaitText waits until a log, or another output, contains want.
func AwaitText(t testing.TB, output fmt.Stringer, want string) {
	t.Helper()
	Await(t, fmt.Sprintf("the text %q", want), func() (any, bool) {
		text := output.String()
		return LastLines(text, 20), strings.Contains(text, want)
	})
}

// AwaitExit waits until a command that Begin started has ended.
func AwaitExit(t testing.TB, cmd *exec.Cmd, ended <-chan struct{}) {
	t.Helper()
	Await(t, fmt.Sprintf("the end of %s", cmd.Args), func() (any, bool) { return describe(cmd.Process.Pid), isClosed(ended) })
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// WriteTokens writes a file of n tokens of width bytes each, and returns its path. The value of a
// token is its position.
func WriteTokens(t testing.TB, path string, n, width int) string {
	t.Helper()
	buf := make([]byte, 0, n*width)
	for i := range n {
		if width == 2 {
			buf = binary.LittleEndian.AppendUint16(buf, uint16(i))
		} else {
			buf = binary.LittleEndian.AppendUint32(buf, uint32(i))
		}
	}
	return Write(t, path, buf)
}

// Write writes a file, creates its directory, and returns its path.
func Write[T string | []byte](t testing.TB, path string, data T) string {
	t.Helper()
	printLogsOfFailure(t)
	NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	NoError(t, os.WriteFile(path, []byte(data), 0o644))
	return path
}

// WriteScript is like Write, for a program. While the file is open, no process is started, because
// a process that is being started has the same files open, and the kernel runs no file that is open
// for writing.
func WriteScript[T string | []byte](t testing.TB, path string, data T) string {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	Write(t, path, data)
	NoError(t, os.Chmod(path, 0o755))
	return path
}

// Content returns the content of a file.
func Content(t testing.TB, path string) []byte {
	t.Helper()
	return Must(os.ReadFile(path))(t)
}

var metricsURL = regexp.MustCompile(`http://\S+/metrics`)

// OneThread returns a command that runs one goroutine at a time. With it, a test fails if serving a
// request takes two threads.
func OneThread(program string) *exec.Cmd { return exec.Command("env", "GOMAXPROCS=1", program) }

// Begin starts a command, which is killed at the end of the test. The channel is closed when the
// command has ended.
func Begin(t testing.TB, cmd *exec.Cmd) <-chan struct{} {
	t.Helper()
	printLogsOfFailure(t)
	NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		AwaitExit(t, cmd, ended)
	})
	return ended
}

// Run runs a command that must succeed, and returns its standard output.
func Run(t testing.TB, args ...string) string {
	t.Helper()
	return mustRun(t, Command(t, args[0], args[1:]...))
}

// RunJob is like Run, but only the end of the test limits the command.
func RunJob(t testing.TB, args ...string) string {
	t.Helper()
	return mustRun(t, Job(t, args[0], args[1:]...))
}

func mustRun(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	out, stderr, err := try(cmd)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, stderr)
	}
	return out
}

// Try runs a command, which may fail.
func Try(t testing.TB, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return try(Command(t, args[0], args[1:]...))
}

// TryJob is like Try, but only the end of the test limits the command.
func TryJob(t testing.TB, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return try(Job(t, args[0], args[1:]...))
}

func try(cmd *exec.Cmd) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// Read reads a file with a method of clients/readers.py, and returns the lines that it prints:
// "<bytes> <sha256>" for each read.
func Read(t testing.TB, method, path string, args ...string) []string {
	t.Helper()
	return strings.Split(strings.TrimSpace(Run(t, append([]string{Python, "clients/readers.py", method, path}, args...)...)), "\n")
}

// Digest returns the line that clients/readers.py prints for data.
func Digest(data []byte) string { return fmt.Sprintf("%d %x", len(data), sha256.Sum256(data)) }

// Cat returns the output of `batchfs cat`.
func Cat(t testing.TB, args ...string) []byte {
	t.Helper()
	return []byte(Run(t, append([]string{PlainBatchfs, "cat"}, args...)...))
}

// NoError ends the test if there is an error.
var NoError = require.NoError

// Must returns the first result of a call, or ends the test if there is an error:
// Must(os.Open(path))(t).
func Must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return v
	}
}

// Repeats returns how often a test repeats something: n times, 10n in a soak, or n/10 under -short.
func Repeats(n int) int {
	switch {
	case InSoak():
		return 10 * n
	case testing.Short():
		return n / 10
	}
	return n
}

// NormalOrSoak returns soak in a soak, and otherwise normal.
func NormalOrSoak[T any](normal, soak T) T {
	if InSoak() {
		return soak
	}
	return normal
}

// NormalOrShort returns short under -short, and otherwise normal.
func NormalOrShort[T any](normal, short T) T {
	if testing.Short() {
		return short
	}
	return normal
}

// SmallConfig writes a configuration of small batches. It returns the path, and digests of the
// first n batches of train.
func SmallConfig(t testing.TB, n int) (config string, batches []string) {
	t.Helper()
	dir := t.TempDir()
	config = Write(t, filepath.Join(dir, "config.toml"), `
[batch]
batch_size = 4
block_size = 16
[splits.train]
tokens = "train.bin"
[splits.val]
tokens = "train.bin"
order = "sequential"
`)
	WriteTokens(t, filepath.Join(dir, "train.bin"), 60_000, 2)
	known, ok := smallDigests.Load(n)
	if !ok {
		known = Digests(t, "train", 0, n, "-c", config)
		smallDigests.Store(n, known)
	}
	return config, slices.Clone(known.([]string))
}

// smallDigests maps n to the digests that SmallConfig returns, which do not depend on the
// directory.
var smallDigests sync.Map

// SameSet checks that got and want have the same elements, in any order.
func SameSet(t testing.TB, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if len(slices.Compact(slices.Clone(want))) != len(want) {
		t.Fatal("two of the expected lines are equal, so the comparison would show nothing")
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %d lines, %d of them different, want each of %d lines once", len(got), len(slices.Compact(got)), len(want))
	}
}

// Digests returns the digests of n batches, beginning with number first. It uses no mount.
func Digests(t testing.TB, split string, first, n int, flags ...string) (batches []string) {
	t.Helper()
	data := Cat(t, append([]string{split, "--from", fmt.Sprint(first), "--count", fmt.Sprint(n)}, flags...)...)
	for batch := range slices.Chunk(data, len(data)/n) {
		batches = append(batches, Digest(batch))
	}
	return batches
}

// FileDigest returns the digest of a file in a mount.
func FileDigest(t testing.TB, m *Mounted, path string) string {
	t.Helper()
	return Digest([]byte(Run(t, "cat", m.Path(path))))
}

// ReadPage returns the text of a page. path is relative to the root of the repository.
func ReadPage(t testing.TB, path string) string {
	t.Helper()
	return string(Content(t, filepath.Join("..", path)))
}

// JSON runs a command and decodes the JSON that it prints.
func JSON[T any](t testing.TB, args ...string) (v T) {
	t.Helper()
	NoError(t, json.Unmarshal([]byte(Run(t, args...)), &v))
	return v
}

// An Info holds the fields of info.json that tests use.
type Info struct {
	DType, Sequence       string
	Fingerprint, Identity string
	Shape                 []int
	Files                 []string
	Tokens, Steps         int
	Changes               int
	VocabSize             int `json:"vocab_size"`
}

// Equal checks that got equals want. what describes got.
func Equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// CheckFails checks that a command fails and that its standard error contains want.
func CheckFails(t testing.TB, want string, args ...string) {
	t.Helper()
	if _, stderr, err := Try(t, args...); err == nil || !strings.Contains(stderr, want) {
		t.Errorf("%s: error %v, standard error %q, want %q", strings.Join(args, " "), err, stderr, want)
	}
}

// HasStatus reports whether err is that of a command that failed with the exit status of kind.
func HasStatus(err error, kind *failure.Kind) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	return ok && exit.ExitCode() == kind.Status
}

// CheckOutput checks that a command succeeds and that its standard output contains want.
func CheckOutput(t testing.TB, want string, args ...string) {
	t.Helper()
	Contains(t, strings.Join(args, " "), Run(t, args...), want)
}

// Contains checks that text contains want. what describes text.
func Contains(t testing.TB, what, text, want string) {
	t.Helper()
	if !strings.Contains(text, want) {
		t.Errorf("%s does not contain %q:\n%s", what, want, text)
	}
}

// NeedRoot skips a test unless it runs as root.
func NeedRoot(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip(why)
	}
}

// Nobody is the id of a user without privileges.
const Nobody = 65534

// RunAs runs a command as another user, who is in a single group, and returns its output.
func RunAs(t testing.TB, uid, gid uint32, args ...string) (string, error) {
	cmd := Command(t, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
