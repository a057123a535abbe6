package blob

import (
	"crypto/sha256"
	"io"
	"sync"
)

// A Sample tells the content of a file from another content of the same size, by the blocks that the fingerprint covers. Compare with ==.
// The zero value is of no file.
type Sample struct {
	Blocks int64 // of the file, unless it is smaller
	Sum    [sha256.Size]byte
}

// NewSample takes a sample of some blocks, and shows them to look.
func NewSample(content io.ReaderAt, size, blocks int64, look func(off int64, block []byte)) (Sample, error) {
	sum := sha256.New()
	err := sample(content, size, blocks, func(off int64, block []byte) {
		sum.Write(block)
		look(off, block)
	})
	return Sample{blocks, [sha256.Size]byte(sum.Sum(nil))}, err
}

func (s Sample) of(fd int, size int64) (Sample, error) {
	return NewSample(descriptor(fd), size, s.Blocks, func(int64, []byte) {})
}

// A descriptor is an open file to read from.
type descriptor int

func (fd descriptor) ReadAt(b []byte, off int64) (int, error) { return pread(int(fd), b, off, 0) }

const sampleSize = 4096

// sample shows blocks that lie evenly from a file's first byte to its last, or all of a file that is no larger.
func sample(content io.ReaderAt, size, blocks int64, look func(off int64, block []byte)) error {
	length := int64(sampleSize)
	if size <= blocks*sampleSize {
		blocks, length = 1, size
	}
	gaps, offs := max(blocks-1, 1), make([]int64, blocks)
	read, errs := make([][]byte, blocks), make([]error, blocks)
	var all sync.WaitGroup // at once, because a store takes long to answer
	for i := range blocks {
		// (size-length) * i / gaps, which might overflow
		whole, rest := (size-length)/gaps, (size-length)%gaps
		offs[i], read[i] = whole*i+rest*i/gaps, make([]byte, length)
		all.Go(func() { _, errs[i] = content.ReadAt(read[i], offs[i]) })
	}
	all.Wait()
	for i, off := range offs {
		if errs[i] != nil {
			return errs[i]
		}
		look(off, read[i])
	}
	return nil
}
