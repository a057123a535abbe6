package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"batchfs/internal/failure"
)

// Resolve makes a path absolute and resolves its symbolic links, as in the kernel's table of
// mounts. If the path is a mountpoint or a link to one, it does not touch the mount, which may be
// dead or hang.
func Resolve(path string) (string, error) {
	const maxLinks = 40 // as in the kernel
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for range maxLinks {
		// Unlike filepath.Dir, Split does not remove "..", which may stand after a symbolic link.
		dir, name := filepath.Split("/" + strings.Trim(abs, "/"))
		dir, err := filepath.EvalSymlinks(dir)
		if errors.Is(err, os.ErrNotExist) {
			return filepath.Clean(abs), nil // nothing can be mounted there
		}
		if err != nil {
			return "", err
		}
		abs = filepath.Join(dir, name)
		if mounted, err := Find(abs); mounted != nil || err != nil {
			return abs, err
		}
		target, err := os.Readlink(abs)
		switch {
		case err != nil:
			return abs, nil // not a link
		case filepath.IsAbs(target):
			abs = target
		default:
			abs = dir + "/" + target
		}
	}
	return abs, nil
}

// FindContaining returns the batchfs mount that contains a path, or nil, and the path below its
// root. It does not touch the mount, which may hang.
func FindContaining(path string) (m *Mounted, below string, err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, "", err
	}
	if m := FindHandedOver(abs); m != nil {
		return m, strings.TrimPrefix(strings.TrimPrefix(abs, m.Mountpoint), "/"), nil
	}
	var unresolved error
	// Look from the root down, because following a link inside a mount would touch the mount.
	for end := 0; end <= len(abs); end++ {
		if end < len(abs) && abs[end] != '/' {
			continue
		}
		dir, err := Resolve(abs[:max(end, 1)])
		if err != nil {
			unresolved = fmt.Errorf("%s: %w", path, err)
			break
		}
		if m, err := Find(dir); m != nil || err != nil {
			if m != nil {
				below = strings.TrimPrefix(filepath.Join(m.Root, abs[end:]), "/")
			}
			return m, below, err
		}
	}
	// A link may lead into a mount, where the rest of the path need not exist.
	for dir, rest := abs, ""; dir != "/"; dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest) {
		if real, err := filepath.EvalSymlinks(dir); err == nil && real != dir {
			return FindContaining(filepath.Join(real, rest))
		} else if err == nil {
			break
		}
	}
	if errors.Is(unresolved, unix.ENOTDIR) {
		return nil, "", nil // nothing can be mounted there
	}
	return nil, "", unresolved
}

// Containing is like FindContaining, but returns an error if no batchfs mount contains the path.
func Containing(path string) (m *Mounted, below string, err error) {
	m, below, err = FindContaining(path)
	if err == nil && m == nil {
		err = failure.Mountpoint.Wrap(fmt.Errorf("%s: no batchfs is mounted there", path))
	}
	return m, below, err
}

// At returns the batchfs mount whose mountpoint is path.
func At(path string) (*Mounted, error) {
	m, below, err := Containing(path)
	if err == nil && "/"+below != m.Root {
		return nil, failure.Mountpoint.Wrap(fmt.Errorf("%s: no batchfs is mounted there; the mountpoint is %s", path, m.Mountpoint))
	}
	return m, err
}
