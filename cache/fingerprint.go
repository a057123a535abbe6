package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"path/filepath"

	"batchfs/cache/localfile"
)

// A Fingerprint covers the name, the size and a sample of the content of each file that [Open] adds, in the order of the calls. It is not
// safe for concurrent use.
type Fingerprint struct {
	sum    io.Writer // a hash; or a buffer, for a file that is added to the hash later
	blocks int64     // of each file
}

// NewFingerprint returns an empty fingerprint. files is how many files [Open] will add: the more there are, the less is sampled of each.
func NewFingerprint(files int) *Fingerprint {
	return &Fingerprint{sha256.New(), int64(max(2, 64/max(files, 1)))} // few enough to open terabytes at once
}

// String is the fingerprint of the files added so far in 32 hexadecimal digits: the first half of the SHA-256 of, for each
// file, its base name and a zero byte, its size as a little-endian uint64, and blocks of its content: with n = max(2, 64 div
// files), n blocks of 4096 bytes, of which the i-th begins at byte floor((size-4096)*i/(n-1)), or the whole file if it is no
// larger than n blocks.
func (f *Fingerprint) String() string { return hex.EncodeToString(f.sum.(hash.Hash).Sum(nil)[:16]) }

// add adds a file, shows what it covers of the content to look, and returns that sample. The error is one of reading the file.
func (f *Fingerprint) add(path string, size int64, content io.ReaderAt, visit func(off int64, block []byte)) (localfile.Sample, error) {
	f.sum.Write(append([]byte(filepath.Base(path)), 0))
	f.sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(size)))
	s, err := localfile.NewSample(content, size, f.blocks, func(off int64, block []byte) {
		f.sum.Write(block)
		visit(off, block)
	})
	if err == io.EOF {
		err = fmt.Errorf("%s became shorter than its %d bytes while it was opened", path, size)
	}
	return s, err
}
