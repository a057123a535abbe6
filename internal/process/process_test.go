package process

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestUser(t *testing.T) {
	want := syscall.Credential{Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}
	if os.Getuid() == 0 {
		want = syscall.Credential{Uid: 1234, Gid: 2345, Groups: []uint32{7, 3456}}
	}
	cmd := exec.Command("sleep", "infinity")
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &want}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	got, err := User(cmd.Process.Pid)
	if err != nil || got.Uid != want.Uid || got.Gid != want.Gid || os.Getuid() == 0 && !slices.Equal(got.Groups, want.Groups) {
		t.Errorf("%+v (%v), want %+v", got, err, want)
	}
}

func TestReadStat(t *testing.T) {
	stat, err := ReadStat(Dir(os.Getpid()))
	if err != nil || stat.StartTicks == 0 || stat.State == 0 {
		t.Errorf("this process: %+v, %v", stat, err)
	}
	if pid, command := OfThread(syscall.Gettid()); pid != os.Getpid() || command == "" {
		t.Errorf("this thread is of process %d, %q", pid, command)
	}
	dir := t.TempDir()
	rest := strings.Repeat(" 0", 28) + " "
	for text, want := range map[string]Stat{
		"7 (a) S 1 7 7 0 -1 1 2 3 4 5 6 7 8 9 20 0 1 0 4711 100" + rest + "0\n":        {'S', 4711, 0, 130 * time.Millisecond},
		"7 (a b) c) D 1 7 7 0 -1 1 2 3 4 5 6 7 8 9 20 0 1 0 4711 100" + rest + "0\n":   {'D', 4711, 0, 130 * time.Millisecond},
		"7 () Z ((()) Z 1 7 7 0 -1 1 2 3 4 5 6 7 8 9 20 0 1 0 4711 100" + rest + "9\n": {'Z', 4711, 9, 130 * time.Millisecond},
	} {
		if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadStat(dir); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "7", "7 (a)", "7 (a) S 1 2 3", "7 (a) S 1 7 7 0 -1 1 2 3 4 5 6 7 8 9 20 0 1 0 never 100" + rest + "0\n",
		"7 (a) S 1 7 7 0 -1 1 2 3 4 5 6 7 8 9 20 0 1 0 4711 100" + rest + "never\n"} {
		if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadStat(dir); err == nil {
			t.Errorf("%q: %+v, want an error", text, got)
		}
	}
	if _, err := User(1 << 30); !os.IsNotExist(err) {
		t.Errorf("the user of no process: %v", err)
	}
	if _, err := ReadStat(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("no process: %v", err)
	}
}

// A signal is pending only for the thread that it was sent to.
func TestIsPending(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signal.Ignore(unix.SIGUSR1) // it is delivered when it is no longer blocked
	defer signal.Reset(unix.SIGUSR1)
	var set, old unix.Sigset_t
	set.Val[0] = 1 << (unix.SIGUSR1 - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &set, &old); err != nil {
		t.Fatal(err)
	}
	defer unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	if err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	for _, thread := range append(Threads(os.Getpid()), 1<<30) {
		for _, sig := range []syscall.Signal{unix.SIGUSR1, unix.SIGUSR2, unix.SIGKILL} {
			want := thread == unix.Gettid() && sig == unix.SIGUSR1
			if got := IsPending(thread, sig); got != want {
				t.Errorf("%v is pending for thread %d: %v, want %v", sig, thread, got, want)
			}
		}
	}
}

func TestLists(t *testing.T) {
	if !slices.Contains(All(), os.Getpid()) {
		t.Errorf("process %d is not among %v", os.Getpid(), All())
	}
	threads := Threads(os.Getpid())
	if !slices.Contains(threads, os.Getpid()) {
		t.Errorf("the first thread is not among %v", threads)
	}
	if none := Threads(1 << 30); len(none) > 0 {
		t.Errorf("no process has threads %v", none)
	}
}
