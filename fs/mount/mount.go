// Package mount makes, finds and ends mounts. It serves nothing.
//
// [Connect] mounts, and returns the connection to the kernel. The mount is dead when no process holds the connection any more.
// [Find] finds a batchfs in the kernel's table of mounts, and its supervisor in /proc, without touching the mount, which may hang.
package mount

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"batchfs/internal/fdpass"
)

const fsType = "fuse.batchfs"

// MaxRequest is how many bytes one request carries at most: the kernel's own bound unless it was raised.
const MaxRequest = 1 << 20

// ReadAhead is in bytes. More was not faster, and a fault in a mapping reads as much around it.
const ReadAhead = MaxRequest

// SetReadAhead sets how far the kernel reads ahead, for a device MAJOR:MINOR, or "" if that is not known. Only root may.
func SetReadAhead(device string) error {
	if device == "" {
		return errors.New("the mount, which was handed over, is not seen from here")
	}
	return os.WriteFile("/sys/class/bdi/"+device+"/read_ahead_kb", fmt.Append(nil, ReadAhead>>10), 0)
}

// Connect mounts on an empty directory, and returns the mount, of which this process is the supervisor, and the connection (/dev/fuse).
// The path is absolute; no symbolic link in it is followed. With allowOther, other users may read. Of several processes that mount at
// the same time, one wins. The error names what is missing and what helps; nothing is mounted then.
func Connect(mountpoint string, allowOther bool) (*Mounted, *os.File, error) {
	self, err := self()
	if err != nil {
		return nil, nil, err
	}
	dir, err := lock(mountpoint)
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	connection, err := connect(dir, mountpoint, self, allowOther)
	if err == nil {
		m, findErr := Find(mountpoint)
		if m != nil && m.source == self {
			return m, connection, nil
		}
		connection.Close()
		err = cmp.Or(findErr, fmt.Errorf("cannot mount %s: the directory was moved or exchanged for another meanwhile", mountpoint))
	}
	ours, findErr := find(func(i *mountinfo.Info) bool { return i.FSType == fsType && i.Source == self })
	err = errors.Join(err, findErr)
	for _, m := range ours {
		err = errors.Join(err, m.Unmount(true))
	}
	return nil, nil, err
}

// lock opens the empty directory at an absolute path and locks it against other processes that would mount there. A batchfs there is
// an error, and is not touched: it may hang.
func lock(mountpoint string) (*os.File, error) {
	at, err := openPath(mountpoint)
	if err != nil {
		return nil, fmt.Errorf("cannot mount %s: %w", mountpoint, err)
	}
	defer unix.Close(at)
	if err := free(mountpoint); err != nil { // asked after openPath, whose directory is hence no batchfs
		return nil, err
	}
	fd, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot mount %s: %w", mountpoint, err)
	}
	dir := os.NewFile(uintptr(fd), mountpoint)
	if err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		err = fmt.Errorf("cannot mount %s: another process is mounting there, or holds a lock on the directory; fuser %[1]s may say which (%w)",
			mountpoint, err)
	} else if err = free(mountpoint); err == nil {
		if names, _ := dir.Readdirnames(1); len(names) > 0 {
			err = fmt.Errorf("cannot mount %s: it is not empty (it holds %s)", mountpoint, names[0])
		}
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

func free(mountpoint string) error {
	m, err := Find(mountpoint)
	if err == nil && m != nil {
		err = fmt.Errorf("mountpoint %s: a batchfs is already mounted there; batchfs unmount %[1]s ends it", mountpoint)
	}
	return err
}

// openPath opens a directory by its absolute path, for nothing but to name it (O_PATH). A symbolic link in the path is ENOTDIR.
func openPath(path string) (fd int, err error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err = unix.Open("/", flags, 0)
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if err != nil || name == "" {
			break
		}
		parent := fd
		fd, err = unix.Openat(parent, name, flags, 0)
		unix.Close(parent)
	}
	return fd, err
}

func connect(dir *os.File, mountpoint string, self string, allowOther bool) (*os.File, error) {
	fd, err := OpenDevice("/dev/fuse")
	if err != nil {
		return nil, err
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,default_permissions,max_read=%d", fd, os.Geteuid(), os.Getegid(), MaxRequest)
	if allowOther {
		data += ",allow_other"
	}
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err = unix.Mount(self, fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), fsType, flags, data)
	if err == nil {
		return os.NewFile(uintptr(fd), "/dev/fuse"), nil
	}
	unix.Close(fd)
	if err != unix.EPERM && err != unix.EACCES {
		return nil, fmt.Errorf("cannot mount %s: %w", mountpoint, err)
	}
	return connectAsUser(mountpoint, self, allowOther)
}

// OpenDevice opens /dev/fuse. The error says what helps.
func OpenDevice(path string) (fd int, err error) {
	fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return -1, fmt.Errorf("%s: %w; load the kernel module (modprobe fuse), "+
			"or give the container the device (docker run --device /dev/fuse --cap-add SYS_ADMIN)", path, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return -1, fmt.Errorf("%s: %w; ordinary hosts let everybody open it: chmod 666 %s, as root", path, err, path)
	case err != nil:
		return -1, fmt.Errorf("%s: %w", path, err)
	}
	return fd, nil
}

// connectAsUser lets fusermount3, which is setuid root, mount and send the connection over a socket.
func connectAsUser(mountpoint string, self string, allowOther bool) (*os.File, error) {
	helper, err := FindFusermount("/etc")
	if err != nil {
		return nil, err
	}
	ours, theirs, err := fdpass.Pair()
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	defer theirs.Close()
	options := fmt.Sprintf("ro,nosuid,nodev,noexec,default_permissions,fsname=%s,subtype=batchfs,max_read=%d", self, MaxRequest)
	if allowOther {
		options += ",allow_other"
	}
	cmd := exec.Command(helper, "-o", options, "--", mountpoint)
	cmd.Env = append(os.Environ(), "_FUSE_COMMFD=3")
	cmd.ExtraFiles = []*os.File{theirs}
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot mount %s: %s (%w)", mountpoint, strings.TrimSpace(string(out)), err)
	}
	_, connection, err := fdpass.Receive(ours)
	if err == nil && connection == nil {
		err = errors.New("a message without a descriptor")
	}
	if err != nil {
		return nil, fmt.Errorf("fusermount3 sent no connection: %w", err)
	}
	return connection, nil
}

// FindFusermount returns the path of fusermount3, through which an ordinary user mounts. The error says what is missing, and what helps. etc is
// /etc, except in tests.
func FindFusermount(etc string) (helper string, err error) {
	if helper, err = fusermount(); err != nil {
		return "", err
	}
	var exit *exec.ExitError
	if err := exec.Command("id", "-un").Run(); errors.As(err, &exit) {
		return "", fmt.Errorf("fusermount3 needs a name for user id %d, and %s/passwd has none: as root, "+
			"echo 'trainer:x:%[1]d:%[3]d::/:/bin/sh' >>%[2]s/passwd", os.Getuid(), etc, os.Getgid())
	}
	mtab := filepath.Join(etc, "mtab")
	if _, err := os.Stat(mtab); err != nil {
		// Without it fusermount3 mounts, and refuses to unmount.
		return "", fmt.Errorf("fusermount3 needs %s, which minimal systems lack (%w): as root, ln -s /proc/self/mounts %s", mtab, err, mtab)
	}
	return helper, nil
}

func fusermount() (string, error) {
	helper, err := exec.LookPath("fusermount3")
	if err != nil {
		return "", errors.New("mounting needs root, or fusermount3, which is not installed: apt-get install fuse3")
	}
	return helper, nil
}

// Unmount unmounts this mount, wherever its directory was moved, and no other. It is no error if it is gone already. While files
// are open there, or another filesystem is mounted over it, the error is EBUSY; with force open files do not matter, and their
// readers get errors.
func (m *Mounted) Unmount(force bool) error {
	const tries = 20
	for try := 1; ; try++ {
		m, err := m.Refresh()
		if err != nil || m == nil {
			return err
		}
		name := filepath.Base(m.Mountpoint)
		parent, err := openPath(filepath.Dir(m.Mountpoint))
		if err == nil && m.isAt(parent, name) {
			defer unix.Close(parent)
			return m.unmount(parent, name, force)
		}
		if err == nil {
			unix.Close(parent)
			err = fmt.Errorf("another filesystem is mounted over it: %w", unix.EBUSY)
		}
		if try == tries { // until then, the directory may have been moved meanwhile
			return fmt.Errorf("cannot unmount %s: %w", m.Mountpoint, err)
		}
	}
}

func (m *Mounted) unmount(dir int, name string, force bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if force {
		// MNT_FORCE ends the connection at once, although a process that is stuck may still hold it.
		flags |= unix.MNT_FORCE | unix.MNT_DETACH
	}
	err := unix.Unmount(fmt.Sprintf("/proc/self/fd/%d/%s", dir, name), flags)
	if err == unix.EPERM {
		return m.unmountAsUser(force)
	}
	if err != nil {
		return fmt.Errorf("cannot unmount %s: %w", m.Mountpoint, err)
	}
	return nil
}

// isAt does not touch the mount.
func (m *Mounted) isAt(dir int, name string) bool {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	return err == nil && m.has(info)
}

// has says whether a file is in this mount, by what fdinfo/ of a process says about it.
func (m *Mounted) has(fdinfo []byte) bool {
	return bytes.Contains(fdinfo, fmt.Appendf(nil, "mnt_id:\t%d\n", m.id))
}

func (m *Mounted) unmountAsUser(force bool) error {
	helper, err := fusermount()
	if err != nil {
		return err
	}
	args := []string{"-u", "--", m.Mountpoint}
	if force {
		_, minor, _ := strings.Cut(m.Device, ":")
		os.WriteFile("/sys/fs/fuse/connections/"+minor+"/abort", []byte("1"), 0) // where that is mounted
		args = append([]string{"-z"}, args...)
	}
	cmd := exec.Command(helper, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	switch {
	case bytes.Contains(bytes.ToLower(out), []byte("busy")):
		return fmt.Errorf("cannot unmount %s: %w", m.Mountpoint, unix.EBUSY)
	case err != nil:
		return fmt.Errorf("cannot unmount %s: %s (%w)", m.Mountpoint, strings.TrimSpace(string(out)), err)
	}
	if left, err := m.Refresh(); left != nil || err != nil { // fusermount3 looks the path up itself
		return cmp.Or(err, fmt.Errorf("cannot unmount %s: the directory was moved meanwhile", m.Mountpoint))
	}
	return nil
}
