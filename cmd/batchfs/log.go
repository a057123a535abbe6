package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/terminal"
)

// newLog returns the log of a mount to out. The caller calls flush before the process ends.
func newLog(out io.Writer, o config.Log, mountpoint string) (log *slog.Logger, flush func()) {
	var level slog.Level
	level.UnmarshalText([]byte(o.Level)) // config allows no other words
	to := func(out io.Writer) *slog.Logger {
		var handler slog.Handler = slog.NewTextHandler(out, &slog.HandlerOptions{Level: level, ReplaceAttr: bounded})
		if o.Format == "json" {
			handler = slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level, ReplaceAttr: printable})
		}
		return slog.New(handler).With("mountpoint", mountpoint)
	}
	w := newLineWriter(out)
	w.tellLost = func(lines int) []byte {
		var line bytes.Buffer
		to(&line).Error("lines of the log are lost: it could not be written", "lines", lines)
		return line.Bytes()
	}
	return to(w), w.flush
}

// maxValue is the most bytes of a value in a log. What is longer is the stack of a panic, whose beginning tells most, so that a line
// fits into maxLine.
const maxValue = 3 << 10

// bounded cuts a value that is too long.
func bounded(_ []string, a slog.Attr) slog.Attr {
	if text := a.Value.String(); len(text) > maxValue {
		return slog.String(a.Key, text[:maxValue]+"...")
	}
	return a
}

// printable is bounded, and escapes what slog leaves in JSON: control characters above U+007E, and bytes that are not UTF-8.
func printable(groups []string, a slog.Attr) slog.Attr {
	a = bounded(groups, a)
	if text := a.Value.String(); terminal.Printable(text) != text {
		return slog.String(a.Key, terminal.Printable(text))
	}
	return a
}

// A lineWriter passes lines on to a file that may take none: a pipe that nobody reads, a terminal that is stopped, a disk that
// hangs. Nobody waits for such a file. Up to maxQueued lines wait for it instead, further ones are counted, and the next line
// that has room follows a line that tells how many are lost.
//
// A line that can be written has been when Write returns, so that it is there before what the program does next, even if it dies.
type lineWriter struct {
	out      io.Writer
	tellLost func(lines int) []byte // makes the line that tells; nil: none does
	most     int                    // bytes of a line
	queue    chan queuedLine
	late     atomic.Bool // a line was not written in time, and none since

	mu   sync.Mutex
	lost int // lines since the last that was queued; guarded by mu
}

type queuedLine struct {
	line    []byte
	lost    int           // lines before it
	written chan struct{} // closed when it was written, or could not be
}

const (
	maxQueued = 64
	// A pipe takes so many bytes whole, whoever else writes to it.
	maxLine = 4096
	// A file that says that it takes a line, and does not, is waited for so long, once.
	patience = 100 * time.Millisecond
	// At the end of the process.
	lastPatience = time.Second
)

func newLineWriter(out io.Writer) *lineWriter {
	w := &lineWriter{out: out, most: maxLine, queue: make(chan queuedLine, maxQueued)}
	if file, ok := out.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			w.most = math.MaxInt
		}
	}
	go w.run()
	return w
}

// Write never fails.
func (w *lineWriter) Write(line []byte) (int, error) {
	n := len(line)
	if n > w.most {
		line = slices.Concat(line[:w.most-1], []byte("\n"))
	}
	if q, ok := w.add(slices.Clone(line)); ok && !w.late.Load() && w.ready() {
		select {
		case <-q.written:
		case <-time.After(patience):
			w.late.Store(true)
		}
	}
	return n, nil
}

// add queues a line, or counts it as lost.
func (w *lineWriter) add(line []byte) (queuedLine, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := queuedLine{line, w.lost, make(chan struct{})}
	select {
	case w.queue <- q:
		w.lost = 0
		return q, true
	default:
		w.lost++
		return q, false
	}
}

// run writes what is queued. It may hang, in a thread of its own: O_NONBLOCK would be set for everybody who has the file open, as
// the shell has.
func (w *lineWriter) run() {
	for q := range w.queue {
		lost := q.lost
		if lost > 0 && w.tellLost != nil {
			if _, err := w.out.Write(w.tellLost(lost)); err == nil {
				lost = 0
			}
		}
		if _, err := w.out.Write(q.line); err != nil {
			lost++
		}
		w.mu.Lock()
		w.lost += lost
		w.mu.Unlock()
		w.late.Store(false)
		close(q.written)
	}
}

// ready says whether the file takes a line at once, as far as the kernel knows.
func (w *lineWriter) ready() bool {
	file, ok := w.out.(*os.File)
	if !ok {
		return true
	}
	ready := true
	if conn, err := file.SyscallConn(); err == nil {
		conn.Control(func(fd uintptr) { // unlike Fd, it leaves O_NONBLOCK alone
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
			ready = n == 1 || err != nil
		})
	}
	return ready
}

// flush waits until everything is written, unless the file takes nothing.
func (w *lineWriter) flush() {
	if !w.ready() {
		return
	}
	end := time.After(lastPatience)
	last := queuedLine{nil, 0, make(chan struct{})}
	w.mu.Lock()
	last.lost, w.lost = w.lost, 0
	w.mu.Unlock()
	select {
	case w.queue <- last:
	case <-end:
		return
	}
	select {
	case <-last.written:
	case <-end:
	}
}

// printed prints an error as main does, without waiting for a standard error that takes nothing. The mount is gone by then, and
// its processes should not stay.
func printed(err error) error {
	if err == nil {
		return nil
	}
	w := newLineWriter(os.Stderr)
	printError(w, err)
	w.flush()
	return exitStatus(1)
}

func openLog(path string) (*os.File, error) {
	// A named pipe that nobody reads would keep us waiting.
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o644)
	switch {
	case errors.Is(err, unix.ENXIO):
		return nil, fmt.Errorf("the log: nobody reads the named pipe %s; start its reader first, or name a file", path)
	case err != nil:
		return nil, fmt.Errorf("the log: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("the log: %w", err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// backgroundLog returns the absolute path of the log of a mount in the background: path, or the default if that is empty.
func backgroundLog(path string) (string, error) {
	if path != "" {
		return filepath.Abs(path)
	}
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no directory for the log: %w; name a file with --log", err)
		}
		state = filepath.Join(home, ".local", "state")
	}
	dir := filepath.Join(state, "batchfs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("no place for the log: %w; name a file with --log", err)
	}
	return filepath.Join(dir, "batchfs.log"), nil
}
