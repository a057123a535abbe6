package fs

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// A queueing is a queue of one split with one turn, which somebody has.
type queueing struct {
	*turns
	waiting []*waiter
	readers map[*waiter]string
}

func newQueueing(t *testing.T) *queueing {
	t.Helper()
	q := &queueing{turns: newTurns(1, 1, 1), readers: map[*waiter]string{}}
	q.perSplit = 1
	if !q.try(1) || q.try(1) {
		t.Fatal("there is not exactly one turn")
	}
	return q
}

func (q *queueing) enter(t *testing.T, name string, uid, pid uint32) {
	t.Helper()
	w, err := q.wait(1, uid, pid, false)
	if err != nil {
		t.Fatal(err)
	}
	q.waiting, q.readers[w] = append(q.waiting, w), name
}

// next ends the turn, and returns who has the next one.
func (q *queueing) next(t *testing.T) string {
	t.Helper()
	q.give(1)
	for i, w := range q.waiting {
		select {
		case <-w.turn:
			q.waiting = slices.Delete(q.waiting, i, i+1)
			return q.readers[w]
		default:
		}
	}
	t.Fatal("nobody has the turn")
	return ""
}

// Users have turns in turn, however many requests each of them has.
func TestTurnsOfUsers(t *testing.T) {
	q := newQueueing(t)
	for pid := range uint32(100) {
		q.enter(t, "many", 1, pid)
	}
	for range 3 {
		q.next(t)
	}
	q.enter(t, "few", 2, 1000)
	q.enter(t, "few", 2, 1000)
	got := map[string]int{}
	for range 4 {
		got[q.next(t)]++
	}
	if got["few"] != 2 {
		t.Errorf("of 4 turns, %v", got)
	}
}

// A reader with one request waits for no more than what was there before, whatever another reader of its user has asked for; and
// readers that come again and again do not keep it waiting for ever, new ones neither.
func TestTurnsOfReaders(t *testing.T) {
	q := newQueueing(t)
	for range 100 {
		q.enter(t, "greedy", 1, 1)
	}
	q.next(t)
	q.enter(t, "modest", 1, 2)
	if got := q.next(t); got != "modest" {
		t.Errorf("after a turn of the greedy reader, %s has one", got)
	}
	q.enter(t, "modest", 1, 2)
	waited := 0
	for pid := uint32(10); q.next(t) != "modest"; pid++ {
		q.enter(t, "new", 1, pid)
		if waited++; waited > 200 {
			t.Fatal("a reader waits for ever, as there are always new ones")
		}
	}
	if len(q.queues[1].users[0].last) > maxProcesses+200 {
		t.Errorf("%d readers are remembered", len(q.queues[1].users[0].last))
	}
}

// A request that waits no longer leaves nothing behind, and takes no turn.
func TestCancelledTurn(t *testing.T) {
	q := newQueueing(t)
	q.enter(t, "a", 1, 1)
	q.enter(t, "b", 1, 2)
	q.waiting[0].cancel()
	<-q.waiting[0].turn
	q.waiting = q.waiting[1:]
	if got := q.next(t); got != "b" {
		t.Errorf("%s has the turn", got)
	}
	q.give(1)
	if queue := &q.queues[1]; queue.taken.Load() != 0 || queue.waiting.Load() != 0 || queue.users != nil {
		t.Errorf("there are %d turns, %d that wait, users %v", queue.taken.Load(), queue.waiting.Load(), queue.users)
	}
}

func TestFreePages(t *testing.T) {
	for _, size := range []int{0, 1, 4096, 100_000, 1 << 20} {
		memory := make([]byte, size+8192)
		for i := range memory {
			memory[i] = 7
		}
		freePages(memory[4096+5:][:size])
		for i, b := range memory {
			if b != 7 && (i < 4096+5 || i >= 4096+5+size) {
				t.Fatalf("byte %d, which is not of the buffer, is lost", i)
			}
		}
	}
}

// Of a split whose files do not answer, few requests use them; the others wait, and each of them is answered in time. Another
// split goes on. When the files answer again, so do the batches, and nothing is left.
func TestHangingSplit(t *testing.T) {
	const readers = 500
	gate := make(chan struct{})
	var using, most atomic.Int64
	hangs, well := counting("hangs", 1000), counting("well", 1000)
	whole := hangs.Read
	hangs.Read = func(dst []byte, k uint64, off int64) error {
		now := using.Add(1)
		defer using.Add(-1)
		for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
		}
		<-gate
		return whole(dst, k, off)
	}
	tr, tick, _ := expiring(t, hangs, well)
	var sent sync.Map
	tr.deadlines.answer = func(id uint64, errno syscall.Errno) { sent.Store(id, errno) }
	var all sync.WaitGroup
	for k := range uint64(readers) {
		all.Go(func() {
			in := &fuse.ReadIn{Size: 1000}
			in.NodeId, in.Unique, in.Pid = uint64(tr.numbered(batchRaw, 1, k)), 2*k+2, uint32(k)
			tr.Read(nil, in, make([]byte, 1000))
		})
	}
	per := tr.turns.perSplit
	for int32(using.Load()) < per || tr.turns.queues[1].waiting.Load() < readers-per {
	}
	reads := func(name string) {
		t.Helper()
		r := tr.reader(t, name, 0)
		if data, status := r.read(0, 1000); !status.Ok() || len(data) != 1000 {
			t.Errorf("%s: %d bytes, %v", name, len(data), status)
		}
	}
	reads("well/batch/3")
	tick()
	answered := 0
	sent.Range(func(_, _ any) bool { answered++; return true })
	if answered != readers || int32(most.Load()) > per {
		t.Errorf("%d requests of %d were answered, %d used the files at once", answered, readers, most.Load())
	}
	reads("well/next")
	close(gate)
	all.Wait()
	reads("hangs/batch/3")
	for split := range tr.turns.queues {
		if q := &tr.turns.queues[split]; q.taken.Load() != 0 || q.waiting.Load() != 0 {
			t.Errorf("split %d: %d turns are taken, %d requests wait", split, q.taken.Load(), q.waiting.Load())
		}
	}
	if tr.deadlines.stuck[1] != 0 || len(tr.deadlines.requests) != 0 {
		t.Errorf("%d handlers are stuck, %d requests under way", tr.deadlines.stuck[1], len(tr.deadlines.requests))
	}
}

// A read of many rows has many turns, and is right.
func TestLongReadsTakeTurns(t *testing.T) {
	s := counting("train", 1<<20)
	s.Batch.Arrays[0].Shape = []int{1 << 19, 1}
	whole, largest := s.Read, 0
	s.Read = func(dst []byte, k uint64, off int64) error {
		largest = max(largest, len(dst))
		return whole(dst, k, off)
	}
	tr := plant(t, s)
	r := tr.reader(t, "train/batch/3", 0)
	data, status := r.read(0, 1<<20)
	want := make([]byte, 1<<20)
	whole(want, 3, 0)
	if !status.Ok() || !slices.Equal(data, want) || largest != 2*rowsPerTurn {
		t.Errorf("%v, %d bytes, at most %d at once", status, len(data), largest)
	}
}
