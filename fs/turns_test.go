package fs

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/cache/array"
	"batchfs/fs/mount"
	"batchfs/internal/wait"
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
	wait.For(t, "the end of a cancelled wait", q.waiting[0].turn)
	q.waiting = q.waiting[1:]
	if got := q.next(t); got != "b" {
		t.Errorf("%s has the turn", got)
	}
	q.give(1)
	if queue := &q.queues[1]; queue.taken.Load() != 0 || queue.waiting.Load() != 0 || queue.users != nil {
		t.Errorf("there are %d turns, %d that wait, users %v", queue.taken.Load(), queue.waiting.Load(), queue.users)
	}
}

// A user who fills the queue keeps nobody else out: a request of the one that waits most fails.
func TestFullQueue(t *testing.T) {
	q := newQueueing(t)
	for range maxWaiting {
		q.enter(t, "greedy", 1, 1)
	}
	if _, err := q.wait(1, 1, 1, false); err != errTooMany {
		t.Errorf("one request too many: %v", err)
	}
	q.enter(t, "modest", 2, 2)
	if got := q.queues[1].waiting.Load(); got != maxWaiting {
		t.Errorf("%d requests wait, may be %d", got, maxWaiting)
	}
	if _, err := q.wait(1, 1, 1, true); err != nil {
		t.Errorf("a request that has begun: %v", err)
	}
}

// Requests that were cancelled cost their process no turns.
func TestCancelledTurnsAreNotPaidFor(t *testing.T) {
	q := newQueueing(t)
	const others = 10
	for range 2000 {
		q.enter(t, "cancelled", 1, 1)
	}
	for pid := range uint32(others) {
		q.enter(t, "other", 1, 10+pid)
	}
	for _, w := range q.waiting[:2000] {
		w.cancel()
	}
	q.waiting = q.waiting[2000:]
	q.enter(t, "again", 1, 1)
	waited := 0
	for pid := uint32(0); q.next(t) != "again"; pid++ {
		q.enter(t, "other", 1, 10+pid%others)
		if waited++; waited > 3*others {
			t.Fatalf("a process waits for more than %d turns of %d others", 3*others, others)
		}
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
	whole := hangs.read
	hangs.read = func(dst []byte, k uint64, off int64) error {
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
	wait.Until(t, "readers that use the files, and all others in the queue", func() bool {
		return int32(using.Load()) >= per && tr.turns.queues[1].waiting.Load() >= readers-per
	})
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
	wait.End(t, "the goroutines", all.Wait)
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

// Batches that are made ahead, and hang, leave turns to requests, so that these find out, and fail at once then.
func TestHangingAhead(t *testing.T) {
	s := counting("train", 1000)
	gate := make(chan struct{})
	var hangs atomic.Bool
	var all sync.WaitGroup
	defer wait.End(t, "the goroutines", all.Wait)
	defer close(gate)
	whole := s.read
	s.read = func(dst []byte, k uint64, off int64) error {
		if hangs.Load() {
			<-gate
		}
		return whole(dst, k, off)
	}
	tr, tick, _ := expiring(t, s)
	tr.deadlines.answer = func(uint64, syscall.Errno) {}
	tr.turns.perSplit = 4
	var results []fuse.ReadResult // of readers in order, whose next batches will be made
	for reader := range uint64(8) {
		for k := range uint64(2) {
			in := &fuse.ReadIn{Size: 1000}
			in.NodeId, in.Unique = uint64(tr.numbered(batchRaw, 1, 1000*reader+k)), lastUnique.Add(2)
			result, status := tr.Read(nil, in, make([]byte, 1000))
			if !status.Ok() {
				t.Fatal(status)
			}
			if results = append(results, result); k == 0 {
				result.Done()
			}
		}
	}
	hangs.Store(true)
	for i := 1; i < len(results); i += 2 {
		all.Go(results[i].Done)
	}
	wait.Until(t, "two batches that are made ahead", func() bool { return tr.turns.queues[1].taken.Load() >= 2 })
	for n := range uint64(20) {
		in := &fuse.ReadIn{Size: 1000}
		in.NodeId, in.Unique = uint64(tr.numbered(batchRaw, 1, 100_000+100*n)), lastUnique.Add(2)
		all.Go(func() { tr.Read(nil, in, make([]byte, 1000)) })
	}
	wait.Until(t, "18 requests in the queue", func() bool { return tr.turns.queues[1].waiting.Load() >= 18 })
	tick()
	if r, err := tr.deadlines.begin(lastUnique.Add(2), tr.find("train/next")); err == nil {
		t.Errorf("%d handlers are stuck, and another request does not fail at once", tr.deadlines.stuck[1])
		tr.deadlines.end(r)
	}
}

// A long read of a file that shows some of the arrays has as many turns as others.
func TestLongReadsOfSomeArraysTakeTurns(t *testing.T) {
	s := counting("train", 1<<20)
	row := array.Array{DType: array.Uint16, Shape: []int{1, 64}}
	s.Batch, s.Steps = array.NewBatch(1, row, row), 1<<20
	tr := plant(t, s)
	tr.turns.perSplit = 1
	var rows, before atomic.Int64
	s.read = func(dst []byte, k uint64, off int64) error {
		if rows.Add(1) == 2 {
			go func() { // a reader of one row
				r, err := tr.deadlines.begin(1000, tr.find("train/next"))
				if err == nil {
					err = tr.takeTurn(r, fuse.Caller{})
				}
				if err != nil {
					t.Error(err)
				}
				before.Store(rows.Load())
				tr.ends(r)
			}()
			wait.Until(t, "a reader in the queue", func() bool { return tr.turns.anyoneWaits(1) })
		}
		return nil
	}
	if _, status := tr.reader(t, "train/batches.bin", 0).read(0, 1<<20); !status.Ok() {
		t.Fatal(status)
	}
	wait.Until(t, "the turn of the other reader", func() bool { return before.Load() > 0 })
	if n := before.Load(); n > 2*rowsPerTurn {
		t.Errorf("another reader had its turn after %d rows of %d", n, rows.Load())
	}
}

// A read that holds much memory has a place, also if it is of few rows.
func TestPlaces(t *testing.T) {
	for bytes, want := range map[int64]bool{100: false, maxWithoutPlace: false, maxWithoutPlace + 2: true} {
		s := counting("train", bytes)
		tr := plant(t, s)
		whole := s.read
		s.read = func(dst []byte, k uint64, off int64) error {
			if has := tr.places.queues[1].taken.Load() > 0; has != want {
				t.Errorf("a row of %d bytes: has a place %v, want %v", bytes, has, want)
			}
			return whole(dst, k, off)
		}
		if _, status := tr.reader(t, "train/batch/3", 0).read(0, int(bytes)); !status.Ok() {
			t.Error(status)
		}
		if n := tr.places.queues[1].taken.Load(); n != 0 {
			t.Errorf("%d places are taken", n)
		}
	}
}

// A read of many rows has many turns, and is right.
func TestLongReadsTakeTurns(t *testing.T) {
	s := counting("train", 1<<20)
	s.Batch = array.NewBatch(1, array.Array{Name: "tokens", DType: array.Uint16, Shape: []int{1 << 19, 1}})
	whole, largest := s.read, 0
	s.read = func(dst []byte, k uint64, off int64) error {
		largest = max(largest, len(dst))
		return whole(dst, k, off)
	}
	tr := plant(t, s)
	r := tr.reader(t, "train/batch/3", 0)
	data, status := r.read(0, 1<<20)
	want := make([]byte, 1<<20)
	whole(want, 3, 0)
	if !status.Ok() || !slices.Equal(data, want) || largest != bytesPerTurn {
		t.Errorf("%v, %d bytes, at most %d at once", status, len(data), largest)
	}
}

// A batch that is made ahead is read in parts no longer than a request, however long its rows are.
func TestBatchesAheadAreReadInParts(t *testing.T) {
	for _, shape := range [][]int{{1, 3 << 20}, {3, 300_000}, {1000, 1}, {5, 700, 300}} {
		batch := array.NewBatch(1, array.Array{Name: "rows", DType: array.Uint8, Shape: shape})
		s := counting("train", batch.Bytes())
		s.Batch = batch
		whole, largest, read := s.read, 0, 0
		s.read = func(dst []byte, k uint64, off int64) error {
			if int64(off) != int64(read) {
				t.Errorf("%v: byte %d is read after %d", shape, off, read)
			}
			largest, read = max(largest, len(dst)), read+len(dst)
			return whole(dst, k, off)
		}
		got, want := make([]byte, batch.Bytes()), make([]byte, batch.Bytes())
		if err := readGently(s, got, 3); err != nil {
			t.Fatal(err)
		}
		whole(want, 3, 0)
		if !slices.Equal(got, want) || int64(read) != batch.Bytes() || largest > mount.MaxRequest {
			t.Errorf("%v: %d bytes of %d are read, %d at once", shape, read, batch.Bytes(), largest)
		}
	}
}
