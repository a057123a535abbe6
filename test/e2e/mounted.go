package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
)

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

// A LogFile is what a process has printed, to a file: what it says before it answers is there when the answer is.
type LogFile string

func (f LogFile) String() string {
	text, _ := os.ReadFile(string(f))
	return string(text)
}

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

// MountsBelow returns the mounts in a directory.
func MountsBelow(t testing.TB, dir string) []*mountinfo.Info {
	t.Helper()
	return Must(mountinfo.GetMounts(mountinfo.PrefixFilter(dir)))(t)
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
