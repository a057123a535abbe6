package cache

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/cache/array"
	"batchfs/cache/localfile"
)

// randomNumbers returns n numbers below most, of width bytes each.
func randomNumbers(n, width, limit int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	var raw []byte
	for range n {
		raw = append(raw, binary.LittleEndian.AppendUint64(nil, random.Uint64N(uint64(limit)))[:width]...)
	}
	return raw
}

// Open rejects a file that certainly does not hold tokens, with a diagnosis and a fix. If the dtype
// is not a guess, it rejects only files that begin like another format.
func TestOpenInspectsTheContent(t *testing.T) {
	after := func(first string) []byte { return append([]byte(first), randomNumbers(5000, 2, 50_000)...) }
	const narrow = `as in a file of uint8 tokens: set token_dtype = "uint8"; if these are uint16 tokens, set token_dtype = "uint16"`
	const wide = `set token_dtype = "uint32"; if these are uint16 tokens, set token_dtype = "uint16"`
	text := []byte(strings.Repeat("First Citizen:\nBefore we proceed any further, hear me speak. Où?\n", 20))
	for name, test := range map[string]struct {
		raw     []byte
		want    string // error if the dtype is a guess; "": none
		believe bool   // whether the file is accepted if the dtype is not a guess
	}{
		"tokens":                {randomNumbers(40_000, 2, 50_257), "", true},
		"characters":            {randomNumbers(40_000, 2, 65), "", true},
		"bases":                 {randomNumbers(40_000, 2, 4), "", true},
		"bits":                  {randomNumbers(40_000, 2, 2), "", true},
		"zeros":                 {make([]byte, 1<<20), "", true},
		"ones":                  {bytes.Repeat([]byte{1, 0}, 5000), "", true},
		"few":                   {randomNumbers(100, 4, 65), "", true},
		"uint32 characters":     {randomNumbers(40_000, 4, 65), wide, true},
		"uint32 of GPT-2":       {randomNumbers(40_000, 4, 50_257), "every second uint16 is at most 0, as in a file of uint32 tokens: " + wide, true},
		"uint32 of Llama 3":     {randomNumbers(400_000, 4, 128_256), "every second uint16 is at most 1, as in a file of uint32 tokens: " + wide, true},
		"uint32 from one on":    {bytes.Repeat([]byte{7, 0, 1, 0, 8, 0, 1, 0}, 5000), wide, true},
		"int64":                 {randomNumbers(40_000, 8, 50_257), `as in a file of int64 tokens: set token_dtype = "int64"; if`, true},
		"uint8 characters":      {randomNumbers(40_000, 1, 65), narrow, true},
		"uint8 bases":           {randomNumbers(40_000, 1, 5), narrow, true},
		"all the same":          {bytes.Repeat([]byte{1}, 10_000), "", true},
		"all 256":               {bytes.Repeat([]byte{0, 1}, 5000), "", true},
		"bytes with EOT":        {bytes.Repeat([]byte{65, 0, 66, 0, 67, 0, 0, 1}, 5000), "", true},
		"uint8 bytes":           {randomNumbers(40_000, 1, 256), "", true}, // cannot be recognized
		"text":                  {text, "is text, not tokens: batchfs prepare", true},
		"npy":                   {after("\x93NUMPY\x01\x00v\x00"), ".npy header is wrong", false},
		"llm.c":                 {after(llmcHeader(20240520, 1)), "is cut off: its shape is", false},
		"llm.c for Llama 3":     {after(llmcHeader(20240801, 7)), "of uint32, but the file has only 8984 bytes of data", false},
		"evaluation of llm.c":   {after(llmcHeader(20240522, 1)), "is a multiple-choice evaluation of llm.c", false},
		"index of Megatron-LM":  {after("MMIDIDX\x00\x00\x01"), "name the .bin file next to it", false},
		"gzip":                  {after("\x1f\x8b\x08\x00"), "compressed with gzip; decompress it: gunzip FILE", false},
		"zstd":                  {after("\x28\xb5\x2f\xfd"), "compressed with zstd", false},
		"xz":                    {after("\xfd7zXZ\x00"), "compressed with xz", false},
		"zip":                   {after("PK\x03\x04"), "is a zip archive", false},
		"Parquet":               {after("PAR1"), "is a Parquet file", false},
		"HDF5":                  {after("\x89HDF\r\n\x1a\n"), "is an HDF5 file", false},
		"ELF":                   {after("\x7fELF\x02\x01"), "is a program (ELF)", false},
		"PDF":                   {after("%PDF-1.7\n"), "is a PDF document", false},
		"pickle":                {after("\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00"), "is a Python pickle", false},
		"pickle of protocol 5":  {after("\x80\x05\x95\x10\x00\x00\x00\x00\x00\x00\x00"), "is a Python pickle", false},
		"int32 with -100":       {bytes.Repeat([]byte{7, 1, 0, 0, 9, 0, 0, 0, 0x9c, 0xff, 0xff, 0xff}, 5000), wide, true},
		"safetensors":           {after("\x40\x00\x00\x00\x00\x00\x00\x00{\"x\":"), "safetensors header is wrong", false},
		"tar":                   {after(strings.Repeat("\x00", 257) + "ustar\x00"), "is a tar archive", false},
		"Git LFS":               {[]byte("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n"), "git lfs pull", false},
		"HTML":                  {after("<!DOCTYPE html>\n"), "is an HTML page", false},
		"a first token of gzip": {after("\x1f\x8b\x07\x00"), "", true},
	} {
		path := filepath.Join(t.TempDir(), "train.bin")
		must(t, os.WriteFile(path, test.raw[:len(test.raw)&^1], 0o600))
		for _, guessed := range []bool{true, false} {
			_, err := Open([]string{path}, Options{DType: array.Uint16, Reading: localfile.Options{Access: localfile.Remap}, GuessedDType: guessed})
			switch want := test.want; {
			case want == "" || test.believe && !guessed:
				if err != nil {
					t.Errorf("%s, guessed %v: %v", name, guessed, err)
				}
			case err == nil || !strings.HasPrefix(err.Error(), path) || !strings.Contains(err.Error(), want):
				t.Errorf("%s, guessed %v: error %v, want %s", name, guessed, err, want)
			}
		}
	}
}

// llmcHeader returns the first two numbers of a header.
func llmcHeader(magic, version uint32) string {
	return string(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, magic), version))
}
