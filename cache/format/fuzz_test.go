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
	"batchfs/internal/require"
)

var must = require.NoError

// A file that is too short or too long is rejected in every format.
func TestEveryFormatKnowsItsLength(t *testing.T) {
	for _, of := range []struct{ format, name, sidecar string }{
		{"llm.c", "a_llmc.bin", ""}, {"llm.c", "a_llama3.bin", ""}, {"npy", "a1.npy", ""}, {"npy", "a2.npy", ""}, {"npy", "a3.npy", ""},
		{"safetensors", "a.safetensors", ""}, {"megatron", "a_text_document.bin", "a_text_document.idx"}, {"datatrove", "a.ds", "a.ds.metadata"},
	} {
		path, format, sidecars := "../testdata/"+of.name, of.format, map[string][]byte{}
		sidecar := "../testdata/" + of.sidecar
		if of.sidecar != "" {
			sidecars[sidecar] = readFile(t, sidecar)
		}
		o := Options{Format: format}
		if format == "safetensors" {
			o.Tensor = "tokens"
		}
		whole := readFile(t, path)
		for size := range len(whole) + 9 {
			_, err := newInput(path, append(slices.Clone(whole), "otherend"...)[:size], o, sidecars).Format()
			if (err == nil) != (size == len(whole)) || err != nil && !strings.Contains(err.Error(), path) {
				t.Errorf("%s: with %d bytes of %d: %v", format, size, len(whole), err)
			}
		}
		if of.sidecar == "" {
			continue
		}
		index := sidecars[sidecar]
		for size := range len(index) + 9 {
			sidecars[sidecar] = append(slices.Clone(index), "otherend"...)[:size]
			f, err := newInput(path, whole, o, sidecars).Format()
			// the last line of datatrove's metadata is ignored
			if same := size == len(index) || format == "datatrove" && f.Count == 100; (err == nil) != same {
				t.Errorf("%s: with %d bytes of %d of %s: %v", format, size, len(index), sidecar, err)
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

// newInput returns an Input in memory. sidecars holds other files, by path.
func newInput(path string, raw []byte, o Options, sidecars map[string][]byte) *Input {
	in := &Input{Path: path, Size: int64(len(raw)), Content: bytes.NewReader(raw), Options: o}
	in.OpenSidecar = func(path string) (*Input, error) {
		raw, ok := sidecars[path]
		if !ok {
			return nil, nil
		}
		return newInput(path, raw, Options{}, nil), nil
	}
	return in
}

// seed adds files of testdata to a corpus.
func seed(f *testing.F, add func(raw []byte), pattern string) {
	paths, err := filepath.Glob(filepath.Join("../testdata", pattern))
	must(f, err)
	for _, path := range paths {
		add(readFile(f, path))
	}
	if len(paths) == 0 {
		f.Fatalf("no %s", pattern)
	}
}

// checkParsed checks that in has no format, or one whose elements lie within the file.
func checkParsed(t *testing.T, in *Input) {
	f, err := in.Format()
	if err != nil {
		// an unexplained error, or a read beyond the end
		if err.Error() == "" || strings.Contains(err.Error(), io.EOF.Error()) {
			t.Errorf("error %q", err)
		}
		return
	}
	if f.Name == "" || f.Name == Auto || f.CheckFits(in.Path, in.Size) != nil || f.Offset+f.Count*f.Numbers()*int64(f.DType.Size()) > in.Size {
		t.Errorf("%+v in %d bytes", f, in.Size)
	}
}

func FuzzNpy(f *testing.F) {
	seed(f, func(raw []byte) { f.Add(raw) }, "*.npy")
	f.Fuzz(func(t *testing.T, raw []byte) {
		checkParsed(t, newInput("a.npy", raw, Options{}, nil))
		checkParsed(t, newInput("a.npy", append([]byte("\x93NUMPY\x01\x00"), raw...), Options{}, nil))
	})
}

func FuzzLLMC(f *testing.F) {
	seed(f, func(raw []byte) { f.Add(raw) }, "*_ll*.bin")
	f.Fuzz(func(t *testing.T, raw []byte) {
		checkParsed(t, newInput("a.bin", raw, Options{DType: array.Uint16, GuessedDType: true}, nil))
	})
}

func FuzzSafetensors(f *testing.F) {
	seed(f, func(raw []byte) { f.Add(raw, "tokens") }, "*.safetensors")
	f.Fuzz(func(t *testing.T, raw []byte, tensor string) {
		checkParsed(t, newInput("a", raw, Options{DType: array.Uint16, GuessedDType: true, Tensor: tensor}, nil))
		if len(raw) > 10 { // also with the right header length
			raw = append(binary.LittleEndian.AppendUint64(nil, uint64(len(raw)-10)), raw...)
			checkParsed(t, newInput("a", raw, Options{DType: array.Uint16, GuessedDType: true}, nil))
		}
	})
}

func FuzzMegatron(f *testing.F) {
	seed(f, func(raw []byte) { f.Add(raw, 200) }, "*.idx")
	f.Fuzz(func(t *testing.T, idx []byte, size int) {
		if size < 0 || size > 1<<16 {
			return
		}
		checkParsed(t, newInput("a.bin", make([]byte, size), Options{DType: array.Uint16}, map[string][]byte{"a.idx": idx}))
		_, ends, err := newInput("a.idx", idx, Options{}, nil).megatron("a.bin", int64(size))
		if err == nil {
			must(t, ends.CheckFits("a.idx", int64(len(idx))))
		}
	})
}

func FuzzDatatrove(f *testing.F) {
	seed(f, func(raw []byte) { f.Add(raw, 200) }, "*.metadata")
	f.Fuzz(func(t *testing.T, metadata []byte, size int) {
		if size >= 0 && size <= 1<<16 {
			checkParsed(t, newInput("a.ds", make([]byte, size), Options{DType: array.Uint16, GuessedDType: true}, map[string][]byte{"a.ds.metadata": metadata}))
		}
	})
}
