package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"batchfs/internal/testwait"
)

// Limit bounds every wait of a test, for a command or for a state.
const Limit = testwait.Limit

// NeedFUSE skips a test on a machine that cannot mount, and fails it in CI.
func NeedFUSE(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		f.Close()
		return
	}
	Lack(t, "no FUSE: %v", err)
}

// Lack skips a test for want of something, unless CI must have it.
func Lack(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("BATCHFS_REQUIRE_FUSE") == "1" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// NeedPython skips a test for want of a module of Python.
func NeedPython(t testing.TB, module string) {
	t.Helper()
	if out, err := Command(t, Python, "-c", "import "+module).CombinedOutput(); err != nil {
		Lack(t, "%s", out)
	}
}

// Long skips a slow test under -short, which `make test` sets. `make check` runs every test.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("long")
	}
}

// InSoak reports BATCHFS_SOAK=1, which `make soak` sets. Tests then last longer, and they assert times, because nothing else
// uses the machine.
func InSoak() bool { return os.Getenv("BATCHFS_SOAK") == "1" }

// ForSoak skips a test that only a machine with nothing else to do can judge.
func ForSoak(t testing.TB) {
	t.Helper()
	if !InSoak() {
		t.Skip("for make soak")
	}
}

// InTime logs how long something took. In a soak it fails the test if that was longer than most. Elsewhere it never fails,
// because on a busy machine everything takes longer.
func InTime(t testing.TB, what string, took, most time.Duration) {
	t.Helper()
	if InSoak() && took > most {
		t.Errorf("%s took %v, may take %v", what, took, most)
	} else {
		t.Logf("%s took %v", what, took)
	}
}

// Await waits until a function returns true. It fails the test after Limit.
var Await = testwait.Until

// Tokens writes a file of n tokens of width bytes that are their own positions, wrapping.
func Tokens(t testing.TB, path string, n, width int) string {
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

// Write writes a file, makes its directory, and returns the path.
func Write[T string | []byte](t testing.TB, path string, data T) string {
	t.Helper()
	NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	NoError(t, os.WriteFile(path, []byte(data), 0o644))
	return path
}

// Content returns what a file has.
func Content(t testing.TB, path string) []byte {
	t.Helper()
	return Must(os.ReadFile(path))(t)
}

var metricsURL = regexp.MustCompile(`http://\S+/metrics`)

// OneThread is exec.Command of a program that runs one goroutine at a time: a mount must not need a second thread to answer its first.
func OneThread(program string) *exec.Cmd { return exec.Command("env", "GOMAXPROCS=1", program) }

// Begin starts a command, which is killed at the end of the test. The channel is closed when it has ended.
func Begin(t testing.TB, cmd *exec.Cmd) <-chan struct{} {
	t.Helper()
	NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
	})
	return ended
}

// Command is exec.Command of a program that should end soon. One that runs for limit is killed, which fails the test.
func Command(t testing.TB, name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error {
		if ctx.Err() == context.DeadlineExceeded {
			t.Errorf("%s: no end after %v", cmd.Args, Limit)
		}
		return cmd.Process.Kill()
	}
	cmd.WaitDelay = Limit // for whoever has its pipes
	return cmd
}

// AnswersSoon kills a program after limit, which fails the test, unless stop is called before: a read of what it prints ends then.
func AnswersSoon(t testing.TB, cmd *exec.Cmd) (stop func() bool) {
	return time.AfterFunc(Limit, func() {
		t.Errorf("%s: no answer in %v", cmd.Args, Limit)
		cmd.Process.Kill()
	}).Stop
}

// Run runs a command that must succeed and returns its standard output.
func Run(t testing.TB, args ...string) string {
	t.Helper()
	out, stderr, err := Try(t, args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, stderr)
	}
	return out
}

// Try runs a command, which may fail.
func Try(t testing.TB, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := Command(t, args[0], args[1:]...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// Read reads a file with one of the methods of clients/readers.py and returns its lines, "<bytes> <sha256>" each.
func Read(t testing.TB, method, path string, args ...string) []string {
	t.Helper()
	return strings.Split(strings.TrimSpace(Run(t, append([]string{Python, "clients/readers.py", method, path}, args...)...)), "\n")
}

// Line is what clients/readers.py prints of data.
func Line(data []byte) string { return fmt.Sprintf("%d %x", len(data), sha256.Sum256(data)) }

// Cat is what `batchfs cat` writes.
func Cat(t testing.TB, args ...string) []byte {
	t.Helper()
	return []byte(Run(t, append([]string{PlainBatchfs, "cat"}, args...)...))
}

// NoError ends the test at an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Must returns the first result of a call, and ends the test at an error: Must(os.Open(path))(t).
func Must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return v
	}
}

// Soak returns n, in a soak 10n, and under -short n/10.
func Soak(n int) int {
	switch {
	case InSoak():
		return 10 * n
	case testing.Short():
		return n / 10
	}
	return n
}

// Small is a configuration of batches that fit a request many times over, and the first n batches of train.
func Small(t testing.TB, n int) (config string, batches []string) {
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
	Tokens(t, filepath.Join(dir, "train.bin"), 60_000, 2)
	all := Cat(t, "train", "-c", config, "--count", fmt.Sprint(n))
	size := len(all) / n
	for k := range n {
		batches = append(batches, Line(all[k*size:][:size]))
	}
	return config, batches
}

// SameSet fails unless got is want in some order.
func SameSet(t testing.TB, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if len(slices.Compact(slices.Clone(want))) != len(want) {
		t.Fatal("two of the batches are equal, which shows nothing")
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d batches, %d different ones: not each of the %d once", len(got), len(slices.Compact(got)), len(want))
	}
}

// Lines are n batches from the first on, without a mount, as clients/readers.py prints them.
func Lines(t testing.TB, split string, first, n int, flags ...string) (batches []string) {
	t.Helper()
	all := Cat(t, append([]string{split, "--from", fmt.Sprint(first), "--count", fmt.Sprint(n)}, flags...)...)
	for batch := range slices.Chunk(all, len(all)/n) {
		batches = append(batches, Line(batch))
	}
	return batches
}

// Take is what a file shows, as clients/readers.py prints it.
func Take(t testing.TB, m *Mounted, path string) string {
	t.Helper()
	return Line([]byte(Run(t, "cat", m.Path(path))))
}

// ReadPage is the text of a page, whose path begins at the top of the project.
func ReadPage(t testing.TB, path string) string {
	t.Helper()
	return string(Content(t, filepath.Join("..", path)))
}

// JSON runs a command, and returns the JSON that it prints.
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

// Equal fails the test unless what was got is what was wanted. what says of what.
func Equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// Fails runs a command that must fail, and say want on its standard error.
func Fails(t testing.TB, want string, args ...string) {
	t.Helper()
	if _, stderr, err := Try(t, args...); err == nil || !strings.Contains(stderr, want) {
		t.Errorf("%s: %v %s, want %q", strings.Join(args, " "), err, stderr, want)
	}
}

// Says runs a command that must succeed, and say want on its standard output.
func Says(t testing.TB, want string, args ...string) {
	t.Helper()
	Contains(t, strings.Join(args, " "), Run(t, args...), want)
}

// Contains fails the test unless a text has want. what says of what.
func Contains(t testing.TB, what, text, want string) {
	t.Helper()
	if !strings.Contains(text, want) {
		t.Errorf("%s does not say %q:\n%s", what, want, text)
	}
}

// NeedRoot skips a test whose user is another one.
func NeedRoot(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip(why)
	}
}

// Nobody is the user that has no rights.
const Nobody = 65534

// AsUser runs a command as another user, of one group, and returns all that it printed.
func AsUser(t testing.TB, uid, gid uint32, args ...string) (string, error) {
	cmd := Command(t, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
