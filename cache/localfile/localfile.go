// Package localfile reads ranges of local files, which may change or be replaced at any time. A [File]
// returns the bytes that it had when it was opened, or an error.
package localfile

import (
	"cmp"
	"fmt"
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
	// StayOpen reads with pread and keeps a descriptor. It is for cache blocks, which are small and
	// many: to map or open one for each row would cost more than the row.
	StayOpen Access = "pread, open"
)

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

	ETag string // version of an object in a store; all other fields but Size are 0 then
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
