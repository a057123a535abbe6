package fs

import (
	"sync"

	"batchfs/fs/guard"
	"batchfs/fs/state"
)

// reads are the reads of next that are under way, with the number that each was assigned. A read that gets an error gives its
// number back, even while its handler runs.
//
// Lock order: mu, then the lock of handles.
type reads struct {
	handles  *state.Handles
	mu       sync.Mutex
	assigned map[uint64]assignment // by id of the request; guarded by mu
}

type assignment struct {
	read   state.Read
	number uint64
	added  bool
}

// assign assigns a batch to a read, unless that is late.
func (r *reads) assign(read state.Read, late <-chan struct{}) (number uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if isClosed(late) {
		return 0, guard.ErrLate
	}
	number, added, err := r.handles.AssignBatch(read)
	if err == nil {
		r.assigned[read.ID] = assignment{read, number, added}
	}
	return number, err
}

func (r *reads) end(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.assigned, id)
}

func (r *reads) giveBack(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a, ok := r.assigned[id]; ok {
		r.handles.GiveBack(a.read, a.number, a.added)
		delete(r.assigned, id)
	}
}

func (t *tree) GiveBack(id uint64) { t.reads.giveBack(id) }
func (t *tree) Answered(id uint64) { t.reads.end(id) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
