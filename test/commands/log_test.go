package commands

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"batchfs/test/e2e"
)

func TestLog(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	for _, test := range []struct {
		args  []string
		lines int
	}{
		{nil, 3},
		{[]string{"--set", "log.level=error"}, 0},
	} {
		file := filepath.Join(t.TempDir(), "log")
		m := e2e.Mount(t, append(test.args, "-c", config, "--log", file, "--set", "log.format=json")...)
		e2e.Try(t, "stat", m.Path("train/colour=red")) // writes to the log
		m.Stop(t)
		text := e2e.Content(t, file)
		if n := strings.Count(string(text), "\n"); n < test.lines || test.lines == 0 && n > 0 {
			t.Errorf("%s: %d lines, want at least %d, or none if that is 0:\n%s", test.args, n, test.lines, text)
		}
		for line := range strings.Lines(string(text)) {
			var entry struct{ Time, Level, Msg, Mountpoint string }
			if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Msg == "" || entry.Mountpoint != m.Dir || entry.Level != "INFO" && entry.Level != "WARN" {
				t.Errorf("a line of the log: error %v, %s\nwant JSON with level INFO or WARN, a message and the mountpoint", err, line)
			}
		}
	}
}

// A screen holds what a process printed. It is safe for concurrent use.
type screen struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// unreadOutput returns a full pipe or a stopped terminal. begin starts to copy what is written to
// it.
func unreadOutput(t *testing.T, terminal bool) (out *os.File, begin func(to io.Writer)) {
	t.Helper()
	if !terminal {
		var ends [2]int
		e2e.NoError(t, unix.Pipe2(ends[:], unix.O_CLOEXEC))
		read, out := os.NewFile(uintptr(ends[0]), "pipe"), os.NewFile(uintptr(ends[1]), "pipe")
		t.Cleanup(func() { read.Close() })
		size := e2e.Must(unix.FcntlInt(out.Fd(), unix.F_GETPIPE_SZ, 0))(t)
		e2e.Must(out.Write(make([]byte, size)))(t)
		return out, func(to io.Writer) { go io.Copy(to, read) }
	}
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { keyboard.Close() })
	e2e.NoError(t, unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0))
	n := e2e.Must(unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN))(t)
	out = e2e.Must(os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	e2e.NoError(t, unix.IoctlSetInt(int(out.Fd()), unix.TCXONC, unix.TCOOFF))
	return out, func(to io.Writer) {
		e2e.NoError(t, unix.IoctlSetInt(int(out.Fd()), unix.TCXONC, unix.TCOON))
		go io.Copy(to, keyboard)
	}
}

// A log that nobody reads delays neither a trainer nor the successor of a worker that dies with a
// long stack trace. Once it is read, further lines follow.
func TestNobodyReadsTheLog(t *testing.T) {
	t.Parallel()
	for name, terminal := range map[string]bool{"pipe": false, "terminal": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config, want := e2e.SmallConfig(t, 4)
			log, begin := unreadOutput(t, terminal)
			defer log.Close()
			file := e2e.Must(os.Create(filepath.Join(t.TempDir(), "out")))(t)
			defer file.Close()
			dir := t.TempDir()
			cmd := exec.Command(e2e.Batchfs, "mount", "-c", config, dir)
			cmd.Stdout, cmd.Stderr = file, log
			m := e2e.StartMount(t, dir, cmd)
			m.AwaitReady(t)
			for k, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGQUIT, syscall.SIGKILL} {
				before := m.AwaitStandby(t)[0]
				e2e.NoError(t, syscall.Kill(before, sig))
				e2e.Equal(t, fmt.Sprintf("batch %d", k), e2e.FileDigest(t, m, "train/next"), want[k])
				e2e.AwaitEnded(t, before)
			}
			e2e.Run(t, e2e.Python, "-c", `
import os, sys
for n in range(1000):
    try:
        os.stat(f"{sys.argv[1]}/colour{n}=red")
        sys.exit("there is a file")
    except FileNotFoundError:
        pass`, m.Path("train"))
			e2e.Equal(t, "batch 3", e2e.FileDigest(t, m, "train/next"), want[3])
			var shown screen
			begin(&shown)
			e2e.Await(t, "3 queued log lines about takeovers", func() (any, bool) {
				text := shown.String()
				return e2e.LastLines(text, 20), strings.Count(text, "another has taken over") == 3
			})
			e2e.NoError(t, os.Truncate(filepath.Join(filepath.Dir(config), "train.bin"), 1000))
			e2e.Await(t, "a log line about a failed request", func() (any, bool) {
				e2e.Try(t, "cat", m.Path("train/next")) // fails, and is logged
				text := shown.String()
				return e2e.LastLines(text, 20), strings.Contains(text, "a request failed")
			})
		})
	}
}

// A named pipe is rejected as the log if no program reads it.
func TestLogToANamedPipe(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	config, _ := e2e.SmallConfig(t, 1)
	fifo := filepath.Join(t.TempDir(), "log")
	e2e.NoError(t, unix.Mkfifo(fifo, 0o600))
	for _, flags := range [][]string{nil, {"-d"}} {
		args := append([]string{e2e.Batchfs, "mount", "-c", config, "--log", fifo, t.TempDir()}, flags...)
		e2e.CheckFails(t, "no program reads the named pipe "+fifo, args...)
	}
	reader := e2e.Must(os.OpenFile(fifo, os.O_RDWR, 0))(t)
	defer reader.Close()
	var shown screen
	go io.Copy(&shown, reader)
	e2e.Mount(t, "-c", config, "--log", fifo)
	e2e.AwaitText(t, &shown, "msg=mounted")
}
