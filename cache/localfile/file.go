package localfile

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"batchfs/cache/counts"
)

// A File is a regular file, and implements blob.Blob. If its bytes change after it was opened,
// Read, ReadSample and Check return a ChangedError. A File is safe for concurrent use.
type File struct {
	name   string                // path, and the zero byte that system calls need
	stamp  atomic.Pointer[Stamp] // changed by adopt
	size   int64                 // in bytes; the same in every stamp that adopt accepts
	sample Sample
	opts   Options // Maps and Log are not nil

	// mu guards opened and mapping, which are nil unless they are kept between reads. It is held
	// while a read opens or maps the file.
	mu      sync.Mutex
	opened  *openedFile
	mapping *keptMapping

	settle settleTimer // how long the file, if overwritten, has stayed unchanged
}

// These replace what Options leave out.
var (
	uncounted = new(counts.Maps)
	unlogged  = slog.New(slog.DiscardHandler)
)

// New returns the file that had this stamp and sample when it was opened earlier. It does not
// touch the file.
func New(path string, stamp Stamp, sample Sample, o Options) (*File, error) {
	if strings.IndexByte(path, 0) >= 0 {
		return nil, fmt.Errorf("%q: %w", path, unix.EINVAL)
	}
	o.Maps, o.Log = cmp.Or(o.Maps, uncounted), cmp.Or(o.Log, unlogged)
	f := &File{name: path + "\x00", size: stamp.Size, sample: sample, opts: o}
	f.stamp.Store(&stamp)
	return f, nil
}

// openFlags include O_NONBLOCK, because opening a named pipe would otherwise wait for its writer.
const openFlags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK

// Open opens a regular file. previous is the file that was at the path before, or nil. If previous
// is being overwritten in place, Open returns an OverwrittenError: a file system may set the
// modification time when a write begins, so a read before the write ends could mix old and new
// bytes.
func Open(path string, previous *File) (stamp Stamp, f *os.File, err error) {
	if f, err = os.OpenFile(path, openFlags, 0); err != nil {
		return stamp, nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	switch {
	case err != nil:
		return stamp, nil, err
	case info.IsDir():
		return stamp, nil, fmt.Errorf("%s is a directory, not a token file; name the files in it, e.g. %s/*.bin", path, path)
	case !info.Mode().IsRegular():
		return stamp, nil, fmt.Errorf("%s is not a regular file, and only those can be read at any position", path)
	}
	held := unknown
	if previous != nil {
		held = leaseFile(f)
	}
	stamp, err = StampOf(f)
	if held == unwritten {
		unleaseFile(f)
	}
	switch {
	case err != nil, previous == nil, held == unwritten, !previous.Stamp().isOverwrittenBy(stamp):
	case held == written:
		err = OverwrittenError(path + " is being overwritten: a process has it open for writing")
	case !previous.settle.isSettled(stamp):
		err = OverwrittenError(fmt.Sprintf("%s may still be being written, and no lease can tell: it will be served after %v without "+
			"changes (a new file renamed over it is served immediately)", path, settleTime))
	}
	return stamp, f, err
}

// StampOf returns the stamp of an open file.
func StampOf(f *os.File) (Stamp, error) { return stampOf(int(f.Fd()), f.Name()) }

func stampOf(fd int, path string) (Stamp, error) {
	var st unix.Stat_t
	if err := Retry(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return Stamp{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return Stamp{Dev: uint64(st.Dev), Ino: st.Ino, Size: st.Size, Sec: int64(st.Mtim.Sec), Nsec: int64(st.Mtim.Nsec)}, nil
}

// Path returns the path that New was given.
func (f *File) Path() string { return f.name[:len(f.name)-1] }

func (f *File) Stamp() Stamp { return *f.stamp.Load() }

func (f *File) Sample() Sample { return f.sample }

func (f *File) cpath() unsafe.Pointer { return unsafe.Pointer(unsafe.StringData(f.name)) }

func (f *File) pathError(op string, err error) error {
	return &os.PathError{Op: op, Path: f.Path(), Err: err}
}

// Check returns a ChangedError if the file is not the one that was opened, judging by its stamp. If
// only the device or inode number differs, it reads a sample, and adopts the new stamp of an equal
// copy.
func (f *File) Check() error {
	var st unix.Statx_t
	cwd := unix.AT_FDCWD
	const mask = unix.STATX_INO | unix.STATX_SIZE | unix.STATX_MTIME
	err := Retry(func() error {
		_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(cwd), uintptr(f.cpath()), 0, mask, uintptr(unsafe.Pointer(&st)), 0)
		return errnoError(errno)
	})
	if err != nil {
		return f.pathError("stat", err)
	}
	old := f.Stamp()
	current := Stamp{Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino, Size: int64(st.Size), Sec: st.Mtime.Sec, Nsec: int64(st.Mtime.Nsec)}
	if current == old || !old.isRenumberedAs(current) {
		return compareStamps(f.Path(), old, current)
	}
	fd, err := f.openUnchanged() // adopts an equal copy
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func (f *File) open() (fd int, err error) {
	cwd := unix.AT_FDCWD
	err = Retry(func() error {
		n, _, errno := unix.Syscall6(unix.SYS_OPENAT, uintptr(cwd), uintptr(f.cpath()), openFlags, 0, 0, 0)
		fd = int(n)
		return errnoError(errno)
	})
	if err != nil {
		return -1, f.pathError("open", err)
	}
	return fd, nil
}

func errnoError(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// openUnchanged opens the file, or returns a ChangedError.
func (f *File) openUnchanged() (fd int, err error) {
	if fd, err = f.open(); err != nil {
		return fd, err
	}
	if err = f.checkUnchanged(fd, f.Stamp()); err != nil {
		unix.Close(fd)
	}
	return fd, err
}
