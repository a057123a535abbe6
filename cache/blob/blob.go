package blob

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"syscall"
	"time"
)

// Access is a way to fetch the bytes of a window. Accesses differ in cost and in what stays resident, not in the bytes.
type Access string

const (
	// Remap opens, maps, copies and unmaps in every read, one read at a time. Others use Pread meanwhile.
	Remap Access = "remap"
	// Advise keeps a mapping and gives back the pages that a read touched.
	Advise Access = "advise"
	// Pread opens, reads each window with pread and closes.
	Pread Access = "pread"
	// Map keeps a mapping and gives nothing back: the process grows to the size of the file.
	Map Access = "map"
	// Of blocks, which are small and many: to map one, or to open it, for each row would cost more than the row. It keeps a descriptor.
	stayOpen Access = "pread, open"
)

// A Blob is a named string of bytes: a local file, or an object in a store. If the bytes under its name change after it was opened, Read and
// Check return a ChangedError. A Blob is safe for concurrent use.
type Blob interface {
	Path() string

	// Identity is the blob's when it was opened, or the new one of an equal copy.
	Identity() Identity

	// Sample stands for the bytes: blobs of one size and with the same bytes have equal samples.
	Sample() Sample

	// Read calls visit for each range, in any order, with the range's Index and its bytes, valid during the call only. An error of
	// visit ends the read and is returned, unless the blob changed, which then explains it. A range may be visited again, if what
	// was read turned out bad. Read may change ranges, which lie within the blob, and does not keep them.
	Read(ranges []Range, visit func(index int, raw []byte) error) error

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

// A Range is the bytes [From, To) of a blob. Index is the caller's.
type Range struct {
	From, To int64
	Index    int
}

// SortRanges puts ranges in the order in which they begin.
func SortRanges(ranges []Range) {
	slices.SortFunc(ranges, func(a, b Range) int { return cmp.Compare(a.From, b.From) })
}

// An Identity tells a file from another one at the same path, and from the same file before a write. Compare with ==.
type Identity struct {
	Dev, Ino  uint64
	Size      int64 // bytes
	Sec, Nsec int64 // time of the last change to the content, since 1970

	ETag string // of an object in a store, which has only that and a size
}

// overwrittenBy reports whether now is the same file, changed in another way than by appending.
func (was Identity) overwrittenBy(now Identity) bool {
	return now != was && now.Dev == was.Dev && now.Ino == was.Ino && now.Size <= was.Size
}

// renumbered reports whether now may be the same file under another number.
func (was Identity) renumbered(now Identity) bool {
	was.Dev, was.Ino = now.Dev, now.Ino
	return now == was
}

// A ChangedError says that the token file at Path is not the one that was opened, and How it differs. errors.Is(err,
// syscall.ESTALE) holds for it.
type ChangedError struct {
	Path string
	How  string
	Now  Identity // identity of the file that is there now; zero for an object
}

func (e *ChangedError) Error() string {
	return fmt.Sprintf("%s has changed since it was opened: %s; put the old file back, or mount again to serve the new one (on_change = \"follow\" does that without a new mount)", e.Path, e.How)
}

func (e *ChangedError) Is(target error) bool { return target == syscall.ESTALE }

func compare(path string, was, now Identity) error {
	if now == was {
		return nil
	}
	e := &ChangedError{Path: path, Now: now}
	switch {
	case now.Size != was.Size:
		e.How = fmt.Sprintf("%d bytes, was %d", now.Size, was.Size)
	case now.Ino != was.Ino || now.Dev != was.Dev:
		e.How = "another file stands in its place"
	default:
		e.How = fmt.Sprintf("written to at %s", time.Unix(now.Sec, now.Nsec).UTC().Format(time.RFC3339Nano))
	}
	return e
}
