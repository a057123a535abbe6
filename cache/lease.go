package cache

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Whether somebody has a file open for writing, as the kernel says when it is asked for a lease: it refuses one while somebody
// has, and while it is held nobody opens the file for that. It takes the file's owner or CAP_LEASE.
type writers int

const (
	unknown writers = iota
	written
	unwritten // until unleaseFile
)

// leaseFile asks for a lease on a file. If it returns unwritten, the lease is held.
func leaseFile(f *os.File) writers {
	var fs unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &fs) != nil {
		return unknown
	}
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	network := slices.Contains([]int64{unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC}, int64(fs.Type))
	switch {
	case err == nil && fs.Type == unix.FUSE_SUPER_MAGIC:
		unleaseFile(f)
		return unknown // another host may write to it
	case err == nil:
		return unwritten
	case err == unix.EAGAIN && !network: // there it also means that the server gave no delegation
		return written
	}
	return unknown
}

func unleaseFile(f *os.File) { unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK) }

// settleTime is how long a file that was overwritten must stay unchanged before it is read, where its writers are not known. It is
// longer than most writes, and than the steps of the modification times of network filesystems.
const settleTime = 2 * time.Second

// A settlement is what a file became that is being overwritten, and since when it has been that.
type settlement struct {
	mu    sync.Mutex
	id    Identity
	ctime unix.Timespec
	since time.Duration // as uptime says
}

// settled reports whether what was written over the file has been seen unchanged for settleTime.
func (s *tracked) settled(id Identity, ctime unix.Timespec) bool {
	w := &s.settles
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.id != id || w.ctime != ctime {
		w.id, w.ctime, w.since = id, ctime, uptime()
	}
	return uptime()-w.since >= settleTime
}

// Unwritten returns an error if somebody has one of the files open for writing: through a mapping that was made before, tokens
// change and the time of the file does not. unknown is a file of which this cannot be known, or empty.
func (a *Array) Unwritten() (unknownOf string, err error) {
	for _, path := range a.AllFiles() {
		if IsRemote(path) {
			continue // nobody writes to an object
		}
		f, err := os.OpenFile(path, openFlags, 0)
		if err != nil {
			return "", err
		}
		held := leaseFile(f)
		var id Identity
		if held == written {
			id, err = identify(int(f.Fd()))
		}
		f.Close() // and with it the lease
		switch {
		case err != nil:
			return "", &os.PathError{Op: "stat", Path: path, Err: err}
		case held == written:
			return "", fmt.Errorf("%s is open for writing in %s, which could change its tokens unnoticed: close it there, or open it there "+
				"to read only (np.memmap opens with mode \"r+\" unless it is told mode=\"r\")", path, writerOf(path, id))
		case held == unknown:
			unknownOf = path
		}
	}
	return unknownOf, nil
}

// writerOf names a process that has a file open, or mapped, for writing.
func writerOf(path string, id Identity) string {
	real, _ := filepath.EvalSymlinks(path)
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		if writes(process, real, id) {
			comm, _ := os.ReadFile(process + "/comm")
			return fmt.Sprintf("process %s (%s)", filepath.Base(process), strings.TrimSpace(string(comm)))
		}
	}
	return fmt.Sprintf("a process that batchfs may not see (as root, fuser -v %s names it)", path)
}

// writes reports whether a process, a directory of /proc, has a file open for writing or mapped to write to it.
func writes(process, path string, id Identity) bool {
	open, _ := os.ReadDir(process + "/fd")
	for _, fd := range open {
		var st unix.Stat_t
		if unix.Stat(process+"/fd/"+fd.Name(), &st) != nil || uint64(st.Dev) != id.Dev || st.Ino != id.Ino {
			continue
		}
		info, _ := os.ReadFile(process + "/fdinfo/" + fd.Name())
		_, flags, _ := strings.Cut(string(info), "flags:")
		if fields := strings.Fields(flags); len(fields) > 0 {
			if mode, _ := strconv.ParseInt(fields[0], 8, 64); mode&unix.O_ACCMODE != unix.O_RDONLY {
				return true
			}
		}
	}
	maps, _ := os.ReadFile(process + "/maps")
	for line := range strings.Lines(string(maps)) {
		// from-to rw-s offset device inode path; the device may be another than that of stat
		fields := strings.Fields(line)
		if len(fields) > 5 && fields[1][1] == 'w' && fields[1][3] == 's' && fields[4] == fmt.Sprint(id.Ino) &&
			strings.HasSuffix(line, "/"+filepath.Base(path)+"\n") {
			return true
		}
	}
	return false
}

// An overwrittenError says why a file must not be read yet.
type overwrittenError string

func (e overwrittenError) Error() string { return string(e) }
