package cache

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"batchfs/cache/array"
	"batchfs/cache/format"
)

// writtenBy lists the formats other than headerless that testdata/make.py writes.
var writtenBy = map[string]struct {
	name   string // file name after the a or b
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

// The same tokens are at the same positions in every format, with every access, in one file and
// across files.
func TestEveryFormatHasTheSameTokens(t *testing.T) {
	for written, of := range writtenBy {
		everyAccess(t, func(t *testing.T, o Options) {
			for _, o.Join = range []bool{false, true} {
				want := open(t, testdata(".bin"), Options{DType: array.Uint16, Join: o.Join})
				o.GuessedDType, o.Tensor = true, of.tensor
				name, _, _ := strings.Cut(written, ",")
				for _, o.Format = range []string{format.Auto, name} {
					got := open(t, testdata(of.name), o)
					if got.DType() != of.dtype || got.Len() != want.Len() || len(got.Extents()) != len(want.Extents()) || got.shards[0].format.Name != name {
						t.Fatalf("%s: %d of %s in %v, format %+v", written, got.Len(), got.DType(), got.Extents(), got.shards[0].format)
					}
					reopened(t, got, o)
					r := rand.New(rand.NewPCG(1, 2))
					for range 3 {
						ws := randomWindows(r, want.Extents())
						if got := tokensOf(t, got, ws); !reflect.DeepEqual(got, tokensOf(t, want, ws)) {
							t.Fatalf("%s: windows %v hold %v", written, ws, got)
						}
					}
				}
			}
		})
	}
}

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

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	return raw
}

func TestWrongFilesAreRejected(t *testing.T) {
	npy := func(header string) string { return fmt.Sprintf("\x93NUMPY\x01\x00%c\x00%s", len(header), header) }
	llmc := func(magic, version, tokens uint32, extra int) string {
		raw := binary.LittleEndian.AppendUint32([]byte(llmcHeader(magic, version)), tokens)
		return string(append(raw, make([]byte, 1024-len(raw)+extra)...))
	}
	tensors := func(header string, extra int) string {
		return string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + strings.Repeat("\x00", extra)
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
		{"testdata/big.npy", "", guess, `is big-endian (dtype ">u2"); rewrite it: numpy.save(FILE, a.astype("uint16"))`},
		{"testdata/fortran.npy", "", guess, "is in Fortran order (the first axis varies fastest)"},
		{"testdata/pickled.npy", "", guess, `holds pickled Python objects (dtype "|O"), not numbers; rewrite it: numpy.save(FILE, a.astype("uint32"))`},
		{"testdata/structured.npy", "", guess, "has a structured dtype; write each field to a separate file"},
		{"testdata/complex.npy", "", guess, `has dtype "<c8", but batchfs serves only [bool uint8`},
		{"testdata/scalar.npy", "", guess, "holds a single number, not an array"},
		{"testdata/none.npy", "", guess, "its shape is [0], which has no elements"},
		{"testdata/floats.npy", "", with(func(o *Options) { o.Axes = []int{4} }), "its elements have shape [3], according to the npy file itself, but shape says [4]"},
		{"testdata/floats.npy", "", with(func(o *Options) { o.GuessedDType = false }), "its numbers are float32, according to the npy file itself, but token_dtype says uint16"},
		{"testdata/floats.npy", "", Options{DType: array.Float16, AlignedArray: "mask"}, "but dtype says float16; leave dtype out"},
		{"testdata/floats.npy", "", with(func(o *Options) { o.Tensor = "x" }), `has no tensor "x": its format is npy; leave tensor out`},
		{"testdata/floats.npy", "", with(func(o *Options) { o.Format = "headerless" }), `begins like a .npy file (OLMo's do not: they are headerless), so its format is npy (got format = "headerless")`},
		{"testdata/a.bin", "", with(func(o *Options) { o.Format = "npy" }), "format is npy, but a file of that format begins like a .npy file"},
		{"testdata/a.bin", "", with(func(o *Options) { o.Format = "megatron" }), "is a .bin file with the .idx file of Megatron-LM next to it"},
		{"testdata/a.bin", "", with(func(o *Options) { o.Format = "tfrecord" }), "format must be one of auto, headerless, llm.c, megatron, npy, datatrove, safetensors"},
		{"testdata/a_text_document.idx", "", guess, "is the index of a Megatron-LM data set, not tokens; name the .bin file next to it"},
		{"testdata/a.ds.index", "", guess, "describes testdata/a.ds and holds no tokens"},
		{"testdata/a.ds.metadata", "", guess, "describes testdata/a.ds and holds no tokens"},
		{"testdata/a.safetensors", "", guess, `has several tensors: set tensor = "other", or whichever of ["other" "tokens"] it is`},
		{"testdata/a.safetensors", "", with(func(o *Options) { o.Tensor = "x" }), `has no tensor "x"; it has ["other" "tokens"]`},
		{"part.npy", "aabbccdd", guess, `is named .npy but has no header that says its dtype, like the files of OLMo; set token_dtype = "uint16"`},
		{"wide.npy", string(randomNumbers(1000, 4, 100_000)), guess, `like the files of OLMo; set token_dtype = "uint32"`},
		{"mask.bin", "aabbccdd", Options{AlignedArray: "mask"}, `has no header that says its dtype; set dtype = "uint8"`},
		{"rows.bin", "aabbccdd", with(func(o *Options) { o.Axes = []int{2} }), "has no header that says its dtype; set token_dtype = "},
		{"v4.npy", "\x93NUMPY\x04\x00\x00\x00\x00\x00", guess, "is a .npy file of version 4"},
		{"a.npy", npy("{'descr': '<u2', 'fortran_order': False, 'shape': (4,)") + "aabbccdd", guess, "its .npy header is wrong"},
		{"b.npy", npy("{'descr': '<u2', 'fortran_order': False, 'shape': (4,), } ") + "aabbcc", guess, "is cut off: its shape is [4] of uint16, but the file has only 6 bytes of data"},
		{"c.npy", npy("{'descr': '<u2', 'fortran_order': False, 'shape': (4,), } ") + "aabbccddee", guess, "has 2 bytes after its array of shape [4]"},
		{"d.npy", npy("{'descr': '<u2', 'fortran_order': False, 'shape': (4611686018427387904, 4), } ") + "aabb", guess, "is cut off: its shape"},
		{"e.npy", npy("{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,), } ") + "aabb", guess, "its .npy header is wrong"},
		{"a.bin", llmc(20240520, 2, 1, 2), guess, "is a token file of llm.c of version 2 with the magic number 20240520, but batchfs reads version 1"},
		{"b.bin", llmc(20240520, 1, 3, 4), guess, "is cut off: its shape is [3] of uint16, but the file has only 4 bytes of data"},
		{"c.bin", llmc(20240801, 7, 3, 16), guess, "has 4 bytes after its array of shape [3] of uint32"},
		{"d.bin", llmc(20240520, 1, 0, 0), guess, "its shape is [0], which has no elements"},
		{"e.bin", llmc(20240522, 1, 0, 0), guess, "is a multiple-choice evaluation of llm.c"},
		{"a.safetensors", tensors(`{"x":{"dtype":"F8_E5M2","shape":[4],"data_offsets":[0,4]}}`, 4), guess, `tensor "x" has dtype "F8_E5M2", but batchfs serves only [bool`},
		{"b.safetensors", tensors(`{"x":{"dtype":"U16","shape":[4],"data_offsets":[0,8]}}`, 7), guess, `is cut off: tensor "x" has bytes [0 8], but only 7 follow the header`},
		{"c.safetensors", tensors(`{"x":{"dtype":"U16","shape":[4],"data_offsets":[0,8]}}`, 9), guess, "has 1 bytes after its last tensor"},
		{"d.safetensors", tensors(`{"x":{"dtype":"U16","shape":[3],"data_offsets":[0,8]}}`, 8), guess, `has 2 bytes after its array of shape [3] of uint16`},
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

// What other tools write in the formats of Megatron-LM and datatrove is read, or an error says how.
func TestFormatsOfOtherTools(t *testing.T) {
	tokens := []uint32{7, 100, 65_535, 9, 8}
	for _, test := range []struct {
		name, sidecar, content string // the sidecar is next to the token file
		dtype                  array.DType
		want                   string // error; "" for none
	}{
		{"deepspeed.bin", "deepspeed.idx", megatronIndex(1, 9, 5, true), array.Uint32, ""},
		{"fairseq_u2.bin", "fairseq_u2.idx", megatronIndex(1, 8, 5, false), array.Uint16, `fairseq_u2.bin without it, set format = "headerless" and token_dtype = "uint16"`},
		{"fairseq_i4.bin", "fairseq_i4.idx", megatronIndex(1, 4, 5, false), array.Int32, `fairseq_i4.bin without it, set format = "headerless" and token_dtype = "int32"`},
		{"fairseq_u4.bin", "fairseq_u4.idx", megatronIndex(1, 9, 5, false), array.Uint32, `fairseq_u4.bin without it, set format = "headerless" and token_dtype = "uint32"`},
		{"fast.bin", "fast.idx", megatronIndex(2, 8, 5, true), array.Uint16, `another tool, such as fairseq or Fast-LLM (version 2, dtype 8); to read`},
		{"empty.bin", "empty.idx", "", array.Uint16, "empty.idx has 0 bytes, too few for an index of Megatron-LM; is it complete"},
		{"cut.bin", "cut.idx", "MMIDIDX", array.Uint16, "cut.idx has 7 bytes, too few for an index of Megatron-LM; is it complete"},
		{"other.bin", "other.idx", "another index", array.Uint16, ""},
		{"old.ds", "old.ds.metadata", "gpt2\n5\n5.00 T", array.Uint16, ""},
		{"path.ds", "path.ds.metadata", "a|b/tokenizer.json|4\n5\n5.00 T", array.Uint32, ""},
	} {
		dir := t.TempDir()
		var raw []byte
		for _, token := range tokens {
			raw = append(raw, binary.LittleEndian.AppendUint32(nil, token)[:test.dtype.Size()]...)
		}
		path := filepath.Join(dir, test.name)
		must(t, os.WriteFile(path, raw, 0o600))
		must(t, os.WriteFile(filepath.Join(dir, test.sidecar), []byte(test.content), 0o600))
		o := Options{DType: array.Uint16, GuessedDType: true}
		if test.want != "" {
			_, err := Open([]string{path}, o)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: error %v, want %s", test.name, err, test.want)
			}
			o = Options{DType: test.dtype, Format: format.Headerless}
		}
		if got := tokensOf(t, open(t, []string{path}, o), []array.Window{{Start: 0, Len: 5}}); fmt.Sprint(got) != fmt.Sprint([][]uint32{tokens}) {
			t.Errorf("%s: tokens %v, want %v", test.name, got, tokens)
		}
	}
}

// NumPy 2 lets offsets overflow in the tools of Megatron-LM, fairseq and others that compute them
// from lengths of 32 bits.
func TestOverflowInIndex(t *testing.T) {
	for _, n := range []int{3, 4, 5, 6} {
		const length = 1 << 29 // tokens of a sequence, which has 1 GiB
		path := filepath.Join(t.TempDir(), "large.bin")
		must(t, os.WriteFile(path, nil, 0o600))
		must(t, os.Truncate(path, int64(n)*2*length))
		var lengths, offsets, documents []byte
		for i := range n {
			lengths = binary.LittleEndian.AppendUint32(lengths, length)
			offsets = binary.LittleEndian.AppendUint64(offsets, uint64(int32(int64(i)*2*length)))
			documents = binary.LittleEndian.AppendUint64(documents, uint64(i))
		}
		index := binary.LittleEndian.AppendUint64([]byte("MMIDIDX\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x08"), uint64(n))
		index = binary.LittleEndian.AppendUint64(index, uint64(n)+1)
		documents = binary.LittleEndian.AppendUint64(documents, uint64(n))
		must(t, os.WriteFile(strings.TrimSuffix(path, "bin")+"idx", slices.Concat(index, lengths, offsets, documents), 0o600))
		_, err := Open([]string{path}, Options{DType: array.Uint16, GuessedDType: true})
		if want := `, to read ` + path + ` without it, set format = "headerless" and token_dtype = "uint16"`; err == nil || !strings.Contains(err.Error(), "overflowed") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%d sequences: error %v, want %s", n, err, want)
		}
	}
}

// megatronIndex returns an index with one sequence of n tokens, or a similar one without a list of
// documents.
func megatronIndex(version uint64, dtype byte, n uint32, documents bool) string {
	raw := append(binary.LittleEndian.AppendUint64([]byte("MMIDIDX\x00\x00"), version), dtype)
	raw = binary.LittleEndian.AppendUint64(raw, 1) // sequences
	if documents {
		raw = binary.LittleEndian.AppendUint64(raw, 2)
	}
	raw = append(binary.LittleEndian.AppendUint32(raw, n), make([]byte, 8)...)
	if documents {
		raw = append(raw, make([]byte, 8)...)
		raw = binary.LittleEndian.AppendUint64(raw, 1)
	}
	return string(raw)
}

// The configuration is needed only for what a file does not say about itself.
func TestWhatAFileSaysIsBelieved(t *testing.T) {
	bfloat16 := `{"x":{"dtype":"BF16","shape":[4,1,2],"data_offsets":[0,16]}}`
	for _, test := range []struct {
		path, content string
		o             Options
		want          format.Format
	}{
		{"testdata/floats.npy", "", Options{}, format.Format{Name: "npy", Offset: 128, DType: array.Float32, Axes: []int{3}, Count: 4}},
		{"testdata/floats.npy", "", Options{DType: array.Float32, Axes: []int{3}}, format.Format{Name: "npy", Offset: 128, DType: array.Float32, Axes: []int{3}, Count: 4}},
		{"testdata/a_text_document.bin", "", Options{Format: "headerless", DType: array.Int16}, format.Format{Name: "headerless", Offset: 0, DType: array.Int16, Axes: nil, Count: 100}},
		{"testdata/a.ds", "", Options{Format: "headerless", DType: array.Uint16}, format.Format{Name: "headerless", Offset: 0, DType: array.Uint16, Axes: nil, Count: 100}},
		{"olmo.npy", "aabbccdd", Options{DType: array.Uint32}, format.Format{Name: "headerless", Offset: 0, DType: array.Uint32, Axes: nil, Count: 2}},
		{"alone.ds", "aabbccdd", Options{DType: array.Uint16, GuessedDType: true}, format.Format{Name: "headerless", Offset: 0, DType: array.Uint16, Axes: nil, Count: 4}},
		{"rows.bin", "aabbccdd", Options{DType: array.BFloat16, Axes: []int{2}}, format.Format{Name: "headerless", Offset: 0, DType: array.BFloat16, Axes: []int{2}, Count: 2}},
		{"mask.bin", "aabbccdd", Options{DType: array.Bool, AlignedArray: "mask"}, format.Format{Name: "headerless", Offset: 0, DType: array.Bool, Axes: nil, Count: 8}},
		{"a.safetensors", string(binary.LittleEndian.AppendUint64(nil, uint64(len(bfloat16)))) + bfloat16 + strings.Repeat("ab", 8), Options{},
			format.Format{Name: "safetensors", Offset: 8 + int64(len(bfloat16)), DType: array.BFloat16, Axes: []int{1, 2}, Count: 4}},
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

// Tokens of every width beyond the vocabulary are found, and other bytes of the file are ignored.
func TestVocabularyWithinTheTokens(t *testing.T) {
	for _, of := range writtenBy {
		_, err := Open(testdata(of.name), Options{GuessedDType: true, Tensor: of.tensor, VocabSize: 59_401})
		must(t, err)
		_, err = Open(testdata(of.name), Options{GuessedDType: true, Tensor: of.tensor, VocabSize: 59_400})
		if want := testdata(of.name)[0] + ": token 99 is 59400"; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	_, err := Open([]string{"testdata/floats.npy"}, Options{VocabSize: 1}) // not tokens
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
