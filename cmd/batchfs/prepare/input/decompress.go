package input

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	tokenfile "batchfs/cache/format"
)

const (
	// maxWindow is the largest window that zstd can write (--long=31), in bytes. It bounds the
	// memory of a decoder.
	maxWindow = 2 << 30
	// largeWindow is the largest window that zstd reads without --long, in bytes.
	largeWindow = 128 << 20
)

var (
	errTruncated = errors.New("is truncated: its compressed data has no end; copy or download the file again")
	errTrailing  = errors.New("has bytes after the end of the compressed data, perhaps of a damaged part: " +
		"copy or download the file again, or decompress it with gzip or zstd and check the result")
)

// A decompressor reads the content of a compressed file.
type decompressor struct {
	io.Reader
	window int64 // bytes of content that it keeps in memory, if it is zstd
	close  func()
}

// newDecompressor returns nil if magic, the first four bytes of a file, are not those of gzip or
// zstd. No text in UTF-8 begins with those. in is the whole file.
func newDecompressor(magic []byte, in io.Reader) (*decompressor, error) {
	// The buffer is small, so that the number of bytes read from in shows the progress.
	buffered := bufio.NewReader(sourceReader{in})
	switch {
	case string(magic) == tokenfile.ZstdMagic, tokenfile.IsSkippable(magic):
		return newZstdDecompressor(buffered)
	case strings.HasPrefix(string(magic), tokenfile.GzipMagic):
		return &decompressor{Reader: &gzipReader{in: buffered}, close: func() {}}, nil
	}
	return nil, nil
}

func newZstdDecompressor(in *bufio.Reader) (*decompressor, error) {
	for { // until the header of a frame with content tells the window
		magic, err := in.Peek(8)
		if len(magic) < 4 || !tokenfile.IsSkippable(magic[:4]) {
			break
		}
		if len(magic) < 8 {
			return nil, compressionError(noEOF(err))
		}
		size := 8 + int64(binary.LittleEndian.Uint32(magic[4:]))
		if n, err := io.CopyN(io.Discard, in, size); n < size {
			return nil, compressionError(noEOF(err))
		}
	}
	d := new(decompressor)
	var frame zstd.Header
	if header, _ := in.Peek(zstd.HeaderMaxSize); frame.Decode(header) == nil {
		d.window = int64(frame.WindowSize)
		if frame.SingleSegment {
			d.window = int64(frame.FrameContentSize)
		}
	}
	// One thread keeps up with the encoders.
	decoder, err := zstd.NewReader(in, zstd.WithDecoderMaxMemory(maxWindow), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	d.Reader, d.close = &zstdReader{decoder}, decoder.Close
	return d, nil
}

type zstdReader struct{ *zstd.Decoder }

func (z *zstdReader) Read(buf []byte) (int, error) {
	n, err := z.Decoder.Read(buf)
	return n, compressionError(err)
}

// A gzipReader reads the content of all members of a gzip file. Like gzip(1), it ignores zeros
// after a member.
type gzipReader struct {
	in     *bufio.Reader
	member *gzip.Reader // nil before the first member
}

func (g *gzipReader) Read(buf []byte) (n int, err error) {
	if g.member == nil {
		g.member = new(gzip.Reader)
		err = g.begin()
	}
	for n == 0 && err == nil {
		if n, err = g.member.Read(buf); err == io.EOF {
			err = g.next()
		}
	}
	return n, compressionError(err)
}

func (g *gzipReader) begin() error {
	err := noEOF(g.member.Reset(g.in))
	g.member.Multistream(false)
	return err
}

// next begins the next member, or returns io.EOF if there is none.
func (g *gzipReader) next() error {
	b := byte(0)
	for b == 0 {
		var err error
		if b, err = g.in.ReadByte(); err != nil {
			return err
		}
	}
	g.in.UnreadByte()
	switch magic, err := g.in.Peek(len(tokenfile.GzipMagic)); {
	case string(magic) == tokenfile.GzipMagic:
		return g.begin()
	case err != nil && err != io.EOF:
		return err
	}
	return errTrailing
}

// A sourceError is an error of the disk or store from which a decoder reads. It does not mean that
// the compressed data is damaged.
type sourceError struct{ error }

type sourceReader struct{ io.Reader }

func (s sourceReader) Read(buf []byte) (int, error) {
	n, err := s.Reader.Read(buf)
	if err != nil && err != io.EOF {
		err = sourceError{err}
	}
	return n, err
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// compressionError turns an error of a decoder into one that says what is wrong with the file.
func compressionError(err error) error {
	source, isSource := errors.AsType[sourceError](err)
	switch {
	case isSource:
		return source.error
	case err == nil, err == io.EOF, err == errTrailing:
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errTruncated
	case errors.Is(err, zstd.ErrMagicMismatch):
		return errTrailing
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return errors.New("needs a zstd window of more than 2 GiB: compress it again without --long")
	}
	return fmt.Errorf("its compressed data is damaged: %w; copy or download the file again", err)
}
