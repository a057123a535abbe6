package localfile

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"batchfs/cache/counts"
	"batchfs/internal/eintr"
)

// A File is a regular file of any filesystem. If its bytes change after it was opened, Read and Check
// return a ChangedError. A File is safe for concurrent use.
type File struct {
	name          string                   // the path and a zero byte, for system calls, because adding it in each read would allocate
	id            atomic.Pointer[Identity] // written by adopt
	size          int64                    // in every id
	sample        Sample
	access        Access
	dropPageCache bool

	mu     sync.Mutex  // guards opened, and is held while the first read opens the file
	opened *openedFile // nil unless the access keeps a mapping or a descriptor

	settles settlement
}

// New returns the file that had an identity and a sample when it was opened earlier. It does not
// touch the file. If dropPageCache is true, each read drops the pages that it read from the page
// cache.
func New(path string, id Identity, sample Sample, access Access, dropPageCache bool) (*File, error) {
	if strings.IndexByte(path, 0) >= 0 {
		return nil, fmt.Errorf("%q: %w", path, unix.EINVAL)
	}
	f := &File{name: path + "\x00", size: id.Size, sample: sample, access: access, dropPageCache: dropPageCache}
	f.id.Store(&id)
	return f, nil
}

// openFlags have O_NONBLOCK because opening a named pipe would otherwise wait for its writer.
const openFlags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK

// Open opens a regular file. previous is the file that had this path before, or nil: if that one is
// being overwritten in place, Open returns an OverwrittenError. The modification time may be set when
// a write begins, so a read before its end could mix old and new bytes.
func Open(path string, previous *File) (id Identity, f *os.File, err error) {
	if f, err = os.OpenFile(path, openFlags, 0); err != nil {
		return id, nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	switch {
	case err != nil:
		return id, nil, err
	case info.IsDir():
		return id, nil, fmt.Errorf("%s is a directory, not a token file; name the files in it, e.g. %s/*.bin", path, path)
	case !info.Mode().IsRegular():
		return id, nil, fmt.Errorf("%s is not a regular file, and only those can be read at any position", path)
	}
	held := unknown
	if previous != nil {
		held = leaseFile(f)
	}
	id, err = Identify(f)
	if held == unwritten {
		unleaseFile(f)
	}
	switch {
	case err != nil, previous == nil, held == unwritten, !previous.Identity().overwrittenBy(id):
	case held == written:
		err = OverwrittenError(path + " is being overwritten: a process has it open for writing")
	case !previous.settles.settled(id):
		err = OverwrittenError(fmt.Sprintf("%s is being overwritten, or was, and no lease tells which: it is served once it has not "+
			"changed for %v (a new file that is renamed over the old one is served at once)", path, settleTime))
	}
	return id, f, err
}

// Identify returns the identity of an open file.
func Identify(f *os.File) (Identity, error) { return identify(int(f.Fd()), f.Name()) }

func identify(fd int, path string) (Identity, error) {
	var st unix.Stat_t
	if err := eintr.Retry(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return Identity{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return Identity{Dev: uint64(st.Dev), Ino: st.Ino, Size: st.Size, Sec: int64(st.Mtim.Sec), Nsec: int64(st.Mtim.Nsec)}, nil
}

func (f *File) Path() string { return f.name[:len(f.name)-1] }

func (f *File) Identity() Identity { return *f.id.Load() }

func (f *File) Sample() Sample { return f.sample }

func (f *File) cpath() unsafe.Pointer { return unsafe.Pointer(unsafe.StringData(f.name)) }

func (f *File) failed(op string, err error) error {
	return &os.PathError{Op: op, Path: f.Path(), Err: err}
}

func (f *File) Check() error {
	var st unix.Statx_t
	cwd := unix.AT_FDCWD
	const mask = unix.STATX_INO | unix.STATX_SIZE | unix.STATX_MTIME
	err := eintr.Retry(func() error {
		_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(cwd), uintptr(f.cpath()), 0, mask, uintptr(unsafe.Pointer(&st)), 0)
		return orNil(errno)
	})
	if err != nil {
		return f.failed("stat", err)
	}
	was, now := f.Identity(), Identity{Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino, Size: int64(st.Size), Sec: st.Mtime.Sec, Nsec: int64(st.Mtime.Nsec)}
	if now == was || !was.renumbered(now) {
		return compare(f.Path(), was, now)
	}
	fd, _, err := f.openUnchanged() // accepts an equal copy
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// open opens what is at the path now.
func (f *File) open() (fd int, err error) {
	cwd := unix.AT_FDCWD
	err = eintr.Retry(func() error {
		n, _, errno := unix.Syscall6(unix.SYS_OPENAT, uintptr(cwd), uintptr(f.cpath()), openFlags, 0, 0, 0)
		fd = int(n)
		return orNil(errno)
	})
	if err != nil {
		return -1, f.failed("open", err)
	}
	return fd, nil
}

// orNil returns errno as an error, or nil if errno is 0.
func orNil(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// openUnchanged opens the file, checks that it is still the one that was opened first, and returns
// its current identity.
func (f *File) openUnchanged() (fd int, now Identity, err error) {
	if fd, err = f.open(); err != nil {
		return fd, now, err
	}
	if now, err = f.unchanged(fd, f.Identity()); err != nil {
		unix.Close(fd)
	}
	return fd, now, err
}

// unchanged compares the open file with its earlier identity and returns the current one. If the
// identity still matches after a read, the file did not change during it.
func (f *File) unchanged(fd int, was Identity) (Identity, error) {
	now, err := identify(fd, f.Path())
	if err == nil && now != was {
		err = f.adopt(fd, was, now)
	}
	return now, err
}

// adopt makes now the identity of f if the open file has the same size, time and sample, and else returns a ChangedError: sshfs numbers
// files anew, a device has another number after a new mount, and a copy may replace a file.
func (f *File) adopt(fd int, was, now Identity) error {
	if !was.renumbered(now) || f.sample == (Sample{}) {
		return compare(f.Path(), was, now)
	}
	sum, err := NewSample(descriptor(fd), f.size, f.sample.Blocks, func(int64, []byte) {})
	if err != nil {
		return f.failed("read", err)
	}
	again, err := identify(fd, f.Path())
	if err != nil {
		return err
	}
	if again != now || sum != f.sample {
		return compare(f.Path(), was, again)
	}
	f.id.Store(&now)
	return nil
}

func (f *File) Read(ranges []Range, visit func(int, []byte) error) error {
	switch f.access {
	case Advise, Map:
		return f.readMapped(ranges, visit)
	case StayOpen:
		if o, err := f.ensureOpen(); err == nil {
			defer runtime.KeepAlive(o)
			return f.visitUnchanged(o.fd, f.Identity(), ranges, visit)
		}
	}
	return f.readOpened(ranges, visit)
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

func (f *File) readOpened(ranges []Range, visit func(int, []byte) error) error {
	was := f.Identity()
	fd, err := f.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// The ranges are far apart, so reading ahead would be for nothing.
	unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM)
	return f.visitUnchanged(fd, was, ranges, visit)
}

func (f *File) visitUnchanged(fd int, was Identity, ranges []Range, visit func(int, []byte) error) error {
	visitAll := f.visitCopies
	if f.access == Remap {
		visitAll = f.visitRemapped
	}
	err := visitAll(fd, ranges, visit)
	if _, changed := f.unchanged(fd, was); changed != nil {
		return changed
	}
	return err
}

const maxJoined = 16 << 10 // bytes that visitCopies reads at once

// visitCopies visits ranges that it reads one after the other, or several at once where no whole page lies between them.
func (f *File) visitCopies(fd int, ranges []Range, visit func(int, []byte) error) error {
	if lieClose(ranges) {
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
			// The page cache lacks some of this range, and so probably some of the others.
			willNeed(fd, ranges)
			cached = false
		}
		if !cached {
			if err := pread(fd, raw, from); err != nil {
				return f.failed("read", err)
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

// lieClose says whether several ranges may be read at once, if they are sorted.
func lieClose(ranges []Range) bool {
	first, last := int64(math.MaxInt64), int64(0)
	for _, r := range ranges {
		first, last = min(first, r.From), max(last, r.From)
	}
	return last-first < int64(len(ranges))*maxJoined
}

func pread(fd int, buf []byte, off int64) error {
	for len(buf) > 0 {
		var n int
		err := eintr.Retry(func() (err error) {
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

// preadCached reads what the page cache has of buf, up to the first gap, and returns its size.
func preadCached(fd int, buf []byte, off int64) int64 {
	iov := unix.Iovec{Base: &buf[0]}
	iov.SetLen(len(buf))
	// unix.Preadv2 would allocate. RawSyscall6 does not tell the scheduler, because this never waits for the disk.
	n, _, errno := unix.RawSyscall6(unix.SYS_PREADV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1, uintptr(off), uintptr(off>>32), unix.RWF_NOWAIT)
	if errno != 0 {
		return 0
	}
	return int64(n)
}

// remapping is held by the read that maps a file under Remap. An address space has one lock, and each munmap interrupts every
// processor that runs its threads, so reads that map at the same time are slower together than one. The others read with pread
// meanwhile: none waits, not even where a page fault hangs with the lock held.
var remapping sync.Mutex

// Remaps counts the reads of this process under Remap. A worker replaces it before the first read, by
// the counters of its mount.
var Remaps = new(counts.Remaps)

const (
	// To map a range costs as much as to copy tens of kilobytes. Ranges that are shorter than this on average are not mapped.
	minMapped = 512
	// So many ranges are mapped at a time. A page fault maps up to faultAround around it (fault_around_bytes of the kernel), so what
	// is resident is less than twice that a range more than the read.
	maxRanges   = 256
	faultAround = 64 << 10
	// Up to so many bytes, it is cheaper to copy the pages of a range than to map those around them too, unless the ranges lie so
	// close together that these are of use.
	maxCopied = 8 << 10
	// maxMappings is half of the mappings that a process may have: vm.max_map_count, 65,530 by default.
	maxMappings = 1 << 15
)

// visitRemapped maps the file, unless another read does, or the ranges are too short.
func (f *File) visitRemapped(fd int, ranges []Range, visit func(int, []byte) error) error {
	var size int64
	for _, r := range ranges {
		size += r.To - r.From
	}
	if size < minMapped*int64(len(ranges)) {
		return f.visitCopies(fd, ranges, visit)
	}
	if !remapping.TryLock() {
		Remaps.Busy.Add(1)
		return f.visitCopies(fd, ranges, visit)
	}
	defer remapping.Unlock()
	Remaps.Mapped.Add(1)
	willNeed(fd, ranges)
	for some := range slices.Chunk(ranges, maxRanges) {
		if err := f.visitWhole(fd, some, visit); err != nil {
			return err
		}
	}
	for _, r := range ranges { // after the unmapping: pages that are mapped stay in the cache
		f.dropPages(fd, r)
	}
	return nil
}

// visitWhole maps the whole file once and visits ranges of that mapping. The mapping is private, so
// a write fault (MADV_POPULATE_WRITE) copies one page and maps no others around it.
func (f *File) visitWhole(fd int, ranges []Range, visit func(int, []byte) error) error {
	// unix.Mmap would record the mapping in a table guarded by a lock.
	var first unsafe.Pointer
	err := eintr.Retry(func() (err error) {
		first, err = unix.MmapPtr(fd, 0, nil, uintptr(f.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_NORESERVE)
		return err
	})
	if err != nil {
		return f.failed("mmap", err)
	}
	defer unix.MunmapPtr(first, uintptr(f.size))
	mapping := unsafe.Slice((*byte)(first), f.size)
	adviseNew(mapping)
	sparse := int64(len(ranges))*faultAround < f.size
	for _, r := range ranges {
		populate := unix.MADV_POPULATE_READ
		if from, to := r.pages(); sparse && to-from <= maxCopied {
			populate = unix.MADV_POPULATE_WRITE
		}
		if err := f.visitMapped(mapping, fd, r, populate, visit); err != nil {
			return err
		}
	}
	return nil
}

// adviseNew tells the kernel not to read ahead in a new mapping, and to leave it out of core dumps.
func adviseNew(mapping []byte) {
	unix.Madvise(mapping, unix.MADV_RANDOM)
	unix.Madvise(mapping, unix.MADV_DONTDUMP)
}

// visitMapped maps the pages of a range with madvise(2), passing the advice populate, and calls
// visit with the range. If a page cannot be mapped, it reads the range with pread from fd instead,
// or from the path if fd is -1: a page fault does not say why it failed, and a file system may
// merely have interrupted it. The caller must check afterwards that the file has not changed.
func (f *File) visitMapped(mapping []byte, fd int, r Range, populate int, visit func(int, []byte) error) error {
	err := f.visitPages(mapping, r, populate, visit)
	if err != errFault {
		return err
	}
	if fd < 0 {
		if fd, _, err = f.openUnchanged(); err != nil {
			return err
		}
		defer unix.Close(fd)
	}
	return f.visitCopies(fd, []Range{r}, visit)
}

var errFault = errors.New("a page of the file cannot be mapped")

// visitPages is visitMapped without pread. Touching a page that cannot be mapped, because the file
// was truncated or the disk failed, raises SIGBUS, and visitPages returns errFault. A fault
// anywhere else remains a panic.
func (f *File) visitPages(mapping []byte, r Range, populate int, visit func(int, []byte) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		fault, ok := r.(interface{ Addr() uintptr })
		at := uintptr(unsafe.Pointer(unsafe.SliceData(mapping)))
		if !ok || fault.Addr() < at || fault.Addr() >= at+uintptr(len(mapping)) {
			panic(r)
		}
		err = errFault
	}()
	from, to := r.pages()
	// From Linux 5.14 on, this system call waits for the disk, and blocks only its own thread.
	// During a page fault Go runs little else, and nothing at all once it wants to collect garbage.
	unix.Madvise(mapping[from:min(to, int64(len(mapping)))], populate)
	return visit(r.Index, mapping[r.From:r.To])
}

// readMapped reads from a mapping that is kept between reads, or with readOpened if the process
// already keeps too many.
func (f *File) readMapped(ranges []Range, visit func(int, []byte) error) error {
	if err := f.Check(); err != nil {
		return err
	}
	m, err := f.ensureOpen()
	if errors.Is(err, unix.ENOMEM) {
		return f.readOpened(ranges, visit)
	}
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(m)
	for _, r := range ranges { // lets a disk read many ranges at once
		from, to := r.pages()
		unix.Madvise(m.bytes[from:min(to, int64(len(m.bytes)))], unix.MADV_WILLNEED)
	}
	for i := 0; i < len(ranges) && err == nil; i++ {
		err = f.visitMapped(m.bytes, m.fd, ranges[i], unix.MADV_POPULATE_READ, visit)
	}
	if f.access == Advise {
		for _, r := range ranges {
			unix.Madvise(m.around(r), unix.MADV_DONTNEED)
			f.dropPages(m.fd, r)
		}
	}
	if changed := f.Check(); changed != nil {
		return changed
	}
	return err
}

// willNeed has the disk read what the page cache lacks of all ranges at once.
func willNeed(fd int, ranges []Range) {
	for _, r := range ranges {
		unix.Fadvise(fd, r.From, r.To-r.From, unix.FADV_WILLNEED)
	}
}

func (f *File) dropPages(fd int, r Range) {
	if f.dropPageCache {
		from, to := r.pages()
		unix.Fadvise(fd, from, to-from, unix.FADV_DONTNEED)
	}
}

func (r Range) pages() (from, to int64) {
	page := int64(os.Getpagesize())
	return r.From &^ (page - 1), (r.To + page - 1) &^ (page - 1)
}
