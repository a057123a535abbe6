package fs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// One request carries at most this much; the kernel's own bound where it was not raised.
const maxRequest = 1 << 20

// readAhead is how far the kernel reads a file ahead that is read in order. More was not faster, and a fault of a mapping reads
// as much around it.
const readAhead = maxRequest

// setReadAhead sets that for a mount, which takes root. New mounts have 128 KiB.
func setReadAhead(device string) error {
	file, err := os.OpenFile("/sys/class/bdi/"+device+"/read_ahead_kb", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(file, readAhead>>10)
	return errors.Join(err, file.Close())
}

// connect mounts a FUSE filesystem that is not served yet and returns the connection, /dev/fuse. This process is to keep it.
func connect(mountpoint string, allowOther bool) (*os.File, error) {
	keeper, err := self()
	if err != nil {
		return nil, err
	}
	fd, err := OpenDevice("/dev/fuse")
	if err != nil {
		return nil, err
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,default_permissions,max_read=%d", fd, os.Geteuid(), os.Getegid(), maxRequest)
	if allowOther {
		data += ",allow_other"
	}
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err = unix.Mount(keeper.String(), mountpoint, "fuse.batchfs", flags, data)
	if err == nil {
		return os.NewFile(uintptr(fd), "/dev/fuse"), nil
	}
	unix.Close(fd)
	if err != unix.EPERM && err != unix.EACCES {
		return nil, fmt.Errorf("cannot mount %s: %w", mountpoint, err)
	}
	return connectAsUser(mountpoint, keeper, allowOther)
}

// connectAsUser lets fusermount3, which is setuid root, mount and send the connection over a socket.
func connectAsUser(mountpoint string, keeper process, allowOther bool) (*os.File, error) {
	helper, err := UserMounts("/etc", allowOther)
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "connection"), os.NewFile(uintptr(pair[1]), "fusermount3")
	defer ours.Close()
	defer theirs.Close()
	options := fmt.Sprintf("ro,nosuid,nodev,noexec,default_permissions,fsname=%s,subtype=batchfs,max_read=%d", keeper, maxRequest)
	if allowOther {
		options += ",allow_other"
	}
	cmd := exec.Command(helper, "-o", options, "--", mountpoint)
	cmd.Env = append(os.Environ(), "_FUSE_COMMFD=3")
	cmd.ExtraFiles = []*os.File{theirs}
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot mount %s: %s (%w)", mountpoint, strings.TrimSpace(string(out)), err)
	}
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fusermount3 sent no connection: %w", err)
	}
	return fileOf(control[:n])
}

// Unmount unmounts the batchfs at an absolute path and nothing else. While files are open there the error is EBUSY, unless
// force, which ends it under its readers: they get errors.
func Unmount(mountpoint string, force bool) error {
	device, err := mountedAt(mountpoint)
	if err != nil {
		return err
	}
	if device == "" {
		return fmt.Errorf("%s: no batchfs is mounted there", mountpoint)
	}
	flags := unix.UMOUNT_NOFOLLOW
	if force {
		// The connection ends at once, although a process that is stuck may go on holding it.
		flags |= unix.MNT_FORCE | unix.MNT_DETACH
	}
	err = unix.Unmount(mountpoint, flags)
	if err == unix.EPERM {
		return unmountAsUser(mountpoint, device, force)
	}
	if err != nil {
		return fmt.Errorf("cannot unmount %s: %w", mountpoint, err)
	}
	return nil
}

func unmountAsUser(mountpoint, device string, force bool) error {
	helper, err := fusermount()
	if err != nil {
		return err
	}
	args := []string{"-u", "--", mountpoint}
	if force {
		_, minor, _ := strings.Cut(device, ":")
		os.WriteFile("/sys/fs/fuse/connections/"+minor+"/abort", []byte("1"), 0) // where that is mounted
		args = append([]string{"-z"}, args...)
	}
	cmd := exec.Command(helper, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case bytes.Contains(bytes.ToLower(out), []byte("busy")):
		return fmt.Errorf("cannot unmount %s: %w", mountpoint, unix.EBUSY)
	}
	return fmt.Errorf("cannot unmount %s: %s (%w)", mountpoint, strings.TrimSpace(string(out)), err)
}
