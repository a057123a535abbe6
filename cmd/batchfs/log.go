package main

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

	"batchfs/cmd/batchfs/config"
	"batchfs/internal/printable"
)

// newLog returns the log of a mount to out. Call flush before the process ends.
func newLog(out io.Writer, o config.Log, mountpoint string) (log *slog.Logger, flush func()) {
	var level slog.Level
	level.UnmarshalText([]byte(o.Level)) // config allows no other words
	w := newLineWriter(out)
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: printableAttr}
	var handler slog.Handler = slog.NewTextHandler(w, options)
	if o.Format == "json" {
		handler = slog.NewJSONHandler(w, options)
	}
	return slog.New(handler).With("mountpoint", mountpoint), w.flush
}

// maxValue is the most bytes of a value, so that a line fits into maxLine. What is longer is a stack, whose beginning tells most.
const maxValue = 3 << 10

// printableAttr cuts a value that is too long, and escapes what slog leaves in JSON: control
// characters above U+007E, other invisible characters, and bytes that are not UTF-8.
func printableAttr(_ []string, a slog.Attr) slog.Attr {
	text := a.Value.String()
	shown := printable.Text(text[:min(len(text), maxValue)])
	if shown == text {
		return a
	}
	return slog.String(a.Key, shown)
}

// A lineWriter passes lines on to a file that may take none, as a full pipe: no reader of a mount should wait for its log. Up to
// maxQueued lines wait for such a file, and further ones are dropped. Otherwise a line is written when Write returns, so that it is
// there even if the program dies next.
type lineWriter struct {
	out     io.Writer
	queue   chan queuedLine
	stalled atomic.Bool // a line was not written in time, and none since
}

type queuedLine struct {
	line    []byte
	written chan struct{} // closed when it was written, or could not be
}

const (
	maxQueued = 64
	// A pipe takes so many bytes whole, even if several processes write to it.
	maxLine = 4096
	// A file that takes no line is waited for so long, once.
	patience = 100 * time.Millisecond
	// At the end of the process.
	lastPatience = time.Second
)

func newLineWriter(out io.Writer) *lineWriter {
	w := &lineWriter{out: out, queue: make(chan queuedLine, maxQueued)}
	go w.run()
	return w
}

// Write never fails.
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
		case <-time.After(patience):
			w.stalled.Store(true)
		}
	}
	return n, nil
}

// run may hang in a write: O_NONBLOCK would be set for every process that has the file open, such as the shell.
func (w *lineWriter) run() {
	for q := range w.queue {
		w.out.Write(q.line)
		w.stalled.Store(false)
		close(q.written)
	}
}

// flush waits until everything is written, unless the file takes nothing.
func (w *lineWriter) flush() {
	end := time.After(lastPatience)
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

// printAndExit prints an error as main does, but does not wait for a standard error that takes
// nothing.
func printAndExit(err error) error {
	if err == nil {
		return nil
	}
	w := newLineWriter(os.Stderr)
	printError(w, err)
	w.flush()
	return exitStatus(1)
}

func openLog(path string) (*os.File, error) {
	// To open a named pipe without a reader would block.
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NONBLOCK, 0o644)
	switch {
	case errors.Is(err, unix.ENXIO):
		return nil, fmt.Errorf("the log: no program reads the named pipe %s; start its reader first, or name a file", path)
	case err != nil:
		return nil, fmt.Errorf("the log: %w", err)
	}
	return file, unix.SetNonblock(int(file.Fd()), false)
}

// backgroundLog returns the absolute path of the log of a mount in the background. By default each mountpoint has its own: mnt-batches.log.
func backgroundLog(path, mountpoint string) (string, error) {
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
	name := strings.ReplaceAll(strings.Trim(mountpoint, "/"), "/", "-")
	if len(name) > 200 || strings.Contains(mountpoint, "-") { // too long, or the same as of another mountpoint
		sum := fnv.New64a()
		io.WriteString(sum, mountpoint)
		name = fmt.Sprintf("%s-%x", name[max(0, len(name)-200):], sum.Sum64())
	}
	return filepath.Join(dir, name+".log"), nil
}
