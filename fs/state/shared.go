// Package state is what the processes of one mount share: a block of memory of fixed layout that outlives any worker.
//
// [Shared] is the state that a replacement worker needs: what was agreed with the kernel, the cursor of each sequence, and
// which batch each open handle of next holds. The supervisor keeps the memory, the worker that serves writes it, and commands such as
// doctor look at it. [Handles] hands out handles and batch numbers in it. A worker may be killed between any two steps; the
// next one completes what it finds half done.
package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Set cuts what does not fit.
func (m *Note) Set(b []byte) { m.len.Store(uint64(copy(m.bytes[:], b))) }

// Get returns the bytes in the shared memory itself, none before the first Set.
func (m *Note) Get() []byte { return m.bytes[:min(m.len.Load(), uint64(len(m.bytes)))] }

// Used says whether there is such a sequence.
func (e *Entry) Used() bool { return e.used.Load() != 0 }

// Name is the path of the sequence's directory in the mount.
func (e *Entry) Name() string { return getText(e.name[:]) }

// User is the id of the user who looked the sequence up first.
func (e *Entry) User() uint32 { return uint32(e.user.Load()) }

// Fault is the last error, up to 512 bytes of it, or empty.
func (e *Entry) Fault() string { return getText(e.fault[:]) }

// SetFault notes the last error. The caller serialises calls, and those of Fault.
func (e *Entry) SetFault(text string) { setText(e.fault[:], text) }

// Moved says whether the cursor is not where it began: such a sequence is never forgotten, because a number must never come
// twice.
func (e *Entry) Moved() bool { return e.Next() != e.start.Load() }

func setText(b []byte, text string) {
	clear(b)
	copy(b, text)
}

func getText(b []byte) string {
	if end := bytes.IndexByte(b, 0); end >= 0 {
		b = b[:end]
	}
	return string(b)
}

// SequencesUsed is the highest number that any sequence ever had.
func (s *Shared) SequencesUsed() int { return int(s.sequencesUsed.Load()) }

// NewNumber returns a number that no sequence has had yet, or 0 when there is none left. The caller serialises calls, as of
// Add and Remove.
func (s *Shared) NewNumber() int {
	if s.SequencesUsed() == MaxSequences-1 {
		return 0
	}
	return int(s.sequencesUsed.Add(1))
}

// Add begins a sequence under a number that none has. user looked it up first.
func (s *Shared) Add(number int, name string, start uint64, user uint32) {
	q := &s.Sequences[number]
	q.Cursor.Store(start)
	q.seek.Store(0)
	q.start.Store(start)
	q.user.Store(uint64(user))
	q.Reads.Store(0)
	q.Bytes.Store(0)
	q.Errors.Store(0)
	q.GivenBack.Store(0)
	q.forgetAbandoned()
	q.Waiting.Store(0)
	q.lookups.Store(0)
	setText(q.name[:], name)
	setText(q.fault[:], "")
	q.used.Store(1)
}

// Remove ends a sequence: its number may begin another.
func (s *Shared) Remove(number int) { s.Sequences[number].used.Store(0) }

// New makes the shared memory of a mount. The memory lives as long as the file, or a mapping of it.
func New() (*os.File, *Shared, error) {
	fd, err := unix.MemfdCreate("batchfs", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("shared memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "batchfs")
	if err := file.Truncate(int64(unsafe.Sizeof(Shared{}))); err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("shared memory: %w", err)
	}
	// What mapFile looks for.
	if _, err := file.Write(binary.NativeEndian.AppendUint64(nil, layoutVersion)); err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("shared memory: %w", err)
	}
	s, err := Map(file)
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	s.Began = time.Now().UnixNano()
	return file, s, nil
}

// Map maps the state in a file that New made, to be written.
func Map(file *os.File) (*Shared, error) { return mapFile(file, unix.PROT_READ|unix.PROT_WRITE) }

// Look maps the state in a file that New made, to be read only: a write would be a fault.
func Look(file *os.File) (*Shared, error) { return mapFile(file, unix.PROT_READ) }

var errLayout = errors.New("another version of batchfs made this mount, and its shared memory differs: unmount, and mount again")

func mapFile(file *os.File, prot int) (*Shared, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	if info.Size() != int64(unsafe.Sizeof(Shared{})) {
		return nil, errLayout
	}
	at, err := unix.MmapPtr(int(file.Fd()), 0, nil, unsafe.Sizeof(Shared{}), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shared memory of %d bytes: %w", unsafe.Sizeof(Shared{}), err)
	}
	s := (*Shared)(at)
	if s.layout != layoutVersion {
		s.Close()
		return nil, errLayout
	}
	return s, nil
}

// Close unmaps the memory. Nothing of s may be used afterwards.
func (s *Shared) Close() { unix.MunmapPtr(unsafe.Pointer(s), unsafe.Sizeof(Shared{})) }

// NewConnection forgets what belongs to the connection that has ended: the kernel knows nothing of its handles and names, and
// uses its request ids again. Cursors and counters stay.
func (s *Shared) NewConnection() {
	s.Init.Set(nil)
	s.InitReply.Set(nil)
	for i := range s.slotsUsed.Load() {
		s.slots[i].sequence.Store(0)
	}
	for n := range s.sequencesUsed.Load() {
		s.Sequences[n+1].lookups.Store(0)
	}
	s.names.forgotten.Store(s.names.noted.Load())
	s.lookups.request.Store(0)
	for i := range s.lookups.counted {
		s.lookups.counted[i].Store(0)
	}
	for i := range s.assignments {
		s.assignments[i].id.Store(0)
	}
	for i := range s.parked {
		s.parked[i].fh.Store(0)
	}
	for i := range s.attempts {
		s.attempts[i].id.Store(0)
	}
}

// Monotonic is the time in nanoseconds by a clock that all processes of a host share and that nobody sets.
func Monotonic() int64 {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano()
}

// Restarts counts the restarts that were asked for and are over.
func (s *Shared) Restarts() uint64 { return s.RestartCount.Load() }

// Outcome is why the last restart was refused, or empty.
func (s *Shared) Outcome() string { return string(s.LastRestart.Get()) }

// Worker is the id of the process that serves.
func (s *Shared) Worker() int { return int(s.WorkerPID.Load()) }

// Silent is how long ago the worker last answered the supervisor, which asks every second.
func (s *Shared) Silent() time.Duration { return time.Duration(Monotonic() - s.Heartbeat.Load()) }

// Waiting tells of each sequence whose token files have not answered for more than a second how long its longest request
// has waited.
func (s *Shared) Waiting() map[string]time.Duration {
	waiting := map[string]time.Duration{}
	for n := range s.sequencesUsed.Load() {
		q := &s.Sequences[n+1]
		if since := q.Waiting.Load(); since != 0 && q.Used() {
			waiting[q.Name()] = time.Duration(Monotonic() - since)
		}
	}
	return waiting
}
