// Package mount makes, finds and ends mounts.
//
// [Connect] mounts and returns the connection to the kernel. The mount is dead once no process
// holds the connection. [Find] looks up a batchfs in the kernel's table of mounts, without touching
// the mount, which may hang. The methods of [Mounted] look up its supervisor in /proc.
package mount

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"batchfs/internal/failure"
	"batchfs/internal/fdpass"
	"batchfs/internal/printable"
)

const fsType = "fuse.batchfs"

// MaxRequest is the size of the largest READ in bytes, the kernel's default limit.
const MaxRequest = 1 << 20

// ReadAhead is the kernel's read-ahead for a mount, in bytes. A larger value was not faster, and
// each page fault in a mapping reads this much.
const ReadAhead = MaxRequest

// SetReadAhead sets the kernel's read-ahead for a device MAJOR:MINOR. Only root may do so.
func SetReadAhead(device string) error {
	if device == "" {
		return errors.New("the mount was handed over and is not visible here")
	}
	return os.WriteFile("/sys/class/bdi/"+device+"/read_ahead_kb", fmt.Append(nil, ReadAhead>>10), 0)
}

// Connect mounts on an empty directory. It returns the mount, with this process as its supervisor,
// and the connection (/dev/fuse). mountpoint is absolute; symbolic links in it are not followed.
// With allowOther, other users may read. If several processes mount at the same time, one succeeds.
// If Connect fails, nothing is mounted, and the error says how to fix the problem.
func Connect(mountpoint string, allowOther bool) (*Mounted, *os.File, error) {
	source, err := selfSource()
	if err != nil {
		return nil, nil, err
	}
	dir, err := lockMountpoint(mountpoint)
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	connection, err := connect(dir, mountpoint, source, allowOther)
	if err == nil {
		m, findErr := Find(mountpoint)
		if m != nil && m.source == source {
			return m, connection, nil
		}
		connection.Close()
		err = cmp.Or(findErr, fmt.Errorf("cannot mount %s: the directory was moved or replaced in the meantime", mountpoint))
	}
	ours, findErr := listMounts(func(i *mountinfo.Info) bool { return i.FSType == fsType && i.Source == source })
	err = errors.Join(err, findErr)
	for _, m := range ours {
		err = errors.Join(err, m.Unmount(true))
	}
	return nil, nil, err
}

// CheckAddressSpace returns an error if the address space is limited to less than the processes of
// a mount reserve. They use only a small part of what they reserve.
func CheckAddressSpace() error {
	const needed = 13 << 28 // 3.25 GiB
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &limit); err != nil || limit.Cur >= needed {
		return nil
	}
	return failure.NoFUSE.Wrap(fmt.Errorf("the address space is limited to %d MiB, and a mount needs %d: raise the limit (ulimit -v, or that of the job); %s",
		limit.Cur>>20, needed>>20, insteadOfFUSE))
}

// CheckMountpoint returns an error unless there is an empty directory at an absolute path, with no
// batchfs mounted on it. Symbolic links in the path are not followed.
func CheckMountpoint(mountpoint string) error {
	dir, err := openMountpoint(mountpoint)
	if err != nil {
		return err
	}
	defer dir.Close()
	return checkEmpty(dir)
}

// lockMountpoint is like CheckMountpoint, but returns the directory. It locks the directory against
// other processes that mount there.
func lockMountpoint(mountpoint string) (*os.File, error) {
	dir, err := openMountpoint(mountpoint)
	if err != nil {
		return nil, err
	}
	if err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		err = failure.Busy.Wrap(fmt.Errorf("cannot mount %s: another process is mounting there, or holds a lock on the directory; fuser %s may show which (%w)",
			mountpoint, printable.ShellArg(mountpoint), err))
	} else {
		// Another process may have mounted before this one had the lock.
		err = cmp.Or(checkNotMounted(mountpoint), checkEmpty(dir))
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// openMountpoint opens a directory. If a batchfs is mounted there, it fails without touching it.
func openMountpoint(mountpoint string) (dir *os.File, err error) {
	defer func() { err = failure.Mountpoint.Wrap(err) }()
	pathFd, err := openPath(mountpoint)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("mountpoint %s does not exist; create it with: mkdir -p %s", mountpoint, printable.ShellArg(mountpoint))
	case errors.Is(err, unix.ENOTDIR):
		return nil, fmt.Errorf("mountpoint %s is a file; it must be an empty directory", mountpoint)
	case err != nil:
		return nil, fmt.Errorf("mountpoint %s: %w", mountpoint, err)
	}
	defer unix.Close(pathFd)
	// Checking after openPath ensures that pathFd is not a batchfs, where Openat could hang.
	if err := checkNotMounted(mountpoint); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(pathFd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("mountpoint %s: %w", mountpoint, err)
	}
	return os.NewFile(uintptr(fd), mountpoint), nil
}

func checkEmpty(dir *os.File) error {
	names, err := dir.Readdirnames(1)
	switch {
	case len(names) > 0:
		return failure.Mountpoint.Wrap(fmt.Errorf("mountpoint %s is not empty (it holds %s), and the mount would hide its files; choose "+
			"an empty directory", dir.Name(), names[0]))
	case err != io.EOF:
		return failure.Mountpoint.Wrap(fmt.Errorf("mountpoint %s: %w", dir.Name(), err))
	}
	return nil
}

func checkNotMounted(mountpoint string) error {
	m, err := Find(mountpoint)
	if err == nil && m != nil {
		err = failure.Busy.Wrap(fmt.Errorf("mountpoint %s: a batchfs is already mounted there; read that one, or end it with: batchfs "+
			"unmount %s", mountpoint, printable.ShellArg(mountpoint)))
	}
	return err
}

// openPath opens a directory by its absolute path, with O_PATH. If the path has a symbolic link,
// the error is ENOTDIR.
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

// connect mounts on dir, with fusermount3 if this process may not mount.
func connect(dir *os.File, mountpoint, source string, allowOther bool) (*os.File, error) {
	fd, err := OpenDevice("/dev/fuse")
	if err != nil {
		return nil, err
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,default_permissions,max_read=%d", fd, os.Geteuid(), os.Getegid(), MaxRequest)
	if allowOther {
		data += ",allow_other"
	}
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err = unix.Mount(source, fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), fsType, flags, data)
	if err == nil {
		return os.NewFile(uintptr(fd), "/dev/fuse"), nil
	}
	unix.Close(fd)
	switch {
	case err == unix.ENODEV, err == unix.ENOSYS:
		return nil, failure.NoFUSE.Wrap(fmt.Errorf("cannot mount %s: %w: %s", mountpoint, err, withoutFUSE))
	case err != unix.EPERM && err != unix.EACCES:
		return nil, fmt.Errorf("cannot mount %s: %w", mountpoint, err)
	}
	connection, err := connectAsUser(mountpoint, source, allowOther)
	if err != nil && os.Geteuid() == 0 {
		err = ErrNoCapability
	}
	return connection, err
}

const (
	// insteadOfFUSE says what works on a machine that cannot mount.
	insteadOfFUSE = "here, batchfs.open(...) in Python and batchfs cat elsewhere read the same batches without a mount"
	withoutFUSE   = insteadOfFUSE + "; to mount, load the kernel module (modprobe fuse), or start the container with docker run " +
		"--device /dev/fuse --cap-add SYS_ADMIN"
)

// ErrNoCapability means that this process is root but lacks CAP_SYS_ADMIN.
var ErrNoCapability = failure.NoFUSE.Wrap(errors.New("root may not mount in this container: " + insteadOfFUSE +
	"; to mount, start the container with docker run --device /dev/fuse --cap-add SYS_ADMIN"))

// OpenDevice opens path, which is /dev/fuse except in tests. The error says how to fix the problem.
func OpenDevice(path string) (fd int, err error) {
	fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EACCES):
		return -1, failure.NoFUSE.Wrap(fmt.Errorf("%s: %w: %s; to mount, run as root: chmod 666 %s", path, err, insteadOfFUSE, printable.ShellArg(path)))
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO), errors.Is(err, unix.EPERM), errors.Is(err, unix.EISDIR):
		return -1, failure.NoFUSE.Wrap(fmt.Errorf("%s: %w: %s", path, err, withoutFUSE))
	case err != nil:
		return -1, failure.NoFUSE.Wrap(fmt.Errorf("%s: %w: %s", path, err, insteadOfFUSE))
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || !isDevice(&st) {
		unix.Close(fd)
		return -1, failure.NoFUSE.Wrap(fmt.Errorf("%s: not the device of FUSE: %s", path, withoutFUSE))
	}
	return fd, nil
}

// isDevice reports whether a file is /dev/fuse, whatever its name.
func isDevice(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(10, 229)
}

// connectAsUser mounts with fusermount3, which is setuid root and sends the connection over a
// socket.
func connectAsUser(mountpoint, source string, allowOther bool) (*os.File, error) {
	helper, err := FindFusermount("/etc")
	if err != nil {
		return nil, err
	}
	if err := CheckHelper(mountpoint, "/etc"); err != nil {
		return nil, failure.NoFUSE.Wrap(fmt.Errorf("cannot mount %w; %s", err, insteadOfFUSE))
	}
	ours, theirs, err := fdpass.Pair()
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	defer theirs.Close()
	options := fmt.Sprintf("ro,nosuid,nodev,noexec,default_permissions,fsname=%s,subtype=batchfs,max_read=%d", source, MaxRequest)
	if allowOther {
		options += ",allow_other"
	}
	cmd := exec.Command(helper, "-o", options, "--", mountpoint)
	cmd.Env = append(os.Environ(), "_FUSE_COMMFD=3")
	cmd.ExtraFiles = []*os.File{theirs}
	if out, err := cmd.CombinedOutput(); err != nil {
		if p := readAppArmor("/etc"); p.file != "" && bytes.Contains(out, []byte("ermission denied")) {
			err = fmt.Errorf("%w; %w", err, p.error())
		} else if why := CheckPrivilege(helper); why != nil {
			err = fmt.Errorf("%w; %w", err, why)
		}
		return nil, failure.NoFUSE.Wrap(fmt.Errorf("cannot mount %s: %s (%w); %s", mountpoint, strings.TrimSpace(string(out)), err, insteadOfFUSE))
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

// FindFusermount returns the path of fusermount3, with which ordinary users mount. etc is /etc,
// except in tests. The error says how to fix the problem.
func FindFusermount(etc string) (helper string, err error) {
	defer func() { err = failure.NoFUSE.Wrap(err) }()
	const because = "this user may not mount: " + insteadOfFUSE + "; to mount: "
	if helper, err = lookUpFusermount(); err != nil {
		return "", fmt.Errorf(because+"%w", err)
	}
	var exit *exec.ExitError
	if err := exec.Command("id", "-un").Run(); errors.As(err, &exit) {
		return "", fmt.Errorf(because+"fusermount3 needs a name for user id %d, and %s/passwd has none: as root, "+
			"echo 'trainer:x:%[1]d:%[3]d::/:/bin/sh' >>%[2]s/passwd", os.Getuid(), etc, os.Getgid())
	}
	mtab := filepath.Join(etc, "mtab")
	if _, err := os.Stat(mtab); err != nil {
		// Without it, fusermount3 mounts but refuses to unmount.
		return "", fmt.Errorf(because+"fusermount3 needs %s, which minimal systems lack (%w): as root, ln -s /proc/self/mounts %s", mtab,
			err, printable.ShellArg(mtab))
	}
	return helper, nil
}

// CheckPrivilege returns an error if a program cannot run as root for an ordinary user. The error
// says how to fix the problem. A fusermount3 that leaves mounting to another process needs no root.
func CheckPrivilege(helper string) error {
	var disk unix.Statfs_t
	if set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil && set == 1 {
		return fmt.Errorf("%s cannot run as root, because no_new_privs is set: mount outside this service or container, or allow it new privileges: "+
			"NoNewPrivileges=no in a unit of systemd, docker run without --security-opt no-new-privileges, allowPrivilegeEscalation: "+
			"true on Kubernetes", helper)
	}
	if err := unix.Statfs(helper, &disk); err == nil && disk.Flags&unix.ST_NOSUID != 0 {
		return fmt.Errorf("%s cannot run as root, because its filesystem is mounted nosuid; install it elsewhere", helper)
	}
	if info, err := os.Stat(helper); err == nil && info.Mode()&os.ModeSetuid == 0 {
		return fmt.Errorf("%s does not run as root; as root, run: chmod u+s %s", helper, printable.ShellArg(helper))
	}
	return nil
}

func lookUpFusermount() (string, error) {
	helper, err := exec.LookPath("fusermount3")
	if err != nil {
		return "", errors.New("only root can do without fusermount3, which is not installed: apt-get install fuse3")
	}
	return helper, nil
}

// Unmount unmounts this mount and no other, even if its directory was moved. It returns nil if the
// mount is already gone, and EBUSY if files are open or another file system is mounted over it.
// With force, open files do not matter, and their readers get errors.
func (m *Mounted) Unmount(force bool) error {
	const tries = 20
	for try := 1; ; try++ {
		m, err := m.Current()
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
		if try == tries { // earlier tries may have failed because the directory moved
			return fmt.Errorf("cannot unmount %s: %w", m.Mountpoint, err)
		}
	}
}

func (m *Mounted) unmount(dir int, name string, force bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if force {
		// MNT_FORCE ends the connection even if a stuck process holds it.
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

// isAt reports whether this mount is at name in dir. It does not touch the mount.
func (m *Mounted) isAt(dir int, name string) bool {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	return err == nil && m.containsFile(info)
}

// containsFile reports whether a file is in this mount, given its fdinfo from /proc.
func (m *Mounted) containsFile(fdinfo []byte) bool {
	return bytes.Contains(fdinfo, fmt.Appendf(nil, "mnt_id:\t%d\n", m.id))
}

func (m *Mounted) unmountAsUser(force bool) error {
	helper, err := lookUpFusermount()
	if err != nil {
		return err
	}
	args := []string{"-u", "--", m.Mountpoint}
	if force {
		_, minor, _ := strings.Cut(m.Device, ":")
		os.WriteFile("/sys/fs/fuse/connections/"+minor+"/abort", []byte("1"), 0) // requires fusectl
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
	if left, err := m.Current(); left != nil || err != nil { // fusermount3 resolves the path itself
		return cmp.Or(err, fmt.Errorf("cannot unmount %s: the directory was moved in the meantime", m.Mountpoint))
	}
	return nil
}
