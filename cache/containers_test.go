package cache

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"batchfs/cache/array"
	"batchfs/cache/format"
)

// tokensThatTellNothing returns uint16 tokens, in bytes, that look like no other kind of file.
func tokensThatTellNothing(r *rand.Rand, n int) []byte {
	var raw []byte
	for range n {
		raw = binary.LittleEndian.AppendUint16(raw, uint16(100+r.IntN(50_000)))
	}
	return raw
}

func openBytes(t *testing.T, name string, raw []byte, o Options) (*Array, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, raw, 0o600))
	return Open([]string{path}, o)
}

var headerlessOptions = []Options{
	{DType: array.Uint16, GuessedDType: true}, {DType: array.Uint16}, {DType: array.Uint8, AlignedArray: "mask"}, {DType: array.Uint16, Format: format.Headerless},
}

// Files of other kinds are refused by their beginning, whatever the configuration says.
func TestContainersByBeginning(t *testing.T) {
	u32 := func(numbers ...uint32) (text string) {
		for _, n := range numbers {
			text += string(binary.LittleEndian.AppendUint32(nil, n))
		}
		return text
	}
	schema := "\x10\x00\x00\x00\x00\x00\x0a\x00\x0c\x00\x06\x00\x05\x00\x08\x00\x0a\x00\x00\x00\x00\x01\x04\x00\x0c\x00\x00\x00" + strings.Repeat("\x00", 92)
	length := string(binary.LittleEndian.AppendUint64(nil, 900))
	sum := crc32.Checksum([]byte(length), crc32.MakeTable(crc32.Castagnoli))
	r := rand.New(rand.NewPCG(1, 2))
	for _, test := range []struct{ beginning, want string }{
		{"\xff\xff\xff\xff" + u32(uint32(len(schema))) + schema, "an Arrow stream"},
		{u32(uint32(len(schema))) + schema, "an Arrow stream"},
		{u32(0x184d2a50, 4, 7) + "\x28\xb5\x2f\xfd", "compressed with zstd or lz4"},
		{u32(0x184d2a5e, 0) + "\x04\x22\x4d\x18", "compressed with zstd or lz4"},
		{u32(0x184d2a53, 4, 7, 0x184d2a50, 4, 7) + "\x28\xb5\x2f\xfd", "compressed with zstd or lz4"},
		{u32(0x184d2a51, 2000-8), "compressed with zstd or lz4"},
		{length + u32((sum>>15|sum<<17)+0xa282ead8), "a TFRecord file"},
		{u32(2, 16, 60, 2000), "a shard of LitData"},
		{u32(1, 200, 2000) + `{"version":2}`, "MosaicML"},
		{u32(20240326, 3, 1024), "a model of llm.c"}, {u32(20240327, 2, 4), "the expected results of a model of llm.c"}, {u32(20240328, 2, 50257), "a tokenizer of llm.c"},
		{"LDFZ01\x00\x00" + u32(1, 14), "a compressed chunk of LitData"},
		{"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f" + u32(0, 0, 64), "an ArrayRecord file"},
		{"LITPKDS" + u32(1, 0), "a packed dataset of LitGPT or TinyLlama"},
		{u32(800, 0, 2) + strings.Repeat("\x07\x01", 400) + "\x80\x04\x95\x50\x00\x00\x00\x00\x00\x00\x00]", "a packed dataset of Modalities"},
		{"BZh11AY&SY", "compressed with bzip2"}, {"BZh91AY&SY", "compressed with bzip2"},
		{"PK\x05\x06", "a zip archive"}, {"PARE", "a Parquet file"}, {"FEA1\x00\x00\x00\x00", "an Arrow file"}, {"ORC\x0a\x04", "an ORC file"}, {"ORC\x08\x01", "an ORC file"}, {"Obj\x01", "an Avro file"},
		{"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a file of torch.save"}, {"\x80\x03cnumpy.core.multiarray\n_reconstruct\nq\x00", "a Python pickle"}, {"\x80\x02c__builtin__\nset\nq\x00", "a Python pickle"}, {"\x80\x03carray\n_array_reconstructor\nq", "a Python pickle"}, {"\x80\x04\x95\x50\x00\x00\x00\x00\x00\x00\x00", "a Python pickle"},
		{"\x1f\x9d\x90", "compressed with compress"}, {"\x5d\x00\x00\x80\x00" + strings.Repeat("\xff", 8), "compressed with lzma"},
		{"MATLAB 5.0 MAT-file, Platform: GLNXA64", "a MATLAB file"}, {"MATLAB 7.3 MAT-file, Platform: GLNXA64", "a MATLAB file"}, {"CDF\x02", "a NetCDF file"},
		{"\x89PNG\r\n\x1a\n", "an image"}, {"\xff\xd8\xff\xe0\x00\x10JFIF\x00", "an image"}, {"RIFF\xd0\x07\x00\x00WAVEfmt ", "sound"}, {"\x00\x00\x00\x01Bud1", ".DS_Store"},
		{string(binary.LittleEndian.AppendUint64(nil, 2)) + "{}", "has no tensors"},
	} {
		raw := append([]byte(test.beginning), tokensThatTellNothing(r, 1000)...)[:2000]
		for _, name := range []string{"train.bin", "train", "a.gz", "a.safetensors"} {
			for _, o := range headerlessOptions {
				_, err := openBytes(t, name, raw, o)
				if o.Format == format.Headerless && test.want == "has no tensors" {
					continue // the format contradicts the file
				}
				if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%.12q in %s with %+v: error %v, want %s", test.beginning, name, o, err, test.want)
				}
			}
		}
	}
}

// Beyond 4 GiB, the offsets in a chunk of LitData wrap around.
func TestLargeChunkOfLitData(t *testing.T) {
	path := filepath.Join(t.TempDir(), "chunk-0-0.bin")
	var raw []byte
	for _, n := range []uint32{2, 16, 60, 2000} {
		raw = binary.LittleEndian.AppendUint32(raw, n)
	}
	must(t, os.WriteFile(path, raw, 0o600))
	must(t, os.Truncate(path, 4<<30+2000))
	if _, err := Open([]string{path}, headerlessOptions[0]); err == nil || !strings.Contains(err.Error(), "a shard of LitData") {
		t.Errorf("error %v", err)
	}
}

// Files whose beginning is lost are refused by their end.
func TestContainersByEnd(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for end, want := range map[string]string{
		"\x40\x00\x00\x00PAR1": "a Parquet file", "\x40\x00\x00\x00PARE": "a Parquet file", "\x40\x00\x00\x00ARROW1": "an Arrow file",
		"PK\x05\x06" + strings.Repeat("\x00", 18): "a zip archive", "\x01\x00\x00\x00\x00\xb1\xea\x92\x8f": "compressed with zstd",
		"\xff\xff\xff\xffPAR1": "", "PAR1": "",
	} {
		raw := tokensThatTellNothing(r, 20_000+r.IntN(20_000))
		raw = append(raw[:len(raw)-len(end)], end...)
		for _, o := range headerlessOptions {
			_, err := openBytes(t, "train.bin", raw, o)
			if refused := want != "" && o.Format != format.Headerless; (err != nil) != refused || refused && !strings.Contains(err.Error(), want) {
				t.Errorf("a file that ends in %q, with %+v: error %v, want %q", end, o, err, want)
			}
		}
	}
}

// A file that is named like another kind of file is headerless only if the configuration says so.
func TestContainersByName(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for extension := range strings.FieldsSeq(".safetensors .npz .arrow .feather .parquet .orc .avro .h5 .hdf5 .tfrecord .mds .gz .tgz .tar.gz .zst .xz .bz2 .lz4 .zip .7z .tar " +
		".pt .pth .ckpt .pkl .pickle .gguf .txt .md .json .jsonl .csv .html .GZ .Parquet .bin.zst .idx " +
		".arrows .lance .array_record .arrayrecord .mat .nc .msgpack .pb .gzip .joblib .dill .model .db .index .metadata .png .jpg .wav .mp4 .htm .ipynb .md5") {
		for _, n := range []int{1, 4, 300, 5000} {
			raw := tokensThatTellNothing(r, n)
			for _, o := range headerlessOptions {
				_, err := openBytes(t, "train"+extension, raw, o)
				last := extension[strings.LastIndexByte(extension, '.'):]
				want := "train" + extension + " is named " + last + ", "
				if o.Format == format.Headerless {
					must(t, err)
				} else if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `set format = "headerless"`) {
					t.Errorf("%d tokens in train%s with %+v: error %v, want %s", n, extension, o, err, want)
				}
			}
		}
	}
	for _, o := range headerlessOptions[1:] {
		for _, name := range []string{"train.npy", "train.NPY"} {
			_, err := openBytes(t, name, tokensThatTellNothing(r, 300), o)
			must(t, err)
			if _, err := openBytes(t, name, tokensThatTellNothing(r, 300), headerlessOptions[0]); err == nil || !strings.Contains(err.Error(), "has no header") {
				t.Errorf("%s without token_dtype: error %v", name, err)
			}
		}
	}
}

// The header of a safetensors file may contain white space wherever JSON allows it.
func TestBlanksInSafetensors(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	data := tokensThatTellNothing(r, 300)
	line := fmt.Sprintf(`{"ids":{"dtype":"U16","shape":[300],"data_offsets":[0,%d]}}`, len(data))
	var indented bytes.Buffer
	must(t, json.Indent(&indented, []byte(line), "\t", "  "))
	blank := func() (text string) {
		for range r.IntN(4) {
			text += string(" \t\r\n"[r.IntN(4)])
		}
		return text
	}
	headers := []string{line, indented.String(), strings.Repeat(" ", 3000) + line, strings.Repeat("\n", 4088) + line, strings.Repeat(" \t", 5000) + line}
	for range 100 {
		header := blank()
		for _, c := range line {
			if strings.ContainsRune(`{}[],:`, c) {
				header += blank() + string(c) + blank()
			} else {
				header += string(c)
			}
		}
		headers = append(headers, header)
	}
	for _, header := range headers {
		raw := slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), []byte(header), data)
		for _, name := range []string{"a.safetensors", "a.bin"} {
			a, err := openBytes(t, name, raw, Options{DType: array.Uint16, GuessedDType: true})
			if err != nil || a.shards[0].format.Name != "safetensors" || a.Len() != 300 {
				t.Fatalf("%q: %v", header, err)
			}
		}
	}
	for _, header := range []string{"{}", " {\n}\t", "tensors:", "[]", "", `{"ids"`} {
		raw := slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), []byte(header), data)
		if _, err := openBytes(t, "a.safetensors", raw, Options{DType: array.Uint16, GuessedDType: true}); err == nil || !strings.Contains(err.Error(), "a.safetensors") {
			t.Errorf("%q: error %v", header, err)
		}
	}
	for _, length := range []uint64{1 << 20, 1 << 40, 1<<64 - 1} {
		raw := slices.Concat(binary.LittleEndian.AppendUint64(nil, length), []byte(line), data)
		if _, err := openBytes(t, "a.safetensors", raw, Options{DType: array.Uint16, GuessedDType: true}); err == nil || !strings.Contains(err.Error(), "a.safetensors") {
			t.Errorf("a header of %d bytes: error %v", length, err)
		}
	}
}

// Tokens are not taken for other files, even if they begin with one number that is common there.
func TestTokensAreNotContainers(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for range 300 {
		raw := tokensThatTellNothing(r, 500+r.IntN(500))
		copy(raw, []string{"", "\xff\xff\xff\xff", "\xff\xff\xff\xff\x78\x00\x00\x00\x10\x00\x00\x00", "\x50\x2a\x4d\x18\x04\x00\x00\x00", "\x80\x02", "\x02\x00\x00\x00\x10\x00\x00\x00", "BZh9"}[r.IntN(7)])
		if _, err := openBytes(t, "train.bin", raw, Options{DType: array.Uint16}); err != nil {
			t.Errorf("%x: %v", raw[:32], err)
		}
	}
}
