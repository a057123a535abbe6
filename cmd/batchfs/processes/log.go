package processes

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/config"
	"batchfs/internal/printable"
)

// newLog returns a mount's log. Call flush before the process ends.
func newLog(out io.Writer, o config.Log, mountpoint string) (log *slog.Logger, flush func()) {
	var level slog.Level
	level.UnmarshalText([]byte(o.Level)) // config allows only valid levels
	w := newLineWriter(out)
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: escapeAttr}
	var handler slog.Handler = slog.NewTextHandler(w, options)
	if o.Format == "json" {
		handler = slog.NewJSONHandler(w, options)
	}
	return slog.New(handler).With("mountpoint", mountpoint), w.flush
}

// maxValueLen limits each value, in bytes, so that a line fits into maxLine. Only stack traces are
// longer, and they begin with what matters most.
const maxValueLen = 3 << 10

// escapeAttr truncates long values, and escapes what slog does not escape in JSON: control
// characters above U+007E, other invisible characters, and bytes that are not UTF-8.
func escapeAttr(_ []string, a slog.Attr) slog.Attr {
	text := a.Value.String()
	escaped := printable.Text(text[:min(len(text), maxValueLen)])
	if escaped == text {
		return a
	}
	return slog.String(a.Key, escaped)
}

// A lineWriter writes lines to a file that may block, such as a full pipe, without making the
// readers of a mount wait for its log. Write returns once the line is written, so that a crash does
// not lose it. While the file blocks, up to maxQueued lines wait, and further lines are dropped. A
// lineWriter is safe for concurrent use.
type lineWriter struct {
	out     io.Writer
	queue   chan queuedLine
	stalled atomic.Bool // whether a write timed out and none has ended since
}

type queuedLine struct {
	line    []byte
	written chan struct{} // closed after the write, even if it failed
}

const (
	maxQueued    = 64                     // lines
	maxLine      = 4096                   // bytes that a pipe takes atomically (PIPE_BUF)
	writeTimeout = 100 * time.Millisecond // wait after which Write considers the file stalled
	flushTimeout = time.Second
)

func newLineWriter(out io.Writer) *lineWriter {
	w := &lineWriter{out: out, queue: make(chan queuedLine, maxQueued)}
	go w.run()
	return w
}

// Write queues a line, and waits for it to be written unless the file is stalled. It never fails.
func (w *lineWriter) Write(line []byte) (int, error) {
	n := len(line)
	if n > maxLine {
		line = slices.Concat(line[:maxLine-1], []byte("\n"))
	}
	q := queuedLine{slices.Clone(line), make(chan struct{})}
	select {
	case w.queue <- q:
	default:
		return n, nil
	}
	if !w.stalled.Load() {
		select {
		case <-q.written:
		case <-time.After(writeTimeout):
			w.stalled.Store(true)
		}
	}
	return n, nil
}

// run writes the queued lines. Its writes may block: O_NONBLOCK would affect every process that
// shares the open file, such as the shell.
func (w *lineWriter) run() {
	for q := range w.queue {
		w.out.Write(q.line)
		w.stalled.Store(false)
		close(q.written)
	}
}

// flush waits until all lines are written, but at most flushTimeout.
func (w *lineWriter) flush() {
	end := time.After(flushTimeout)
	last := queuedLine{nil, make(chan struct{})}
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

// printWithTimeout prints an error as main does, but does not hang if standard error blocks. It
// returns the error, which main does not print again.
func printWithTimeout(err error) error {
	if err == nil {
		return nil
	}
	w := newLineWriter(os.Stderr)
	command.PrintError(w, err)
	w.flush()
	return command.PrintedError{Err: err}
}

func openLog(path string) (*os.File, error) {
	// Without O_NONBLOCK, opening a named pipe would block until it has a reader.
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NONBLOCK, 0o644)
	switch {
	case errors.Is(err, unix.ENXIO):
		return nil, fmt.Errorf("the log: no program reads the named pipe %s; start its reader first, or name a file", path)
	case err != nil:
		return nil, fmt.Errorf("the log: %w", err)
	}
	return file, unix.SetNonblock(int(file.Fd()), false)
}

// defaultLog returns the path of the log for mount -d without --log. It depends on the mountpoint,
// as in ~/.local/state/batchfs/mnt-batches.log. The directory is created.
func defaultLog(mountpoint string) (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no directory for the log: %w; name a file with --log", err)
		}
		state = filepath.Join(home, ".local", "state")
	}
	dir, err := filepath.Abs(filepath.Join(state, "batchfs"))
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("no directory for the log: %w; name a file with --log", err)
	}
	name := strings.ReplaceAll(strings.Trim(mountpoint, "/"), "/", "-")
	// The name would be too long, or /a-b and /a/b would get the same name.
	if len(name) > 200 || strings.Contains(mountpoint, "-") {
		sum := fnv.New64a()
		io.WriteString(sum, mountpoint)
		name = fmt.Sprintf("%s-%x", name[max(0, len(name)-200):], sum.Sum64())
	}
	return filepath.Join(dir, name+".log"), nil
}
