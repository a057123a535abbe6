package localfile

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/internal/clock"
	"batchfs/internal/printable"
)

// A writeState says whether a process has a file open for writing. The kernel grants a read lease
// only while no process has, and lets no process open the file for writing until the lease is
// released. Only the owner of the file, or a process with CAP_LEASE, can get a lease.
type writeState int

const (
	unknown writeState = iota
	written
	unwritten // not opened for writing before unleaseFile
)

// leaseFile determines whether f is open for writing. If it returns unwritten, the caller must
// release the lease with unleaseFile.
func leaseFile(f *os.File) writeState {
	var fs unix.Statfs_t
	if Retry(func() error { return unix.Fstatfs(int(f.Fd()), &fs) }) != nil {
		return unknown
	}
	err := setLease(f, unix.F_RDLCK)
	network := slices.Contains([]int64{unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC}, int64(fs.Type))
	switch {
	case err == nil && fs.Type == unix.FUSE_SUPER_MAGIC:
		unleaseFile(f)
		return unknown // another host may be writing to it
	case err == nil:
		return unwritten
	case err == unix.EAGAIN && !network:
		// On a network file system, EAGAIN may also mean that the server granted no delegation.
		return written
	}
	return unknown
}

func unleaseFile(f *os.File) { setLease(f, unix.F_UNLCK) }

func setLease(f *os.File, kind int) error {
	return Retry(func() error {
		_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, kind)
		return err
	})
}

// settleTime is how long an overwritten file must stay unchanged before it is read, if leases
// cannot show whether it is being written. It exceeds the duration of most writes, and the
// resolution of modification times on network file systems.
const settleTime = 2 * time.Second

// A settleTimer records since when an overwritten file has had its current stamp. It is safe for
// concurrent use.
type settleTimer struct {
	mu    sync.Mutex // guards the fields below
	stamp Stamp
	since int64 // clock.Now when stamp was first seen
}

// isSettled reports whether the file has had this stamp for settleTime.
func (s *settleTimer) isSettled(stamp Stamp) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stamp != stamp {
		s.stamp, s.since = stamp, clock.Now()
	}
	return clock.Now()-s.since >= int64(settleTime)
}

// CheckNoWriters returns an error if a process has f open for writing: it could change tokens
// through an existing mapping, without a new modification time. known is false if the kernel grants
// no lease that would show this.
func CheckNoWriters(f *os.File) (known bool, err error) {
	switch leaseFile(f) {
	case written:
		return false, fmt.Errorf("%s is open for writing in a process, which could change its tokens unnoticed: fuser -v %s names it; "+
			"close the file there, or open it read-only (np.memmap opens with mode \"r+\" unless it is given mode=\"r\")", f.Name(), printable.ShellArg(f.Name()))
	case unwritten:
		unleaseFile(f)
		return true, nil
	}
	return false, nil
}

// An OverwrittenError says that a file must not be read yet, because it is being overwritten.
type OverwrittenError string

func (e OverwrittenError) Error() string { return string(e) }
