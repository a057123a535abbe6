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

	"batchfs/internal/eintr"
)

// A disk is a directory of blocks that all processes of a user, or of a group, share on a host. See
// dir.go for who may use it.
//
//	<object>/<index>   a block: its bytes, and a trailer
//	<object>/object    the identity of the object, as JSON
//	shares/<name>      the blocks of a share, as JSON; its time is when the share was last read;
//	                   processes that read it hold a lock on it while they live
//	used               the size of all blocks in bytes, as text
//	new-block          the block that is being written, or that a process was writing when it was
//	                   killed: see locked
//
// A process that changes any of this holds a lock on the directory for a moment. Any file may be
// removed at any time. A block whose content does not match its name counts as missing: the trailer
// has a checksum of its bytes, of its object's identity and of its index.
type disk struct {
	dir    string
	shared bool  // whether a group shares the directory
	limit  int64 // maximum size of all blocks, in bytes
	log    *slog.Logger

	paused atomic.Int64          // end of the pause in reads and writes, in nanoseconds since 1970
	full   atomic.Int64          // end of the pause in writes, in nanoseconds since 1970
	cause  atomic.Pointer[error] // error of the last failure
	failed atomic.Bool           // whether the log says that the directory fails

	mu     sync.Mutex
	shares map[string]*Share // shares that this process reads, by file; guarded by mu
	none   Share             // share of all other blocks: they only get room that no share needs
}

const (
	// A directory that fails, or is full, is left alone for so long.
	pauseTime = 30 * time.Second
	// A disk that does not read four mebibytes in that time fails.
	slow = 3 * time.Second
)

// An identity is all that a block's bytes depend on, besides its index.
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

// name is the name of the object's directory.
func (i identity) name() string {
	sum := sha256.Sum256(i.text())
	return hex.EncodeToString(sum[:16])
}

const (
	objectFile     = "object"
	unfinishedFile = "new-block"
)

// path is where a block lies in the directory.
func (k key) path() string {
	return filepath.Join(k.object.identity.name(), strconv.FormatInt(k.index, 10))
}

// trailerBytes are the checksum, and a word that says what the file is.
const (
	trailerBytes = 8
	trailerWord  = 0x31424642 // BFB1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// trailer is the trailer of a block whose bytes have a checksum.
func (k key) trailer(sum uint32) []byte {
	sum = crc32.Update(sum, castagnoli, binary.LittleEndian.AppendUint64(k.object.identity.text(), uint64(k.index)))
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, sum), trailerWord)
}

// A Stat tells the file of a block from another one, and from the same file before a write.
type Stat struct {
	Dev, Ino        uint64
	Size, Sec, Nsec int64 // bytes, and the time of the last change
}

func statOf(f *os.File) (s Stat, err error) {
	var st unix.Stat_t
	if err := eintr.Retry(func() error { return unix.Fstat(int(f.Fd()), &st) }); err != nil {
		return s, &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return Stat{uint64(st.Dev), st.Ino, st.Size, int64(st.Mtim.Sec), int64(st.Mtim.Nsec)}, nil
}

// usable reports whether the directory may be used now. After it hung, it is left alone for a
// while.
func (d *disk) usable() bool { return time.Now().UnixNano() >= d.paused.Load() }

// refusal returns the failure that suspended writes to the directory, or nil if blocks may be
// written now.
func (d *disk) refusal() error {
	if cause := d.cause.Load(); cause != nil && (!d.usable() || time.Now().UnixNano() < d.full.Load()) {
		return *cause
	}
	return nil
}

// fails suspends writes to the directory for pauseTime, and reads too if the directory hangs. It
// logs only the first failure.
func (d *disk) fails(err error) {
	failure := fmt.Errorf("store.cache_dir: %s fails: %w", d.dir, err)
	d.cause.Store(&failure)
	pause, without := &d.full, "with what it has"
	if errors.Is(err, unix.ETIMEDOUT) {
		pause, without = &d.paused, "without it"
	}
	pause.Store(time.Now().Add(pauseTime).UnixNano())
	if d.failed.CompareAndSwap(false, true) {
		d.log.Warn("the block cache fails: batches are served "+without+", and it is tried again now and then", "dir", d.dir, "err", err)
	}
}

// works logs that the directory works again if the log says that it fails.
func (d *disk) works() {
	if d.failed.CompareAndSwap(true, false) {
		d.log.Info("the block cache works again", "dir", d.dir)
	}
}

// timely is do, or an error if the disk hangs. do may still run then.
func (d *disk) timely(limit time.Duration, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("%s gives no answer (%w)", d.dir, unix.ETIMEDOUT)
	}
}

// verify looks for a block in the directory, and reads it whole. It returns nil if there is none. One that is wrong, or that cannot be read, is
// removed.
func (d *disk) verify(k key) *Stat {
	if !d.usable() {
		return nil
	}
	var right *Stat
	var damage error
	err := d.timely(slow*time.Duration(max(k.object.BlockBytes()>>22, 1)), func() error {
		root, err := d.open()
		if err != nil {
			return err
		}
		defer root.Close()
		right, err = k.isIn(root)
		if errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if damage = err; errors.Is(err, errWrong) || errors.Is(err, unix.EIO) {
			root.RemoveAll(k.path())
		}
		return nil
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		d.fails(err)
		return nil
	case damage != nil:
		d.log.Warn("a block of the block cache cannot be read: it is fetched again", "file", filepath.Join(d.dir, k.path()), "err", damage)
	}
	return right
}

// errWrong is what is wrong with a file that is no block, or another one.
var errWrong = errors.New("damaged")

// isIn returns what the file of a block is that has the right bytes.
func (k key) isIn(root *os.Root) (*Stat, error) {
	f, err := openRegular(root, k.path())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	before, err := statOf(f)
	from, to := k.bounds()
	if err != nil || before.Size != to-from+trailerBytes {
		return nil, cmp.Or(err, errWrong)
	}
	sum, last := crc32.New(castagnoli), make([]byte, trailerBytes)
	if _, err := io.CopyN(sum, f, to-from); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(f, last); err != nil {
		return nil, err
	}
	after, err := statOf(f)
	if err != nil || !bytes.Equal(last, k.trailer(sum.Sum32())) || after != before {
		return nil, cmp.Or(err, errWrong)
	}
	return &after, nil
}

// write writes a block, and returns the Stat of its file. The error is errPresent, ErrFull, or the
// failure of the directory.
func (d *disk) write(k key, block []byte) (written *Stat, err error) {
	if err := d.refusal(); err != nil {
		return nil, err
	}
	share := d.shareOf(k)
	try := func() error {
		return d.locked(func(root *os.Root) (err error) {
			written, err = d.writeIn(root, share, k, block)
			return err
		})
	}
	err = try()
	if errors.Is(err, ErrFull) {
		if err = d.makeRoom(share, int64(len(block)+trailerBytes)); err == nil {
			err = try()
		}
	}
	switch {
	case err == nil, errors.Is(err, errPresent):
		d.works()
	case !errors.Is(err, ErrFull):
		d.fails(err)
		err = *d.cause.Load()
	}
	return written, err
}

// writeIn is write for a caller that holds the lock. It also returns ErrFull if it is unknown how
// much the directory has.
func (d *disk) writeIn(root *os.Root, share *Share, k key, block []byte) (*Stat, error) {
	if err := share.noteIn(root); err != nil {
		return nil, err
	}
	if _, err := root.Lstat(k.path()); err == nil {
		return nil, errPresent // it is verified when it is read
	}
	used, known := usedIn(root)
	used += int64(len(block) + trailerBytes)
	if !known || used > d.limit {
		return nil, ErrFull
	}
	if err := d.describe(root, k.object.identity); err != nil {
		return nil, err
	}
	f, err := d.create(root, unfinishedFile)
	if err != nil {
		return nil, err
	}
	defer root.Remove(unfinishedFile) // does nothing once it is renamed
	defer f.Close()
	for _, part := range [][]byte{block, k.trailer(crc32.Checksum(block, castagnoli))} {
		if _, err := f.Write(part); err != nil {
			return nil, err
		}
	}
	written, err := statOf(f)
	if err != nil {
		return nil, err
	}
	// This precedes the rename: if the process dies in between, the directory seems fuller than it
	// is until it is measured.
	if err := d.setUsed(root, used); err != nil {
		return nil, err
	}
	return &written, root.Rename(unfinishedFile, k.path())
}

// describe makes the directory of an object, if there is none.
func (d *disk) describe(root *os.Root, i identity) error {
	file := filepath.Join(i.name(), objectFile)
	if info, err := root.Lstat(file); err == nil && info.Mode().IsRegular() {
		return nil
	}
	if err := d.makeDir(root, i.name()); err != nil {
		return err
	}
	root.RemoveAll(file)
	return d.createWith(root, file, i.text())
}
