package processes

import (
	"bytes"
	"context"
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
	format := func(out io.Writer, maxValue int) slog.Handler {
		options := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr { return escapeAttr(a, maxValue) }}
		if o.Format == "json" {
			return slog.NewJSONHandler(out, options)
		}
		return slog.NewTextHandler(out, options)
	}
	return slog.New(lineHandler{w, format}).With("mountpoint", mountpoint), w.flush
}

// A lineHandler writes each record as a line of at most maxLine bytes, with its longest values
// truncated.
type lineHandler struct {
	out *lineWriter
	// format returns a handler that truncates each value to maxValue bytes before it escapes it.
	format func(out io.Writer, maxValue int) slog.Handler
}

func (h lineHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.format(io.Discard, 0).Enabled(ctx, level)
}

func (h lineHandler) Handle(ctx context.Context, r slog.Record) error {
	for maxValue := maxLine; ; maxValue = maxValue * 3 / 4 {
		var line bytes.Buffer
		if err := h.format(&line, maxValue).Handle(ctx, r); err != nil {
			return err
		}
		if line.Len() <= maxLine || maxValue == 0 {
			_, err := h.out.Write(line.Bytes())
			return err
		}
	}
}

func (h lineHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return lineHandler{h.out, func(out io.Writer, maxValue int) slog.Handler { return h.format(out, maxValue).WithAttrs(attrs) }}
}

func (h lineHandler) WithGroup(name string) slog.Handler {
	return lineHandler{h.out, func(out io.Writer, maxValue int) slog.Handler { return h.format(out, maxValue).WithGroup(name) }}
}

// escapeAttr truncates a long value, and escapes what slog does not escape in JSON: control
// characters above U+007E, other invisible characters, and bytes that are not UTF-8.
func escapeAttr(a slog.Attr, maxValue int) slog.Attr {
	text := a.Value.String()
	escaped := printable.Text(text[:min(len(text), maxValue)])
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

// stateHome returns the directory for the state of programs, which need not exist.
func stateHome() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	// Under sudo -E, root would create directories in the home directory of a user, who could not
	// write there afterwards.
	var st unix.Stat_t
	if os.Getenv("SUDO_UID") != "" && os.Geteuid() == 0 && unix.Stat(home, &st) == nil && st.Uid != 0 {
		home = "/root"
	}
	return filepath.Join(home, ".local", "state"), err
}

// DefaultLog returns the path of the log for mount -d without --log. It depends on the mountpoint,
// as in ~/.local/state/batchfs/mnt-batches.log.
func DefaultLog(mountpoint string) (string, error) {
	state, err := stateHome()
	if err != nil {
		return "", err
	}
	dir, err := filepath.Abs(filepath.Join(state, "batchfs"))
	if err != nil {
		return "", err
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
