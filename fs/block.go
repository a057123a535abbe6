package fs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const maxHandles = 1 << 16

// A block is all that readers would miss of a worker that died: what was agreed with the kernel, where each sequence's
// cursor stands, and which batch each open handle of next* holds. It lies in shared memory of fixed layout, so that a
// successor can go on from it; every step of taking a number leaves it in a state from which it can be completed. The
// keeper holds the memory.
type block struct {
	layout  uint64        // blockLayout of the program that made it
	began   int64         // when the mount was made, in nanoseconds since 1970: the time of its files
	closing atomic.Uint32 // files are opened no more
	worker  atomic.Int64  // id of the process that serves
	workers atomic.Uint64 // that have served, with this one
	beat    atomic.Int64  // when the worker last answered the keeper, by the monotonic clock, in nanoseconds
	handled atomic.Uint64 // requests

	request message // with which the kernel began the connection, which it does once
	answer  message // to it
	outcome message // of the last restart
	restart atomic.Uint64

	tries [maxTried]try

	usedStates atomic.Uint64 // states ever used, but for the one of number 0
	usedSlots  atomic.Uint64
	takings    atomic.Uint64 // ever noted
	taken      [maxTaken]taking
	states     [maxSequences]sequenceState
	slots      [maxHandles]slot
}

// blockLayout is changed with the layout of a block, or what it means.
const blockLayout = 1

// A message is a few bytes.
type message struct {
	len   atomic.Uint64
	bytes [4096]byte
}

func (m *message) set(b []byte) { m.len.Store(uint64(copy(m.bytes[:], b))) }

func (m *message) get() []byte { return m.bytes[:min(m.len.Load(), uint64(len(m.bytes)))] }

// sequenceState is one sequence's share of the block.
type sequenceState struct {
	used    atomic.Uint64 // there is such a sequence; the last to be written, and the first to be cleared
	cursor  atomic.Uint64 // the number that the next open of next* takes
	reads   atomic.Uint64 // requests answered with batches
	bytes   atomic.Uint64
	errors  atomic.Uint64 // requests answered with an error
	lookups atomic.Uint64 // of its files, that the kernel has not forgotten; not counted for a split
	waiting atomic.Int64  // since when the longest of its requests has been waiting for more than a second, as beat, or 0
	name    [maxName]byte // zeros behind it
	fault   [512]byte     // the last error, zeros behind it
}

// A name is a split, of at most 100 bytes, and settings, of less than 200.
const maxName = 344

func setText(b []byte, text string) {
	clear(b)
	copy(b, text)
}

func getText(b []byte) string { return string(bytes.TrimRight(b, "\x00")) }

// A slot is one open handle of next*; no other open handle has it.
type slot struct {
	inode     atomic.Uint64 // 0: the slot is free
	opener    atomic.Uint64 // id of the request that opened it
	opens     atomic.Uint64 // how many handles have had the slot, which is part of their numbers
	state     atomic.Uint64 // holds, ended, peeks; from bit changesShift on, how often the tokens of its batch had changed
	number    atomic.Uint64 // of the batch that it holds
	taker     atomic.Uint64 // id of the request that the number was taken for
	asking    atomic.Uint64 // id of a request that a number is being taken for, or 0
	wanted    atomic.Uint64 // that number
	changes   atomic.Uint64 // how often its tokens have changed
	delivered atomic.Uint64 // bytes of the batch, those delivered twice counted twice
	counted   atomic.Uint64 // id of the last request in delivered
}

// The bits of slot.state.
const (
	holds = 1 << iota // number is that of a batch
	ended             // the batch's last byte has been delivered
	peeks             // opened with O_NONBLOCK: looks at the batch that comes next and takes none

	changesShift = 8
)

// A taking is a number and the id of the request that it was taken for. Threads that share a handle can have several
// under way, of which the slot knows the last.
type taking struct {
	id, number atomic.Uint64
}

const maxTaken = 1 << 10

// A try is how often a request was sent again.
type try struct {
	id, times atomic.Uint64
}

const (
	maxTried = 1 << 10
	// A request that so many workers did not live to answer is answered with an error.
	maxTimes = 5
)

// The kernel sets this bit of a request's id when it sends it again.
const resent = 1 << 63

// newBlock makes the shared memory of a mount.
func newBlock() (*os.File, *block, error) {
	fd, err := unix.MemfdCreate("batchfs", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("shared memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "batchfs")
	if err := file.Truncate(int64(unsafe.Sizeof(block{}))); err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("shared memory: %w", err)
	}
	// What mapBlock looks for.
	if _, err := file.Write(binary.NativeEndian.AppendUint64(nil, blockLayout)); err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("shared memory: %w", err)
	}
	b, err := mapBlock(file, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	b.began = time.Now().UnixNano()
	return file, b, nil
}

var errLayout = errors.New("the shared memory of this mount has another layout than this version of batchfs knows: unmount, and mount anew")

// mapBlock maps the block in a file for as long as the process lives.
func mapBlock(file *os.File, prot int) (*block, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	if info.Size() != int64(unsafe.Sizeof(block{})) {
		return nil, errLayout
	}
	at, err := unix.MmapPtr(int(file.Fd()), 0, nil, unsafe.Sizeof(block{}), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shared memory of %d bytes: %w", unsafe.Sizeof(block{}), err)
	}
	b := (*block)(at)
	if b.layout != blockLayout {
		b.unmap()
		return nil, errLayout
	}
	return b, nil
}

// unmap gives the memory back.
func (b *block) unmap() { unix.MunmapPtr(unsafe.Pointer(b), unsafe.Sizeof(block{})) }

// forget is for another connection: its kernel knows nothing of this one's handles and names.
func (b *block) forget() {
	b.request.set(nil)
	b.answer.set(nil)
	for i := range b.usedSlots.Load() {
		b.slots[i].inode.Store(0)
	}
	for n := range b.usedStates.Load() {
		b.states[n+1].lookups.Store(0)
	}
}

// cut is called between the steps of what another process must be able to go on from. Tests stop there.
var cut = func(point string) {}

// tooOften notes that a request comes, and says whether it did so too often.
func (b *block) tooOften(id uint64) bool {
	if id&resent == 0 {
		return false
	}
	id &^= resent
	t := &b.tries[id/2%maxTried] // the lowest bit is for interrupts
	if t.id.Swap(id) != id {
		t.times.Store(0)
	}
	return t.times.Add(1) > maxTimes
}

// A table hands out the slots and numbers of a block to the requests of this process.
type table struct {
	*block
	mu   sync.Mutex // serialises slots and numbers: at most one number is half taken
	free []uint32   // slots that were used and are not now
}

// newTable goes on from what is in the block.
func newTable(b *block) *table {
	t := &table{block: b}
	for i := range b.usedSlots.Load() {
		switch s := &b.slots[i]; {
		case s.inode.Load() == 0:
			t.free = append(t.free, uint32(i))
		case s.asking.Load() != 0:
			// It got its number if, and only if, the cursor has passed it, because no other was taken meanwhile.
			if b.states[inode(s.inode.Load()).sequence()].cursor.Load() > s.wanted.Load() {
				t.finish(s)
			}
			s.asking.Store(0)
		}
	}
	return t
}

func (t *table) slot(fh uint64) *slot { return &t.slots[fh%maxHandles] }

// open takes a slot for a handle of node, for the request named id. ok is false when all are in use.
func (t *table) open(node inode, state, id uint64) (fh uint64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if id&resent != 0 {
		id &^= resent
		for i := range t.usedSlots.Load() {
			if s := &t.slots[i]; s.opener.Load() == id && s.inode.Load() == uint64(node) {
				return s.opens.Load()*maxHandles + i, true
			}
		}
	}
	var i uint64
	switch n := len(t.free); {
	case n > 0:
		i, t.free = uint64(t.free[n-1]), t.free[:n-1]
	case t.usedSlots.Load() < maxHandles:
		i = t.usedSlots.Add(1) - 1
	default:
		return 0, false
	}
	s := &t.slots[i]
	s.opener.Store(id)
	s.state.Store(state)
	s.number.Store(0)
	s.taker.Store(0)
	s.asking.Store(0)
	s.delivered.Store(0)
	s.counted.Store(0)
	opens := s.opens.Add(1)
	cut("open")
	s.inode.Store(uint64(node))
	return opens*maxHandles + i, true
}

// release frees a handle's slot, unless that was done when the same was asked before.
func (t *table) release(fh uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slot(fh)
	if s.opens.Load() != fh/maxHandles || s.inode.Load() == 0 {
		return
	}
	s.inode.Store(0)
	t.free = append(t.free, uint32(fh%maxHandles))
}

// A span is the part of a file that a request reads, of a file's size.
type span struct{ off, len, size int64 }

func (r span) toEnd() bool { return r.off+r.len == r.size }

// number returns which batch the request named id reads on handle fh: a new one at the handle's first read, and at a read
// of its beginning once all of it was delivered. The same request gets the same number however often it comes.
//
// All of it means the last byte, and as many bytes as there are: C's fseek to the end reads the last page, and whoever
// asks for a file's size that way (numpy.fromfile) has not had the batch yet.
//
// changes is how often the tokens have changed. ok is false in the middle of a batch of other tokens, which can only be
// read again from its beginning.
func (t *table) number(fh uint64, cursor *atomic.Uint64, id uint64, r span, changes uint64) (k uint64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slot(fh)
	if s.opens.Load() != fh/maxHandles {
		return 0, false // a request that was answered long ago, of a handle that is closed
	}
	if id&resent != 0 {
		id &^= resent
		if k, ok := t.tookEarlier(s, id); ok {
			return k, true
		}
	}
	state := s.state.Load()
	done := state&ended != 0 && s.delivered.Load() >= uint64(r.size)
	switch {
	case state&holds == 0 || done && r.off == 0 && s.taker.Load() != id:
		t.take(s, cursor, id, changes)
	case state>>changesShift == changes:
	case r.off > 0:
		return 0, false
	default:
		s.delivered.Store(0)
		s.counted.Store(0) // the request may be one that came before, and was counted then
		s.state.Store(state&peeks | holds | changes<<changesShift)
	}
	cut("count")
	if s.counted.Load() != id {
		s.delivered.Add(uint64(r.len))
		cut("counted")
		s.counted.Store(id)
	}
	if r.toEnd() {
		s.state.Or(ended)
	}
	return s.number.Load(), true
}

// tookEarlier finds the number that was taken for a request whose handle has gone on since.
func (t *table) tookEarlier(s *slot, id uint64) (k uint64, ok bool) {
	if s.taker.Load() == id {
		return 0, false
	}
	for i := range t.taken {
		if taking := &t.taken[i]; taking.id.Load() == id {
			return taking.number.Load(), true
		}
	}
	return 0, false
}

// take gives slot s the cursor's number. It can be cut anywhere, and newTable goes on.
func (t *table) take(s *slot, cursor *atomic.Uint64, id, changes uint64) {
	s.wanted.Store(cursor.Load())
	s.changes.Store(changes)
	cut("want")
	s.asking.Store(id)
	cut("ask")
	if s.state.Load()&peeks == 0 {
		cursor.Store(s.wanted.Load() + 1)
	}
	t.finish(s)
	cut("taken")
	s.asking.Store(0)
}

// finish notes in slot s that it holds the number that it asked for.
func (t *table) finish(s *slot) {
	id, number := s.asking.Load(), s.wanted.Load()
	cut("note")
	taking := &t.taken[t.takings.Add(1)%maxTaken]
	taking.id.Store(0)
	cut("note number")
	taking.number.Store(number)
	taking.id.Store(id)
	cut("noted")
	s.number.Store(number)
	cut("number")
	s.taker.Store(id)
	cut("taker")
	s.delivered.Store(0)
	cut("delivered")
	s.state.Store(s.state.Load()&peeks | holds | s.changes.Load()<<changesShift)
}

// failed notes that a span of batch k was not delivered after all. A batch of which nothing was delivered goes back, for
// whoever reads next; when another number was taken meanwhile, the handle goes on holding it.
func (t *table) failed(fh uint64, cursor *atomic.Uint64, k uint64, r span) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slot(fh)
	if s.opens.Load() != fh/maxHandles || s.number.Load() != k {
		return // the handle is closed, or threads share it and another has gone on
	}
	state := s.state.Load()
	if r.toEnd() {
		state &^= ended
	}
	left := s.delivered.Add(-uint64(r.len))
	s.counted.Store(0) // the same request may go on with other tokens
	if left == 0 && cursor.Load() == k+1 && state&peeks == 0 {
		for i := range t.taken { // or the same request, coming again, would have it
			if taking := &t.taken[i]; taking.id.Load() == s.taker.Load() {
				taking.id.Store(0)
			}
		}
		s.state.Store(state &^ holds) // first: a number may be lost here, but never be held twice
		cut("back")
		cursor.Store(k)
		return
	}
	s.state.Store(state)
}

// monotonic is the time by a clock that all processes of a host share and nobody sets, in nanoseconds.
func monotonic() int64 {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano()
}
