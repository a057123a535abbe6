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
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/cache/localfile"
	"batchfs/internal/clock"
)

// A disk is a directory of cache blocks that all processes of a user or of a group share on a host.
// It is safe for concurrent use. See dir.go for who may use the directory.
//
//	<object>/<index>   bytes of a cache block and a trailer
//	<object>/object    ID of the object, as JSON
//	shares/<name>      working set, as JSON; its mtime is the time of the last read, and each
//	                   process that has read it holds a shared lock on it while it lives
//	used               size of all blocks in bytes, as text
//	new-block          block being written, or left unfinished by a process that was killed
//
// A process holds a lock on the directory while it writes any of this; see withLock. Any file may
// be removed at any time. A block is served only if its trailer matches: the trailer is a checksum
// of the block's bytes, its object's ID and its index.
type disk struct {
	dir           string
	groupWritable bool
	limit         int64 // maximum size of all blocks, in bytes
	log           *slog.Logger

	pausedUntil       atomic.Int64          // end of a pause, in clock.Now time
	writesPausedUntil atomic.Int64          // end of a pause in writes alone; same unit
	lastFailure       atomic.Pointer[error] // nil before the first failure
	failureLogged     atomic.Bool           // whether the log reports a failure as current

	sharing     sync.Mutex             // lets only one goroutine at a time run shareContent
	mu          sync.Mutex             // guards workingSets
	workingSets map[string]*WorkingSet // sets that this process reads, by file name
	// unclaimed stands for the blocks in no working set. They get only room that no set needs.
	unclaimed WorkingSet
}

const (
	// pauseTime is how long a directory is left alone after a failure.
	pauseTime = 30 * time.Second
	// diskTimeout is how long a disk may take to read 4 MiB.
	diskTimeout = 3 * time.Second
)

// An objectID is everything that determines the bytes of an object's blocks. Its JSON is
// hashed into names and checksums, so its fields must not change.
type objectID struct {
	Endpoint   string `json:"endpoint"`
	Bucket     string `json:"bucket"`
	Key        string `json:"key"`
	ETag       string `json:"etag"`
	Size       int64  `json:"size"`
	BlockBytes int64  `json:"block_bytes"`
}

func (id objectID) text() []byte {
	text, err := json.Marshal(id)
	if err != nil {
		panic(err) // cannot happen
	}
	return text
}

func (id objectID) name() string { return hashName(id.text()) }

// hashName returns the name of a file or directory that a text identifies.
func hashName(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// isHashName reports whether hashName can return a name.
func isHashName(name string) bool {
	sum, err := hex.DecodeString(name)
	return err == nil && len(sum) == 16
}

const (
	objectFile     = "object"
	unfinishedFile = "new-block"
)

func (k key) path() string {
	return filepath.Join(k.object.id.name(), strconv.FormatInt(k.index, 10))
}

// A trailer is a checksum and trailerWord, both little-endian.
const (
	trailerBytes = 8
	trailerWord  = 0x31424642 // "BFB1" as bytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// trailer returns the trailer of a block whose bytes have the checksum sum.
func (k key) trailer(sum uint32) []byte {
	sum = crc32.Update(sum, castagnoli, binary.LittleEndian.AppendUint64(k.object.id.text(), uint64(k.index)))
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, sum), trailerWord)
}

// usable reports whether the directory may be accessed. It returns false for pauseTime after the
// directory hung.
func (d *disk) usable() bool { return clock.Now() >= d.pausedUntil.Load() }

// suspendedBy returns the failure that suspended writes, or nil if blocks may be written.
func (d *disk) suspendedBy() error {
	if cause := d.lastFailure.Load(); cause != nil && (!d.usable() || clock.Now() < d.writesPausedUntil.Load()) {
		return *cause
	}
	return nil
}

// suspend suspends writes for pauseTime, and reads too if the directory hangs. It logs only the
// first failure.
func (d *disk) suspend(err error) {
	failure := fmt.Errorf("store.cache_dir: %s fails: %w", d.dir, err)
	d.lastFailure.Store(&failure)
	pause, without := &d.writesPausedUntil, "with what it has"
	if errors.Is(err, unix.ETIMEDOUT) {
		pause, without = &d.pausedUntil, "without it"
	}
	pause.Store(clock.Now() + int64(pauseTime))
	if d.failureLogged.CompareAndSwap(false, true) {
		d.log.Warn("the block cache fails: batches are served "+without+", and it is tried again from time to time", "dir", d.dir, "err", err)
	}
}

// resume logs that the directory works again, if its failure was logged.
func (d *disk) resume() {
	if d.failureLogged.CompareAndSwap(true, false) {
		d.log.Info("the block cache works again", "dir", d.dir)
	}
}

// withTimeout returns the error of do, or ETIMEDOUT if do takes longer than limit. do then
// continues in the background.
func (d *disk) withTimeout(limit time.Duration, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("%s does not respond (%w)", d.dir, unix.ETIMEDOUT)
	}
}

func (d *disk) file(k key, stamp localfile.Stamp) (*localfile.File, error) {
	o := localfile.Options{Access: localfile.Pread, StayOpen: true, DropPageCache: k.object.dropPageCache}
	return localfile.New(filepath.Join(d.dir, k.path()), stamp, localfile.Sample{}, o)
}

// verify returns the file of a block after checking its content, or nil if it is missing or
// unreadable. It removes a damaged file.
func (d *disk) verify(k key) *localfile.File {
	if !d.usable() {
		return nil
	}
	var found *localfile.File
	var damage error
	err := d.withTimeout(diskTimeout*time.Duration(max(k.object.cache.o.BlockBytes>>22, 1)), func() error {
		root, err := d.open()
		if err != nil {
			return err
		}
		defer root.Close()
		stamp, err := k.verifyIn(root)
		if errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if damage = err; errors.Is(err, errDamaged) || errors.Is(err, unix.EIO) {
			root.RemoveAll(k.path())
		}
		if err == nil {
			found, damage = d.file(k, stamp)
		}
		return nil
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		d.suspend(err)
		return nil
	case damage != nil:
		d.log.Warn("a block of the block cache cannot be read: it is fetched again", "file", filepath.Join(d.dir, k.path()), "err", damage)
	}
	return found
}

// errDamaged means that the content of a file does not match its name.
var errDamaged = errors.New("damaged")

// verifyIn returns the stamp of a block's file if its content is intact.
func (k key) verifyIn(root *os.Root) (stamp localfile.Stamp, err error) {
	f, err := openRegular(root, k.path())
	if err != nil {
		return stamp, err
	}
	defer f.Close()
	before, err := localfile.StampOf(f)
	if err != nil || before.Size != k.bytes()+trailerBytes {
		return stamp, cmp.Or(err, errDamaged)
	}
	sum, last := crc32.New(castagnoli), make([]byte, trailerBytes)
	if _, err = io.CopyN(sum, f, k.bytes()); err == nil {
		_, err = io.ReadFull(f, last)
	}
	stamp, stampErr := localfile.StampOf(f)
	if err = cmp.Or(err, stampErr); err != nil || !bytes.Equal(last, k.trailer(sum.Sum32())) || stamp != before {
		return stamp, cmp.Or(err, errDamaged)
	}
	return stamp, nil
}

// write writes a block and returns its file. The error is errPresent, ErrFull, or the failure of
// the directory.
func (d *disk) write(k key, block []byte) (written *localfile.File, err error) {
	if err := d.suspendedBy(); err != nil {
		return nil, err
	}
	set := d.workingSetOf(k)
	try := func() error {
		return d.withLock(func(root *os.Root) (err error) {
			written, err = d.writeIn(root, set, k, block)
			return err
		})
	}
	err = try()
	if errors.Is(err, ErrFull) {
		if err = d.makeRoom(set, int64(len(block)+trailerBytes)); err == nil {
			err = try()
		}
	}
	switch {
	case err == nil, errors.Is(err, errPresent):
		d.resume()
	case !errors.Is(err, ErrFull):
		d.suspend(err)
		err = *d.lastFailure.Load()
	}
	return written, err
}

// writeIn writes a block if there is room for it. It returns errPresent if the directory already
// has the block, and ErrFull if there is no room or the size of all blocks is unknown. The caller
// holds the lock.
func (d *disk) writeIn(root *os.Root, set *WorkingSet, k key, block []byte) (*localfile.File, error) {
	if err := set.saveIn(root); err != nil {
		return nil, err
	}
	if _, err := root.Lstat(k.path()); err == nil {
		return nil, errPresent // verified when it is read
	}
	used, known := usedBytes(root)
	used += int64(len(block) + trailerBytes)
	if !known || used > d.limit {
		return nil, ErrFull
	}
	if err := d.ensureObjectDir(root, k.object.id); err != nil {
		return nil, err
	}
	f, err := d.create(root, unfinishedFile)
	if err != nil {
		return nil, err
	}
	defer root.Remove(unfinishedFile) // does nothing after the rename
	defer f.Close()
	if _, err := f.Write(block); err != nil {
		return nil, err
	}
	if _, err := f.Write(k.trailer(crc32.Checksum(block, castagnoli))); err != nil {
		return nil, err
	}
	stamp, err := localfile.StampOf(f)
	if err != nil {
		return nil, err
	}
	// If the process dies before the rename, the directory seems fuller than it is until it is
	// measured.
	if err := d.setUsed(root, used); err != nil {
		return nil, err
	}
	if err := root.Rename(unfinishedFile, k.path()); err != nil {
		return nil, err
	}
	return d.file(k, stamp)
}

func (d *disk) ensureObjectDir(root *os.Root, id objectID) error {
	file := filepath.Join(id.name(), objectFile)
	if f, err := openRegular(root, file); err == nil {
		text, err := io.ReadAll(f)
		f.Close()
		if err == nil && bytes.Equal(text, id.text()) { // it is incomplete if the disk was full
			return nil
		}
	}
	if err := d.makeDir(root, id.name()); err != nil {
		return err
	}
	root.RemoveAll(file)
	return d.createWith(root, file, id.text())
}
