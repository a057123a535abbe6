package prepare

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// An inputFormat is what a file of documents looks like, once it is decompressed.
type inputFormat string

const (
	text    inputFormat = "text"    // one document
	jsonl   inputFormat = "jsonl"   // a document in each line
	parquet inputFormat = "parquet" // a document in each row
)

func inputFormatOf(path string) inputFormat {
	name := strings.ToLower(path)
	switch filepath.Ext(strings.TrimSuffix(strings.TrimSuffix(name, ".gz"), ".zst")) {
	case ".jsonl", ".ndjson":
		return jsonl
	case ".parquet":
		return parquet
	}
	return text
}

// An input is a file of documents, or standard input.
type input struct {
	path   string
	format inputFormat
	info   fs.FileInfo // as it was when it was found; nil for standard input
}

// once reports an input that can be read only once, such as a pipe.
func (in *input) once() bool { return in.info == nil || !in.info.Mode().IsRegular() }

// size is the number of bytes that will be read, or 0 where that is unknown.
func (in *input) size() int64 {
	if in.once() {
		return 0
	}
	return in.info.Size()
}

// sizes is the number of bytes of inputs.
func sizes(inputs []*input) (all int64) {
	for _, in := range inputs {
		all += in.size()
	}
	return all
}

// invalid reads the whole input, and reports whether it is not UTF-8.
func (in *input) invalid() (bool, error) {
	s, err := in.open(nil, 0, func(int) {})
	if err != nil {
		return false, err
	}
	defer s.Close()
	buf, kept := make([]byte, 1<<16), 0 // kept is the beginning of a character
	for {
		n, err := s.Read(buf[kept:])
		text := buf[:kept+n]
		end := runeEnd(text)
		if err == io.EOF {
			end = len(text)
		}
		switch {
		case err != nil && err != io.EOF:
			return false, err
		case !utf8.Valid(text[:end]):
			return true, nil
		case err == io.EOF:
			return false, nil
		}
		kept = copy(buf, text[end:])
	}
}

func isURL(name string) bool { return strings.Contains(name, "://") }

// findInputs resolves the arguments of the command, in their order. Files found below directories are left out unless one of the
// include patterns matches, if there are any. as is the format of all, or empty where names tell.
func findInputs(args, include []string, as inputFormat) ([]*input, error) {
	for _, pattern := range include {
		if !doublestar.ValidatePathPattern(pattern) {
			return nil, fmt.Errorf("--include %s: %w", pattern, doublestar.ErrBadPattern)
		}
	}
	var paths []string
	for _, arg := range args {
		names := []string{arg}
		// A name that exists is that file, even with a * or a [ in it.
		_, err := os.Lstat(arg)
		switch {
		case err != nil && isURL(arg):
			return nil, fmt.Errorf("%s: name files of this machine, or pipe the text to standard input: prepare reads nothing from a store", arg)
		case err != nil && strings.ContainsAny(arg, "*?["):
			if names, err = glob(arg); err != nil {
				return nil, fmt.Errorf("%s: %w", arg, err)
			}
			if len(names) == 0 {
				return nil, fmt.Errorf("%s: matches no file: check the pattern, and where it is looked for", arg)
			}
		}
		for _, name := range names {
			below, err := filesBelow(name, include)
			if err != nil {
				return nil, err
			}
			paths = append(paths, below...)
		}
	}
	inputs := make([]*input, 0, len(paths))
	seen := make(map[string]bool, len(paths))
	for _, path := range paths {
		if seen[path] {
			return nil, fmt.Errorf("%s: is named twice: name each text once", path)
		}
		seen[path] = true
		in := &input{path: path, format: as}
		if in.format == "" {
			in.format = inputFormatOf(path)
		}
		if path != "-" {
			var err error
			if in.info, err = os.Stat(path); err != nil {
				return nil, err
			}
		}
		inputs = append(inputs, in)
	}
	return inputs, nil
}

// glob returns the files and directories that a pattern matches, sorted. An element ** stands for any number of directories, or none. Names
// that begin with "." match only elements that do, as in a shell.
func glob(pattern string) ([]string, error) {
	options := []doublestar.GlobOption{doublestar.WithNoHidden(), doublestar.WithNoFollow(), doublestar.WithFailOnIOErrors()}
	if strings.Contains(pattern, "**") { // which matches the files of its directories too
		options = append(options, doublestar.WithFilesOnly())
	}
	names, err := doublestar.FilepathGlob(pattern, options...)
	names = slices.DeleteFunc(names, func(name string) bool { // to open a pipe that happens to lie there would wait for a writer
		info, err := os.Stat(name)
		return err == nil && !info.Mode().IsRegular() && !info.IsDir()
	})
	slices.Sort(names)
	return names, err
}

// filesBelow returns the regular files below a directory that are included, sorted by path, or the name itself if it is no
// directory.
func filesBelow(name string, include []string) (paths []string, err error) {
	if name == "-" {
		return []string{name}, nil
	}
	if info, err := os.Stat(name); err != nil || !info.IsDir() {
		return []string{filepath.Clean(name)}, err
	}
	root := strings.TrimSuffix(name, "/") + "/" // the slash takes WalkDir through a symbolic link
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path != root && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
		case d.Type().IsRegular() && included(strings.TrimPrefix(path, root), include):
			paths = append(paths, filepath.Clean(path))
		}
		return nil
	})
	slices.Sort(paths) // WalkDir has a/x before a.txt
	switch {
	case err == nil && len(paths) == 0 && len(include) > 0:
		err = fmt.Errorf("%s: no file below it that --include %s matches", name, strings.Join(include, " --include "))
	case err == nil && len(paths) == 0:
		err = fmt.Errorf("%s: no file below it, not counting symbolic links and names that begin with \".\"", name)
	}
	return paths, err
}

// included reports whether any of the patterns matches a path, or its last element if it has no slash.
func included(path string, patterns []string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(pattern string) bool {
		if !strings.Contains(pattern, "/") {
			pattern = "**/" + pattern
		}
		return doublestar.PathMatchUnvalidated(pattern, path)
	})
}

// digest stands for inputs as they are named, and if times, as they were last modified.
func digest(inputs []*input, times bool) string {
	h := sha256.New()
	for _, in := range inputs {
		fmt.Fprintf(h, "%s\x00%s\x00", in.path, in.format)
		if in.info != nil {
			fmt.Fprintf(h, "%d\n", in.info.Size())
		}
		if in.info != nil && times {
			fmt.Fprintf(h, "%d\n", in.info.ModTime().UnixNano())
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// A stream is an open input, decompressed.
type stream struct {
	io.Reader
	in         *input
	file       *os.File // nil for standard input
	compressed bool
	close      func() // of the decompressor
}

// A tally is told how many more bytes of an input were read.
type tally func(n int)

func (t tally) Write(b []byte) (int, error) {
	t(len(b))
	return len(b), nil
}

// open opens an input at an offset of what it holds decompressed.
func (in *input) open(stdin io.Reader, offset int64, t tally) (s *stream, err error) {
	s = &stream{in: in, close: func() {}}
	raw := stdin
	if in.info != nil {
		if s.file, err = os.Open(in.path); err != nil {
			return nil, err
		}
		raw = s.file
	}
	if err = s.unchanged(); err == nil {
		err = s.decompress(raw, offset, t)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("%s: %w", in.path, err)
	}
	return s, nil
}

// decompress lets s read what raw holds from an offset on. The first bytes tell how that is compressed: no text in UTF-8 begins
// so.
func (s *stream) decompress(raw io.Reader, offset int64, t tally) error {
	buffered := bufio.NewReaderSize(raw, 1<<16)
	in := io.TeeReader(buffered, t)
	s.Reader = in
	switch magic, err := buffered.Peek(4); {
	case err != nil && err != io.EOF:
		return err
	case string(magic) == "\x28\xb5\x2f\xfd":
		// zstd itself wants --long for a larger window: memory stays bounded. One thread keeps up with the workers.
		d, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(128<<20), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return err
		}
		s.Reader, s.compressed, s.close = d, true, d.Close
	case strings.HasPrefix(string(magic), "\x1f\x8b"):
		s.compressed = true
		if s.Reader, err = gzip.NewReader(in); err != nil {
			return err
		}
	case offset > 0 && !s.in.once():
		buffered.Reset(raw)
		_, err := s.file.Seek(offset, io.SeekStart)
		t(int(offset))
		return err
	}
	_, err := io.CopyN(io.Discard, s.Reader, offset)
	return err
}

func (s *stream) unchanged() error {
	if s.file == nil || s.in.once() {
		return nil
	}
	now, err := s.file.Stat()
	if err == nil && (now.Size() != s.in.info.Size() || !now.ModTime().Equal(s.in.info.ModTime())) {
		err = errChanged
	}
	return err
}

var errChanged = errors.New("changed while it was read: run again when nothing writes to it")

func (s *stream) Close() {
	s.close()
	s.file.Close() // a nil file gives an error, which does not matter
}
