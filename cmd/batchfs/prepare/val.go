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
	fraction float64 // fraction of the documents that belong to val
	start    int64   // offset at which val begins in a single text; if 0, hashes choose documents
}

// valKey precedes what is hashed, so that the selection is independent of other hashes of a text.
const valKey = "batchfs: documents for val\x00"

// valBytes is the number of bytes at the beginning of a document that are hashed.
const valBytes = 1 << 16

// has reports whether the document at an offset of an input belongs to val. If the hash decides, it
// depends on nothing but the text: adding or renaming files moves no document to another split, and
// copies of a text are in the same split.
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

// hasIDs is like has, but for documents of ids. tokens are the bytes that the token file gets. The
// writer of the Python package makes the same selection.
func (v valRule) hasIDs(in *input, tokens []byte) bool {
	if in.val || v.fraction == 0 {
		return in.val
	}
	hash, _ := blake2b.New(8, nil)
	hash.Write(tokens)
	return binary.LittleEndian.Uint64(hash.Sum(nil)) < uint64(math.Ceil(v.fraction*0x1p64))
}
