package processes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"batchfs/cmd/batchfs/config"
	"batchfs/fs/mount"
	"batchfs/internal/failure"
)

// CheckMountpoint checks that the mountpoint of c is an empty directory, and returns its path,
// absolute and without symbolic links. It unmounts any batchfs there whose processes have died.
func CheckMountpoint(c *config.Config, logFile string) (abs string, err error) {
	defer func() { err = failure.Mountpoint.Wrap(err) }()
	path := c.Mountpoint
	abs, err = mount.Resolve(path)
	if err != nil {
		return "", fmt.Errorf("mountpoint %s: %w", path, err)
	}
	mounted, err := mount.Find(abs)
	if err != nil {
		return "", err
	}
	if mounted != nil && mounted.IsDead() {
		if err := mounted.Unmount(true); err != nil {
			return "", fmt.Errorf("mountpoint %s has a dead batchfs mount: %w", path, err)
		}
		return CheckMountpoint(c, logFile) // another mount may be underneath
	}
	outer, _, err := mount.FindContaining(abs)
	if err != nil {
		return "", err
	}
	if outer != nil && outer.Mountpoint != abs {
		return "", fmt.Errorf("mountpoint %s is inside the batchfs mount %s; choose a directory elsewhere", path, outer.Mountpoint)
	}
	if _, err := os.Lstat(abs); errors.Is(err, os.ErrNotExist) {
		if err := config.CheckPath(path); err != nil {
			return "", fmt.Errorf("mountpoint: %w", err)
		}
	}
	for _, used := range []struct{ key, file string }{{"store.cache_dir", c.Store.CacheDir}, {"--log", logFile}} {
		if used.file != "" && isInside(abs, used.file) {
			return "", fmt.Errorf("%s: %s is inside the mountpoint %s, and the mount would hide it; choose another path", used.key, used.file, path)
		}
	}
	return abs, mount.CheckMountpoint(abs)
}

// isInside reports whether a file, which need not exist, is dir or below it.
func isInside(dir, file string) bool {
	path, err := filepath.Abs(file)
	if err != nil {
		return false
	}
	for ; ; path = filepath.Dir(path) {
		real, err := mount.Resolve(path)
		if err == nil && strings.HasPrefix(real+"/", strings.TrimSuffix(dir, "/")+"/") {
			return true
		}
		if path == "/" {
			return false
		}
	}
}
