package format

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"batchfs/cache/array"
)

// What testdata/make.py wrote in each format, besides headerless.
var writtenBy = map[string]struct {
	name   string // behind a or b
	tensor string
	dtype  array.DType
}{
	"llm.c":          {"_llmc.bin", "", array.Uint16},
	"llm.c, Llama 3": {"_llama3.bin", "", array.Uint32},
	"npy, version 1": {"1.npy", "", array.Uint16},
	"npy, version 2": {"2.npy", "", array.Uint16},
	"npy, version 3": {"3.npy", "", array.Uint16},
	"safetensors":    {".safetensors", "tokens", array.Uint16},
	"megatron":       {"_text_document.bin", "", array.Uint16},
	"datatrove":      {".ds", "", array.Uint16},
}

func testdata(name string) []string {
	return []string{filepath.Join("../testdata", "a"+name), filepath.Join("../testdata", "b"+name)}
}

// A file that lost its end, or got another, is no file of its format.
func TestEveryFormatKnowsItsLength(t *testing.T) {
	for format, of := range writtenBy {
		path := testdata(of.name)[0]
		besides := map[string][]byte{}
		beside := map[string]string{"megatron": "../testdata/a_text_document.idx", "datatrove": "../testdata/a.ds.metadata"}[format]
		if beside != "" {
			besides[beside] = readFile(t, beside)
		}
		name, _, _ := strings.Cut(format, ",")
		o := Options{Format: name, Tensor: of.tensor}
		whole := readFile(t, path)
		for size := range len(whole) + 9 {
			_, err := inMemory(path, append(slices.Clone(whole), "otherend"...)[:size], o, besides).Format()
			if (err == nil) != (size == len(whole)) || err != nil && !strings.Contains(err.Error(), path) {
				t.Errorf("%s: with %d bytes of %d: %v", format, size, len(whole), err)
			}
		}
		if beside == "" {
			continue
		}
		index := besides[beside]
		for size := range len(index) + 9 {
			besides[beside] = append(slices.Clone(index), "otherend"...)[:size]
			f, err := inMemory(path, whole, o, besides).Format()
			if same := size == len(index) || format == "datatrove" && f.Count == 100; (err == nil) != same { // the last line of metadata is for people
				t.Errorf("%s: with %d bytes of %d of %s: %v", format, size, len(index), beside, err)
			}
		}
	}
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	return raw
}

// inMemory is an input of bytes, with others beside it by their suffixes.
func inMemory(path string, raw []byte, o Options, besides map[string][]byte) *Input {
	in := &Input{Path: path, Size: int64(len(raw)), Content: bytes.NewReader(raw), Options: o}
	in.Beside = func(path string) (*Input, error) {
		raw, ok := besides[path]
		if !ok {
			return nil, nil
		}
		return inMemory(path, raw, Options{}, nil), nil
	}
	return in
}

// seed adds the files of testdata that end in some name to a corpus.
func seed(f *testing.F, add func(raw []byte), pattern string) {
	paths, err := filepath.Glob(filepath.Join("../testdata", pattern))
	must(f, err)
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		must(f, err)
		add(raw)
	}
	if len(paths) == 0 {
		f.Fatalf("no %s", pattern)
	}
}

// parsed finds the format of an input, in which the elements lie within the file.
func parsed(t *testing.T, in *Input) {
	f, err := in.Format()
	if err != nil {
		if err.Error() == "" || errorIsOfMachine(err) {
			t.Errorf("error %q", err)
		}
		return
	}
	if f.Name == "" || f.Name == Auto || f.Fits(in.Path, in.Size) != nil || f.end() > in.Size {
		t.Errorf("%+v in %d bytes", f, in.Size)
	}
}

// errorIsOfMachine reports whether an error is one of reading behind the end.
func errorIsOfMachine(err error) bool { return strings.Contains(err.Error(), io.EOF.Error()) }

func FuzzNpy(f *testing.F) {
	seed(f, func(raw []byte) { f.Add(raw) }, "*.npy")
	f.Fuzz(func(t *testing.T, raw []byte) {
		parsed(t, inMemory("a.npy", raw, Options{}, nil))
		parsed(t, inMemory("a.npy", append([]byte("\x93NUMPY\x01\x00"), raw...), Options{}, nil))
	})
}

func FuzzLLMC(f *testing.F) {
	seed(f, func(raw []byte) { f.Add(raw) }, "*_ll*.bin")
	f.Fuzz(func(t *testing.T, raw []byte) {
		parsed(t, inMemory("a.bin", raw, Options{DType: array.Uint16, GuessedDType: true}, nil))
	})
}

func FuzzSafetensors(f *testing.F) {
	seed(f, func(raw []byte) { f.Add(raw, "tokens") }, "*.safetensors")
	f.Fuzz(func(t *testing.T, raw []byte, tensor string) {
		parsed(t, inMemory("a", raw, Options{DType: array.Uint16, GuessedDType: true, Tensor: tensor}, nil))
		if len(raw) > 10 { // with the length of its header right
			raw = append(binary.LittleEndian.AppendUint64(nil, uint64(len(raw)-10)), raw...)
			parsed(t, inMemory("a", raw, Options{DType: array.Uint16, GuessedDType: true}, nil))
		}
	})
}

func FuzzMegatron(f *testing.F) {
	seed(f, func(raw []byte) { f.Add(raw, 200) }, "*.idx")
	f.Fuzz(func(t *testing.T, idx []byte, size int) {
		if size < 0 || size > 1<<16 {
			return
		}
		parsed(t, inMemory("a.bin", make([]byte, size), Options{DType: array.Uint16}, map[string][]byte{"a.idx": idx}))
		_, ends, err := inMemory("a.idx", idx, Options{}, nil).megatron("a.bin", int64(size))
		if err == nil {
			must(t, ends.Fits("a.idx", int64(len(idx))))
		}
	})
}

func FuzzDatatrove(f *testing.F) {
	seed(f, func(raw []byte) { f.Add(raw, 200) }, "*.metadata")
	f.Fuzz(func(t *testing.T, metadata []byte, size int) {
		if size >= 0 && size <= 1<<16 {
			parsed(t, inMemory("a.ds", make([]byte, size), Options{DType: array.Uint16, GuessedDType: true}, map[string][]byte{"a.ds.metadata": metadata}))
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
