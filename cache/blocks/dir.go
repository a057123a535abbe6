package blocks

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A refusal says why a directory is not used: somebody else may have put blocks in it.
type refusal string

func (r refusal) Error() string { return string(r) }

// Check returns an error if others than those that the options name may write to the directory.
func (c *Cache) Check() error {
	d := c.disk
	if d == nil || !d.usable() {
		return nil
	}
	err := d.timely(func(func()) error {
		root, err := d.open()
		if err == nil {
			root.Close()
		}
		return err
	})
	if refused, ok := errors.AsType[refusal](err); ok {
		return refused
	}
	return nil
}

// mode is what the directory's permissions are, and those of directories in it.
func (d *disk) mode() os.FileMode {
	if d.shared {
		return os.ModeSetgid | 0o770
	}
	return 0o700
}

// open opens the directory. It belongs to this process's user, who alone may use it; or, where it is shared, to a group of this process. All that
// is done with it is done through the Root, so that links lead nowhere else.
func (d *disk) open() (*os.Root, error) {
	root, err := os.OpenRoot(d.dir)
	if err != nil {
		return nil, err
	}
	if err := d.protect(root); err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

func (d *disk) protect(root *os.Root) error {
	self, err := root.Open(".")
	if err != nil {
		return err
	}
	defer self.Close()
	info, err := self.Stat()
	if err != nil {
		return err
	}
	owner, others := info.Sys().(*syscall.Stat_t), info.Mode()&0o022
	groups, _ := os.Getgroups()
	switch own := int(owner.Uid) == os.Geteuid(); {
	case !own && !d.shared:
		return refusal(fmt.Sprintf("store.cache_dir: %s belongs to user %d, and this is user %d, who serves no blocks of others: name another directory, "+
			"or set store.cache_shared = true in a directory of a group that you trust", d.dir, owner.Uid, os.Geteuid()))
	case !own && !slices.Contains(append(groups, os.Getegid()), int(owner.Gid)):
		return refusal(fmt.Sprintf("store.cache_dir: %s belongs to user %d and group %d, and this is user %d, who is not in that group: name another directory",
			d.dir, owner.Uid, owner.Gid, os.Geteuid()))
	case others&^(d.mode()&0o070) != 0:
		return refusal(fmt.Sprintf("store.cache_dir: others may write to %s (its mode is %04o), and their blocks would be served: "+
			"remove it, or name a directory in it, which is made", d.dir, info.Mode().Perm()))
	case own && info.Mode()&(os.ModePerm|os.ModeSetgid) != d.mode():
		return self.Chmod(d.mode())
	}
	return nil
}

// make is open, and makes the directory.
func (d *disk) make() (*os.Root, error) {
	root, err := d.open()
	if !errors.Is(err, fs.ErrNotExist) {
		return root, err
	}
	if err := os.MkdirAll(filepath.Dir(d.dir), 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(d.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return d.open()
}

// makeDir makes a directory, in place of whatever else has its name.
func (d *disk) makeDir(root *os.Root, name string) error {
	if info, err := root.Lstat(name); err == nil && info.IsDir() {
		return nil
	}
	root.RemoveAll(name)
	err := root.Mkdir(name, 0o700)
	if err == nil && d.shared {
		err = root.Chmod(name, d.mode())
	}
	return err
}

// create makes a file to write to.
func (d *disk) create(root *os.Root, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil && d.shared {
		err = f.Chmod(0o660)
	}
	return f, err
}

func (d *disk) createWith(root *os.Root, name string, text []byte) error {
	f, err := d.create(root, name)
	if err == nil {
		_, err = f.Write(text)
		f.Close()
	}
	return err
}

// openRegular opens a file to read. It is no link, and nothing else that is no regular file.
func openRegular(root *os.Root, name string) (*os.File, error) {
	named, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !named.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: no regular file", errWrong)
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !os.SameFile(info, named) {
		f.Close()
		return nil, cmp.Or(err, error(&os.PathError{Op: "open", Path: name, Err: unix.ESTALE}))
	}
	return f, nil
}

// eachFile calls do with what a directory has, until it returns false.
func eachFile(root *os.Root, dir string, do func(info fs.FileInfo) bool) error {
	f, err := root.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		entries, err := f.ReadDir(256) // there may be very many
		for _, entry := range entries {
			if info, err := entry.Info(); err == nil && !do(info) {
				return nil
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// errBusy says that another process holds the lock.
var errBusy = errors.New("another process has held the lock on it for too long")

// locked makes the directory, and calls do while no other process, or goroutine, changes it. To wait for the lock is no sign of a disk that hangs.
func (d *disk) locked(alive func(), do func(root *os.Root) error) error {
	root, err := d.make()
	if err != nil {
		return err
	}
	defer root.Close()
	lock, err := root.Open(".")
	if err != nil {
		return err
	}
	defer lock.Close()
	began := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := flock(lock, unix.LOCK_EX|unix.LOCK_NB)
		alive()
		switch {
		case err == nil:
			return do(root)
		case !errors.Is(err, unix.EWOULDBLOCK):
			return err
		case time.Since(began) > slow:
			return fmt.Errorf("%s: %w", d.dir, errBusy)
		}
		time.Sleep(pause)
	}
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		switch err {
		case nil:
			return nil
		case unix.EINTR:
		default:
			return &os.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
	}
}
