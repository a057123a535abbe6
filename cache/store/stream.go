package store

import (
	"context"
	"errors"
	"io"
)

const (
	firstBlock = 64 << 10 // size of a stream's first block in bytes
	maxBlock   = 8 << 20  // size of the largest block in bytes
	blocksHeld = 3        // number of blocks in memory, including those that are being fetched
)

// A Stream reads an object from beginning to end. It uses ReadRange to fetch a few blocks ahead,
// and each of its first blocks is larger than the one before. A Stream belongs to one goroutine.
type Stream struct {
	client  *Client
	object  Object
	ctx     context.Context
	cancel  context.CancelFunc
	at      int64          // offset of the next byte to return
	next    int64          // offset of the next block to fetch
	size    int64          // size of the next block
	pending []*streamBlock // blocks that are being fetched, in the order of the object
	spare   [][]byte       // memory for further blocks
	buf     []byte         // the current block
	rest    []byte         // what Read has not returned of buf
}

type streamBlock struct {
	data []byte
	done chan error
}

// Open returns a stream of an object. Its reads match ErrChanged if the object has been replaced.
func (c *Client) Open(ctx context.Context, o Object) *Stream {
	s := &Stream{client: c, object: o}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.moveTo(0)
	return s
}

func (s *Stream) moveTo(at int64) {
	s.at, s.next, s.size, s.rest, s.pending = at, at, firstBlock, nil, nil
}

// fetch starts to fetch the next block.
func (s *Stream) fetch() {
	n := min(s.size, s.object.Size-s.next)
	var data []byte
	if len(s.spare) > 0 {
		data, s.spare = s.spare[len(s.spare)-1], s.spare[:len(s.spare)-1]
	}
	if int64(cap(data)) < n {
		data = make([]byte, n)
	}
	b := &streamBlock{data: data[:n], done: make(chan error, 1)}
	at := s.next
	go func() { b.done <- s.client.ReadRange(s.ctx, s.object, at, b.data) }()
	s.pending = append(s.pending, b)
	s.next += n
	s.size = min(8*s.size, maxBlock)
}

// Read implements [io.Reader].
func (s *Stream) Read(buf []byte) (int, error) {
	for len(s.rest) == 0 {
		if s.at >= s.object.Size {
			return 0, io.EOF
		}
		if s.buf != nil {
			s.spare, s.buf = append(s.spare, s.buf), nil
		}
		// The first block is fetched alone, so that a reader that needs only the beginning fetches
		// nothing else.
		for isFirst := s.at == s.next && s.size == firstBlock; s.next < s.object.Size && len(s.pending) < blocksHeld-1; {
			if s.fetch(); isFirst {
				break
			}
		}
		b := s.pending[0]
		if err := <-b.done; err != nil {
			b.done <- err // for further reads
			return 0, err
		}
		s.pending, s.rest, s.buf = s.pending[1:], b.data, b.data
	}
	n := copy(buf, s.rest)
	s.rest = s.rest[n:]
	s.at += int64(n)
	return n, nil
}

// Seek implements [io.Seeker] for io.SeekStart.
func (s *Stream) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekStart || offset < 0 {
		return 0, errors.ErrUnsupported
	}
	s.moveTo(offset)
	return offset, nil
}

// Close cancels what is being fetched.
func (s *Stream) Close() error {
	s.cancel()
	return nil
}
