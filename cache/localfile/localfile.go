// Package localfile reads ranges of local files that may change or be replaced at any time. A
// [File] returns the bytes that the file had when it was opened, or an error.
package localfile

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"syscall"
	"time"

	"batchfs/cache/counts"
)

// An Access is a way to read a file. All return the same bytes, but differ in cost and in what
// stays resident.
type Access string

const (
	// Remap opens, maps, copies and unmaps the file in every read, one read of the process at a
	// time. Other reads meanwhile work like Pread.
	Remap Access = "remap"
	// Advise keeps a mapping of the file, and releases the pages that a read has touched.
	Advise Access = "advise"
	// Pread opens the file in every read, and reads each range with pread(2).
	Pread Access = "pread"
)

// Options say how a file is read.
type Options struct {
	Access Access
	// StayOpen keeps a descriptor between reads with Pread. It suits files with many small reads,
	// such as cache blocks: opening the file each time would cost more than the read.
	StayOpen      bool
	DropPageCache bool         // whether each read drops its pages from the page cache
	Maps          *counts.Maps // counts reads with Remap and Advise; nil: they are not counted
	Log           *slog.Logger // log of the first file that cannot be mapped; nil: none
}

// A Range is the bytes [From, To) of a blob. The caller chooses the meaning of Index.
type Range struct {
	From, To int64
	Index    int
}

// SortRanges sorts ranges by From.
func SortRanges(ranges []Range) {
	slices.SortFunc(ranges, func(a, b Range) int { return cmp.Compare(a.From, b.From) })
}

// A Stamp distinguishes a file from others at the same path, and from the same file before a write.
// Stamps are compared with ==.
type Stamp struct {
	Dev, Ino  uint64
	Size      int64 // bytes
	Sec, Nsec int64 // modification time since 1970

	// ETag is the version of an object in a store. Of the other fields, an object has Size and Sec,
	// which is not compared.
	ETag string
}

// isOverwrittenBy reports whether current is the same file, changed but not longer: an append only
// adds bytes.
func (old Stamp) isOverwrittenBy(current Stamp) bool {
	return current != old && current.Dev == old.Dev && current.Ino == old.Ino && current.Size <= old.Size
}

// isRenumberedAs reports whether the stamps differ at most in device and inode number.
func (old Stamp) isRenumberedAs(current Stamp) bool {
	old.Dev, old.Ino = current.Dev, current.Ino
	return current == old
}

// A ChangedError reports that a file or an object is no longer the one that was opened. It matches
// syscall.ESTALE under errors.Is.
type ChangedError struct {
	Path string
	How  string // the difference, for messages
	Now  Stamp  // zero for an object
}

func (e *ChangedError) Error() string {
	return fmt.Sprintf("%s has changed since it was opened: %s; unmount and mount again or, without a mount, run the command again to use it as it is now "+
		"(to restore the old file instead, restore its modification time too, as cp -p does)", e.Path, e.How)
}

func (e *ChangedError) Is(target error) bool { return target == syscall.ESTALE }

// compareStamps returns a ChangedError unless the stamps are equal.
func compareStamps(path string, old, current Stamp) error {
	if current == old {
		return nil
	}
	e := &ChangedError{Path: path, Now: current}
	switch {
	case current.Size != old.Size:
		e.How = fmt.Sprintf("%d bytes, was %d", current.Size, old.Size)
	case current.Ino != old.Ino || current.Dev != old.Dev:
		e.How = "another file is in its place"
	default:
		e.How = fmt.Sprintf("written to at %s", time.Unix(current.Sec, current.Nsec).UTC().Format(time.RFC3339Nano))
	}
	return e
}
