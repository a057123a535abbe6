// Package blob reads named strings of bytes: local files, and objects in a store.
package blob

import (
	"io"
	"os"

	"batchfs/cache/localfile"
)

// A Blob is a named string of bytes: a local file, or an object in a store. If the bytes under its name change after it was opened, Read and
// Check return a ChangedError. A Blob is safe for concurrent use.
type Blob interface {
	Path() string

	// Identity is the blob's when it was opened, or the new one of an equal copy.
	Identity() localfile.Identity

	// Sample stands for the bytes: blobs of one size and with the same bytes have equal samples.
	Sample() localfile.Sample

	// Read calls visit for each range, in any order, with the range's Index and its bytes, valid during the call only. An error of
	// visit ends the read and is returned, unless the blob changed, which then explains it. A range may be visited again, if what
	// was read turned out bad. Read may change ranges, which lie within the blob, and does not keep them.
	Read(ranges []localfile.Range, visit func(index int, raw []byte) error) error

	// Check compares the blob with its Identity, without reading it.
	Check() error

	// Release drops what the blob keeps between two reads, such as a mapping. The next read makes it again.
	Release()
}

// Content is the bytes of a blob that is being opened. It is safe for concurrent use.
type Content interface {
	io.ReaderAt
	io.Closer
}

// CheckNoWriters returns an error if a process has an open blob open for writing. known is false if
// that cannot be determined: see [localfile.CheckNoWriters].
func CheckNoWriters(content Content) (known bool, err error) {
	if f, ok := content.(*os.File); ok {
		return localfile.CheckNoWriters(f)
	}
	return true, nil // an object is never written to, only replaced
}
