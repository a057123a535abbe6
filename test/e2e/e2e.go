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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"

	"batchfs/internal/wait"
)

// Limit bounds every wait of a test, for a command or for a state.
const Limit = wait.Limit

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
var Await = wait.Until

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

// A Mounted is a running `batchfs mount`.
type Mounted struct {
	Dir  string // the mountpoint
	Cmd  *exec.Cmd
	Done <-chan struct{} // closed when the process has ended
	Out  LogFile         // its standard output and error
}

// Mount mounts with the given arguments on a fresh directory. It is unmounted at the end of the test.
func Mount(t testing.TB, args ...string) *Mounted {
	t.Helper()
	return MountProgram(t, exec.Command(Batchfs), args...)
}

// MountProgram is Mount with another program.
func MountProgram(t testing.TB, cmd *exec.Cmd, args ...string) *Mounted {
	t.Helper()
	return MountAt(t, t.TempDir(), cmd, args...)
}

// MountAt is Mount with another program, on a directory.
func MountAt(t testing.TB, dir string, cmd *exec.Cmd, args ...string) *Mounted {
	t.Helper()
	cmd.Args = append(append(cmd.Args, "mount"), append(args, dir)...)
	m := StartMount(t, dir, cmd)
	m.AwaitReady(t)
	return m
}

// AwaitReady waits until a mount serves.
func (m *Mounted) AwaitReady(t testing.TB) {
	t.Helper()
	Await(t, "a mount that is ready", func() bool {
		if m.Ended() {
			t.Fatalf("%s ended:\n%s", m.Cmd.Args, m.Out)
		}
		return strings.Contains(m.Out.String(), "stop with Ctrl-C")
	})
}

// Metrics is the address of the metrics of a mount with mount.metrics_listen.
func (m *Mounted) Metrics(t testing.TB) (url string) {
	t.Helper()
	Await(t, "the address of its metrics", func() bool {
		url = metricsURL.FindString(m.Out.String())
		return url != ""
	})
	return url
}

var metricsURL = regexp.MustCompile(`http://\S+/metrics`)

// A LogFile is what a process has printed, to a file: what it says before it answers is there when the answer is.
type LogFile string

func (f LogFile) String() string {
	text, _ := os.ReadFile(string(f))
	return string(text)
}

// OneThread is exec.Command of a program that runs one goroutine at a time: a mount must not need a second thread to answer its first.
func OneThread(program string) *exec.Cmd { return exec.Command("env", "GOMAXPROCS=1", program) }

// StartMount starts a process that mounts on a directory. It is stopped at the end of the test.
func StartMount(t testing.TB, dir string, cmd *exec.Cmd) *Mounted {
	t.Helper()
	NeedFUSE(t)
	m := &Mounted{Dir: dir, Cmd: cmd}
	if file, ok := cmd.Stdout.(*os.File); ok {
		m.Out = LogFile(file.Name())
	} else {
		file := Must(os.CreateTemp(t.TempDir(), "log"))(t)
		defer file.Close()
		m.Out = LogFile(file.Name())
		m.Cmd.Stdout, m.Cmd.Stderr = file, file
	}
	m.Done = Begin(t, cmd)
	t.Cleanup(func() { m.Stop(t) })
	return m
}

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

// Ended reports whether the process has ended.
func (m *Mounted) Ended() bool {
	select {
	case <-m.Done:
		return true
	default:
		return false
	}
}

// AwaitEnd waits until the process has ended by itself.
func (m *Mounted) AwaitEnd(t testing.TB) {
	t.Helper()
	Await(t, "the end of the mount", m.Ended)
}

// EndsWith waits until the process has ended by itself, with an exit status, and nothing is mounted any more.
func (m *Mounted) EndsWith(t testing.TB, status int) {
	t.Helper()
	m.AwaitEnd(t)
	Equal(t, "the exit status", m.Cmd.ProcessState.ExitCode(), status)
	NotMounted(t, m.Dir)
}

// NotMounted fails the test if something is mounted on a directory.
func NotMounted(t testing.TB, dir string) {
	t.Helper()
	Equal(t, dir+" is mounted", IsMounted(t, dir), false)
}

// Stop ends the mount, whatever state it is in, and fails the test if it did not go as it should.
func (m *Mounted) Stop(t testing.TB) {
	t.Helper()
	m.Cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-m.Done:
	case <-time.After(Limit):
		t.Error("mount did not end on SIGTERM")
		m.Cmd.Process.Kill()
		<-m.Done
	}
	if IsMounted(t, m.Dir) {
		t.Errorf("%s is still mounted", m.Dir)
		syscall.Unmount(m.Dir, syscall.MNT_DETACH)
	}
	if strings.Contains(m.Out.String(), "DATA RACE") {
		t.Error("data race")
	}
	if t.Failed() {
		t.Logf("the mount said:\n%s", m.Out)
	}
}

// IsMounted reports whether something is mounted on a directory.
func IsMounted(t testing.TB, dir string) bool {
	t.Helper()
	return len(Must(mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir)))(t)) > 0
}

// Path returns the path of a file in the mount.
func (m *Mounted) Path(name string) string { return filepath.Join(m.Dir, name) }

// Cursor returns what the file cursor of a split says.
func (m *Mounted) Cursor(t testing.TB, split string) string {
	t.Helper()
	return strings.TrimSpace(Run(t, "cat", m.Path(split+"/cursor")))
}

// Taken is the number that the next reader of a split takes.
func (m *Mounted) Taken(t testing.TB, split string) int {
	t.Helper()
	return Must(strconv.Atoi(m.Cursor(t, split)))(t)
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

// MountsBelow returns the mounts in a directory.
func MountsBelow(t testing.TB, dir string) []*mountinfo.Info {
	t.Helper()
	return Must(mountinfo.GetMounts(mountinfo.PrefixFilter(dir)))(t)
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

// An Info is what info.json says.
type Info struct {
	DType, Sequence, Fingerprint string
	Shape                        []int
	Files                        []string
	Tokens, Steps, Changes       int
	VocabSize                    int `json:"vocab_size"`
}

// Info reads the info.json of a directory of batches.
func (m *Mounted) Info(t testing.TB, path string) Info {
	t.Helper()
	return JSON[Info](t, "cat", m.Path(path+"/info.json"))
}

// Seek sets a cursor. What `cursor` says is the number at once.
func (m *Mounted) Seek(t testing.TB, path string, number, was int) {
	t.Helper()
	out := Run(t, PlainBatchfs, "seek", m.Path(path), fmt.Sprint(number))
	if want := fmt.Sprintf("next of %s takes batch %d, was %d\n", m.Path(path), number, was); out != want {
		t.Errorf("seek said %q, want %q", out, want)
	}
	if got := m.Cursor(t, path); got != fmt.Sprint(number) {
		t.Errorf("the cursor of %s is %s after a seek to %d", path, got, number)
	}
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
