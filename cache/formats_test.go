package cache

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
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
	return []string{filepath.Join("testdata", "a"+name), filepath.Join("testdata", "b"+name)}
}

// Whatever the format, the same tokens are at the same positions, by every access, in one file and across files.
func TestEveryFormatHasTheSameTokens(t *testing.T) {
	for format, of := range writtenBy {
		everyAccess(t, func(t *testing.T, o Options) {
			for _, o.Join = range []bool{false, true} {
				want := open(t, testdata(".bin"), Options{DType: array.Uint16, Join: o.Join})
				o.GuessedDType, o.Tensor = true, of.tensor
				name, _, _ := strings.Cut(format, ",")
				for _, o.Format = range []string{AutoFormat, name} {
					got := open(t, testdata(of.name), o)
					if got.DType() != of.dtype || got.Len() != want.Len() || len(got.Runs()) != len(want.Runs()) || got.shards[0].format.Name != name {
						t.Fatalf("%s: %d of %s in %v, format %+v", format, got.Len(), got.DType(), got.Runs(), got.shards[0].format)
					}
					again := reopened(t, got, o)
					if !reflect.DeepEqual(again.Manifest(), got.Manifest()) {
						t.Errorf("%s: %+v is not %+v", format, again.Manifest(), got.Manifest())
					}
					r := rand.New(rand.NewPCG(1, 2))
					for range 3 {
						ws := anyWindows(r, want.Runs())
						if got := tokensOf(t, got, ws); !reflect.DeepEqual(got, tokensOf(t, want, ws)) {
							t.Fatalf("%s: windows %v hold %v", format, ws, got)
						}
					}
				}
			}
		})
	}
}

// tokensOf are the tokens of windows.
func tokensOf(t *testing.T, a *Array, ws []array.Window) [][]uint64 {
	all := make([][]uint64, len(ws))
	must(t, a.Read(ws, func(i int, raw []byte) error {
		for size := a.DType().Size(); len(raw) > 0; raw = raw[size:] {
			all[i] = append(all[i], binary.LittleEndian.Uint64(append(slices.Clone(raw[:size]), make([]byte, 8)...)))
		}
		return nil
	}))
	return all
}

// A file that lost its end, or got another, is no file of its format.
func TestEveryFormatKnowsItsLength(t *testing.T) {
	for format, of := range writtenBy {
		path := testdata(of.name)[0]
		besides := map[string][]byte{}
		beside := map[string]string{"megatron": "testdata/a_text_document.idx", "datatrove": "testdata/a.ds.metadata"}[format]
		if beside != "" {
			besides[beside] = readFile(t, beside)
		}
		name, _, _ := strings.Cut(format, ",")
		o := Options{Format: name, Tensor: of.tensor}
		whole := readFile(t, path)
		for size := range len(whole) + 9 {
			_, err := inMemory(path, append(slices.Clone(whole), "otherend"...)[:size], o, besides).format()
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
			f, err := inMemory(path, whole, o, besides).format()
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

// Every wrong file is refused, with what it is and what helps.
func TestWrongFilesAreRefused(t *testing.T) {
	npy := func(header string) string { return fmt.Sprintf("\x93NUMPY\x01\x00%c\x00%s", len(header), header) }
	llmc := func(magic, version, tokens uint32, behind int) string {
		raw := binary.LittleEndian.AppendUint32([]byte(header(magic, version)), tokens)
		return string(append(raw, make([]byte, 1024-len(raw)+behind)...))
	}
	tensors := func(header string, behind int) string {
		return string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + strings.Repeat("\x00", behind)
	}
	guess := Options{DType: array.Uint16, GuessedDType: true}
	with := func(change func(*Options)) Options {
		o := guess
		change(&o)
		return o
	}
	for _, test := range []struct {
		name, content string
		o             Options
		want          string
	}{
		{"testdata/big.npy", "", guess, `is big-endian (dtype ">u2"); write it anew: numpy.save(FILE, a.astype("uint16"))`},
		{"testdata/fortran.npy", "", guess, "is in Fortran order (the first axis varies fastest)"},
		{"testdata/pickled.npy", "", guess, `holds pickled Python objects (dtype "|O")`},
		{"testdata/structured.npy", "", guess, "has a structured dtype; write each field of it to a file of its own"},
		{"testdata/complex.npy", "", guess, `has dtype "<c8", and batchfs serves [bool uint8`},
		{"testdata/scalar.npy", "", guess, "holds a single number, not an array"},
		{"testdata/none.npy", "", guess, "its shape is [0], which has no elements"},
		{"testdata/floats.npy", "", with(func(o *Options) { o.Axes = []int{4} }), "its elements have shape [3], as the file says, whose format is npy, but shape says [4]"},
		{"testdata/floats.npy", "", with(func(o *Options) { o.GuessedDType = false }), "its numbers are float32, as the file says, whose format is npy, but token_dtype says uint16"},
		{"testdata/floats.npy", "", Options{DType: array.Float16, Beside: "mask"}, "but dtype says float16; leave dtype out"},
		{"testdata/floats.npy", "", with(func(o *Options) { o.Tensor = "x" }), `has no tensor "x": its format is npy; leave tensor out`},
		{"testdata/floats.npy", "", with(func(o *Options) { o.Format = "headerless" }), `begins as a .npy file does (OLMo's do not: they are headerless), so its format is npy (got format = "headerless")`},
		{"testdata/a.bin", "", with(func(o *Options) { o.Format = "npy" }), "format is npy, but a file of that format begins as a .npy file does"},
		{"testdata/a.bin", "", with(func(o *Options) { o.Format = "megatron" }), "is a .bin file that has its .idx of Megatron-LM beside it"},
		{"testdata/a.bin", "", with(func(o *Options) { o.Format = "tfrecord" }), "format must be one of auto, headerless, llm.c, megatron, npy, datatrove, safetensors"},
		{"testdata/a_text_document.idx", "", guess, "is the index of a Megatron-LM data set, not tokens; name the .bin file beside it"},
		{"testdata/a.ds.index", "", guess, "describes testdata/a.ds and holds no tokens"},
		{"testdata/a.ds.metadata", "", guess, "describes testdata/a.ds and holds no tokens"},
		{"testdata/a.safetensors", "", guess, `has several tensors: say tensor = "other", or which of ["other" "tokens"] it is`},
		{"testdata/a.safetensors", "", with(func(o *Options) { o.Tensor = "x" }), `has no tensor "x"; it has ["other" "tokens"]`},
		{"part.npy", "aabbccdd", guess, `is named .npy but has no header that says its dtype, as OLMo's files have none; say token_dtype = "uint16"`},
		{"mask.bin", "aabbccdd", Options{Beside: "mask"}, `has no header that says its dtype; say dtype = "uint8"`},
		{"rows.bin", "aabbccdd", with(func(o *Options) { o.Axes = []int{2} }), "has no header that says its dtype; say token_dtype = "},
		{"v4.npy", "\x93NUMPY\x04\x00\x00\x00\x00\x00", guess, "is a .npy file of version 4"},
		{"a.npy", npy("{'descr': '<u2', 'fortran_order': False, 'shape': (4,)") + "aabbccdd", guess, "its .npy header is wrong"},
		{"b.npy", npy("{'descr': '<u2', 'fortran_order': False, 'shape': (4,), } ") + "aabbcc", guess, "is cut off: its shape is [4] of uint16, and the file has 6 bytes for that"},
		{"c.npy", npy("{'descr': '<u2', 'fortran_order': False, 'shape': (4,), } ") + "aabbccddee", guess, "has 2 bytes behind its array of shape [4]"},
		{"d.npy", npy("{'descr': '<u2', 'fortran_order': False, 'shape': (4611686018427387904, 4), } ") + "aabb", guess, "is cut off: its shape"},
		{"e.npy", npy("{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,), } ") + "aabb", guess, "its .npy header is wrong"},
		{"a.bin", llmc(20240520, 2, 1, 2), guess, "is a token file of llm.c of version 2 with the number 20240520, where batchfs knows version 1"},
		{"b.bin", llmc(20240520, 1, 3, 4), guess, "is cut off: its header says 3 tokens of 2 bytes, and there are 4 bytes for them"},
		{"c.bin", llmc(20240801, 7, 3, 16), guess, "has bytes behind its tokens: its header says 3 tokens of 4 bytes, and there are 16"},
		{"d.bin", llmc(20240520, 1, 0, 0), guess, "its header says that it has no tokens"},
		{"e.bin", llmc(20240522, 1, 0, 0), guess, "is a multiple-choice evaluation of llm.c"},
		{"a.safetensors", tensors(`{"x":{"dtype":"F8_E5M2","shape":[4],"data_offsets":[0,4]}}`, 4), guess, `tensor "x" has dtype "F8_E5M2", and batchfs serves [bool`},
		{"b.safetensors", tensors(`{"x":{"dtype":"U16","shape":[4],"data_offsets":[0,8]}}`, 7), guess, `is cut off: tensor "x" has bytes [0 8], and behind the header there are 7`},
		{"c.safetensors", tensors(`{"x":{"dtype":"U16","shape":[4],"data_offsets":[0,8]}}`, 9), guess, "has 1 bytes behind its last tensor"},
		{"d.safetensors", tensors(`{"x":{"dtype":"U16","shape":[3],"data_offsets":[0,8]}}`, 8), guess, `tensor "x" has shape [3] of U16 and 8 bytes`},
		{"e.safetensors", tensors(`{"x":{"dtype":"U16","shape":[],"data_offsets":[0,2]}}`, 2), guess, "holds a single number"},
		{"f.safetensors", tensors(`{"__metadata__":{"a":"b"}}`, 0), guess, "has no tensors"},
		{"g.safetensors", tensors(`{"x":{"dtype":"U16","shape":[4611686018427387904,8],"data_offsets":[0,8]}}`, 8), guess, "is cut off: its shape"},
	} {
		path := test.name
		if test.content != "" {
			path = filepath.Join(t.TempDir(), test.name)
			must(t, os.WriteFile(path, []byte(test.content), 0o600))
		}
		_, err := Open([]string{path}, test.o)
		if err == nil || !strings.Contains(err.Error(), path) && !strings.Contains(err.Error(), "format must") || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %s", test.name, err, test.want)
		}
	}
}

// What a file says by itself need not be said, and what it does not say is believed.
func TestWhatAFileSaysIsBelieved(t *testing.T) {
	bfloat16 := `{"x":{"dtype":"BF16","shape":[4,1,2],"data_offsets":[0,16]}}`
	for _, test := range []struct {
		path, content string
		o             Options
		want          Format
	}{
		{"testdata/floats.npy", "", Options{}, Format{"npy", 128, array.Float32, []int{3}, 4}},
		{"testdata/floats.npy", "", Options{DType: array.Float32, Axes: []int{3}}, Format{"npy", 128, array.Float32, []int{3}, 4}},
		{"testdata/a_text_document.bin", "", Options{Format: "headerless", DType: array.Int16}, Format{"headerless", 0, array.Int16, nil, 100}},
		{"testdata/a.ds", "", Options{Format: "headerless", DType: array.Uint16}, Format{"headerless", 0, array.Uint16, nil, 100}},
		{"olmo.npy", "aabbccdd", Options{DType: array.Uint32}, Format{"headerless", 0, array.Uint32, nil, 2}},
		{"alone.ds", "aabbccdd", Options{DType: array.Uint16, GuessedDType: true}, Format{"headerless", 0, array.Uint16, nil, 4}},
		{"rows.bin", "aabbccdd", Options{DType: array.BFloat16, Axes: []int{2}}, Format{"headerless", 0, array.BFloat16, []int{2}, 2}},
		{"mask.bin", "aabbccdd", Options{DType: array.Bool, Beside: "mask"}, Format{"headerless", 0, array.Bool, nil, 8}},
		{"a.safetensors", string(binary.LittleEndian.AppendUint64(nil, uint64(len(bfloat16)))) + bfloat16 + strings.Repeat("ab", 8), Options{},
			Format{"safetensors", 8 + int64(len(bfloat16)), array.BFloat16, []int{1, 2}, 4}},
	} {
		path := test.path
		if test.content != "" {
			path = filepath.Join(t.TempDir(), test.path)
			must(t, os.WriteFile(path, []byte(test.content), 0o600))
		}
		a := open(t, []string{path}, test.o)
		if got := a.shards[0].format; !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, want %+v", test.path, got, test.want)
		}
	}
}

// Files of different formats, dtypes or shapes are no array.
func TestMixedFilesAreRefused(t *testing.T) {
	for _, test := range []struct{ a, b, want string }{
		{"a.bin", "b_llmc.bin", "testdata/b_llmc.bin: its format is llm.c, that of testdata/a.bin is headerless; make them one"},
		{"a1.npy", "b.ds", "testdata/b.ds: its format is datatrove, that of testdata/a1.npy is npy"},
		{"a_llmc.bin", "b_llama3.bin", "testdata/b_llama3.bin: its numbers are uint32, those of testdata/a_llmc.bin are uint16"},
	} {
		_, err := Open([]string{"testdata/" + test.a, "testdata/" + test.b}, Options{DType: array.Uint16, GuessedDType: true})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s and %s: error %v, want %s", test.a, test.b, err, test.want)
		}
	}
}

// Tokens beyond the vocabulary are found within the tokens only, of any width.
func TestVocabularyWithinTheTokens(t *testing.T) {
	for _, of := range writtenBy {
		_, err := Open(testdata(of.name), Options{GuessedDType: true, Tensor: of.tensor, VocabSize: 59_401})
		must(t, err)
		_, err = Open(testdata(of.name), Options{GuessedDType: true, Tensor: of.tensor, VocabSize: 59_400})
		if want := testdata(of.name)[0] + ": token 99 is 59400"; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	_, err := Open([]string{"testdata/floats.npy"}, Options{VocabSize: 1}) // no tokens
	must(t, err)
	for _, dtype := range array.DTypes() {
		if !dtype.IsInteger() {
			continue
		}
		path := filepath.Join(t.TempDir(), "train.bin")
		raw := bytes.Repeat(append([]byte{99}, make([]byte, dtype.Size()-1)...), 100)
		must(t, os.WriteFile(path, raw, 0o600))
		open(t, []string{path}, Options{DType: dtype, VocabSize: 100})
		for i := range dtype.Size() {
			raw[7*dtype.Size()+i] = 0xff
		}
		must(t, os.WriteFile(path, raw, 0o600))
		want := fmt.Sprintf("token 7 is %d, and tokens must be below vocab_size", uint64(1)<<(8*dtype.Size())-1)
		if strings.HasPrefix(string(dtype), "int") {
			want = "token 7 is -1, and"
		}
		if _, err := Open([]string{path}, Options{DType: dtype, VocabSize: 100}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", dtype, err, want)
		}
	}
}

// inMemory is an input of bytes, with others beside it by their suffixes.
func inMemory(path string, raw []byte, o Options, besides map[string][]byte) *input {
	in := &input{path: path, size: int64(len(raw)), content: bytes.NewReader(raw), o: o}
	in.beside = func(path string) (*input, error) {
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
	paths, err := filepath.Glob(filepath.Join("testdata", pattern))
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
func parsed(t *testing.T, in *input) {
	f, err := in.format()
	if err != nil {
		if err.Error() == "" || errorIsOfMachine(err) {
			t.Errorf("error %q", err)
		}
		return
	}
	if f.Name == "" || f.Name == AutoFormat || f.fits(in.path, in.size) != nil || f.end() > in.size {
		t.Errorf("%+v in %d bytes", f, in.size)
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
			must(t, ends.fits("a.idx", int64(len(idx))))
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
