package guard

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/mount"
	"batchfs/fs/state"
	"batchfs/internal/testwait"
)

// A disk is a file system whose node n belongs to split n. Its handlers wait while it hangs. A READ
// reads as many rows as its handle is, and every other request checks the files.
type disk struct {
	fuse.RawFileSystem
	begins func()       // is called by handlers
	waited atomic.Int64 // READs that waited to be admitted

	mu    sync.Mutex
	gate  chan struct{} // nil if the disk does not hang
	using int           // handlers
	most  int           // handlers at the same time
	calls []string      // methods that were called besides handlers and costs
	costs atomic.Int64  // calls of cost methods
}

func (d *disk) SetDebug(bool)                                {}
func (d *disk) CostOfLookup(h *fuse.InHeader, _ string) Cost { return d.cost(h.NodeId, 1, 0) }
func (d *disk) CostOfGetAttr(in *fuse.GetAttrIn) Cost        { return d.cost(in.NodeId, 1, 0) }
func (d *disk) CostOfOpen(in *fuse.OpenIn) Cost              { return d.cost(in.NodeId, 1, 0) }
func (d *disk) CostOfRead(in *fuse.ReadIn) Cost {
	cost := d.cost(in.NodeId, int64(in.Fh), int(in.Size))
	if in.ReadFlags&fuse.READ_LOCKOWNER == 0 {
		cost.Pages = Pages{in.Offset, in.Offset + uint64(in.Size)}
	}
	return cost
}

func (d *disk) cost(node uint64, rows int64, reply int) Cost {
	d.costs.Add(1)
	return Cost{Split: int(node), Rows: rows, Reply: reply}
}

func (d *disk) Done(in *fuse.ReadIn, _ fuse.ReadResult)       { d.note("done %d", in.Unique) }
func (d *disk) Rollback(id uint64)                            { d.note("undo %d", id) }
func (d *disk) Discard(fuse.ReadResult)                       { d.note("discard") }
func (d *disk) Forget(node, n uint64)                         { d.note("forget %d of %d", n, node) }
func (d *disk) Release(_ <-chan struct{}, in *fuse.ReleaseIn) { d.note("release %d", in.Fh) }

func (d *disk) FailRequest(id, node uint64, err error) fuse.Status {
	d.note("fault %d", id)
	return fuse.EIO
}

func (d *disk) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, fmt.Sprintf(format, args...))
}

// handle is every handler.
func (d *disk) handle() fuse.Status {
	d.mu.Lock()
	d.using++
	d.most = max(d.most, d.using)
	gate := d.gate
	d.mu.Unlock()
	if d.begins != nil {
		d.begins()
	}
	if gate != nil {
		<-gate
	}
	d.mu.Lock()
	d.using--
	d.mu.Unlock()
	return fuse.OK
}

func (d *disk) Lookup(_ <-chan struct{}, _ *fuse.InHeader, _ string, out *fuse.EntryOut) fuse.Status {
	out.NodeId = 77
	return d.handle()
}

func (d *disk) GetAttr(<-chan struct{}, *fuse.GetAttrIn, *fuse.AttrOut) fuse.Status {
	return d.handle()
}

func (d *disk) Open(_ <-chan struct{}, _ *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	out.Fh = 88
	return d.handle()
}

func (d *disk) ServeRead(_ <-chan struct{}, waited time.Duration, _ *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if waited > 0 {
		d.waited.Add(1)
	}
	return fuse.ReadResultData(buf), d.handle()
}

// hang lets handlers wait until release is called.
func (d *disk) hang() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gate := make(chan struct{})
	d.gate = gate
	return sync.OnceFunc(func() {
		d.mu.Lock()
		d.gate = nil
		d.mu.Unlock()
		close(gate)
	})
}

func (d *disk) users() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.using
}

// A guarding is a Guard whose time passes by ticks of the test alone.
type guarding struct {
	*Guard
	disk    *disk
	panics  int
	replies sync.Map // the errors that were sent in the place of handlers, by id
	id      atomic.Uint64
}

func newGuarding(t *testing.T, splits int, replyBytes int64) *guarding {
	t.Helper()
	file, shared, err := state.New()
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	t.Cleanup(shared.Close)
	for n := range splits {
		shared.Add(shared.NewNumber(), fmt.Sprint("split", n+1), 0, 0)
	}
	g := &guarding{disk: &disk{RawFileSystem: fuse.NewDefaultRawFileSystem()}}
	g.Guard = New(g.disk, Options{
		Splits: splits, ReplyBytes: replyBytes, Shared: shared, Timeout: 2 * time.Second,
		SendError: func(id uint64, errno syscall.Errno) { g.replies.Store(id, errno) },
		Panicked:  func(any) fuse.Status { g.panics++; return fuse.EIO },
	})
	return g
}

// expire lets so much time pass that every request is late.
func (g *guarding) expire() {
	for range 10 {
		g.tick()
	}
}

// read reads rows of a split, size bytes.
func (g *guarding) read(split, rows, size int) fuse.Status {
	in := &fuse.ReadIn{Fh: uint64(rows), Size: uint32(size), ReadFlags: fuse.READ_LOCKOWNER}
	in.NodeId, in.Unique = uint64(split), g.id.Add(2)
	_, status := g.Read(nil, in, make([]byte, size))
	return status
}

// isIdle fails unless nothing is left of any request.
func (g *guarding) isIdle(t *testing.T) {
	t.Helper()
	if n := len(g.requests); n > 0 {
		t.Errorf("%d requests are under way", n)
	}
	unused := newSplits(g.o.Splits, g.o.ReplyBytes)
	for i := range g.splits {
		s, u := &g.splits[i], &unused[i]
		if got, want := fmt.Sprint(s.short, s.long, s.waiting.Load()), fmt.Sprint(u.short, u.long, 0); got != want {
			t.Errorf("split %d: %s, want %s", i, got, want)
		}
	}
	if waiting, replies := g.o.Shared.Gauges.Waiting.Load(), g.o.Shared.ReplyBytes.Load(); waiting != 0 || replies != 0 {
		t.Errorf("%d requests wait, %d bytes of replies are taken", waiting, replies)
	}
}

// A READ that waited to be admitted knows for how long.
func TestWaitedForAdmission(t *testing.T) {
	g := newGuarding(t, 1, 0)
	release := g.disk.hang()
	defer release()
	var all sync.WaitGroup
	slots := shortPermits(1)
	for range slots + 1 {
		all.Go(func() { g.read(1, 1, 100) })
	}
	testwait.Until(t, "a waiting request", func() bool { return g.disk.users() == slots && g.o.Shared.Gauges.Waiting.Load() == 1 })
	release()
	testwait.End(t, "the handlers", all.Wait)
	if n := g.disk.waited.Load(); n != 1 {
		t.Errorf("%d READs know that they waited, want 1", n)
	}
}

// A request for pages that a late one still waits for fails at once. Other pages are read, and so are these once the disk answers again.
func TestLatePages(t *testing.T) {
	g := newGuarding(t, 2, 0)
	fill := func(node, offset uint64) fuse.Status {
		in := &fuse.ReadIn{Fh: 1, Offset: offset, Size: 100}
		in.NodeId, in.Unique = node, g.id.Add(2)
		_, status := g.Read(nil, in, make([]byte, 100))
		return status
	}
	release := g.disk.hang()
	defer release()
	var all sync.WaitGroup
	all.Go(func() { fill(1, 1000) })
	testwait.Until(t, "a handler", func() bool { return g.disk.users() == 1 })
	g.expire()
	for _, offset := range []uint64{901, 1000, 1099} {
		if status := fill(1, offset); status != fuse.EIO {
			t.Errorf("pages from byte %d on: %v", offset, status)
		}
	}
	for _, other := range [][2]uint64{{1, 900}, {1, 1100}, {2, 1000}} {
		all.Go(func() { fill(other[0], other[1]) })
	}
	testwait.Until(t, "other handlers", func() bool { return g.disk.users() == 4 })
	release()
	testwait.End(t, "the handlers", all.Wait)
	if status := fill(1, 1000); !status.Ok() {
		t.Errorf("once the disk answers: %v", status)
	}
	g.isIdle(t)
}

// Late requests are answered in their handlers' place, and what the handlers did is undone.
func TestLateRequests(t *testing.T) {
	g := newGuarding(t, 1, 0)
	release := g.disk.hang()
	defer release()
	header := func(id uint64) fuse.InHeader { return fuse.InHeader{NodeId: 1, Unique: id} }
	var all sync.WaitGroup
	for id, handle := range map[uint64]func(h fuse.InHeader){
		2: func(h fuse.InHeader) { g.Lookup(nil, &h, "name", &fuse.EntryOut{}) },
		4: func(h fuse.InHeader) { g.GetAttr(nil, &fuse.GetAttrIn{InHeader: h}, &fuse.AttrOut{}) },
		6: func(h fuse.InHeader) { g.Open(nil, &fuse.OpenIn{InHeader: h}, &fuse.OpenOut{}) },
		8: func(h fuse.InHeader) { g.Read(nil, &fuse.ReadIn{InHeader: h}, nil) },
	} {
		all.Go(func() { handle(header(id)) })
	}
	testwait.Until(t, "four handlers", func() bool { return g.disk.users() == 4 })
	g.expire()
	for id := uint64(2); id <= 8; id += 2 {
		if errno, _ := g.replies.Load(id); errno != syscall.ETIMEDOUT {
			t.Errorf("request %d: %v", id, errno)
		}
	}
	if waiting := g.o.Shared.Waiting(); len(g.requests) != 4 || waiting["split1"] < time.Second {
		t.Errorf("%d handlers run, waiting: %v", len(g.requests), waiting)
	}
	release()
	testwait.End(t, "the handlers", all.Wait)
	slices.Sort(g.disk.calls)
	want := []string{"discard", "fault 2", "fault 4", "fault 6", "fault 8", "forget 1 of 77", "release 88", "undo 2", "undo 4", "undo 6", "undo 8"}
	if !slices.Equal(g.disk.calls, want) {
		t.Errorf("calls: %q, want %q", g.disk.calls, want)
	}
	g.tick()
	if waiting := g.o.Shared.Waiting(); len(waiting) > 0 {
		t.Errorf("waiting when none is late any more: %v", waiting)
	}
	g.isIdle(t)
}

// A request takes one call for its cost, its handler and, if it is a READ that succeeds, Done. A READ
// therefore takes three calls.
func TestCalls(t *testing.T) {
	g := newGuarding(t, 1, 64<<20)
	handled := 0
	g.disk.begins = func() { handled++ }
	if status := g.read(1, 1, 100); !status.Ok() || handled+int(g.disk.costs.Load()) != 2 || !slices.Equal(g.disk.calls, []string{"done 2"}) {
		t.Errorf("a READ: %v, %d handlers, %d costs, calls: %q", status, handled, g.disk.costs.Load(), g.disk.calls)
	}
	if status := g.GetAttr(nil, &fuse.GetAttrIn{}, &fuse.AttrOut{}); !status.Ok() || g.disk.costs.Load() != 2 || len(g.disk.calls) != 1 {
		t.Errorf("a GETATTR: %v, calls: %q", status, g.disk.calls)
	}
	g.isIdle(t)
}

// A split does not respond while a check of its files does not.
func TestStalledSplit(t *testing.T) {
	g := newGuarding(t, 2, 0)
	busy := longWait
	g.o.Stalled = func(split int) time.Duration { return busy * time.Duration(split-1) }
	g.tick()
	if waiting := g.o.Shared.Waiting(); len(waiting) != 1 || waiting["split2"] < longWait {
		t.Errorf("waiting: %v", waiting)
	}
	busy = 0
	g.tick()
	if waiting := g.o.Shared.Waiting(); len(waiting) > 0 {
		t.Errorf("waiting after the check: %v", waiting)
	}
}

// Of a split whose files do not answer, few requests use them. The others wait, and each is answered in time. Another split is not
// affected. When the files answer again, so do requests.
func TestHangingSplit(t *testing.T) {
	const readers = 500
	short := shortPermits(2)
	for rows, slots := range map[int]int{shortRows: short, shortRows + 1: short / 2} {
		g := newGuarding(t, 2, 64<<20)
		release := g.disk.hang()
		var all sync.WaitGroup
		for range readers {
			all.Go(func() { g.read(1, rows, 1000) })
		}
		testwait.Until(t, "readers that use the files, and all others in the queue", func() bool {
			return g.disk.users() == slots && g.splits[1].waiting.Load() == int64(readers-slots)
		})
		other := make(chan fuse.Status, 1)
		go func() { other <- g.read(1, shortRows+1-rows+shortRows, 1000) }() // of the other length: it has permits of its own
		testwait.Until(t, "a handler of the other length", func() bool { return g.disk.users() == slots+1 })
		g.expire()
		answered := 0
		g.replies.Range(func(_, _ any) bool { answered++; return true })
		if answered != readers+1 || g.disk.most != slots+1 {
			t.Errorf("%d requests of %d were answered, %d used the files at once", answered, readers+1, g.disk.most)
		}
		testwait.Until(t, "the end of those that waited", func() bool { return g.splits[1].waiting.Load() == 0 })
		release()
		if status := g.read(2, 1, 1); !status.Ok() {
			t.Errorf("another split: %v", status)
		}
		<-other
		testwait.End(t, "the readers", all.Wait)
		if status := g.read(1, 1, 1); !status.Ok() {
			t.Errorf("a request when the files answer again: %v", status)
		}
		g.isIdle(t)
	}
}

// A handler that panics is an error, gives its number back, and leaves nothing.
func TestPanic(t *testing.T) {
	g := newGuarding(t, 1, 64<<20)
	g.disk.begins = func() { panic("at the disco") }
	if status := g.read(1, 1000, 1<<20); status != fuse.EIO || g.panics != 1 || !slices.Equal(g.disk.calls, []string{"undo 2"}) {
		t.Errorf("%v, %d panics, calls: %v", status, g.panics, g.disk.calls)
	}
	g.isIdle(t)
}

// A request that is there while worker after worker crashes is an error.
func TestExhaustedRequest(t *testing.T) {
	g := newGuarding(t, 1, 0)
	for crashes := range state.MaxAttempts + 1 {
		_, _, err := g.beginRequest(&fuse.InHeader{NodeId: 1, Unique: 2 | state.Resent}, Cost{})
		if exhausted := errors.Is(err, errExhausted); exhausted != (crashes == state.MaxAttempts) {
			t.Errorf("after %d crashes: %v", crashes, err)
		}
		g.requests = nil // its worker ends
		g.o.Shared.Crashes.Add(1)
		g.o.Shared.Workers.Add(1)
	}
}

// Replies that wait to be sent take no more memory than they may, unless a single one does.
func TestRepliesAreBounded(t *testing.T) {
	const most = 4 << 20
	g := newGuarding(t, 1, 2*most) // half for requests of each length
	release := g.disk.hang()
	defer release()
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { g.read(1, 1, mount.MaxRequest) })
	}
	s := &g.splits[1]
	testwait.Until(t, "as many handlers as have room, and the others in the queue", func() bool {
		return g.disk.users() == most/mount.MaxRequest && s.waiting.Load() == 50-most/mount.MaxRequest
	})
	if taken, waiting := g.o.Shared.ReplyBytes.Load(), g.o.Shared.Gauges.Waiting.Load(); taken != most || waiting != 46 {
		t.Errorf("%d bytes are taken, %d requests wait", taken, waiting)
	}
	small := make(chan fuse.Status, 1)
	go func() { small <- g.read(1, 1, smallReply) }()
	testwait.Until(t, "a small reply, which waits for none", func() bool { return g.disk.users() == most/mount.MaxRequest+1 })
	if g.TryPrefetch(1) {
		t.Error("a prefetch begins while requests wait")
	}
	release()
	testwait.End(t, "the readers", all.Wait)
	<-small
	g.isIdle(t)
}

type inSlices struct{ fuse.ReadResult }

func (inSlices) Slices() ([][]byte, fuse.Status) { return nil, fuse.OK }

// A request that times out in the queue leaves it, and those behind it are admitted. While many wait,
// a reply that was sent leaves no memory in its buffer.
func TestQueueLosesExpiredRequests(t *testing.T) {
	g := newGuarding(t, 1, 0) // room for one reply of mount.MaxRequest of each length
	release := g.disk.hang()
	defer release()
	var all sync.WaitGroup
	begin := func(size, running int, waiting int64) {
		all.Go(func() { g.read(1, 1, size) })
		testwait.Until(t, "the request", func() bool { return g.disk.users() == running && g.splits[1].waiting.Load() == waiting })
	}
	begin(mount.MaxRequest-smallReply-1, 1, 0)
	begin(mount.MaxRequest, 1, 1)
	g.tick()
	begin(smallReply+1, 1, 2)
	buf := bytes.Repeat([]byte{7}, mount.MaxRequest)
	g.splits[1].trim(inSlices{fuse.ReadResultData(buf)}, buf).Done()
	if buf[len(buf)/2] != 0 {
		t.Error("the buffer of a reply that was sent keeps its memory while many requests wait")
	}
	for range 8 {
		g.tick()
	}
	testwait.Until(t, "the last request", func() bool { return g.disk.users() == 2 && g.splits[1].waiting.Load() == 0 })
	release()
	testwait.End(t, "the readers", all.Wait)
	g.isIdle(t)
}

// The queue has an end.
func TestTooManyWait(t *testing.T) {
	g := newGuarding(t, 1, 0)
	release := g.disk.hang()
	defer release()
	var all sync.WaitGroup
	for range shortPermits(1) + maxWaiting {
		all.Go(func() { g.read(1, 1, 1) })
	}
	testwait.Until(t, "a full queue", func() bool { return g.splits[1].waiting.Load() == maxWaiting })
	if status := g.read(1, 1, 1); status.Ok() {
		t.Error("one request more waits")
	}
	release()
	testwait.End(t, "the readers", all.Wait)
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
