package blocks

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A disk is a directory of blocks that all processes of a host share:
//
//	<object>/<index>   a block: its bytes, and a trailer
//	<object>/object    what the object is, as JSON; its time is when it was mounted last
//	mounted/<name>     the objects that a process has mounted, a line each; the process holds a lock on the file while it lives
//	lock               locked by whoever changes anything of this
//	used               the bytes of all blocks, as text
//	new-<name>         a block that is being written
//
// Anybody may remove any file at any time. A block that is not what its name says is as good as none: the trailer has a checksum over its
// bytes and over what it is a block of.
type disk struct {
	dir   string
	limit int64
	log   func() *slog.Logger

	paused atomic.Int64 // nothing is written, or looked for, before that time, in nanoseconds since 1970
	full   atomic.Int64 // nothing is written before that time
	failed atomic.Bool  // somebody was told

	mu      sync.Mutex
	list    *os.File // in mounted, with this process's lock; guarded by mu, as scanned
	lines   map[string]bool
	scanned bool
}

const (
	// A directory that fails, or is full, is left alone for so long.
	pauseTime = 30 * time.Second
	// A disk that does not answer for so long fails.
	slow = 3 * time.Second
)

// An identity is all that a block's bytes depend on, but for its index.
type identity struct {
	Endpoint   string `json:"endpoint"`
	Bucket     string `json:"bucket"`
	Key        string `json:"key"`
	ETag       string `json:"etag"`
	Size       int64  `json:"size"`
	BlockBytes int64  `json:"block_bytes"`
}

func (i identity) text() []byte {
	text, err := json.Marshal(i)
	if err != nil {
		panic(err) // of no such type
	}
	return text
}

// name is that of the object's directory.
func (i identity) name() string {
	sum := sha256.Sum256(i.text())
	return hex.EncodeToString(sum[:16])
}

const objectFile = "object"

func (d *disk) path(k key) string {
	return filepath.Join(d.dir, k.object.identity.name(), strconv.FormatInt(k.index, 10))
}

// trailerBytes are the checksum, and a word that says what the file is.
const (
	trailerBytes = 8
	trailerWord  = 0x31424642 // BFB1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// trailer is that of a block whose bytes have a checksum.
func (k key) trailer(sum uint32) []byte {
	sum = crc32.Update(sum, castagnoli, binary.LittleEndian.AppendUint64(k.object.identity.text(), uint64(k.index)))
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, sum), trailerWord)
}

// usable reports whether the directory is not being left alone.
func (d *disk) usable() bool { return time.Now().UnixNano() >= d.paused.Load() }

func (d *disk) writable() bool { return d.usable() && time.Now().UnixNano() >= d.full.Load() }

// fails leaves the directory alone for a while, and says so once. One that takes no writes is still read.
func (d *disk) fails(err error) {
	pause, without := &d.paused, "without it"
	if slices.ContainsFunc([]error{unix.ENOSPC, unix.EDQUOT, unix.EROFS, fs.ErrPermission}, func(e error) bool { return errors.Is(err, e) }) {
		pause, without = &d.full, "with what it has"
	}
	pause.Store(time.Now().Add(pauseTime).UnixNano())
	if d.failed.CompareAndSwap(false, true) {
		d.log().Warn("the block cache fails: batches are served "+without+", and it is tried again now and then", "dir", d.dir, "err", err)
	}
}

// works takes back what fails said.
func (d *disk) works() {
	if d.failed.CompareAndSwap(true, false) {
		d.log().Info("the block cache works again", "dir", d.dir)
	}
}

// timely is do, or an error if it takes too long. do may go on then.
func (d *disk) timely(do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	timer := time.NewTimer(slow)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("%s gives no answer (%w)", d.dir, unix.ETIMEDOUT)
	}
}

// verify reports whether the directory has a block. It reads all of it. One that is wrong is removed.
func (d *disk) verify(k key) bool {
	if !d.usable() {
		return false
	}
	path, wrong := d.path(k), false
	err := d.timely(func() error {
		right, err := k.isIn(path)
		if wrong = err == nil && !right; wrong {
			return os.Remove(path)
		}
		return err
	})
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return false
	case err != nil:
		d.fails(err)
		return false
	case wrong:
		d.log().Warn("a block of the block cache was damaged: it is fetched again", "file", path)
		return false
	}
	return true
}

// isIn reports whether a file holds a block, and nothing else.
func (k key) isIn(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	from, to := k.bounds()
	buf := verifyBuffers.Get().(*[]byte)
	defer verifyBuffers.Put(buf)
	sum := uint32(0)
	for left := to - from; left > 0; {
		part := (*buf)[:min(left, int64(len(*buf)))]
		if _, err := io.ReadFull(f, part); err != nil {
			return false, shortened(err)
		}
		sum = crc32.Update(sum, castagnoli, part)
		left -= int64(len(part))
	}
	last := (*buf)[:trailerBytes+1]
	n, err := io.ReadFull(f, last)
	return n == trailerBytes && bytes.Equal(last[:n], k.trailer(sum)), shortened(err)
}

var verifyBuffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// shortened is nil for the end of a file.
func shortened(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil
	}
	return err
}

// write writes a block, unless another process has, and reports whether the directory has it now. It calls finished when the block's bytes are
// needed no more, which may be later than write returns, where the disk does not answer.
func (d *disk) write(k key, block []byte, finished func()) bool {
	if !d.writable() {
		finished()
		return false
	}
	kept := false
	err := d.timely(func() error {
		defer finished()
		return d.locked(func() (err error) {
			kept, err = d.writeLocked(k, block)
			return err
		})
	})
	switch {
	case errors.Is(err, errFull):
		d.full.Store(time.Now().Add(pauseTime).UnixNano())
		return false
	case err != nil:
		d.fails(err)
		return false
	}
	d.works()
	return kept
}

var errFull = errors.New("full")

func (d *disk) writeLocked(k key, block []byte) (bool, error) {
	path := d.path(k)
	if _, err := os.Stat(path); err == nil {
		return false, nil // of another process; it is verified when it is read
	}
	need := int64(len(block) + trailerBytes)
	used, err := d.used()
	if err != nil {
		return false, err
	}
	if used+need > d.limit {
		if used, err = d.makeRoom(need); err != nil {
			return false, err
		}
	}
	temporary, err := os.CreateTemp(d.dir, "new-")
	if err != nil {
		return false, err
	}
	defer os.Remove(temporary.Name()) // where it was not renamed
	_, err = temporary.Write(block)
	if err == nil {
		_, err = temporary.Write(k.trailer(crc32.Checksum(block, castagnoli)))
	}
	if err = cmp.Or(err, temporary.Chmod(0o644), temporary.Close()); err != nil {
		return false, err
	}
	if err := d.describe(k.object.identity); err != nil {
		return false, err
	}
	// Before the block is there: a process that dies here leaves a directory that seems fuller than it is, until it is scanned.
	if err := d.setUsed(used + need); err != nil {
		return false, err
	}
	return true, os.Rename(temporary.Name(), path)
}

// describe makes the directory of an object, if there is none.
func (d *disk) describe(i identity) error {
	dir := filepath.Join(d.dir, i.name())
	if _, err := os.Stat(filepath.Join(dir, objectFile)); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, objectFile), i.text(), 0o644)
}

// locked calls do while no other process, or goroutine, changes the directory. It makes the directory.
func (d *disk) locked(do func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(d.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	for {
		switch err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err {
		case nil:
			return do()
		case unix.EINTR:
		default:
			return &os.PathError{Op: "flock", Path: lock.Name(), Err: err}
		}
	}
}
