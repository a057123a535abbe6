package prepare

import (
	"crypto/sha256"
	"encoding/binary"
	"math"

	"golang.org/x/crypto/blake2b"
)

// A valRule decides which documents belong to val. The reader applies it to texts, because the
// pieces of a long text must stay together. The encoders apply it to lines and rows, because only
// they know the texts of these.
type valRule struct {
	fraction float64 // of the documents
	start    int64   // offset of val in a single text; 0 if each document is chosen by its hash
}

// valKey makes the selection of val independent of other uses of the hash.
const valKey = "batchfs: documents for val\x00"

const valBytes = 1 << 16 // bytes of a document that the selection depends on

// has reports whether the document at an offset of an input belongs to val. Because only the
// beginning of its text matters, adding or renaming files moves no document, and copies of a text
// are in the same split.
func (v valRule) has(in *input, offset int64, text []byte) bool {
	switch {
	case in.val:
		return true
	case v.start > 0:
		return offset >= v.start
	case v.fraction == 0:
		return false
	}
	sum := sha256.Sum256(append([]byte(valKey), text[:min(len(text), valBytes)]...))
	return float64(binary.BigEndian.Uint64(sum[:])>>11)/(1<<53) < v.fraction
}

// hasIDs is like has for the tokens of a document, as they are written. It chooses like the Python
// package's writer.
func (v valRule) hasIDs(in *input, tokens []byte) bool {
	if in.val || v.fraction == 0 {
		return in.val
	}
	hash, _ := blake2b.New(8, nil)
	hash.Write(tokens)
	return binary.LittleEndian.Uint64(hash.Sum(nil)) < uint64(math.Ceil(v.fraction*0x1p64))
}
