package blocks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"batchfs/internal/privatedir"
)

// Check returns an error if the directory is not private: if more users than Options allow may
// write to it.
func (c *Cache) Check() error {
	d := c.disk
	if d == nil || !d.usable() {
		return nil
	}
	err := d.withTimeout(diskTimeout, func() error {
		root, err := d.look()
		if err == nil {
			root.Close()
		}
		return err
	})
	if errors.As(err, new(privatedir.NotPrivateError)) {
		return err
	}
	return nil // the cache works without a directory that fails
}

// open opens the directory and restricts its permissions. It returns an error if the directory is
// not private.
func (d *disk) open() (*os.Root, error) {
	root, err := d.look()
	if err != nil {
		return nil, err
	}
	if d.groupWritable {
		d.shareContent(root)
	}
	self, err := privatedir.Open(root, d.groupWritable)
	if err != nil {
		root.Close()
		return nil, err
	}
	self.Close()
	return root, nil
}

// look is like open, but changes nothing.
func (d *disk) look() (*os.Root, error) {
	root, err := os.OpenRoot(d.dir)
	if err != nil {
		return nil, err
	}
	if err := privatedir.Check(root, d.groupWritable); err != nil {
		root.Close()
		if errors.As(err, new(privatedir.NotPrivateError)) {
			err = fmt.Errorf("store.cache_dir: %s: %w, and blocks that others wrote are not served: name another directory, "+
				"or a new one in it, which is then created; store.cache_shared = true is for a directory that a group shares", d.dir, err)
		}
		return nil, err
	}
	return root, nil
}

// shareContent gives the files of the cache to the group if the directory has been private so far.
// Afterwards, privatedir.Open changes the mode of the directory itself.
func (d *disk) shareContent(root *os.Root) {
	d.sharing.Lock()
	defer d.sharing.Unlock()
	self, err := root.Stat(".")
	if err != nil || self.Mode().Perm() != privatedir.Mode(false) {
		return
	}
	owner := self.Sys().(*syscall.Stat_t)
	if int(owner.Uid) != os.Geteuid() {
		return
	}
	share := func(name string, info fs.FileInfo) {
		mode := fs.FileMode(0o660)
		if info.IsDir() {
			mode = privatedir.Mode(true)
		} else if !info.Mode().IsRegular() {
			return
		}
		root.Lchown(name, -1, int(owner.Gid))
		root.Chmod(name, mode)
	}
	eachFile(root, ".", func(info fs.FileInfo) {
		if !isHashName(info.Name()) && info.Name() != workingSetsDir && info.Name() != usedFile {
			return // the file does not belong to the cache
		}
		if info.IsDir() {
			eachFile(root, info.Name(), func(file fs.FileInfo) { share(filepath.Join(info.Name(), file.Name()), file) })
		}
		share(info.Name(), info)
	})
}

// makeDir creates a directory, replacing anything else with that name.
func (d *disk) makeDir(root *os.Root, name string) error {
	if info, err := root.Lstat(name); err == nil && info.IsDir() {
		return nil
	}
	root.RemoveAll(name)
	err := root.Mkdir(name, 0o700)
	if err == nil && d.groupWritable {
		err = root.Chmod(name, privatedir.Mode(true))
	}
	return err
}

func (d *disk) create(root *os.Root, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil && d.groupWritable {
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

// overwrite replaces the content of a regular file.
func overwrite(root *os.Root, name string, text []byte) error {
	f, err := root.OpenFile(name, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return err
	}
	return f.Truncate(int64(len(text)))
}

// openRegular opens a regular file for reading. It follows no link.
func openRegular(root *os.Root, name string) (*os.File, error) {
	named, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !named.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: no regular file", errDamaged)
	}
	return root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
}

func eachFile(root *os.Root, dir string, do func(info fs.FileInfo)) error {
	entries, err := fs.ReadDir(root.FS(), dir)
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			do(info)
		}
	}
	return err
}

// withLock creates the directory if necessary, and calls do while no other process or goroutine
// changes it. Blocks are written under this lock, so an unfinished block was left by a killed
// process; withLock removes it.
func (d *disk) withLock(do func(root *os.Root) error) error {
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return err
	}
	root, err := d.open()
	if err != nil {
		return err
	}
	defer root.Close()
	lock, err := root.Open(".")
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := privatedir.Lock(lock, unix.LOCK_EX); err != nil {
		return err
	}
	root.RemoveAll(unfinishedFile)
	return do(root)
}
