// Package privatedir opens directories that other users cannot write to. Use them through an
// os.Root, so that no symbolic link leads out of them.
package privatedir

import (
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// A NotPrivateError says why other users may be able to write to a directory.
type NotPrivateError string

func (e NotPrivateError) Error() string { return string(e) }

// Mode returns the permissions of a private directory, or of one that a group shares.
func Mode(group bool) os.FileMode {
	if group {
		return os.ModeSetgid | 0o770
	}
	return 0o700
}

// Check returns a NotPrivateError if the directory of root is not private. The directory must
// belong to this process's user, and must not be writable by others. A directory that a group
// shares may belong to another user, if this process is in its group.
func Check(root *os.Root, group bool) error {
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	return check(info, group)
}

// Open opens the directory of root itself, for locking. If it is private and the user owns it, Open
// sets its permissions to Mode. Otherwise, the error is that of Check.
func Open(root *os.Root, group bool) (*os.File, error) {
	self, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	if err := protect(self, group); err != nil {
		self.Close()
		return nil, err
	}
	return self, nil
}

func protect(dir *os.File, group bool) error {
	info, err := dir.Stat()
	if err != nil {
		return err
	}
	if err := check(info, group); err != nil {
		return err
	}
	if mode := Mode(group); isOwn(info) && info.Mode()&(os.ModePerm|os.ModeSetgid) != mode {
		return dir.Chmod(mode)
	}
	return nil
}

func isOwn(info os.FileInfo) bool { return int(info.Sys().(*syscall.Stat_t).Uid) == os.Geteuid() }

func check(info os.FileInfo, group bool) error {
	owner, own := info.Sys().(*syscall.Stat_t), isOwn(info)
	groups, _ := os.Getgroups()
	switch {
	case !own && !group:
		return NotPrivateError(fmt.Sprintf("belongs to user %d, and this is user %d", owner.Uid, os.Geteuid()))
	case !own && !slices.Contains(append(groups, os.Getegid()), int(owner.Gid)):
		return NotPrivateError(fmt.Sprintf("belongs to user %d and group %d, and this is user %d, who is not in that group", owner.Uid,
			owner.Gid, os.Geteuid()))
	case info.Mode()&0o022&^Mode(group) != 0:
		return NotPrivateError(fmt.Sprintf("others may write to it (its mode is %04o)", info.Mode().Perm()))
	}
	return nil
}

// Lock calls flock(2), and repeats the call if a signal interrupts it.
func Lock(f *os.File, operation int) error {
	err := error(unix.EINTR)
	for err == unix.EINTR {
		err = unix.Flock(int(f.Fd()), operation)
	}
	return os.NewSyscallError("flock "+f.Name(), err)
}
