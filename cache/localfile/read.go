package localfile

import (
	"errors"
	"io"
	"iter"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Read reads ranges, and then checks that the file has not changed; see blob.Blob.
func (f *File) Read(ranges []Range, visit func(int, []byte) error) error {
	switch {
	case f.opts.Access == Advise:
		return f.readAdvised(ranges, visit)
	case f.opts.Access == Pread && f.opts.StayOpen:
		if o, err := f.ensureOpen(); err == nil {
			defer runtime.KeepAlive(o)
			return f.visitUnchanged(o.fd, f.Stamp(), ranges, visit)
		}
	}
	return f.readOpened(ranges, visit)
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// readOpened opens the file for this read alone.
func (f *File) readOpened(ranges []Range, visit func(int, []byte) error) error {
	old := f.Stamp()
	fd, err := f.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// Ranges are far apart, so readahead would be wasted.
	unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM)
	return f.visitUnchanged(fd, old, ranges, visit)
}

// visitUnchanged visits ranges of an open file, and returns a ChangedError if the file has changed
// since old.
func (f *File) visitUnchanged(fd int, old Stamp, ranges []Range, visit func(int, []byte) error) error {
	visitAll := f.visitCopies
	if f.opts.Access == Remap {
		visitAll = f.visitRemapped
	}
	err := visitAll(fd, ranges, visit)
	if changed := f.checkUnchanged(fd, old); changed != nil {
		return changed
	}
	return err
}

// ReadSample reads a sample, and then checks that the file has not changed; see blob.Blob.
func (f *File) ReadSample(blocks int64, visit func(off int64, block []byte)) (s Sample, err error) {
	old := f.Stamp()
	fd, err := f.open()
	if err != nil {
		return s, err
	}
	defer unix.Close(fd)
	s, err = NewSample(descriptor(fd), f.size, blocks, visit)
	if changed := f.checkUnchanged(fd, old); changed != nil {
		return s, changed
	}
	return s, err
}

// checkUnchanged compares the open file with its earlier stamp. If they match after a read, the
// file did not change during it.
func (f *File) checkUnchanged(fd int, old Stamp) error {
	current, err := stampOf(fd, f.Path())
	if err == nil && current != old {
		err = f.adopt(fd, old, current)
	}
	return err
}

// adopt makes current the stamp of f if the open file has the same size, modification time and
// sample, and otherwise returns a ChangedError. The device and inode of an unchanged file may
// differ: sshfs numbers files anew, a new mount changes the number of a device, and a copy may
// replace a file.
func (f *File) adopt(fd int, old, current Stamp) error {
	if !old.isRenumberedAs(current) {
		return compareStamps(f.Path(), old, current)
	}
	sum, err := NewSample(descriptor(fd), f.size, f.sample.Blocks, func(int64, []byte) {})
	if err != nil {
		return f.pathError("read", err)
	}
	again, err := stampOf(fd, f.Path())
	if err != nil {
		return err
	}
	if again != current || sum != f.sample {
		return compareStamps(f.Path(), old, again)
	}
	f.stamp.Store(&current)
	return nil
}

// remapping is held by the read that maps a file under Remap. An address space has one lock, and
// each munmap interrupts every processor that runs a thread of the process, so concurrent mappings
// are slower than one at a time. Other reads use pread and do not wait, even if a page fault hangs
// with the lock held.
var remapping sync.Mutex

// minMapped is the least average size of ranges that are mapped, in bytes. Copying shorter ones is
// cheaper.
const minMapped = 512

// visitRemapped uses a mapping, or visitCopies if another read is mapping a file or the ranges are
// too short.
func (f *File) visitRemapped(fd int, ranges []Range, visit func(int, []byte) error) error {
	var size int64
	for _, r := range ranges {
		size += r.To - r.From
	}
	if size < minMapped*int64(len(ranges)) {
		return f.visitCopies(fd, ranges, visit)
	}
	if !remapping.TryLock() {
		f.opts.Maps.Busy.Add(1)
		return f.visitCopies(fd, ranges, visit)
	}
	defer remapping.Unlock()
	willNeed(fd, ranges)
	visited := 0
	for chunk := range slices.Chunk(ranges, rangesPerMapping) {
		err := f.visitWhole(fd, chunk, visit)
		if unmapped, ok := err.(unmappedError); ok {
			f.recordUnmapped(unmapped)
			f.dropPages(fd, ranges[:visited]...)
			return f.visitCopies(fd, ranges[visited:], visit)
		}
		if err != nil {
			return err
		}
		visited += len(chunk)
	}
	f.opts.Maps.Mapped.Add(1)
	f.dropPages(fd, ranges...) // only after munmap: mapped pages are not dropped
	return nil
}

const (
	// rangesPerMapping limits the ranges that are mapped at a time. A page fault may map up to
	// faultAround bytes around it (the kernel's fault_around_bytes), so each range keeps less than
	// 2*faultAround bytes resident besides its own.
	rangesPerMapping = 256
	faultAround      = 64 << 10
	// maxCopied is the largest range whose pages are copied, in bytes. Copying such a range is
	// cheaper than also mapping the pages around it, unless ranges lie so close together that those
	// pages are needed too.
	maxCopied = 8 << 10
)

// visitWhole maps the whole file once and visits ranges of it. The mapping is private, so that a
// write fault (MADV_POPULATE_WRITE) copies one page and maps none around it.
func (f *File) visitWhole(fd int, ranges []Range, visit func(int, []byte) error) error {
	populateOne := unix.MADV_POPULATE_WRITE
	mapping, err := f.mmap(fd, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err == unmappedError(unix.ENOMEM) {
		// If the kernel may not overcommit memory, it reserves all that could be written.
		populateOne = unix.MADV_POPULATE_READ
		mapping, err = f.mmap(fd, unix.PROT_READ, unix.MAP_SHARED)
	}
	if err != nil {
		return err
	}
	defer munmap(mapping)
	sparse := int64(len(ranges))*faultAround < f.size
	for _, r := range ranges {
		populate := unix.MADV_POPULATE_READ
		if from, to := r.pages(); sparse && to-from <= maxCopied {
			populate = populateOne
		}
		if err := f.visitMapped(mapping, fd, r, populate, visit); err != nil {
			return err
		}
	}
	return nil
}

// visitMapped maps the pages of a range with madvise(2), using the advice populate, and visits the
// range. If a page cannot be mapped, perhaps only because the file system interrupted the page
// fault, it reads the range with pread from fd, or from the path if fd is -1. The caller must check
// afterwards that the file has not changed.
func (f *File) visitMapped(mapping []byte, fd int, r Range, populate int, visit func(int, []byte) error) error {
	err := f.visitPages(mapping, r, populate, visit)
	if err != errFault {
		return err
	}
	if fd < 0 {
		if fd, err = f.openUnchanged(); err != nil {
			return err
		}
		defer unix.Close(fd)
	}
	return f.visitCopies(fd, []Range{r}, visit)
}

var errFault = errors.New("a page of the file cannot be mapped")

// visitPages is visitMapped without the fallback to pread. Touching a page that cannot be mapped,
// because the file was truncated or the disk failed, raises SIGBUS; visitPages then returns
// errFault. A fault at any other address remains a panic.
func (f *File) visitPages(mapping []byte, r Range, populate int, visit func(int, []byte) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		fault, ok := p.(interface{ Addr() uintptr })
		start := uintptr(unsafe.Pointer(unsafe.SliceData(mapping)))
		if !ok || fault.Addr() < start || fault.Addr() >= start+uintptr(len(mapping)) {
			panic(p)
		}
		err = errFault
	}()
	from, to := r.pages()
	// Since Linux 5.14, this call waits for the disk and blocks only its own thread. During a page
	// fault, Go runs little else, and nothing at all once it needs to collect garbage.
	unix.Madvise(mapping[from:min(to, int64(len(mapping)))], populate)
	return visit(r.Index, mapping[r.From:r.To])
}

const maxJoined = 16 << 10 // most bytes that visitCopies reads together for several ranges

// visitCopies reads ranges with pread and visits them. It reads neighbors together if less than a
// page lies between them.
func (f *File) visitCopies(fd int, ranges []Range, visit func(int, []byte) error) error {
	if areClose(ranges) {
		SortRanges(ranges)
	}
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	cached := true
	for len(ranges) > 0 {
		from, to, n := ranges[0].From, ranges[0].To, 1
		for ; n < len(ranges); n++ {
			next := ranges[n]
			if next.From < from || next.To > from+maxJoined || next.From >= to+int64(os.Getpagesize()) {
				break
			}
			to = max(to, next.To)
		}
		size := to - from
		if int64(cap(*buffer)) < size {
			*buffer = make([]byte, size)
		}
		raw := (*buffer)[:size]
		if cached && preadCached(fd, raw, from) < size {
			// The page cache lacks part of this range, and so probably parts of the others.
			willNeed(fd, ranges)
			cached = false
		}
		if !cached {
			if err := pread(fd, raw, from); err != nil {
				return f.pathError("read", err)
			}
		}
		for _, r := range ranges[:n] {
			if err := visit(r.Index, raw[r.From-from:r.To-from]); err != nil {
				return err
			}
			f.dropPages(fd, r)
		}
		ranges = ranges[n:]
	}
	return nil
}

// areClose reports whether sorting ranges may let visitCopies read several at once.
func areClose(ranges []Range) bool {
	first, last := int64(math.MaxInt64), int64(0)
	for _, r := range ranges {
		first, last = min(first, r.From), max(last, r.From)
	}
	return last-first < int64(len(ranges))*maxJoined
}

func pread(fd int, buf []byte, off int64) error {
	for len(buf) > 0 {
		var n int
		err := Retry(func() (err error) {
			n, err = unix.Pread(fd, buf, off)
			return err
		})
		switch {
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		buf, off = buf[n:], off+int64(n)
	}
	return nil
}

// preadCached fills buf from the page cache up to the first missing page, and returns the number of
// bytes read. It never waits for the disk.
func preadCached(fd int, buf []byte, off int64) int64 {
	iov := unix.Iovec{Base: &buf[0]}
	iov.SetLen(len(buf))
	// unix.Preadv2 would allocate. The call does not block, so the scheduler need not know about
	// it.
	n, _, errno := unix.RawSyscall6(unix.SYS_PREADV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1, uintptr(off), uintptr(off>>32), unix.RWF_NOWAIT)
	if errno != 0 {
		return 0
	}
	return int64(n)
}

// willNeed makes the disk read, all at the same time, the pages of ranges that are not in the page
// cache.
func willNeed(fd int, ranges []Range) {
	for _, r := range ranges {
		unix.Fadvise(fd, r.From, r.To-r.From, unix.FADV_WILLNEED)
	}
}

func (f *File) dropPages(fd int, ranges ...Range) {
	if !f.opts.DropPageCache {
		return
	}
	for _, r := range ranges {
		from, to := r.pages()
		unix.Fadvise(fd, from, to-from, unix.FADV_DONTNEED)
	}
}

// pages extends r to whole pages.
func (r Range) pages() (from, to int64) {
	page := int64(os.Getpagesize())
	return r.From &^ (page - 1), (r.To + page - 1) &^ (page - 1)
}

// A Piece is a file or a cache block that holds one stretch of a longer string of bytes.
type Piece struct {
	Index int64
	// Start is the position in the string at which byte 0 of the piece would lie.
	Start int64
	End   int64 // end of the stretch in the string
}

// Parts splits r by the pieces that hold it. Each part is a range of its piece, and its Index is
// its offset in r. pieceAt returns the piece that holds a position.
func (r Range) Parts(pieceAt func(pos int64) Piece) iter.Seq2[Piece, Range] {
	return func(yield func(Piece, Range) bool) {
		for pos := r.From; pos < r.To; {
			p := pieceAt(pos)
			end := min(p.End, r.To)
			if !yield(p, Range{pos - p.Start, end - p.Start, int(pos - r.From)}) {
				return
			}
			pos = end
		}
	}
}

// ReadPieces calls visit for each range of the string. It calls read once for consecutive ranges
// within one piece, as ranges of that piece, and assembles a range that spans pieces. The ranges,
// which it changes, must be sorted by From unless one piece holds all of them.
func ReadPieces(
	ranges []Range, pieceAt func(pos int64) Piece,
	read func(piece int64, ranges []Range, visit func(int, []byte) error) error,
	visit func(int, []byte) error,
) error {
	for len(ranges) > 0 {
		p, n := pieceAt(ranges[0].From), 0
		for ; n < len(ranges) && ranges[n].To <= p.End; n++ {
			ranges[n].From -= p.Start
			ranges[n].To -= p.Start
		}
		if n > 0 {
			if err := read(p.Index, ranges[:n], visit); err != nil {
				return err
			}
			ranges = ranges[n:]
			continue
		}
		whole := make([]byte, ranges[0].To-ranges[0].From)
		join := func(pos int, raw []byte) error {
			copy(whole[pos:], raw)
			return nil
		}
		for p, part := range ranges[0].Parts(pieceAt) {
			if err := read(p.Index, []Range{part}, join); err != nil {
				return err
			}
		}
		if err := visit(ranges[0].Index, whole); err != nil {
			return err
		}
		ranges = ranges[1:]
	}
	return nil
}
