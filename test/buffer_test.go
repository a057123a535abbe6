package test

import (
	"bytes"
	"strings"
	"sync"
)

// lockedBuffer collects what a process prints; ready is closed when it has said that it serves.
type lockedBuffer struct {
	mu     sync.Mutex
	buf    bytes.Buffer
	ready  chan struct{}
	closed bool
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.buf.Write(p)
	if !b.closed && strings.Contains(b.buf.String(), "stop with Ctrl-C") {
		b.closed = true
		close(b.ready)
	}
	return n, err
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
