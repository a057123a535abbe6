package localfile

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

// A descriptor is an open file to read from.
type descriptor int

func (fd descriptor) ReadAt(b []byte, off int64) (int, error) {
	if err := pread(int(fd), b, off); err != nil {
		return 0, err
	}
	return len(b), nil
}

const sampleSize = 4096

// NewSample takes a sample of blocks that lie evenly from a file's first byte to its last, or of all of a file that is no larger, and shows them
// to look.
func NewSample(content io.ReaderAt, size, blocks int64, visit func(off int64, block []byte)) (s Sample, err error) {
	s.Blocks = blocks
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
	sum := sha256.New()
	for i, off := range offs {
		if errs[i] != nil {
			return s, errs[i]
		}
		sum.Write(read[i])
		visit(off, read[i])
	}
	s.Sum = [sha256.Size]byte(sum.Sum(nil))
	return s, nil
}
