package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"batchfs/cache/array"
	"batchfs/internal/printable"
)

// An Inspection checks whether sampled blocks of a file may hold its elements. It belongs to one
// goroutine.
type Inspection struct {
	Path      string
	Format    Format
	Guessed   bool  // whether the dtype is only a guess
	VocabSize int64 // all tokens are below it; 0 if unknown, or if there are no tokens
	// Size is the size of the file in bytes if its end is to be inspected, because the file is
	// headerless only by default. Otherwise, it is 0.
	Size int64

	foreign        string // description of the file by its end; empty if that may be tokens
	badToken       *array.VocabularyError
	inspectedBytes int
	notText        bool // whether a byte occurs that text does not contain
	maxByte        byte // maximum, or the first byte above maxSmall
	bytesVary      bool // whether some block has different bytes
	// nonZero counts bytes other than 0 at even and odd positions, until maxByte exceeds maxSmall.
	nonZero   [2]int
	notHalves bool // whether some uint16 at an odd position exceeds maxUpper
	// minima and maxima are the extremes of the uint16 at bytes 0, 2, 4 and 6 of every 8.
	minima, maxima [4]uint16
}

const minContent = 512 // bytes needed to judge a file by its values alone

const (
	// maxSmall is the maximum byte of what seems to be small uint8 tokens. If uint16 tokens exceed
	// 255, their lower bytes take all values.
	maxSmall = 127
	maxUpper = 15     // maximum upper half of uint32 tokens: no vocabulary exceeds a million
	negative = 0xffff // upper half of -1 and -100, which mean "no token" in int32 files
)

// Visit inspects the block at byte off of the file.
func (s *Inspection) Visit(off int64, block []byte) {
	if s.Size > 0 && off+int64(len(block)) == s.Size {
		s.foreign = describeEnd(block, s.Size)
	}
	if s.badToken == nil && s.VocabSize > 0 {
		s.badToken = s.findBadToken(off, block)
	}
	if s.Guessed {
		s.notText = s.notText || bytes.ContainsFunc(block, func(r rune) bool { return r < ' ' && !strings.ContainsRune("\t\n\f\r", r) })
		s.trackBytes(off, block)
		s.trackExtremes(off, block)
		s.inspectedBytes += len(block)
	}
}

// findBadToken returns an error for the first token in a block that is not in the vocabulary.
func (s *Inspection) findBadToken(off int64, block []byte) *array.VocabularyError {
	f := s.Format
	size := int64(f.DType.Size())
	index := (max(off-f.Offset, 0) + size - 1) / size
	for ; index < f.Count; index++ {
		pos := f.Offset + index*size - off
		if pos+size > int64(len(block)) {
			break
		}
		if v := f.DType.Bits(block[pos:]); v >= uint64(s.VocabSize) {
			return &array.VocabularyError{Location: array.Location{Path: s.Path, Index: index}, Token: s.Format.DType.Text(v), Size: s.VocabSize}
		}
	}
	return nil
}

// trackBytes updates maxByte, bytesVary and nonZero.
func (s *Inspection) trackBytes(off int64, block []byte) {
	for i := 0; i < len(block) && s.maxByte <= maxSmall; i++ {
		s.maxByte = max(s.maxByte, block[i])
		s.bytesVary = s.bytesVary || block[i] != block[0]
		if block[i] > 0 {
			s.nonZero[(off+int64(i))%2]++
		}
	}
}

// looksNarrower reports whether the numbers look like pairs of small uint8 tokens: all bytes are
// small, they vary, and those at even and odd positions are 0 about equally often.
func (s *Inspection) looksNarrower() bool {
	even, odd := s.nonZero[0], s.nonZero[1]
	return s.maxByte <= maxSmall && s.bytesVary && 2*even > odd && 2*odd > even
}

// trackExtremes updates minima, maxima and notHalves.
func (s *Inspection) trackExtremes(off int64, block []byte) {
	if s.inspectedBytes == 0 {
		s.minima = [4]uint16{0xffff, 0xffff, 0xffff, 0xffff}
	}
	for pos := int(off % 2); pos+2 <= len(block) && !s.notHalves; pos += 2 {
		v, lane := binary.LittleEndian.Uint16(block[pos:]), (off+int64(pos))/2%4
		if lane%2 == 1 && v == negative {
			continue
		}
		s.minima[lane], s.maxima[lane] = min(s.minima[lane], v), max(s.maxima[lane], v)
		s.notHalves = lane%2 == 1 && v > maxUpper
	}
}

// Err returns nil, or says why the file cannot hold the elements.
func (s *Inspection) Err() error {
	judged := s.Guessed && s.inspectedBytes >= minContent
	switch {
	case s.foreign != "":
		return fmt.Errorf("%s is %s", s.Path, s.foreign)
	case judged && !s.notText:
		return fmt.Errorf("%s is text, not tokens: batchfs prepare %s --out DIR tokenizes it; "+
			"if it does hold tokens, set token_dtype = %q", s.Path, printable.ShellArg(s.Path), s.Format.DType)
	case judged && s.Format.DType == array.Uint16 && s.looksNarrower() && s.widerDType() == "":
		return fmt.Errorf(`%s: no byte is above %d, as in a file of uint8 tokens: set token_dtype = "uint8"; if these are uint16 tokens, `+
			`set token_dtype = "uint16"`, s.Path, s.maxByte)
	case judged && s.Format.DType == array.Uint16 && s.widerDType() != "":
		return fmt.Errorf(`%s: every second uint16 is at most %d, as in a file of %s tokens: set token_dtype = %[3]q; `+
			`if these are uint16 tokens, set token_dtype = "uint16"`, s.Path, max(s.maxima[1], s.maxima[3]), s.widerDType())
	case s.badToken != nil:
		return s.badToken
	}
	return nil
}

// widerDType returns the dtype that the uint16 seem to be parts of, or "" if they look like tokens.
func (s *Inspection) widerDType() array.DType {
	switch {
	case s.inspectedBytes < minContent || !s.looksWider():
		return ""
	case s.maxima[2]|s.maxima[3] == 0:
		return array.Int64
	}
	return array.Uint32
}

// looksWider reports whether the numbers look like halves of larger ones: every second one is small
// and either constant or small compared with the others, and the others vary.
func (s *Inspection) looksWider() bool {
	same := func(lanes ...int) bool {
		return !slices.ContainsFunc(lanes, func(i int) bool { return s.minima[i] != s.maxima[i] || s.maxima[i] != s.maxima[lanes[0]] })
	}
	return !s.notHalves && !same(0, 2) && (same(1, 3) || max(s.maxima[0], s.maxima[2]) > 0xff)
}
