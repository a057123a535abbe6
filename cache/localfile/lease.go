package localfile

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/internal/clock"
	"batchfs/internal/eintr"
)

// writeState tells whether a process has a file open for writing. The kernel refuses a lease while
// one has, and lets no process open the file for writing while the lease is held. Only the file's
// owner, or a process with CAP_LEASE, gets a lease.
type writeState int

const (
	unknown writeState = iota
	written
	unwritten // guaranteed until unleaseFile
)

func leaseFile(f *os.File) writeState {
	var fs unix.Statfs_t
	if eintr.Retry(func() error { return unix.Fstatfs(int(f.Fd()), &fs) }) != nil {
		return unknown
	}
	err := setLease(f, unix.F_RDLCK)
	network := slices.Contains([]int64{unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC}, int64(fs.Type))
	switch {
	case err == nil && fs.Type == unix.FUSE_SUPER_MAGIC:
		unleaseFile(f)
		return unknown // another host may write to it
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
	return eintr.Retry(func() error {
		_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, kind)
		return err
	})
}

// settleTime is how long a file that was overwritten must stay unchanged before it is read, where its writers are not known. It is
// longer than most writes, and than the steps of the modification times of network filesystems.
const settleTime = 2 * time.Second

// A settlement is what a file became that is being overwritten, and since when.
type settlement struct {
	mu    sync.Mutex
	id    Identity
	since int64 // time of clock.Now
}

// settled reports whether the file has been seen with this identity for settleTime.
func (s *settlement) settled(id Identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id != id {
		s.id, s.since = id, clock.Now()
	}
	return clock.Now()-s.since >= int64(settleTime)
}

// CheckNoWriters returns an error if a process has an open file open for writing: through a mapping
// that was made before, tokens change and the time of the file does not. known is false if no lease
// can be had on the file.
func CheckNoWriters(f *os.File) (known bool, err error) {
	switch leaseFile(f) {
	case written:
		return false, fmt.Errorf("%s is open for writing in a process, which could change its tokens unnoticed: fuser -v %[1]s names it; "+
			"close the file there, or open it to read only (np.memmap opens with mode \"r+\" unless it is told mode=\"r\")", f.Name())
	case unwritten:
		unleaseFile(f)
		return true, nil
	}
	return false, nil
}

// An OverwrittenError says why a file must not be read yet.
type OverwrittenError string

func (e OverwrittenError) Error() string { return string(e) }
