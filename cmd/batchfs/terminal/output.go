package terminal

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
)

// An Output writes to standard output. It remembers the first error and writes nothing after it, so
// a command may ignore the errors of its writes. It does not remember EPIPE, because a reader may
// close its pipe early. An Output is safe for concurrent use.
type Output struct {
	file *os.File
	mu   sync.Mutex // guards err; not held during a write, which may block
	err  error
}

// NewOutput returns an Output that writes to a file.
func NewOutput(file *os.File) *Output { return &Output{file: file} }

// Write writes p unless an earlier write has failed.
func (o *Output) Write(p []byte) (int, error) {
	if err := o.keepFirstError(nil); err != nil {
		return 0, err
	}
	n, err := o.file.Write(p)
	return n, o.keepFirstError(err)
}

// Fd returns the descriptor of the file.
func (o *Output) Fd() uintptr { return o.file.Fd() }

// Close closes the file and returns the first error. That may be the error of close, which is how a
// network file system can report a full disk.
func (o *Output) Close() error { return o.keepFirstError(o.file.Close()) }

// keepFirstError saves err if it is the first error, and returns the saved error. It returns EPIPE
// without saving it.
func (o *Output) keepFirstError(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil && err != nil {
		if path := (*os.PathError)(nil); errors.As(err, &path) {
			err = path.Err
		}
		o.err = fmt.Errorf("standard output: %w", err)
	}
	return o.err
}
