package prepare

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"unicode/utf8"
)

var byteOrderMark = []byte("\ufeff")

// begin starts to read text at a position, and skips a byte order mark. It reports whether the
// input is left out, and returns an error if the input does not begin like text.
func (r *reader) begin(s *stream, pos *position) (leftOut bool, err error) {
	r.buf, r.ended = r.buf[:0], false
	if err := r.fill(s, chunkSize); err != nil || pos.Offset > 0 {
		return false, err
	}
	if bytes.HasPrefix(r.buf, byteOrderMark) {
		r.drop(len(byteOrderMark))
		pos.Offset = int64(len(byteOrderMark))
	}
	switch kind := nonTextContent(s.in, r.buf); {
	case s.decompressor == nil && isCompressedName(s.in.path) && !s.in.asText && !utf8.Valid(r.buf[:runeEnd(r.buf)]):
		return false, errors.New("is neither gzip nor zstd, and not text: copy or download the file again, or leave it out")
	case kind == nil:
		return false, nil
	case kind.binary && r.encoding.leavesOutBinary():
		return true, r.leaveOut(s.in, *pos)
	default:
		return false, kind.refused()
	}
}

// fillToCut reads until cut finds a place in the buffer or the input ends. It returns the length of
// the text before that place. If the buffer is full and has no such place, it returns 0. Unless the
// input has ended, the buffer has more text than that.
func (r *reader) fillToCut(s *stream, cut func(text []byte) int) (int, error) {
	for size := chunkSize; ; size *= 2 {
		if err := r.fill(s, size); err != nil {
			return 0, err
		}
		if r.ended {
			return len(r.buf), nil
		}
		n := cut(r.buf)
		if n == len(r.buf) { // one more byte shows whether the input ends here
			if err := r.fill(s, n+1); err != nil {
				return 0, err
			}
			if r.ended {
				return len(r.buf), nil
			}
		}
		if n > 0 || size >= maxLine {
			return n, nil
		}
	}
}

// fill reads until the buffer holds n bytes or the input ends.
func (r *reader) fill(s *stream, n int) error {
	r.buf = slices.Grow(r.buf, max(0, n-len(r.buf)))
	for len(r.buf) < n && !r.ended {
		read, err := s.Read(r.buf[len(r.buf):n])
		r.buf = r.buf[:len(r.buf)+read]
		r.ended = err == io.EOF
		if err != nil && !r.ended {
			return err
		}
	}
	return nil
}

// drop removes the first n bytes of the buffer.
func (r *reader) drop(n int) { r.buf = r.buf[:copy(r.buf, r.buf[n:])] }
