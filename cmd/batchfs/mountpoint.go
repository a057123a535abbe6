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
)

var directories = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)

// checkMountpoint returns the path, absolute and without symbolic links, of a directory that can be mounted on. It unmounts a
// batchfs there whose processes are gone.
func checkMountpoint(c *config.Config, logFile string) (string, error) {
	path := c.Mountpoint
	abs, err := resolve(path)
	if err != nil {
		return "", fmt.Errorf("mountpoint %s: %w", path, err)
	}
	mounted, err := mount.Find(abs)
	if err != nil {
		return "", err
	}
	if mounted != nil && mounted.IsDead() {
		if err := mounted.Unmount(true); err != nil {
			return "", fmt.Errorf("mountpoint %s holds a dead batchfs mount: %w", path, err)
		}
		return checkMountpoint(c, logFile) // there may be another below
	}
	if mounted != nil { // which may be stuck, so it is not touched
		return "", fmt.Errorf("mountpoint %s: a batchfs is already mounted there; batchfs unmount %s ends it", path, path)
	}
	info, err := os.Stat(abs)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("mountpoint %s does not exist; make it with: mkdir -p %s", path, path)
	case err != nil:
		return "", fmt.Errorf("mountpoint: %w", err)
	case !info.IsDir():
		return "", fmt.Errorf("mountpoint %s is a file; it must be an empty directory", path)
	}
	for _, used := range []struct{ key, file string }{{"store.cache_dir", c.Store.CacheDir}, {"--log", logFile}} {
		if used.file != "" && inside(abs, used.file) {
			return "", fmt.Errorf("%s: %s lies in the mountpoint %s, which would hide it", used.key, used.file, path)
		}
	}
	entries, err := os.ReadDir(abs)
	if err != nil {
		return "", fmt.Errorf("mountpoint: %w", err)
	}
	if len(entries) > 0 {
		if mounted, err := mount.Find(abs); mounted != nil || err != nil {
			return checkMountpoint(c, logFile) // another process has mounted there since the first look
		}
		return "", fmt.Errorf("mountpoint %s is not empty (it holds %s); a mount would hide that, choose an empty directory", path, entries[0].Name())
	}
	return abs, nil
}

// inside says whether a file, which need not exist, lies in dir.
func inside(dir, file string) bool {
	real, err := filepath.EvalSymlinks(file)
	if err != nil {
		real, err = filepath.EvalSymlinks(filepath.Dir(file))
	}
	if err == nil {
		real, err = filepath.Abs(real)
	}
	return err == nil && strings.HasPrefix(real+"/", strings.TrimSuffix(dir, "/")+"/")
}

// resolve makes a path absolute and free of symbolic links, as the kernel's table of mounts has it. Where that is a mount it does not
// touch the last component, because looking at a dead mount fails.
func resolve(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if errors.Is(err, os.ErrNotExist) {
		return abs, nil // where nothing is mounted
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

// findMount returns the batchfs that a path lies in, and the path there; or nil where it lies in none. It does not touch the mount,
// which may hang.
func findMount(path string) (m *mount.Mounted, below string, err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, "", err
	}
	if m := mount.FindHandedOver(abs); m != nil {
		return m, strings.TrimPrefix(strings.TrimPrefix(abs, m.Mountpoint), "/"), nil
	}
	for end := 0; end <= len(abs); end++ { // from the root on: to follow a link below a mount would touch it
		if end < len(abs) && abs[end] != '/' {
			continue
		}
		dir, err := resolve(abs[:max(end, 1)])
		if err != nil {
			return nil, "", nil // there is no such directory
		}
		if m, err := mount.Find(dir); m != nil || err != nil {
			if m != nil {
				below = strings.TrimPrefix(filepath.Join(m.Root, abs[end:]), "/")
			}
			return m, below, err
		}
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil && real != abs { // a link may lead into a mount
		return findMount(real)
	}
	return nil, "", nil
}

func requireMount(path string) (m *mount.Mounted, below string, err error) {
	m, below, err = findMount(path)
	if err == nil && m == nil {
		err = fmt.Errorf("%s: no batchfs is mounted there", path)
	}
	return m, below, err
}

// mountedAt returns the batchfs that is mounted at a path.
func mountedAt(path string) (*mount.Mounted, error) {
	m, below, err := requireMount(path)
	if err == nil && "/"+below != m.Root {
		return nil, fmt.Errorf("%s: no batchfs is mounted there, but at %s", path, m.Mountpoint)
	}
	return m, err
}
