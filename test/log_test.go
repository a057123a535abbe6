package test

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
)

// A log is of the form and of the level that were asked for.
func TestLog(t *testing.T) {
	config, _ := small(t, 1)
	for _, test := range []struct {
		args  []string
		lines int
	}{
		{nil, 3},
		{[]string{"--set", "log.level=error"}, 0},
	} {
		file := filepath.Join(t.TempDir(), "log")
		m := mount(t, append(test.args, "-c", config, "--log", file, "--set", "log.format=json")...)
		try(t, "stat", m.path("train/colour=red")) // of which the log says something
		m.stop(t)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "\n"); n < test.lines || test.lines == 0 && n > 0 {
			t.Errorf("%s: %d lines:\n%s", test.args, n, text)
		}
		for line := range strings.Lines(string(text)) {
			var said struct{ Time, Level, Msg, Mountpoint string }
			if err := json.Unmarshal([]byte(line), &said); err != nil || said.Msg == "" || said.Mountpoint != m.dir || said.Level != "INFO" && said.Level != "WARN" {
				t.Errorf("%v: %s", err, line)
			}
		}
	}
}

// A screen is what a process has written to a pipe or a terminal, as far as it was read.
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

// unread returns a pipe that is full and a terminal that is stopped. begin lets it take what is written again.
func unread(t *testing.T, terminal bool) (out *os.File, begin func(to io.Writer)) {
	t.Helper()
	if !terminal {
		var ends [2]int
		noError(t, unix.Pipe2(ends[:], unix.O_CLOEXEC))
		read, out := os.NewFile(uintptr(ends[0]), "pipe"), os.NewFile(uintptr(ends[1]), "pipe")
		t.Cleanup(func() { read.Close() })
		size, err := unix.FcntlInt(out.Fd(), unix.F_GETPIPE_SZ, 0)
		noError(t, err)
		_, err = out.Write(make([]byte, size))
		noError(t, err)
		return out, func(to io.Writer) { go io.Copy(to, read) }
	}
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { keyboard.Close() })
	noError(t, unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	noError(t, err)
	out, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	noError(t, err)
	noError(t, unix.IoctlSetInt(int(out.Fd()), unix.TCXONC, unix.TCOOFF))
	return out, func(to io.Writer) {
		noError(t, unix.IoctlSetInt(int(out.Fd()), unix.TCXONC, unix.TCOON))
		go io.Copy(to, keyboard)
	}
}

// A log that nobody reads holds up no reader, whatever is logged, and no successor of a worker that dies, also of one whose
// crash has much to say. When it is read again, the log continues.
func TestNobodyReadsTheLog(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		t.Run(map[bool]string{false: "pipe", true: "terminal"}[terminal], func(t *testing.T) {
			needFUSE(t)
			t.Parallel()
			config, want := small(t, 4)
			log, begin := unread(t, terminal)
			defer log.Close()
			file, err := os.Create(filepath.Join(t.TempDir(), "out"))
			noError(t, err)
			defer file.Close()
			dir := t.TempDir()
			cmd := exec.Command(batchfs, "mount", "-c", config, dir)
			cmd.Stdout, cmd.Stderr = file, log
			m := &mounted{dir: dir, cmd: cmd, done: make(chan struct{}), out: logFile(file.Name())}
			m.start(t)
			await(t, "a mount that is ready", func() bool { return strings.Contains(m.out.String(), "stop with Ctrl-C") })
			for k, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGQUIT, syscall.SIGKILL} {
				before := m.awaitStandby(t)[0]
				noError(t, syscall.Kill(before, sig))
				if got := read(t, "read", m.path("train/next"))[0]; got != want[k] {
					t.Errorf("batch %d is %s, want %s", k, got, want[k])
				}
				awaitEnded(t, before)
			}
			run(t, python, "-c", `
import os, sys
for n in range(1000):
    try:
        os.stat(f"{sys.argv[1]}/colour{n}=red")
        sys.exit("there is a file")
    except FileNotFoundError:
        pass`, m.path("train"))
			if got := read(t, "read", m.path("train/next"))[0]; got != want[3] {
				t.Errorf("batch 3 is %s, want %s", got, want[3])
			}
			var said screen
			begin(&said)
			await(t, "the lines that waited", func() bool { return strings.Count(said.String(), "another goes on") == 3 })
			noError(t, os.Truncate(filepath.Join(filepath.Dir(config), "train.bin"), 1000))
			await(t, "a line of an error", func() bool {
				try(t, "cat", m.path("train/next")) // an error of which the log says something
				return strings.Contains(said.String(), "a request failed")
			})
		})
	}
}

// The end of a mount that fails waits for no log.
func TestNobodyReadsTheEnd(t *testing.T) {
	needFUSE(t)
	config, _ := small(t, 1)
	log, _ := unread(t, false)
	defer log.Close()
	dir := t.TempDir()
	cmd := exec.Command(batchfs, "mount", "-c", config, dir)
	cmd.Stdout, cmd.Stderr = log, log
	m := &mounted{dir: dir, cmd: cmd, done: make(chan struct{})}
	m.start(t)
	await(t, "a mount that serves", func() bool {
		_, _, err := try(t, "head", "-c1", m.path("train/next"))
		return err == nil
	})
	run(t, batchfs, "unmount", dir)
	m.awaitEnd(t)
}

// A named pipe that nobody reads is refused as the log, and one with a reader is not.
func TestLogToANamedPipe(t *testing.T) {
	needFUSE(t)
	config, _ := small(t, 1)
	fifo := filepath.Join(t.TempDir(), "log")
	noError(t, unix.Mkfifo(fifo, 0o600))
	for _, flags := range [][]string{nil, {"-d"}} {
		args := append([]string{batchfs, "mount", "-c", config, "--log", fifo, t.TempDir()}, flags...)
		if _, stderr, err := try(t, args...); err == nil || !strings.Contains(stderr, "no program reads the named pipe "+fifo) {
			t.Errorf("%v: %s", err, stderr)
		}
	}
	reader, err := os.OpenFile(fifo, os.O_RDWR, 0)
	noError(t, err)
	defer reader.Close()
	var said screen
	go io.Copy(&said, reader)
	mount(t, "-c", config, "--log", fifo)
	await(t, "a line in the pipe", func() bool { return strings.Contains(said.String(), "msg=mounted") })
}

// Readers cannot fill the disk with errors, two that alternate either.
func TestErrorsDoNotFloodTheLog(t *testing.T) {
	config, _ := small(t, 1)
	m := mount(t, "-c", config)
	file := filepath.Join(filepath.Dir(config), "train.bin")
	noError(t, os.Truncate(file, 1000))
	run(t, python, "-c", `
import os, sys
mountpoint, file = sys.argv[1:]
for n in range(1000):
    if n % 2:
        os.rename(file, file + ".away")
    try:
        open(f"{mountpoint}/train/next", "rb")
        sys.exit("no error")
    except OSError:
        pass
    if n % 2:
        os.rename(file + ".away", file)`, m.dir, file)
	if n := statusOf(t, m).Splits["train"].Errors; n < 1000 {
		t.Errorf("status.json counts %d errors", n)
	}
	// Two lines every ten seconds, on a machine that may be slow.
	if n := strings.Count(m.out.String(), "a request failed"); n < 2 || n > 200 {
		t.Errorf("%d lines", n)
	}
}
