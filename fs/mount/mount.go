// Package mount makes, finds and ends mounts. It serves nothing.
//
// [Connect] mounts, and returns the connection to the kernel. The mount is dead when no process holds the connection any more.
// [Find] finds a batchfs in the kernel's table of mounts, and its supervisor in /proc, without touching the mount, which may
// hang.
package mount

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxRequest is how many bytes one request carries at most: the kernel's own bound unless it was raised.
const MaxRequest = 1 << 20

// ReadAhead is how many bytes the kernel reads ahead of a reader in order. More was not faster, and a fault in a mapping reads
// as much around it.
const ReadAhead = MaxRequest

// SetReadAhead sets ReadAhead for a mounted device, "MAJOR:MINOR". Only root may; new mounts have 128 KiB.
func SetReadAhead(device string) error {
	file, err := os.OpenFile("/sys/class/bdi/"+device+"/read_ahead_kb", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(file, ReadAhead>>10)
	return errors.Join(err, file.Close())
}

// Connect mounts a FUSE filesystem at an absolute path, to be served later, and returns the connection (/dev/fuse). The mount's
// source in the kernel's table names this process: it is the mount's supervisor. With allowOther, users other than this one
// may read. The error names what is missing and what helps.
func Connect(mountpoint string, allowOther bool) (*os.File, error) {
	self, err := self()
	if err != nil {
		return nil, err
	}
	fd, err := OpenDevice("/dev/fuse")
	if err != nil {
		return nil, err
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,default_permissions,max_read=%d", fd, os.Geteuid(), os.Getegid(), MaxRequest)
	if allowOther {
		data += ",allow_other"
	}
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err = unix.Mount(self.String(), mountpoint, "fuse.batchfs", flags, data)
	if err == nil {
		return os.NewFile(uintptr(fd), "/dev/fuse"), nil
	}
	unix.Close(fd)
	if err != unix.EPERM && err != unix.EACCES {
		return nil, fmt.Errorf("cannot mount %s: %w", mountpoint, err)
	}
	return connectAsUser(mountpoint, self, allowOther)
}

// connectAsUser lets fusermount3, which is setuid root, mount and send the connection over a socket.
func connectAsUser(mountpoint string, self mountSource, allowOther bool) (*os.File, error) {
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
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fusermount3 sent no connection: %w", err)
	}
	fd, err := descriptor(control[:n])
	if err != nil {
		return nil, fmt.Errorf("fusermount3 sent no connection: %w", err)
	}
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// descriptor returns the one descriptor that came over a socket.
func descriptor(control []byte) (int, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) != 1 {
		return -1, fmt.Errorf("%d control messages (%v)", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, fmt.Errorf("%d descriptors (%v)", len(fds), err)
	}
	return fds[0], nil
}

// Unmount unmounts the batchfs at an absolute path, and nothing but a batchfs. While files are open there the error is EBUSY;
// with force they do not matter, and their readers get errors.
func Unmount(mountpoint string, force bool) error {
	device, err := DeviceAt(mountpoint)
	if err != nil {
		return err
	}
	if device == "" {
		return fmt.Errorf("%s: no batchfs is mounted there", mountpoint)
	}
	flags := unix.UMOUNT_NOFOLLOW
	if force {
		// MNT_FORCE ends the connection at once, although a process that is stuck may still hold it.
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
