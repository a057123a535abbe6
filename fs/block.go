package fs

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const maxHandles = 1 << 16

// A block is all that readers would miss of a process that serves them: where each sequence's cursor stands and which
// batch each open handle of next* holds. It lies in shared memory of fixed layout, so that another process can go on from
// it; every step of taking a number leaves it in a state from which it can be completed.
type block struct {
	states [maxSequences]sequenceState
	slots  [maxHandles]slot
}

// sequenceState is one sequence's share of the block.
type sequenceState struct {
	cursor  atomic.Uint64 // the number that the next open of next* takes
	reads   atomic.Uint64 // requests answered with batches
	bytes   atomic.Uint64
	errors  atomic.Uint64 // requests answered with an error
	lookups atomic.Uint64 // of its files, that the kernel has not forgotten; not counted for a split
	name    [maxName]byte // zeros behind it; all zero: there is no such sequence
}

// A name is a split, of at most 100 bytes, and settings, of less than 200.
const maxName = 344

func (s *sequenceState) setName(name string) {
	clear(s.name[:])
	copy(s.name[:], name)
}

// A slot is one open handle of next*; no other open handle has it.
type slot struct {
	inode     atomic.Uint64 // 0: the slot is free
	state     atomic.Uint64 // holds, ended, peeks; from bit changesShift on, how often the tokens of its batch had changed
	number    atomic.Uint64 // of the batch that it holds
	taker     atomic.Uint64 // id of the request that the number was taken for
	asking    atomic.Uint64 // id of a request that a number is being taken for, or 0
	wanted    atomic.Uint64 // that number
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

// A table hands out the slots and numbers of a block to the requests of this process.
type table struct {
	*block
	mem  []byte     // where the block lies
	mu   sync.Mutex // serialises slots and numbers: at most one number is half taken
	free []uint32   // slots that were used and are not now
	used uint32     // slots ever used
}

func newTable() (*table, error) {
	size := int(unsafe.Sizeof(block{}))
	fd, err := unix.MemfdCreate("batchfs", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, fmt.Errorf("shared memory of %d bytes: %w", size, err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shared memory of %d bytes: %w", size, err)
	}
	return &table{block: (*block)(unsafe.Pointer(unsafe.SliceData(mem))), mem: mem}, nil
}

// close gives the memory back. Nothing may be served after it.
func (t *table) close() error { return unix.Munmap(t.mem) }

// open takes a slot for a handle of node. ok is false when all are in use.
func (t *table) open(node inode, state uint64) (fh uint64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var i uint32
	switch n := len(t.free); {
	case n > 0:
		i, t.free = t.free[n-1], t.free[:n-1]
	case t.used < maxHandles:
		i = t.used
		t.used++
	default:
		return 0, false
	}
	s := &t.slots[i]
	s.state.Store(state)
	s.number.Store(0)
	s.taker.Store(0)
	s.asking.Store(0)
	s.delivered.Store(0)
	s.counted.Store(0)
	s.inode.Store(uint64(node))
	return uint64(i), true
}

func (t *table) release(fh uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots[fh].inode.Store(0)
	t.free = append(t.free, uint32(fh))
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
	s := &t.slots[fh]
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
		s.state.Store(state&peeks | holds | changes<<changesShift)
	}
	if s.counted.Load() != id {
		s.delivered.Add(uint64(r.len))
		s.counted.Store(id)
	}
	if r.toEnd() {
		s.state.Or(ended)
	}
	return s.number.Load(), true
}

// take gives slot s the cursor's number. It can be cut anywhere: a slot that is still asking got its number if, and only
// if, the cursor has passed it, because no other number is taken meanwhile.
func (t *table) take(s *slot, cursor *atomic.Uint64, id, changes uint64) {
	wanted := cursor.Load()
	if s.state.Load()&peeks == 0 {
		s.wanted.Store(wanted)
		s.asking.Store(id)
		cursor.Store(wanted + 1)
	}
	s.number.Store(wanted)
	s.taker.Store(id)
	s.delivered.Store(0)
	s.state.Store(s.state.Load()&peeks | holds | changes<<changesShift)
	s.asking.Store(0)
}

// failed notes that a span of batch k was not delivered after all. A batch of which nothing was delivered goes back, for
// whoever reads next; when another number was taken meanwhile, the handle goes on holding it.
func (t *table) failed(fh uint64, cursor *atomic.Uint64, k uint64, r span) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.slots[fh]
	if s.number.Load() != k {
		return // threads share the handle, and another has gone on
	}
	state := s.state.Load()
	if r.toEnd() {
		state &^= ended
	}
	left := s.delivered.Add(-uint64(r.len))
	s.counted.Store(0) // the same request may go on with other tokens
	if left == 0 && cursor.Load() == k+1 && state&peeks == 0 {
		s.state.Store(state &^ holds) // first: a number may be lost here, but never be held twice
		cursor.Store(k)
		return
	}
	s.state.Store(state)
}
