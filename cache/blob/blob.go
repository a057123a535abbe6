// Package blob reads local files, and objects in a store, through one interface. [Open] opens a
// [Blob] for the first time, and [New] recreates it from what Open found. A [Remote] reads objects.
package blob

import (
	"io"
	"os"

	"batchfs/cache/localfile"
)

// A Blob is a local file, or an object in a store. If its bytes change after it was opened, Read,
// ReadSample and Check return a [localfile.ChangedError]. A Blob is safe for concurrent use.
type Blob interface {
	Path() string

	// Stamp returns the stamp of the blob when it was opened, or of an equal copy that
	// replaced it.
	Stamp() localfile.Stamp

	// Sample returns a sample of the bytes. Blobs with the same bytes have equal samples.
	Sample() localfile.Sample

	// Read calls visit for each range, in any order, with its Index and its bytes, which are valid
	// only during the call. If visit returns an error, Read stops and returns it, or a ChangedError
	// if the blob changed. A range is visited again if its bytes turn out to be wrong. The ranges
	// must lie within the blob. Read may change ranges, but does not keep the slice.
	Read(ranges []localfile.Range, visit func(index int, raw []byte) error) error

	// ReadSample reads a sample with this number of blocks, as [localfile.NewSample] does. It
	// bypasses the cache of blocks.
	ReadSample(blocks int64, visit func(off int64, block []byte)) (localfile.Sample, error)

	// Check compares the blob with its Stamp, usually without reading it.
	Check() error

	// Release drops the descriptors that the blob keeps between reads.
	Release()
}

// Content is the bytes of a blob that is being opened. It is safe for concurrent use.
type Content interface {
	io.ReaderAt
	io.Closer
}

// CheckNoWriters is [localfile.CheckNoWriters] for any blob.
func CheckNoWriters(content Content) (known bool, err error) {
	if f, ok := content.(*os.File); ok {
		return localfile.CheckNoWriters(f)
	}
	return true, nil // objects are never changed, only replaced
}
