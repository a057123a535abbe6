package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"batchfs/cache/array"
)

// An Inspection is what the blocks of a file show that the fingerprint covers: whether they can be what the file is said to hold.
type Inspection struct {
	Path      string
	Format    Format
	Guessed   bool  // the dtype of Format is a guess
	VocabSize int64 // tokens are below it; 0 where the numbers are no tokens

	beyond *array.VocabularyError
	bytes  int  // looked at
	binary bool // some byte is in no text
	narrow bool // not every second uint16 is small
	// Of the uint16 numbers at bytes 0, 2, 4 and 6 of every 8.
	least, most [4]uint16
}

const minContent = 512 // bytes that show what a file is, where nothing but their values does

const (
	maxUpper = 15     // of the upper halves of uint32 tokens: there is no vocabulary of more than a million
	negative = 0xffff // the upper half of -1, or of -100: what stands for no token in int32 files
)

// Visit inspects the bytes from off on.
func (s *Inspection) Visit(off int64, block []byte) {
	if s.beyond == nil && s.VocabSize > 0 {
		s.beyond = s.findBeyond(off, block)
	}
	if s.Guessed {
		s.binary = s.binary || bytes.ContainsFunc(block, func(r rune) bool { return r < ' ' && !strings.ContainsRune("\t\n\f\r", r) })
		s.measure(off, block)
		s.bytes += len(block)
	}
}

func (s *Inspection) findBeyond(off int64, block []byte) *array.VocabularyError {
	f := s.Format
	size := int64(f.DType.Size())
	index := (max(off-f.Offset, 0) + size - 1) / size
	for ; index < f.Count; index++ {
		at := f.Offset + index*size - off
		if at+size > int64(len(block)) {
			break
		}
		if v := f.DType.Bits(block[at:]); v >= uint64(s.VocabSize) {
			return &array.VocabularyError{Location: array.Location{Path: s.Path, Index: index}, Token: s.Format.DType.Text(v), Size: s.VocabSize}
		}
	}
	return nil
}

func (s *Inspection) measure(off int64, block []byte) {
	if s.bytes == 0 {
		s.least = [4]uint16{0xffff, 0xffff, 0xffff, 0xffff}
	}
	for at := int(off % 2); at+2 <= len(block) && !s.narrow; at += 2 {
		v, lane := binary.LittleEndian.Uint16(block[at:]), (off+int64(at))/2%4
		if lane%2 == 1 && v == negative {
			continue
		}
		s.least[lane], s.most[lane] = min(s.least[lane], v), max(s.most[lane], v)
		s.narrow = lane%2 == 1 && v > maxUpper
	}
}

// Err is nil, or says why the file cannot be what it is said to be.
func (s *Inspection) Err() error {
	judged := s.Guessed && s.bytes >= minContent
	switch {
	case judged && !s.binary:
		return fmt.Errorf("%s is text, not tokens: batchfs prepare %[1]s --out DIR makes tokens of it; "+
			"if it does hold tokens, say token_dtype = %q", s.Path, s.Format.DType)
	case judged && s.Format.DType == array.Uint16 && s.wide():
		looksLike, fix := "a file of uint32 tokens", `say token_dtype = "uint32"`
		if s.most[2]|s.most[3] == 0 {
			looksLike, fix = "a file of int64 tokens", `say token_dtype = "int64"`
		}
		return fmt.Errorf(`%s: every second uint16 is at most %d, as in %s: %s; if these are uint16 tokens, say token_dtype = "uint16"`,
			s.Path, max(s.most[1], s.most[3]), looksLike, fix)
	case s.beyond != nil:
		return s.beyond
	}
	return nil
}

// wide says whether the numbers look like the halves of larger ones: each second one is small and always the same, or small
// next to the others.
func (s *Inspection) wide() bool {
	same := func(lanes ...int) bool {
		return !slices.ContainsFunc(lanes, func(i int) bool { return s.least[i] != s.most[i] || s.most[i] != s.most[lanes[0]] })
	}
	return !s.narrow && !same(0, 2) && (same(1, 3) || max(s.most[0], s.most[2]) > 0xff)
}

// magics are the first bytes of files that hold no headerless tokens, what such a file is, and what helps.
var magics = []struct{ first, is string }{
	{"\x8a\xd8\x34\x01", "a multiple-choice evaluation of llm.c, not a stream of tokens"},
	{"TNTIDX\x00\x00", "the index of an old fairseq or Megatron-LM data set, not tokens; name the .bin file beside it, and say its token_dtype"},
	{megatronMagic, "the index of a Megatron-LM data set, not tokens; name the .bin file beside it"},
	{"\x1f\x8b\x08", "compressed with gzip; decompress it: gunzip FILE"},
	{"\x28\xb5\x2f\xfd", "compressed with zstd; decompress it: unzstd FILE"},
	{"\xfd7zXZ\x00", "compressed with xz; decompress it: unxz FILE"},
	{"BZh91AY&SY", "compressed with bzip2; decompress it: bunzip2 FILE"},
	{"\x04\x22\x4d\x18", "compressed with lz4; decompress it: unlz4 FILE"},
	{"PK\x03\x04", "a zip archive, as .npz and .pt files are, not tokens; write the elements of an array in it alone, as NumPy's tofile does"},
	{"7z\xbc\xaf\x27\x1c", "a 7z archive, not tokens; extract the files"},
	{"PAR1", "a Parquet file, not tokens; batchfs prepare makes tokens of its column of text, which --field names; write a column of tokens alone, as NumPy's tofile does"},
	{"ARROW1\x00\x00", "an Arrow file, not headerless tokens; write its column of tokens alone, as NumPy's tofile does"},
	{"\x89HDF\r\n\x1a\n", "an HDF5 file, not headerless tokens; write a data set of it alone, as NumPy's tofile does"},
	{"SQLite format 3\x00", "an SQLite database, not tokens"},
	{"GGUF", "a GGUF file of model weights, not tokens"},
	{"\x7fELF", "a program (ELF), not tokens"},
	{"%PDF-", "a PDF document, not tokens"},
	{"version https://git-lfs.github.com/spec/v1", "a pointer of Git LFS, not the file itself; fetch that: git lfs pull"},
	{"<!DOCTYPE html", "an HTML page, not tokens; did a download go wrong?"},
	{"<html", "an HTML page, not tokens; did a download go wrong?"},
}

// formatOf says what a file is that begins with these bytes, and what helps, or returns "" where they may be tokens.
func formatOf(first []byte) string {
	for _, magic := range magics {
		if bytes.HasPrefix(first, []byte(magic.first)) {
			return magic.is
		}
	}
	switch {
	case len(first) > 262 && string(first[257:262]) == "ustar":
		return "a tar archive, not tokens; extract the files"
	case len(first) > 11 && (string(first[:3]) == "\x80\x04\x95" || string(first[:3]) == "\x80\x05\x95") && string(first[8:11]) == "\x00\x00\x00":
		return "a Python pickle, not headerless tokens; write the array in it alone, as NumPy's tofile does"
	}
	return ""
}
