package cache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/cache/array"
	"batchfs/cache/localfile"
	"batchfs/internal/require"
	"batchfs/internal/testwait"
)

var must = require.NoError

// tokenBytes returns n tokens, beginning with token from. In these tests, the value of token i is
// i, truncated to the width of a token.
func tokenBytes(from, n, width int) []byte {
	raw := make([]byte, 0, n*width+4)
	for i := range n {
		raw = binary.LittleEndian.AppendUint32(raw[:i*width], uint32(from+i))
	}
	return raw[:n*width]
}

// longAgo is the mtime of test files. Any later write changes it, however coarse the clock of the
// file system is.
var longAgo = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// writeFiles writes files with the given numbers of tokens, which together form one array.
func writeFiles(t testing.TB, width int, lens ...int) []string {
	t.Helper()
	dir, from, paths := t.TempDir(), 0, []string{}
	for i, n := range lens {
		path := filepath.Join(dir, fmt.Sprintf("shard%03d.bin", i))
		must(t, os.WriteFile(path, tokenBytes(from, n, width), 0o600))
		must(t, os.Chtimes(path, longAgo, longAgo))
		paths, from = append(paths, path), from+n
	}
	return paths
}

func unsignedDType(width int) array.DType {
	return map[int]array.DType{2: array.Uint16, 4: array.Uint32}[width]
}

func open(t testing.TB, paths []string, o Options) *Array {
	t.Helper()
	tokens, err := Open(paths, o)
	must(t, err)
	return tokens
}

// rounds returns n, or a fifth of it under -short.
func rounds(n int) int {
	if testing.Short() {
		return n / 5
	}
	return n
}

func everyAccess(t *testing.T, test func(t *testing.T, o Options)) {
	for _, access := range []localfile.Access{localfile.Remap, localfile.Advise, localfile.Pread} {
		for _, drop := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,drop=%v", access, drop), func(t *testing.T) {
				test(t, Options{DType: array.Uint16, Reading: localfile.Options{Access: access, DropPageCache: drop}})
			})
		}
	}
}

// readAll returns an error if a window has wrong tokens or is not visited exactly once.
func readAll(tokens *Array, ws []array.Window) error {
	seen, given := make([]int, len(ws)), slices.Clone(ws)
	err := tokens.Read(ws, func(i int, raw []byte) error {
		seen[i]++
		if w := given[i]; !bytes.Equal(raw, tokenBytes(int(w.Start), w.Len, tokens.DType().Size())) {
			return fmt.Errorf("window %+v holds %x", w, raw)
		}
		return nil
	})
	if !slices.Equal(ws, given) {
		return fmt.Errorf("windows %v became %v", given, ws)
	}
	for i, n := range seen {
		if err == nil && n != 1 {
			return fmt.Errorf("window %d of %d was visited %d times", i, len(ws), n)
		}
	}
	return err
}

func readOne(tokens *Array) error { return readAll(tokens, []array.Window{{Len: 1}}) }

// randomWindows returns up to 20 windows of up to 3000 tokens, each within one extent.
func randomWindows(r *rand.Rand, extents []array.Extent) []array.Window {
	ws := make([]array.Window, r.IntN(21))
	for i := range ws {
		extent := extents[r.IntN(len(extents))]
		n := 1 + r.Int64N(min(extent.Len, 3000))
		ws[i] = array.Window{Start: extent.Start + r.Int64N(extent.Len-n+1), Len: int(n)}
	}
	return ws
}

func TestReadAnyWindows(t *testing.T) {
	for _, lens := range [][]int{{1}, {2_000_000}, {3, 1, 1, 2, 4}, {5000, 1, 2, 1, 70_000, 3, 1}} {
		for _, width := range []int{2, 4} {
			paths := writeFiles(t, width, lens...)
			for _, join := range []bool{false, true} {
				everyAccess(t, func(t *testing.T, o Options) {
					o.DType, o.Join = unsignedDType(width), join
					opened := open(t, paths, o)
					// Concurrent readers, and those of another process, read the right tokens.
					var wg sync.WaitGroup
					for reader, tokens := range []*Array{opened, opened, opened, reopened(t, opened, o)} {
						wg.Go(func() {
							r := rand.New(rand.NewPCG(1, uint64(reader)))
							for range rounds(25) {
								if err := readAll(tokens, randomWindows(r, opened.Extents())); err != nil {
									t.Error(err)
								}
							}
						})
					}
					testwait.End(t, "the goroutines", wg.Wait)
				})
			}
		}
	}
}

func TestShape(t *testing.T) {
	paths := writeFiles(t, 2, 3, 1, 2)
	apart, joined := open(t, paths, Options{DType: array.Uint16}), open(t, paths, Options{DType: array.Uint16, Join: true})
	if got := fmt.Sprint(apart.Len(), apart.Extents()); got != fmt.Sprint(6, []array.Extent{{Name: paths[0], Start: 0, Len: 3}, {Name: paths[1], Start: 3, Len: 1}, {Name: paths[2], Start: 4, Len: 2}}) {
		t.Error(got)
	}
	if got := fmt.Sprint(joined.Len(), joined.Extents()); got != fmt.Sprint(6, []array.Extent{{Name: paths[0], Start: 0, Len: 6}}) {
		t.Error(got)
	}
	if got, want := fmt.Sprint(apart.Files()), fmt.Sprint(paths); got != want {
		t.Errorf("files %s, want %s", got, want)
	}
	for pos, want := range []string{"0 0", "0 1", "0 2", "1 0", "2 0", "2 1"} {
		var file, index int
		fmt.Sscan(want, &file, &index)
		if got, want := apart.Locate(int64(pos)), (array.Location{Path: paths[file], Index: int64(index)}); got != want {
			t.Errorf("token %d is at %v, want %v", pos, got, want)
		}
	}
}

// A read during a write could mix old and new bytes, although the stamp of the file no longer
// changes.
func TestOverwrittenFileIsRejectedUntilItsWriterCloses(t *testing.T) {
	for _, test := range []struct {
		name   string
		write  func(f *os.File) error
		reject bool
	}{
		{"overwritten", func(f *os.File) error { _, err := f.WriteAt([]byte("new"), 5); return err }, true},
		{"truncated", func(f *os.File) error { return f.Truncate(100) }, true},
		{"appended", func(f *os.File) error { _, err := f.WriteAt([]byte("newnew"), 2000); return err }, false},
		{"open", func(f *os.File) error { return nil }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			paths := writeFiles(t, 2, 10, 1000)
			was := open(t, paths, Options{DType: array.Uint16})
			f, err := os.OpenFile(paths[1], os.O_RDWR, 0)
			must(t, err)
			defer f.Close()
			must(t, test.write(f))
			if _, err := Open(paths, Options{DType: array.Uint16, Previous: was}); (err != nil) != test.reject {
				t.Errorf("error %v", err)
			}
			must(t, f.Close())
			open(t, paths, Options{DType: array.Uint16, Previous: was})
		})
	}
}

// A file that is being overwritten is rejected even if other files have come or gone before it.
func TestOverwrittenAmongOtherFiles(t *testing.T) {
	paths := writeFiles(t, 2, 10, 10, 10)
	was := open(t, paths[1:], Options{DType: array.Uint16})
	f, err := os.OpenFile(paths[2], os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte{7}, 0)
	must(t, err)
	for _, now := range [][]string{paths, paths[2:]} {
		if _, err := Open(now, Options{DType: array.Uint16, Previous: was}); err == nil || !strings.Contains(err.Error(), "is being overwritten") {
			t.Errorf("of %d files: error %v", len(now), err)
		}
	}
}

// Arrays that are no longer used keep no mappings, and neither do those that were released.
func TestMappingsGoWithTheirTokens(t *testing.T) {
	paths := writeFiles(t, 2, 10_000)
	mappings := func() int {
		maps, err := os.ReadFile("/proc/self/maps")
		must(t, err)
		return strings.Count(string(maps), paths[0])
	}
	var held []*Array
	for range 10 {
		o := Options{DType: array.Uint16, Reading: localfile.Options{Access: localfile.Advise, DropPageCache: true}}
		must(t, readOne(open(t, paths, o)))
		released := open(t, paths, o)
		must(t, readOne(released))
		released.Release()
		held = append(held, released)
	}
	testwait.Until(t, "no mapping", func() (any, bool) {
		runtime.GC()
		return mappings(), mappings() == 0
	})
	for _, tokens := range held {
		must(t, readOne(tokens))
	}
}

func TestOpenRejects(t *testing.T) {
	for _, test := range []struct {
		name string
		make func(path string) error
		want string
	}{
		{"missing", func(string) error { return nil }, "no such file"},
		{"empty", func(path string) error { return os.WriteFile(path, nil, 0o600) }, "is empty"},
		{"odd size", func(path string) error { return os.WriteFile(path, make([]byte, 5), 0o600) },
			"5 bytes are not a whole number of tokens of 2 bytes; is token_dtype right"},
		{"directory", func(path string) error { return os.Mkdir(path, 0o700) }, "is a directory"},
		{"pipe", func(path string) error { return unix.Mkfifo(path, 0o600) }, "is not a regular file"},
		{"device", func(path string) error { return os.Symlink("/dev/null", path) }, "is not a regular file"},
		{"dangling link", func(path string) error { return os.Symlink("nowhere", path) }, "no such file or directory; it is a symbolic link to nowhere: restore that file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "train.bin")
			must(t, test.make(path))
			_, err := Open(append(writeFiles(t, 2, 3), path), Options{DType: array.Uint16})
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %s and %s", err, path, test.want)
			}
		})
	}
	if _, err := Open(nil, Options{DType: array.Uint16}); err == nil {
		t.Error("no files at all were opened")
	}
	// A parser may panic at a malformed file.
	if _, err := Open(writeFiles(t, 2, 3), Options{DType: array.Uint16, Opened: func() { panic("malformed") }}); err == nil || !strings.Contains(err.Error(), "panicked: malformed") {
		t.Errorf("a panic: error %v, want one that says so", err)
	}
}

// The error about a file that does not exist says how to name it, if its path tells what was meant.
func TestMissingFiles(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "web_text_document.bin"), []byte("abcd"), 0o600))
	for name, want := range map[string]string{
		"web_text_document":             "; name the token file: " + dir + "/web_text_document.bin",
		"https:/example.com/train.bin":  "; URLs must begin with s3:// or gs://",
		"S3://bucket/train.bin":         "; URLs must begin with s3:// or gs://",
		"a.bin,b.bin":                   `; write a list of files as ["a.bin", "b.bin"]`,
		"web_text_document.bin/tokens,": "not a directory",
		"other":                         "no such file or directory",
	} {
		_, err := Open([]string{dir + "/" + name}, Options{DType: array.Uint16})
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error()[strings.Index(err.Error(), name):], want) {
			t.Errorf("%s: error %v, want %s", name, err, want)
		}
	}
}

func TestChangedFileIsStale(t *testing.T) {
	const n = 5000
	for _, test := range []struct {
		name   string
		change func(path string) error
		want   string
	}{
		{"truncated", func(path string) error { return os.Truncate(path, 100) }, "100 bytes, was 10000"},
		{"emptied", func(path string) error { return os.Truncate(path, 0) }, "0 bytes, was 10000"},
		{"appended", func(path string) error { return os.Truncate(path, 10002) }, "10002 bytes, was 10000"},
		{"overwritten", func(path string) error { return os.WriteFile(path, make([]byte, 2*n), 0o600) }, "written to at "},
		{"touched", func(path string) error { return os.Chtimes(path, longAgo, longAgo.Add(1)) }, "written to at 2020-01-01T00:00:00.000000001Z"},
		{"replaced", func(path string) error { return replace(path, make([]byte, 2*n)) }, "another file is in its place"},
		{"replaced by a shorter one", func(path string) error { return replace(path, nil) }, "0 bytes, was 10000"},
		{"gone", os.Remove, "no such file"},
		{"replaced by a pipe", func(path string) error {
			return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600))
		}, "0 bytes, was 10000"},
	} {
		t.Run(test.name, func(t *testing.T) {
			everyAccess(t, func(t *testing.T, o Options) {
				paths := writeFiles(t, 2, 10, n)
				fresh, used := open(t, paths, o), open(t, paths, o)
				again := reopened(t, used, o)
				second := func() []array.Window { return []array.Window{{Start: n, Len: 10}} }
				must(t, readAll(used, second()))
				must(t, test.change(paths[1]))
				errno := error(syscall.ESTALE)
				if test.name == "gone" {
					errno = syscall.ENOENT
				}
				for _, tokens := range []*Array{fresh, used, again} {
					for _, err := range []error{readAll(tokens, second()), tokens.checkAll()} {
						if !errors.Is(err, errno) || !strings.Contains(err.Error(), paths[1]) || !strings.Contains(err.Error(), test.want) {
							t.Errorf("error %v, want %v, %s and %s", err, errno, paths[1], test.want)
						}
					}
				}
			})
		})
	}
}

// replace puts another file with the same mtime at path.
func replace(path string, raw []byte) error {
	other := path + ".new"
	return errors.Join(os.WriteFile(other, raw, 0o600), os.Chtimes(other, longAgo, longAgo), os.Rename(other, path))
}

var sink byte

// The process survives when a file is truncated under its mapping: pages beyond the new end raise
// SIGBUS, and the rest of its last page has zeros.
func TestTruncatedWhileItIsRead(t *testing.T) {
	for _, size := range []int64{0, 4096, 5000, 65536, 199_998} {
		everyAccess(t, func(t *testing.T, o Options) {
			paths := writeFiles(t, 2, 100_000)
			tokens := open(t, paths, o)
			err := tokens.Read([]array.Window{{Len: 100_000}}, func(_ int, raw []byte) error {
				must(t, os.Truncate(paths[0], size))
				for _, b := range bytes.Clone(raw) {
					sink += b
				}
				return nil
			})
			if !errors.Is(err, syscall.ESTALE) || !strings.Contains(err.Error(), fmt.Sprintf("%d bytes, was 200000", size)) {
				t.Errorf("cut to %d bytes: error %v, want ESTALE", size, err)
			}
		})
	}
}

func TestVisitEndsTheRead(t *testing.T) {
	everyAccess(t, func(t *testing.T, o Options) {
		o.Join = true
		tokens := open(t, writeFiles(t, 2, 5, 5), o)
		enough := errors.New("enough")
		for _, ws := range [][]array.Window{{{Start: 0, Len: 2}, {Start: 1, Len: 2}}, {{Start: 4, Len: 3}, {Start: 5, Len: 2}}} {
			visits := 0
			err := tokens.Read(ws, func(int, []byte) error { visits++; return enough })
			if err != enough || visits != 1 {
				t.Errorf("error %v after %d visits", err, visits)
			}
		}
	})
}

// BlobsOf yields each file once, however many windows use it.
func TestBlobsOfWindows(t *testing.T) {
	for _, n := range []int{3, 64, 65, 500} {
		paths := writeFiles(t, 2, slices.Repeat([]int{10}, n)...)
		tokens := open(t, paths, Options{DType: array.Uint16, Join: true})
		series := NewSeries()
		var got []string
		for _, start := range []int{0, 5, 16, 1, 8, 0, 10*n - 5} {
			for file := range tokens.BlobsOf(array.Window{Start: int64(start), Len: 3}, series) {
				got = append(got, file.Path())
			}
		}
		if want := []string{paths[0], paths[1], paths[n-1]}; !slices.Equal(got, want) {
			t.Errorf("%d files: got %q, want %q", n, got, want)
		}
	}
}

// An array is cut at the nearest position that is a multiple of block bytes in a file, counting its
// header, or a boundary between files.
func TestCut(t *testing.T) {
	for _, paths := range [][]string{
		writeFiles(t, 2, 50, 1, 33), {"testdata/a_llmc.bin", "testdata/b_llmc.bin"}, {"testdata/a1.npy", "testdata/b1.npy"},
	} {
		a, err := Open(paths, Options{DType: array.Uint16, Reading: localfile.Options{Access: localfile.Pread}})
		must(t, err)
		for _, block := range []int64{1, 2, 7, 64, 1024, 1000, 1 << 20} {
			// at is in bytes from the first element of the array
			type cut struct{ at, end, begin int64 }
			var cuts []cut
			for i := range a.shards {
				s := &a.shards[i]
				for at := range s.format.Count*a.elementBytes + 1 {
					if at == 0 || at == s.format.Count*a.elementBytes || (s.format.Offset+at)%block == 0 {
						end := s.start + at/a.elementBytes
						begin := end
						if at%a.elementBytes > 0 {
							begin++
						}
						cuts = append(cuts, cut{s.start*a.elementBytes + at, end, begin})
					}
				}
			}
			for pos := range a.Len() + 1 {
				distance := func(c cut) int64 { return max(c.at-pos*a.elementBytes, pos*a.elementBytes-c.at) }
				want := slices.MinFunc(cuts, func(a, b cut) int { return int(distance(a) - distance(b)) })
				if end, begin := a.Cut(pos, block); end != want.end || begin != want.begin {
					t.Errorf("%s: cut at %d in blocks of %d, got %d and %d, want %d and %d", paths[0], pos, block, end, begin, want.end, want.begin)
				}
			}
		}
	}
}

func (a *Array) checkAll() error {
	for file := range a.Blobs() {
		if err := file.Check(); err != nil {
			return err
		}
	}
	return nil
}
