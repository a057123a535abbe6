package input

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// A Part is a range of an input, in bytes of JSON lines or in row groups of a parquet file. A line
// belongs to the part in which it begins.
type Part struct {
	Begin, End int64
	Bytes      int64 // of the input, as stored
}

var errCompressedPart = errors.New("is compressed, although its name does not say so, so it cannot be divided: " +
	"give it a name that ends in .gz or .zst, and make a new plan")

// openLines sets s up to read the lines of a part, whose first byte has been skipped to, less one.
func (p *Part) openLines(s *Stream) {
	s.Reader = &lineRange{in: bufio.NewReaderSize(s.Reader, 1<<16), at: p.start(), Part: p}
}

// start returns the offset at which reading the lines of a part starts. The byte before the part
// says whether a line begins at its first byte.
func (p *Part) start() int64 { return max(0, p.Begin-1) }

// A lineRange reads the lines that begin in a part of a file.
type lineRange struct {
	*Part
	in      *bufio.Reader
	at      int64 // offset of what in reads next
	started bool
	ended   bool
}

func (l *lineRange) Read(buf []byte) (int, error) {
	if !l.started {
		if err := l.skipLine(); err != nil {
			return 0, err
		}
	}
	if l.ended {
		return 0, io.EOF
	}
	n, err := l.in.Read(buf)
	// The last line ends with the first newline that is not before the last byte of the part.
	if last := max(0, l.End-1-l.at); last < int64(n) {
		if i := bytes.IndexByte(buf[last:n], '\n'); i >= 0 {
			n, err, l.ended = int(last)+i+1, nil, true
		}
	}
	l.at += int64(n)
	return n, err
}

// skipLine skips the line that begins before the part.
func (l *lineRange) skipLine() error {
	for l.Begin > 0 {
		line, err := l.in.ReadSlice('\n')
		l.at += int64(len(line))
		if err == nil {
			break
		}
		if err != bufio.ErrBufferFull {
			return err
		}
	}
	l.started, l.ended = true, l.at >= l.End
	return nil
}
