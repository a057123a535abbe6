package blocks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/internal/owndir"
)

// Check returns an error if others than those that the options name may write to the directory.
func (c *Cache) Check() error {
	d := c.disk
	if d == nil || !d.usable() {
		return nil
	}
	err := d.timely(func() error {
		root, err := d.open()
		if err == nil {
			root.Close()
		}
		return err
	})
	if errors.As(err, new(owndir.Refusal)) {
		return err
	}
	return nil // the cache does without a directory that fails
}

// open opens the directory, which is this process's own.
func (d *disk) open() (*os.Root, error) {
	root, err := os.OpenRoot(d.dir)
	if err != nil {
		return nil, err
	}
	self, err := owndir.Self(root, d.shared)
	if err != nil {
		root.Close()
		if errors.As(err, new(owndir.Refusal)) {
			err = fmt.Errorf("store.cache_dir: %s: %w, and blocks of others are not served: name another directory, or one in it, which is made; "+
				"store.cache_shared = true is for one that a group shares", d.dir, err)
		}
		return nil, err
	}
	self.Close()
	return root, nil
}

// makeDir makes a directory in place of whatever else has its name.
func (d *disk) makeDir(root *os.Root, name string) error {
	if info, err := root.Lstat(name); err == nil && info.IsDir() {
		return nil
	}
	root.RemoveAll(name)
	err := root.Mkdir(name, 0o700)
	if err == nil && d.shared {
		err = root.Chmod(name, owndir.Mode(true))
	}
	return err
}

// create opens a file to write to, and makes it if there is none, or if os.O_EXCL is among the flags.
func (d *disk) create(root *os.Root, name string, flags int) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|flags, 0o600)
	if err == nil && d.shared {
		f.Chmod(0o660) // which its owner has done already, where that is another user
	}
	return f, err
}

func (d *disk) createWith(root *os.Root, name string, text []byte) error {
	f, err := d.create(root, name, os.O_EXCL)
	if err == nil {
		_, err = f.Write(text)
		f.Close()
	}
	return err
}

// openRegular opens a file to read, which is no link and no pipe that another process has put there.
func openRegular(root *os.Root, name string) (*os.File, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: no regular file", errWrong)
	}
	return root.Open(name)
}

func (d *disk) files(root *os.Root, dir string) (all []fs.FileInfo, err error) {
	entries, err := fs.ReadDir(root.FS(), dir)
	for _, entry := range entries {
		d.steps.Add(1)
		if info, err := entry.Info(); err == nil {
			all = append(all, info)
		}
	}
	return all, err
}

// errBusy says that another process holds the lock.
var errBusy = errors.New("another process has held the lock on it for too long")

const (
	lockTime  = slow / 2 // how long to wait for the lock: another process that holds it is no sign of a disk that hangs
	lockPause = 5 * time.Millisecond
)

// locked makes the directory, and calls do while no other process, or goroutine, changes it.
func (d *disk) locked(do func(root *os.Root) error) error {
	root, err := d.open()
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(d.dir, 0o755); err == nil {
			root, err = d.open() // which takes permissions away
		}
	}
	if err != nil {
		return err
	}
	defer root.Close()
	lock, err := root.Open(".")
	if err != nil {
		return err
	}
	defer lock.Close()
	for end := time.Now().Add(lockTime); ; time.Sleep(lockPause) {
		err := owndir.Lock(lock, unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			d.steps.Add(1)
			return do(root)
		case !errors.Is(err, unix.EWOULDBLOCK):
			return err
		case time.Now().After(end):
			return fmt.Errorf("%s: %w", d.dir, errBusy)
		}
	}
}
