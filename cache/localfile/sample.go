package localfile

import (
	"crypto/sha256"
	"io"
	"sync"
)

// A Sample is a hash of evenly spaced blocks of a file, the ones that the fingerprint covers. It
// distinguishes the content from other content of the same size. Samples are compared with ==; the
// zero Sample belongs to no file.
type Sample struct {
	Blocks int64 // blocks argument of NewSample
	Sum    [sha256.Size]byte
}

// A descriptor is an open file as an io.ReaderAt.
type descriptor int

func (fd descriptor) ReadAt(b []byte, off int64) (int, error) {
	if err := pread(int(fd), b, off); err != nil {
		return 0, err
	}
	return len(b), nil
}

// sampleBlockBytes is the size of a sampled block. Another size would change every fingerprint.
const sampleBlockBytes = 4096

// NewSample reads the given number of blocks, evenly spaced from a file's first byte to its last,
// or the whole file if the blocks would cover it. It calls visit with each block, in order.
func NewSample(content io.ReaderAt, size, blocks int64, visit func(off int64, block []byte)) (s Sample, err error) {
	s.Blocks = blocks
	length := int64(sampleBlockBytes)
	if size <= blocks*sampleBlockBytes {
		blocks, length = 1, size
	}
	gaps, offs := max(blocks-1, 1), make([]int64, blocks)
	read, errs := make([][]byte, blocks), make([]error, blocks)
	var all sync.WaitGroup // reads run concurrently, because a store takes long to answer
	for i := range blocks {
		// This is (size-length)*i/gaps without overflow.
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
