package fs

import (
	"cmp"
	"container/heap"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"batchfs/fs/mount"
	"batchfs/internal/process"
)

// turns decide which requests may go on, where only so many may do so at a time. Each split has that many turns. A request
// without one waits in the queue of its split.
//
// A queue is fair to users, and then to the processes of a user: each of them that waits has a turn in a round. A process that did
// not wait a moment ago is among the first of the round.
//
// A request that uses token files may take a thread, which waits for a disk, and a processor: it needs one of tree.turns, and a
// long request needs one for every few rows. A long request holds memory for its reply while it waits for its next turn, so it
// needs one of tree.places before it begins. Files that give no answer therefore keep only their own readers waiting, a reader of
// few rows does not wait for those of many, and threads and memory are bounded however many readers there are.
//
// Lock order: mu is taken last, after deadlines.mu.
type turns struct {
	perSplit int32 // turns
	mu       sync.Mutex
	queues   []queue // by number of the split; guarded by mu, but for what is atomic
}

// A queue is the turns of a split.
type queue struct {
	taken   atomic.Int32 // of the turns
	waiting atomic.Int32 // mu is held for writing
	users   []*user      // that wait, or waited a moment ago; none while nobody waits
	now     uint64       // turns of the user that has had the fewest
}

// A user's processes wait for turns.
type user struct {
	uid     uint32
	turns   uint64            // that it has had; as many as the others when it came
	waiting waiters           // its requests
	round   uint64            // number of the round
	left    int               // turns of the round that are left
	last    map[uint32]uint64 // round of the last turn, or of the one that is waited for, by process
}

// A waiter is a request that waits for a turn.
type waiter struct {
	of        *turns
	split     int
	user      *user
	process   uint32
	round     uint64        // in which it has its turn
	fresh     bool          // its process has had no turn in this round, and waits for none
	index     int           // in user.waiting; -1: it waits no more
	turn      chan struct{} // closed when it waits no more
	cancelled bool          // it waits no more, and has no turn
}

const (
	// So many turns are divided among the splits. Each split has at least minTurns, one of them for batches that are made ahead,
	// and not more than maxPerSplit, or two for each processor.
	maxTurns    = 256
	minTurns    = 2
	minPlaces   = 1
	maxPerSplit = 32
	// So many requests of a split may wait for a turn, and as many for a place. Each takes some kilobytes.
	maxWaiting = 4096
	// A request that holds more memory than this needs a place.
	maxWithoutPlace = 64 << 10
	// A turn is over after so many rows, or fewer if others wait: a few milliseconds where the tokens are in the page cache.
	rowsPerTurn       = 256
	rowsPerTurnOfMany = 64
	// Rows that are shorter than some bytes cost as much as each other: a turn has more of them.
	bytesPerTurn = 4 << 10
	// The rounds of so many processes of a user are remembered, and of all that still matter.
	maxProcesses = 1024
	maxUsers     = 64 // likewise
)

var errTooMany = fmt.Errorf("more than %d requests of one split wait for an answer (%w)", maxWaiting, syscall.ETIMEDOUT)

// newTurns divides so many turns among so many splits, each of which has least or more.
func newTurns(splits, all, least int) *turns {
	splits = max(splits, 1)
	per := min(all/splits, max(maxPerSplit, 2*runtime.GOMAXPROCS(0)))
	return &turns{perSplit: int32(max(per, least)), queues: make([]queue, splits+1)}
}

// try takes a turn if there is one and nobody waits.
func (t *turns) try(split int) bool {
	q := &t.queues[split]
	return q.waiting.Load() == 0 && q.take(t.perSplit)
}

// tryAhead is try for a batch that nobody waits for. It leaves half of the turns to requests, even if all such batches hang.
func (t *turns) tryAhead(split int) bool {
	q := &t.queues[split]
	return q.waiting.Load() == 0 && q.take(t.perSplit/2)
}

// take takes a turn if there is one.
func (q *queue) take(perSplit int32) bool {
	for {
		n := q.taken.Load()
		if n >= perSplit {
			return false
		}
		if q.taken.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// give gives a turn back. The next one in the queue has it then.
func (t *turns) give(split int) {
	q := &t.queues[split]
	q.taken.Add(-1)
	if q.waiting.Load() == 0 { // who begins to wait afterwards finds the turn
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	q.grant(t.perSplit)
}

// anyoneWaits says whether requests of a split wait.
func (t *turns) anyoneWaits(split int) bool { return t.queues[split].waiting.Load() > 0 }

// isMuch says whether buffers like buf, for all requests of a split that wait, would be a quarter of what those with a turn have, or
// more.
func (t *turns) isMuch(split int, buf []byte) bool {
	return int64(t.queues[split].waiting.Load())*int64(len(buf)) > int64(t.perSplit)*mount.MaxRequest/4
}

// wait puts a request of a user's process in the queue of a split. Its turn begins when w.turn is closed. The error is errTooMany.
//
// Of a request that has begun, as it has a place, it is none: there are not many.
func (t *turns) wait(split int, uid, process uint32, begun bool) (w *waiter, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := &t.queues[split]
	w = q.user(uid).enter(process)
	w.of, w.split = t, split
	if q.waiting.Add(1) > maxWaiting && !begun {
		last := q.last()
		if last.remove(); last == w {
			return nil, errTooMany
		}
	}
	q.grant(t.perSplit)
	return w, nil
}

// cancel ends the waiting of a request, unless its turn has begun. It says whether it waited.
func (w *waiter) cancel() (waited bool) {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	if w.index < 0 {
		return false
	}
	w.remove()
	return true
}

// remove is cancel for a caller that holds mu.
func (w *waiter) remove() {
	heap.Remove(&w.user.waiting, w.index)
	w.cancelled = true
	w.user.left = min(w.user.left, len(w.user.waiting))
	if last := w.user.last[w.process]; last > w.user.round {
		w.user.last[w.process] = last - 1
	}
	w.of.queues[w.split].leave(w)
}

// last is, of the requests of the user that has most, one that would have its turn last.
func (q *queue) last() *waiter {
	most := slices.MaxFunc(q.users, func(a, b *user) int { return cmp.Compare(len(a.waiting), len(b.waiting)) })
	return slices.MaxFunc(most.waiting, func(a, b *waiter) int { return cmp.Compare(a.round, b.round) })
}

// grant lets those who wait have the turns that are free.
func (q *queue) grant(perSplit int32) {
	for q.waiting.Load() > 0 && q.take(perSplit) {
		var next *user
		for _, u := range q.users {
			if len(u.waiting) > 0 && (next == nil || u.turns < next.turns) {
				next = u
			}
		}
		q.now = next.turns
		next.turns++
		q.leave(next.first())
	}
}

// leave notes that a request waits no more.
func (q *queue) leave(w *waiter) {
	close(w.turn)
	if q.waiting.Add(-1) == 0 {
		q.users, q.now = nil, 0
	}
}

// user returns the user of an id, a new one if it has not waited yet.
func (q *queue) user(uid uint32) *user {
	for _, u := range q.users {
		if u.uid == uid {
			u.turns = max(u.turns, q.now) // what it did not use while it did not wait is gone
			return u
		}
	}
	if len(q.users) > maxUsers {
		q.users = slices.DeleteFunc(q.users, func(u *user) bool { return len(u.waiting) == 0 && u.turns <= q.now })
	}
	u := &user{uid: uid, turns: q.now, last: map[uint32]uint64{}}
	q.users = append(q.users, u)
	return u
}

// enter puts a request of a process in the queue.
func (u *user) enter(process uint32) *waiter {
	w := &waiter{user: u, process: process, round: u.round, fresh: true, turn: make(chan struct{})}
	if last, known := u.last[process]; known && last >= u.round {
		w.round, w.fresh = last+1, false
	}
	if len(u.last) > maxProcesses {
		for process, round := range u.last {
			if round < u.round {
				delete(u.last, process)
			}
		}
	}
	u.last[process] = w.round
	heap.Push(&u.waiting, w)
	return w
}

// first removes the request that has the next turn. A round is over after as many turns as requests waited when it began,
// so that new processes do not make it longer.
func (u *user) first() *waiter {
	if u.left == 0 {
		u.left = len(u.waiting)
	}
	w := heap.Pop(&u.waiting).(*waiter)
	u.round = max(u.round, w.round)
	if u.left--; u.left == 0 {
		u.round++
	}
	return w
}

// waiters are a heap of container/heap: the first has the next turn.
type waiters []*waiter

func (h waiters) Len() int { return len(h) }

func (h waiters) Less(i, j int) bool {
	if h[i].round != h[j].round {
		return h[i].round < h[j].round
	}
	return h[i].fresh && !h[j].fresh
}

func (h waiters) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *waiters) Push(w any) {
	w.(*waiter).index = len(*h)
	*h = append(*h, w.(*waiter))
}

func (h *waiters) Pop() any {
	last := len(*h) - 1
	w := (*h)[last]
	w.index = -1
	(*h)[last] = nil
	*h = (*h)[:last]
	return w
}

// freePages gives the memory of a buffer back until it is written to. What it holds is lost.
func freePages(buf []byte) {
	page := os.Getpagesize()
	from := -int(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))) & (page - 1)
	if to := len(buf) - (len(buf)-from)&(page-1); from < to {
		unix.Madvise(buf[from:to], unix.MADV_DONTNEED)
	}
}

// takeTurn lets a request of a caller wait for its turn. The error is errLate or errTooMany. The turn ends with the request.
func (t *tree) takeTurn(r *request, caller fuse.Caller) (err error) {
	r.caller = caller
	r.hasTurn, err = t.take(r, t.turns, nil)
	return err
}

// takePlace is takeTurn with a place, if the request is a long one: of many rows, or of a long reply. buf is the memory that it
// holds for its reply.
func (t *tree) takePlace(r *request, caller fuse.Caller, manyRows bool, buf []byte) (err error) {
	r.caller = caller
	if manyRows || len(buf) > maxWithoutPlace {
		if r.hasPlace, err = t.take(r, t.places, buf); err != nil {
			return err
		}
		buf = nil // there is memory for it
	}
	r.hasTurn, err = t.take(r, t.turns, buf)
	return err
}

// take waits for a turn. If the request does not need buf yet, buf holds no memory meanwhile.
func (t *tree) take(r *request, of *turns, buf []byte) (has bool, err error) {
	if of.try(r.split) {
		return true, nil
	}
	caller := process.OfThread(int(r.caller.Pid))
	if caller < 0 { // in a /proc that hides it
		caller = int(r.caller.Pid)
	}
	w, err := t.deadlines.wait(r, of, uint32(caller))
	if err != nil {
		return false, err
	}
	if of.isMuch(r.split, buf) {
		freePages(buf)
	}
	<-w.turn
	if err = t.deadlines.late(r); err == nil && w.cancelled {
		err = errTooMany
	}
	return !w.cancelled, err
}

// passTurn ends a request's turn and waits for another one, if others wait.
func (t *tree) passTurn(r *request) (err error) {
	if !t.turns.anyoneWaits(r.split) {
		runtime.Gosched() // a read of few rows may wait for this processor
		return t.deadlines.late(r)
	}
	t.turns.give(r.split)
	r.hasTurn, err = t.take(r, t.turns, nil)
	return err
}

// endTurns gives back what a request has taken.
func (t *tree) endTurns(r *request) {
	if r.hasTurn {
		t.turns.give(r.split)
	}
	if r.hasPlace {
		t.places.give(r.split)
	}
	r.hasTurn, r.hasPlace = false, false
}

// readInTurns is s.Read with a turn for every few rows.
func (t *tree) readInTurns(r *request, s Sequence, dst []byte, k uint64, off int64) error {
	row := r.inode.rowBytes(s)
	for {
		n := max(row*rowsPerTurn, bytesPerTurn)
		if t.turns.anyoneWaits(r.split) {
			n = row * rowsPerTurnOfMany
		}
		n = min(n, int64(len(dst)))
		if err := s.Read(dst[:n], k, off); err != nil || n == int64(len(dst)) {
			return err
		}
		dst, off = dst[n:], off+n
		if err := t.passTurn(r); err != nil {
			return err
		}
	}
}

// readGently is s.Read for a batch that nobody waits for. It lets reads of few rows have the processor now and then.
func readGently(s Sequence, dst []byte, k uint64) error {
	row := s.Spec().Batch.RowBytes(0)
	// To read a part of a long row takes memory for that part.
	most := int(min(row*min(rowsPerTurn, max(mount.MaxRequest/row, 1)), mount.MaxRequest))
	for off := 0; off < len(dst); off += most {
		if off > 0 {
			runtime.Gosched()
		}
		if err := s.Read(dst[off:min(off+most, len(dst))], k, int64(off)); err != nil {
			return err
		}
	}
	return nil
}

// rowBytes is the size of a row of the first array that a file shows.
func (i inode) rowBytes(s Sequence) int64 {
	if i.kind().isOfOneArray() {
		return s.Spec().Batch.RowBytes(i.array())
	}
	return s.Spec().Batch.RowBytes(0)
}
