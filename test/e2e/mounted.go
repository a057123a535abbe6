package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
)

// A Mounted is a running `batchfs mount`.
type Mounted struct {
	Dir  string // mountpoint
	Cmd  *exec.Cmd
	Done <-chan struct{} // closed when the process has ended
	Out  LogFile         // standard output and standard error

	report LogFile // what the process writes to --status-fd
}

// Mount mounts with the given arguments on a new directory, and unmounts at the end of the test.
func Mount(t testing.TB, args ...string) *Mounted {
	t.Helper()
	return MountProgram(t, exec.Command(Batchfs), args...)
}

// MountProgram is like Mount, but runs the given command.
func MountProgram(t testing.TB, cmd *exec.Cmd, args ...string) *Mounted {
	t.Helper()
	return MountAt(t, t.TempDir(), cmd, args...)
}

// MountAt is like MountProgram, but mounts on the given directory.
func MountAt(t testing.TB, dir string, cmd *exec.Cmd, args ...string) *Mounted {
	t.Helper()
	cmd.Args = append(append(cmd.Args, "mount"), append(args, dir)...)
	m := StartMount(t, dir, cmd)
	m.AwaitReady(t)
	return m
}

// AwaitReady waits until the mount is served.
func (m *Mounted) AwaitReady(t testing.TB) {
	t.Helper()
	Await(t, "a mount that is ready", func() (any, bool) {
		if m.Ended() {
			t.Fatalf("%s ended:\n%s", m.Cmd.Args, m.Out)
		}
		return LastLines(m.Out.String(), 20), strings.Contains(m.report.String(), `{"kind":"ready",`)
	})
}

// Metrics returns the URL of the mount's metrics, which needs mount.metrics_listen.
func (m *Mounted) Metrics(t testing.TB) (url string) {
	t.Helper()
	Await(t, "the URL of the metrics in the log", func() (any, bool) {
		text := m.Out.String()
		url = metricsURL.FindString(text)
		return LastLines(text, 20), url != ""
	})
	return url
}

// A LogFile is the path of a file with a process's output. What the process prints before a reply
// is in the file when the reply arrives.
type LogFile string

func (f LogFile) String() string {
	text, _ := os.ReadFile(string(f))
	return string(text)
}

// StartMount starts a command that mounts on a directory. One of its arguments is mount. It is
// stopped at the end of the test.
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
	report := Must(os.CreateTemp(t.TempDir(), "report"))(t)
	defer report.Close()
	m.report = LogFile(report.Name())
	cmd.ExtraFiles = append(cmd.ExtraFiles, report)
	i := slices.Index(cmd.Args, "mount") + 1
	cmd.Args = slices.Insert(cmd.Args, i, fmt.Sprint("--status-fd=", 2+len(cmd.ExtraFiles)))
	m.Done = Begin(t, cmd)
	t.Cleanup(func() { m.Stop(t) })
	return m
}

// Ended reports whether the process has ended.
func (m *Mounted) Ended() bool { return isClosed(m.Done) }

// AwaitEnd waits until the process ends by itself.
func (m *Mounted) AwaitEnd(t testing.TB) {
	t.Helper()
	AwaitExit(t, m.Cmd, m.Done)
}

// AwaitDead waits until the kernel reports that no process serves the mount on a directory. It does
// so a little after the end of the last one.
func AwaitDead(t testing.TB, dir string) {
	t.Helper()
	Await(t, "a dead mount on "+dir, func() (any, bool) {
		// The kernel does not cache the result of statfs(2).
		_, stderr, _ := Try(t, "stat", "-f", dir)
		return stderr, strings.Contains(stderr, "not connected") || strings.Contains(stderr, "connection abort")
	})
}

// AwaitExitStatus waits until the process ends by itself. It checks the exit status, and that
// nothing stays mounted.
func (m *Mounted) AwaitExitStatus(t testing.TB, status int) {
	t.Helper()
	m.AwaitEnd(t)
	Equal(t, "the exit status", m.Cmd.ProcessState.ExitCode(), status)
	NotMounted(t, m.Dir)
}

// NotMounted checks that nothing is mounted on a directory.
func NotMounted(t testing.TB, dir string) {
	t.Helper()
	Equal(t, dir+" is mounted", IsMounted(t, dir), false)
}

// Stop ends the mount, whatever its state. It checks that nothing stays mounted, and that no data
// race was reported.
func (m *Mounted) Stop(t testing.TB) {
	t.Helper()
	defer func() {
		m.Cmd.Process.Kill() // in case it did not end
		if IsMounted(t, m.Dir) {
			t.Errorf("%s is still mounted", m.Dir)
			syscall.Unmount(m.Dir, syscall.MNT_DETACH)
		}
		if strings.Contains(m.Out.String(), "DATA RACE") {
			t.Error("the mount reported a data race")
		}
	}()
	m.Cmd.Process.Signal(syscall.SIGTERM)
	m.AwaitEnd(t)
}

// IsMounted reports whether something is mounted on a directory.
func IsMounted(t testing.TB, dir string) bool {
	t.Helper()
	return len(Must(mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir)))(t)) > 0
}

// Path returns the path of a file in the mount.
func (m *Mounted) Path(name string) string { return filepath.Join(m.Dir, name) }

// Cursor returns the content of the file cursor in a split or settings directory.
func (m *Mounted) Cursor(t testing.TB, split string) string {
	t.Helper()
	return strings.TrimSpace(Run(t, "cat", m.Path(split+"/cursor")))
}

// NextNumber returns the number that the next reader of next takes.
func (m *Mounted) NextNumber(t testing.TB, split string) int {
	t.Helper()
	return Must(strconv.Atoi(m.Cursor(t, split)))(t)
}

// MountsBelow returns the mounts in a directory.
func MountsBelow(t testing.TB, dir string) []*mountinfo.Info {
	t.Helper()
	return Must(mountinfo.GetMounts(mountinfo.PrefixFilter(dir)))(t)
}

// Info returns the info.json of a split or settings directory.
func (m *Mounted) Info(t testing.TB, path string) Info {
	t.Helper()
	return JSON[Info](t, "cat", m.Path(path+"/info.json"))
}

// Seek sets a cursor, and checks what seek prints and that the file cursor shows the number
// immediately.
func (m *Mounted) Seek(t testing.TB, path string, number, previous int) {
	t.Helper()
	out := Run(t, PlainBatchfs, "seek", m.Path(path), fmt.Sprint(number))
	if want := fmt.Sprintf("the next batch of %s is %d, was %d\n", m.Path(path), number, previous); out != want {
		t.Errorf("seek printed %q, want %q", out, want)
	}
	if got := m.Cursor(t, path); got != fmt.Sprint(number) {
		t.Errorf("the cursor of %s is %s, want %d after a seek", path, got, number)
	}
}
