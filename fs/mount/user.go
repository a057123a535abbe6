package mount

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

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

// UserMounts returns the path of fusermount3, through which an ordinary user mounts. The error says what is missing, and what helps. etc is
// /etc, except in tests.
func UserMounts(etc string) (helper string, err error) {
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
