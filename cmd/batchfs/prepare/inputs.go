package prepare

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	tokenfile "batchfs/cache/format"
	"batchfs/cache/store"
	"batchfs/cmd/batchfs/prepare/units"
)

// An inputFormat says how an input, once decompressed, is divided into documents.
type inputFormat string

const (
	textFormat    inputFormat = "text"    // the whole input is one document
	jsonlFormat   inputFormat = "jsonl"   // each line is a document
	parquetFormat inputFormat = "parquet" // each row is a document
	arrowFormat   inputFormat = "arrow"   // likewise; a file or stream
)

// hasRows reports whether positions in the format count rows instead of bytes.
func (f inputFormat) hasRows() bool { return f == parquetFormat || f == arrowFormat }

func inputFormatOf(path string) inputFormat {
	switch fileExtension(path) {
	case ".jsonl", ".ndjson", ".json":
		return jsonlFormat
	case ".parquet":
		return parquetFormat
	case ".arrow", ".arrows", ".feather", ".ipc":
		return arrowFormat
	}
	return textFormat
}

// An input is a file of documents, or standard input.
type input struct {
	path   string
	format inputFormat
	asText bool        // whether --as accepts anything as text
	info   fs.FileInfo // state when the input was found; nil for standard input
	stdin  io.Reader   // what is read if info is nil
	val    bool        // whether all of it belongs to val
	part   *part       // what is read; nil for all
	remote *remoteFile // nil if it is not in a store
}

// name returns the path and, if the input is a later part of a file of lines, where that begins,
// because its lines are counted from there.
func (in *input) name() string {
	if in.part == nil || in.part.begin == 0 || in.format != jsonlFormat {
		return in.path
	}
	return fmt.Sprintf("%s from byte %d on", in.path, in.part.begin)
}

// readableOnce reports whether the input can be read only once, like a pipe.
func (in *input) readableOnce() bool { return in.info == nil || !in.info.Mode().IsRegular() }

// size returns the size in bytes of what is read, or 0 if it is unknown.
func (in *input) size() int64 {
	switch {
	case in.readableOnce():
		return 0
	case in.part != nil:
		return in.part.bytes
	}
	return in.info.Size()
}

// state returns what tells this version of the input apart from others.
func (in *input) state() units.State {
	if in.remote != nil {
		return units.ObjectState(in.remote.Object)
	}
	return units.StateOf(in.info)
}

func totalSize(inputs []*input) (all int64) {
	for _, in := range inputs {
		all += in.size()
	}
	return all
}

// A stream is an open input, decompressed.
type stream struct {
	io.Reader
	in           *input
	file         *os.File      // nil for standard input and objects
	object       *store.Stream // nil unless the input is in a store
	decompressor *decompressor // nil if the input is not compressed
}

type countWriter func(n int)

func (t countWriter) Write(b []byte) (int, error) {
	t(len(b))
	return len(b), nil
}

// open opens an input at an offset of its decompressed content. t receives the size of each read
// from the file.
func (in *input) open(offset int64, t countWriter) (s *stream, err error) {
	s = &stream{in: in}
	raw := in.stdin
	switch {
	case in.remote != nil:
		s.object = in.remote.open()
		raw = s.object
	case in.info != nil:
		if s.file, err = os.Open(in.path); err != nil {
			return nil, err
		}
		raw = s.file
	}
	linesOf := in.part
	if in.format != jsonlFormat {
		linesOf = nil
	}
	if linesOf != nil {
		offset = linesOf.start()
		t(-int(offset)) // which decompress counts
	}
	if err = s.checkUnchanged(); err == nil {
		err = s.decompress(raw, offset, t)
	}
	if err == nil && linesOf != nil {
		err = linesOf.openLines(s)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// decompress sets s up to read the decompressed content of raw, starting at an offset.
func (s *stream) decompress(raw io.Reader, offset int64, t countWriter) error {
	buffered := bufio.NewReaderSize(raw, 1<<16)
	s.Reader = io.TeeReader(buffered, t)
	begin, err := buffered.Peek(len(tokenfile.LFSMagic))
	switch {
	case err != nil && err != io.EOF:
		return err
	case string(begin) == tokenfile.LFSMagic && !s.in.asText:
		return errors.New("is a pointer of Git LFS, not the file itself (--as text encodes it as it is): fetch that with git lfs pull")
	}
	if s.decompressor, err = newDecompressor(begin[:min(4, len(begin))], s.Reader); err != nil {
		return err
	}
	switch {
	case s.decompressor != nil:
		s.Reader = s.decompressor
	case offset > 0 && !s.in.readableOnce():
		buffered.Reset(raw)
		_, err := raw.(io.Seeker).Seek(offset, io.SeekStart)
		t(int(offset))
		return err
	}
	_, err = io.CopyN(io.Discard, s.Reader, offset)
	return err
}

// checkUnchanged returns an error if the file has changed since the input was found.
func (s *stream) checkUnchanged() error {
	if s.file == nil || s.in.readableOnce() {
		return nil
	}
	now, err := s.file.Stat()
	if err == nil && (now.Size() != s.in.info.Size() || !now.ModTime().Equal(s.in.info.ModTime())) {
		err = errChanged
	}
	return err
}

var errChanged = errors.New("changed while prepare read it: run prepare again when nothing writes to it")

func (s *stream) Close() {
	if s.decompressor != nil {
		s.decompressor.close()
	}
	if s.object != nil {
		s.object.Close()
	}
	s.file.Close() // a nil file returns an error, which does not matter
}
