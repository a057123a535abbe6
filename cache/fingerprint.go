package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"path/filepath"
	"sync"

	"batchfs/cache/localfile"
)

// A Fingerprint is a hash of the name, the size and a sample of the content of each file that
// [Open] adds to it. It belongs to one goroutine.
type Fingerprint struct {
	Also   *Fingerprint // another fingerprint to which the files are added; nil: none
	sum    io.Writer    // a hash or, in a part, the bytes that join adds to it
	blocks int64        // number of blocks sampled in each file
}

// NewFingerprint returns an empty fingerprint. files is the number of files that [Open] will add:
// the more there are, the fewer blocks of each are sampled.
func NewFingerprint(files int) *Fingerprint {
	// Sample few enough blocks that terabytes open without delay.
	return &Fingerprint{sum: sha256.New(), blocks: int64(max(2, 64/max(files, 1)))}
}

// addAll adds n files in order. It calls add once for each file, several at a time, with the number
// of the file and an empty part of the fingerprint, to which add adds the file.
func (f *Fingerprint) addAll(n int, add func(i int, part *Fingerprint) error) error {
	for first := 0; first < n; first += maxParallelOpens {
		count := min(n-first, maxParallelOpens)
		errs, parts := make([]error, count), make([]*Fingerprint, count)
		var all sync.WaitGroup
		for i := range parts {
			parts[i] = f.part()
			all.Go(func() { errs[i] = add(first+i, parts[i]) })
		}
		all.Wait()
		for i, part := range parts {
			if errs[i] != nil {
				return errs[i]
			}
			f.join(part)
		}
	}
	return nil
}

// part returns an empty fingerprint for one file, which join adds to f later.
func (f *Fingerprint) part() *Fingerprint {
	if f == nil {
		return nil
	}
	return &Fingerprint{f.Also.part(), new(bytes.Buffer), f.blocks}
}

func (f *Fingerprint) join(part *Fingerprint) {
	if f != nil {
		f.sum.Write(part.sum.(*bytes.Buffer).Bytes())
		f.Also.join(part.Also)
	}
}

// String returns the first half of a SHA-256 in 32 hexadecimal digits. For each file, the hash
// covers its base name and a zero byte, its size as a little-endian uint64, and n blocks of 4096
// bytes of its content, where n = max(2, 64 div the number of files). Block i begins at byte
// floor((size-4096)*i/(n-1)). A file no larger than n blocks is hashed as a whole.
func (f *Fingerprint) String() string { return hex.EncodeToString(f.sum.(hash.Hash).Sum(nil)[:16]) }

// A sampleReader reads a sample of a file; see [localfile.NewSample].
type sampleReader func(blocks int64, visit func(off int64, block []byte)) (localfile.Sample, error)

// add adds a file, and calls visit with each sampled block.
func (f *Fingerprint) add(path string, size int64, read sampleReader, visit func(off int64, block []byte)) (localfile.Sample, error) {
	if f.Also != nil {
		if s, err := f.Also.add(path, size, read, func(int64, []byte) {}); err != nil {
			return s, err
		}
	}
	f.sum.Write(append([]byte(filepath.Base(path)), 0))
	f.sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(size)))
	s, err := read(f.blocks, func(off int64, block []byte) {
		f.sum.Write(block)
		visit(off, block)
	})
	if err == io.EOF {
		err = fmt.Errorf("%s became shorter than its %d bytes while it was opened", path, size)
	}
	return s, err
}
