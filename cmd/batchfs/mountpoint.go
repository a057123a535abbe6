package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/config"
	"batchfs/fs/mount"
	"batchfs/internal/failure"
)

var dirCompletion = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)

// checkMountpoint checks that the mountpoint of c is an empty directory, and returns its path,
// absolute and without symbolic links. It unmounts any batchfs there whose processes have died.
func checkMountpoint(c *config.Config, logFile string) (abs string, err error) {
	defer func() { err = failure.Mountpoint.Wrap(err) }()
	path := c.Mountpoint
	abs, err = resolve(path)
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
		return checkMountpoint(c, logFile) // another mount may be underneath
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
	real, err := filepath.EvalSymlinks(file)
	if err != nil {
		real, err = filepath.EvalSymlinks(filepath.Dir(file))
	}
	if err == nil {
		real, err = filepath.Abs(real)
	}
	return err == nil && strings.HasPrefix(real+"/", strings.TrimSuffix(dir, "/")+"/")
}

// resolve makes a path absolute and resolves its symbolic links, as in the kernel's table of
// mounts. If the path is a mountpoint, it does not touch the last component, because lstat on a
// dead mount fails.
func resolve(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if errors.Is(err, os.ErrNotExist) {
		return abs, nil // nothing can be mounted there
	}
	if err != nil {
		return "", err
	}
	abs = filepath.Join(dir, filepath.Base(abs))
	if mounted, err := mount.Find(abs); mounted != nil || err != nil {
		return abs, err
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real, nil
	}
	return abs, nil
}

// findMount returns the batchfs mount that contains a path, or nil, and the path below its root. It
// does not touch the mount, which may hang.
func findMount(path string) (m *mount.Mounted, below string, err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, "", err
	}
	if m := mount.FindHandedOver(abs); m != nil {
		return m, strings.TrimPrefix(strings.TrimPrefix(abs, m.Mountpoint), "/"), nil
	}
	// Look from the root down, because following a link inside a mount would touch the mount.
	for end := 0; end <= len(abs); end++ {
		if end < len(abs) && abs[end] != '/' {
			continue
		}
		dir, err := resolve(abs[:max(end, 1)])
		if err != nil {
			return nil, "", nil // no such directory
		}
		if m, err := mount.Find(dir); m != nil || err != nil {
			if m != nil {
				below = strings.TrimPrefix(filepath.Join(m.Root, abs[end:]), "/")
			}
			return m, below, err
		}
	}
	// A link may lead into a mount.
	if real, err := filepath.EvalSymlinks(abs); err == nil && real != abs {
		return findMount(real)
	}
	return nil, "", nil
}

// requireMount is like findMount, but returns an error if no batchfs mount contains the path.
func requireMount(path string) (m *mount.Mounted, below string, err error) {
	m, below, err = findMount(path)
	if err == nil && m == nil {
		err = failure.Mountpoint.Wrap(fmt.Errorf("%s: no batchfs is mounted there", path))
	}
	return m, below, err
}

// mountedAt returns the batchfs mount whose mountpoint is path.
func mountedAt(path string) (*mount.Mounted, error) {
	m, below, err := requireMount(path)
	if err == nil && "/"+below != m.Root {
		return nil, failure.Mountpoint.Wrap(fmt.Errorf("%s: no batchfs is mounted there; the mountpoint is %s", path, m.Mountpoint))
	}
	return m, err
}
