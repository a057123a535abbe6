// Package input finds the files from which prepare reads documents, and opens them.
//
// [Find] returns the files that arguments name, locally or in [Stores]. [File.Open] opens one of
// them, of a task perhaps only a [Part], and returns a [Stream] of its decompressed content. A
// [NonText] says why a file is refused. The rest of prepare reads documents from streams.
package input

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

// A Format says how an input, once decompressed, is divided into documents.
type Format string

const (
	Text    Format = "text"    // the whole input is one document
	JSONL   Format = "jsonl"   // each line is a document
	Parquet Format = "parquet" // each row is a document
	Arrow   Format = "arrow"   // likewise; a file or stream
)

// HasRows reports whether positions in the format count rows instead of bytes.
func (f Format) HasRows() bool { return f == Parquet || f == Arrow }

func formatOf(path string) Format {
	switch fileExtension(path) {
	case ".jsonl", ".ndjson", ".json":
		return JSONL
	case ".parquet":
		return Parquet
	case ".arrow", ".arrows", ".feather", ".ipc":
		return Arrow
	}
	return Text
}

// A File is a file of documents, or standard input.
type File struct {
	Path   string // or URL
	Format Format
	AsText bool        // whether --as accepts anything as text
	Info   fs.FileInfo // state when the input was found; nil for standard input
	Stdin  io.Reader   // what is read if Info is nil
	Val    bool        // whether all of it belongs to val
	Part   *Part       // what is read; nil for all
	remote *remoteFile // nil if it is not in a store
}

// Name returns the path and, if the input is a later part of a file of lines, where that begins,
// because its lines are counted from there.
func (in *File) Name() string {
	if in.Part == nil || in.Part.Begin == 0 || in.Format != JSONL {
		return in.Path
	}
	return fmt.Sprintf("%s from byte %d on", in.Path, in.Part.Begin)
}

// ReadableOnce reports whether the input can be read only once, like a pipe.
func (in *File) ReadableOnce() bool { return in.Info == nil || !in.Info.Mode().IsRegular() }

// Size returns the size in bytes of what is read, or 0 if it is unknown.
func (in *File) Size() int64 {
	switch {
	case in.ReadableOnce():
		return 0
	case in.Part != nil:
		return in.Part.Bytes
	}
	return in.Info.Size()
}

// Stat records the state of a local file. If its path contains a symbolic link whose target does
// not exist, the error names both.
func (in *File) Stat() (err error) {
	in.Info, err = statInput(in.Path)
	return err
}

// InStore reports whether the file is an object in a store.
func (in *File) InStore() bool { return in.remote != nil }

// State returns what tells this version of the input apart from others.
func (in *File) State() units.State {
	if in.remote != nil {
		return units.ObjectState(in.remote.Object)
	}
	return units.StateOf(in.Info)
}

// A Stream reads an open input, decompressed.
type Stream struct {
	io.Reader
	File         *File
	local        *os.File      // nil for standard input and objects
	object       *store.Stream // nil unless the input is in a store
	decompressor *decompressor // nil if the input is not compressed
}

// A CountWriter receives the size of each write, in bytes. A negative size corrects earlier ones.
type CountWriter func(n int)

// Write implements [io.Writer].
func (t CountWriter) Write(b []byte) (int, error) {
	t(len(b))
	return len(b), nil
}

// Open opens an input at an offset of its decompressed content. t receives the size of each read
// from the file.
func (in *File) Open(offset int64, t CountWriter) (s *Stream, err error) {
	s = &Stream{File: in}
	raw := in.Stdin
	switch {
	case in.remote != nil:
		s.object = in.remote.open()
		raw = s.object
	case in.Info != nil:
		if s.local, err = os.Open(in.Path); err != nil {
			return nil, err
		}
		raw = s.local
	}
	linesOf := in.Part
	if in.Format != JSONL {
		linesOf = nil
	}
	if linesOf != nil {
		offset = linesOf.start()
		t(-int(offset)) // which decompress counts
	}
	if err = s.CheckUnchanged(); err == nil {
		err = s.decompress(raw, offset, t)
	}
	if err == nil && in.Part != nil && s.decompressor != nil {
		err = errCompressedPart
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	if linesOf != nil {
		linesOf.openLines(s)
	}
	return s, nil
}

// OpenStored opens an input without decompressing it, only for Content.
func (in *File) OpenStored() (*Stream, error) {
	s := &Stream{File: in}
	if in.remote != nil {
		return s, nil
	}
	var err error
	s.local, err = os.Open(in.Path)
	return s, err
}

// decompress sets s up to read the decompressed content of raw, starting at an offset.
func (s *Stream) decompress(raw io.Reader, offset int64, t CountWriter) error {
	buffered := bufio.NewReaderSize(raw, 1<<16)
	s.Reader = io.TeeReader(buffered, t)
	begin, err := buffered.Peek(len(tokenfile.LFSMagic))
	switch {
	case err != nil && err != io.EOF:
		return err
	case string(begin) == tokenfile.LFSMagic && !s.File.AsText:
		return errors.New("is a pointer of Git LFS, not the file itself (--as text encodes it as it is): fetch that with git lfs pull")
	}
	if s.decompressor, err = newDecompressor(begin[:min(4, len(begin))], s.Reader); err != nil {
		return err
	}
	switch {
	case s.decompressor != nil:
		s.Reader = s.decompressor
	case offset > 0 && !s.File.ReadableOnce():
		buffered.Reset(raw)
		_, err := raw.(io.Seeker).Seek(offset, io.SeekStart)
		t(int(offset))
		return err
	}
	_, err = io.CopyN(io.Discard, s.Reader, offset)
	return err
}

// CheckUnchanged returns an error if the file has changed since the input was found.
func (s *Stream) CheckUnchanged() error {
	if s.local == nil || s.File.ReadableOnce() {
		return nil
	}
	now, err := s.local.Stat()
	if err == nil && (now.Size() != s.File.Info.Size() || !now.ModTime().Equal(s.File.Info.ModTime())) {
		err = ErrChanged
	}
	return err
}

// ErrChanged says that an input is not as it was when it was found.
var ErrChanged = errors.New("changed while prepare read it: run prepare again when nothing writes to it")

// Close closes the file. It may be called again.
func (s *Stream) Close() {
	if s.decompressor != nil {
		s.decompressor.close()
	}
	if s.object != nil {
		s.object.Close()
	}
	s.local.Close() // a nil file returns an error, which does not matter
}

// Seekable returns s, or, if its content cannot be read at any offset because it is compressed or a
// pipe, a stream of an unnamed file in scratchDir to which it spools the content.
func (s *Stream) Seekable(scratchDir string) (from *Stream, spooled bool, err error) {
	if !s.File.ReadableOnce() && s.decompressor == nil {
		return s, false, nil
	}
	file, err := os.CreateTemp(scratchDir, ".parquet-")
	if err != nil {
		return nil, false, err
	}
	os.Remove(file.Name())
	if _, err := io.Copy(file, s); err != nil {
		file.Close()
		return nil, false, err
	}
	return &Stream{File: s.File, local: file}, true, nil
}

// Content returns what a stream from Seekable or OpenStored reads, and its size in bytes.
func (s *Stream) Content() (file io.ReaderAt, size int64, err error) {
	if s.local == nil {
		return &remoteReaderAt{file: s.File.remote}, s.File.remote.Size, nil
	}
	info, err := s.local.Stat()
	if err != nil {
		return nil, 0, err
	}
	return s.local, info.Size(), nil
}

// Compressed reports whether the file is compressed, so that its content can only be read in order.
func (s *Stream) Compressed() bool { return s.decompressor != nil }

// UnusualWindow returns how many bytes of content decompressing keeps in memory, if zstd(1) would
// need an option to keep as many, and otherwise 0.
func (s *Stream) UnusualWindow() int64 {
	if s.decompressor == nil || s.decompressor.window <= largeWindow {
		return 0
	}
	return s.decompressor.window
}
