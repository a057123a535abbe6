package guard

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// A hangingDisk simulates a FileSystem on a disk. While the disk hangs, handlers block. Node n
// belongs to split n. A READ of handle n reads n rows; every other request checks the token files.
type hangingDisk struct {
	fuse.RawFileSystem
	onHandle func()       // called by every handler; can be nil
	waited   atomic.Int64 // READs that waited for admission

	mu         sync.Mutex
	gate       chan struct{} // nil if the disk does not hang
	running    int
	maxRunning int
	calls      []string // calls of methods other than handlers and cost methods
	costs      atomic.Int64
}

func (d *hangingDisk) SetDebug(bool)                                {}
func (d *hangingDisk) CostOfLookup(h *fuse.InHeader, _ string) Cost { return d.cost(h.NodeId, 1, 0) }
func (d *hangingDisk) CostOfGetAttr(in *fuse.GetAttrIn) Cost        { return d.cost(in.NodeId, 1, 0) }
func (d *hangingDisk) CostOfOpen(in *fuse.OpenIn) Cost              { return d.cost(in.NodeId, 1, 0) }
func (d *hangingDisk) CostOfReadDir(in *fuse.ReadIn) Cost           { return d.cost(in.NodeId, 1, 0) }
func (d *hangingDisk) CostOfRead(in *fuse.ReadIn) Cost {
	cost := d.cost(in.NodeId, int64(in.Fh), int(in.Size))
	if in.ReadFlags&fuse.READ_LOCKOWNER == 0 {
		cost.Pages = Pages{in.Offset, in.Offset + uint64(in.Size)}
	}
	return cost
}

func (d *hangingDisk) cost(node uint64, rows int64, reply int) Cost {
	d.costs.Add(1)
	return Cost{Split: int(node), Rows: rows, ReplyBytes: reply}
}

func (d *hangingDisk) Succeeded(in *fuse.ReadIn, _ fuse.ReadResult)  { d.record("done %d", in.Unique) }
func (d *hangingDisk) Rollback(id uint64)                            { d.record("undo %d", id) }
func (d *hangingDisk) Discard(fuse.ReadResult)                       { d.record("discard") }
func (d *hangingDisk) Forget(node, n uint64)                         { d.record("forget %d of %d", n, node) }
func (d *hangingDisk) Release(_ <-chan struct{}, in *fuse.ReleaseIn) { d.record("release %d", in.Fh) }

func (d *hangingDisk) FailRequest(id, node uint64, err error) fuse.Status {
	d.record("fail %d", id)
	return fuse.EIO
}

func (d *hangingDisk) record(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, fmt.Sprintf(format, args...))
}

func (d *hangingDisk) handle() fuse.Status {
	d.mu.Lock()
	d.running++
	d.maxRunning = max(d.maxRunning, d.running)
	gate := d.gate
	d.mu.Unlock()
	if d.onHandle != nil {
		d.onHandle()
	}
	if gate != nil {
		<-gate
	}
	d.mu.Lock()
	d.running--
	d.mu.Unlock()
	return fuse.OK
}

func (d *hangingDisk) Lookup(_ <-chan struct{}, _ *fuse.InHeader, _ string, out *fuse.EntryOut) fuse.Status {
	out.NodeId = 77
	return d.handle()
}

func (d *hangingDisk) GetAttr(<-chan struct{}, *fuse.GetAttrIn, *fuse.AttrOut) fuse.Status {
	return d.handle()
}

func (d *hangingDisk) Open(_ <-chan struct{}, _ *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	out.Fh = 88
	return d.handle()
}

func (d *hangingDisk) ReadDir(<-chan struct{}, *fuse.ReadIn, *fuse.DirEntryList) fuse.Status {
	return d.handle()
}

func (d *hangingDisk) HandleRead(_ <-chan struct{}, waited time.Duration, _ *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if waited > 0 {
		d.waited.Add(1)
	}
	return fuse.ReadResultData(buf), d.handle()
}

func (d *hangingDisk) hang() (release func()) {
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

func (d *hangingDisk) countRunning() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.running
}

// A testGuard is a Guard whose clock advances only when the test calls tick.
type testGuard struct {
	*Guard
	disk   *hangingDisk
	panics int
	errors sync.Map // errors sent to the kernel for abandoned requests, by request id
	killed sync.Map // threads that are being killed
	lastID atomic.Uint64
}

func newTestGuard(t *testing.T, splits int, replyBytes int64) *testGuard {
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
	g := &testGuard{disk: &hangingDisk{RawFileSystem: fuse.NewDefaultRawFileSystem()}}
	g.Guard, _ = New(Options{
		Splits: splits, ReplyBytes: replyBytes, Shared: shared, Timeout: 2 * time.Second,
		SendError: func(id uint64, errno syscall.Errno) { g.errors.Store(id, errno) },
		Panicked:  func(any) fuse.Status { g.panics++; return fuse.EIO },
		IsKilled:  func(thread uint32) bool { _, killed := g.killed.Load(thread); return killed },
	}, func(*Guard) (FileSystem, error) { return g.disk, nil })
	return g
}

// timeOutAll lets Options.Timeout pass.
func (g *testGuard) timeOutAll() {
	for range g.opts.timeoutTicks() {
		g.tick()
	}
}

func (g *testGuard) read(split, rows, size int) fuse.Status {
	in := &fuse.ReadIn{Fh: uint64(rows), Size: uint32(size), ReadFlags: fuse.READ_LOCKOWNER}
	in.NodeId, in.Unique = uint64(split), g.lastID.Add(2)
	_, status := g.Read(nil, in, make([]byte, size))
	return status
}

// await waits until handlers of these numbers run, and wait in the queue of split 1.
func (g *testGuard) await(t *testing.T, what string, running, waiting int) {
	t.Helper()
	testwait.Until(t, what, func() (any, bool) {
		r, w, gauge := g.disk.countRunning(), int(g.splits[1].waiting.Load()), int(g.opts.Shared.Gauges.Waiting.Load())
		return fmt.Sprintf("%d running and %d waiting, counted as %d, want %d and %d", r, w, gauge, running, waiting),
			r == running && w == waiting && gauge == waiting
	})
}

// expectIdle checks that no request is registered or waiting, and none holds permits or memory.
func (g *testGuard) expectIdle(t *testing.T) {
	t.Helper()
	if n := len(g.requests); n > 0 {
		t.Errorf("%d requests are registered", n)
	}
	unused := newSplits(g.opts.Splits, g.opts.ReplyBytes)
	for i := range g.splits {
		s, u := &g.splits[i], &unused[i]
		if got, want := fmt.Sprint(s.shortClass, s.longClass, s.waiting.Load()), fmt.Sprint(u.shortClass, u.longClass, 0); got != want {
			t.Errorf("split %d: %s, want %s", i, got, want)
		}
	}
	if waiting, replies := g.opts.Shared.Gauges.Waiting.Load(), g.opts.Shared.ReplyBytes.Load(); waiting != 0 || replies != 0 {
		t.Errorf("%d requests wait, %d bytes of replies are taken", waiting, replies)
	}
}

func TestWaitedForAdmission(t *testing.T) {
	g := newTestGuard(t, 1, 0)
	release := g.disk.hang()
	defer release()
	var all sync.WaitGroup
	permits := shortPermits(1)
	for range permits + 1 {
		all.Go(func() { g.read(1, 1, 100) })
	}
	g.await(t, "a waiting request", permits, 1)
	release()
	testwait.End(t, "the handlers", all.Wait)
	if n := g.disk.waited.Load(); n != 1 {
		t.Errorf("%d READs learned that they waited, want 1", n)
	}
}

// While the handler of a timed-out READ is still running, other READs of its pages fail
// immediately. Other pages can be read, and so can these once the disk responds again.
func TestTimedOutPages(t *testing.T) {
	g := newTestGuard(t, 2, 0)
	fill := func(node, offset uint64) fuse.Status {
		in := &fuse.ReadIn{Fh: 1, Offset: offset, Size: 100}
		in.NodeId, in.Unique = node, g.lastID.Add(2)
		_, status := g.Read(nil, in, make([]byte, 100))
		return status
	}
	release := g.disk.hang()
	defer release()
	var all sync.WaitGroup
	all.Go(func() { fill(1, 1000) })
	g.await(t, "a handler", 1, 0)
	g.timeOutAll()
	testwait.End(t, "READs of pages that another READ still waits for", func() {
		for _, offset := range []uint64{901, 1000, 1099} {
			if status := fill(1, offset); status != fuse.EIO {
				t.Errorf("pages from byte %d: %v", offset, status)
			}
		}
	})
	for _, other := range [][2]uint64{{1, 900}, {1, 1100}, {2, 1000}} {
		all.Go(func() { fill(other[0], other[1]) })
	}
	g.await(t, "other handlers", 4, 0)
	release()
	testwait.End(t, "the handlers", all.Wait)
	if status := fill(1, 1000); !status.Ok() {
		t.Errorf("once the disk responds: %v", status)
	}
	g.expectIdle(t)
}

// beginAll sends a request of each opcode in a goroutine of all, with the even ids from 2 and with
// threads that equal them. It waits until all their handlers run.
func (g *testGuard) beginAll(t *testing.T, all *sync.WaitGroup, interrupted <-chan struct{}) (ids []uint64) {
	t.Helper()
	for i, handle := range []func(h fuse.InHeader){
		func(h fuse.InHeader) { g.Lookup(interrupted, &h, "name", &fuse.EntryOut{}) },
		func(h fuse.InHeader) { g.GetAttr(interrupted, &fuse.GetAttrIn{InHeader: h}, &fuse.AttrOut{}) },
		func(h fuse.InHeader) { g.Open(interrupted, &fuse.OpenIn{InHeader: h}, &fuse.OpenOut{}) },
		func(h fuse.InHeader) {
			in := &fuse.ReadIn{InHeader: h, Fh: 1, ReadFlags: fuse.READ_LOCKOWNER}
			if reply, status := g.Read(interrupted, in, nil); reply != nil || status.Ok() {
				t.Errorf("an abandoned READ has a reply: %v, %v", reply, status)
			}
		},
		func(h fuse.InHeader) { g.ReadDir(interrupted, &fuse.ReadIn{InHeader: h}, nil) },
	} {
		id := uint64(2*i + 2)
		ids = append(ids, id)
		all.Go(func() {
			handle(fuse.InHeader{NodeId: 1, Unique: id, Caller: fuse.Caller{Pid: uint32(id)}})
		})
	}
	g.await(t, "a handler of each opcode", len(ids), 0)
	return ids
}

// checkAbandoned lets the disk respond, and checks what the Guard has sent to the kernel, and that
// it has undone each request. If failed is true, each must count as failed, too.
func (g *testGuard) checkAbandoned(t *testing.T, ids []uint64, errno syscall.Errno, failed bool, release func(), all *sync.WaitGroup) {
	t.Helper()
	want := []string{"discard", "forget 1 of 77", "release 88"}
	for _, id := range ids {
		if got, _ := g.errors.Load(id); got != errno {
			t.Errorf("request %d: %v, want %v", id, got, errno)
		}
		want = append(want, fmt.Sprint("undo ", id))
		if failed {
			want = append(want, fmt.Sprint("fail ", id))
		}
	}
	release()
	testwait.End(t, "the handlers", all.Wait)
	slices.Sort(g.disk.calls)
	if slices.Sort(want); !slices.Equal(g.disk.calls, want) {
		t.Errorf("calls: %q, want %q", g.disk.calls, want)
	}
}

func TestTimedOutRequests(t *testing.T) {
	g := newTestGuard(t, 1, 0)
	release := g.disk.hang()
	defer release()
	var all sync.WaitGroup
	ids := g.beginAll(t, &all, nil)
	g.timeOutAll()
	if waiting := g.opts.Shared.Unresponsive(); len(g.requests) != len(ids) || waiting["split1"] < time.Second {
		t.Errorf("%d handlers run, waiting: %v", len(g.requests), waiting)
	}
	g.checkAbandoned(t, ids, syscall.ETIMEDOUT, true, release, &all)
	g.tick()
	if waiting := g.opts.Shared.Unresponsive(); len(waiting) > 0 {
		t.Errorf("waiting after all handlers returned: %v", waiting)
	}
	g.expectIdle(t)
}

// A request gets an error within the timeout, but not before a store fails, wherever it begins
// between two ticks.
func TestTimeLimit(t *testing.T) {
	for _, timeout := range []time.Duration{100 * time.Millisecond, 2*time.Second + 1, 8200 * time.Millisecond, 30 * time.Second, 10*time.Minute - 1} {
		g := newTestGuard(t, 1, 0)
		g.opts.Timeout = timeout
		release := g.disk.hang()
		var reader sync.WaitGroup
		reader.Go(func() { g.read(1, 1, 100) })
		g.await(t, "the reader", 1, 0)
		ticks := time.Duration(0)
		for failed := false; !failed && ticks < 10_000; ticks++ {
			g.tick()
			_, failed = g.errors.Load(g.lastID.Load())
		}
		every := g.opts.tickInterval()
		if shortest, longest := (ticks-1)*every, ticks*every; longest > timeout || shortest < timeout*95/100 || every > longWait/4 {
			t.Errorf("with a timeout of %v and ticks every %v, a read ends after %v to %v", timeout, every, shortest, longest)
		}
		release()
		testwait.End(t, "the reader", reader.Wait)
	}
}

// A request whose reader is being killed is abandoned and undone, even if another signal caused its
// only INTERRUPT long before, and is no failure. Other signals do not affect a request.
func TestKilledReaders(t *testing.T) {
	g := newTestGuard(t, 1, 0)
	release := g.disk.hang()
	defer release()
	var all sync.WaitGroup
	interrupted := make(chan struct{})
	ids := g.beginAll(t, &all, interrupted)
	check := func(when string, want int) {
		t.Helper()
		g.tick()
		n := 0
		g.errors.Range(func(_, _ any) bool { n++; return true })
		if n != want {
			t.Errorf("%s: %d requests were abandoned, want %d", when, n, want)
		}
	}
	g.killed.Store(uint32(ids[0]), true)
	check("without an INTERRUPT", 0)
	g.killed.Clear()
	close(interrupted)
	check("after another signal", 0)
	g.killed.Store(uint32(ids[0]), true)
	check("after one reader was killed", 1)
	for _, id := range ids {
		g.killed.Store(uint32(id), true)
	}
	check("after all readers were killed", len(ids))
	g.checkAbandoned(t, ids, syscall.EINTR, false, release, &all)
	g.expectIdle(t)
}

// A killed reader leaves the queue, and other readers of its pages go on.
func TestKilledReaderInQueue(t *testing.T) {
	g := newTestGuard(t, 1, 0)
	release := g.disk.hang()
	defer release()
	interrupted := make(chan struct{})
	close(interrupted)
	var all sync.WaitGroup
	read := func(thread uint32) {
		in := &fuse.ReadIn{Fh: 1, Size: 100}
		in.NodeId, in.Unique, in.Pid = 1, g.lastID.Add(2), thread
		g.Read(interrupted, in, make([]byte, 100))
	}
	permits := shortPermits(1)
	for range permits {
		all.Go(func() { read(7) })
	}
	g.await(t, "readers that use the files", permits, 0)
	all.Go(func() { read(7) })
	all.Go(func() { read(8) })
	g.await(t, "two readers in the queue", permits, 2)
	g.killed.Store(uint32(7), true)
	g.tick()
	g.await(t, "the other reader in the queue", permits, 1)
	all.Go(func() { read(8) })
	g.await(t, "a new reader of the same pages", permits, 2)
	release()
	testwait.End(t, "the readers", all.Wait)
	g.disk.mu.Lock()
	defer g.disk.mu.Unlock()
	done := len(slices.DeleteFunc(g.disk.calls, func(call string) bool { return !strings.HasPrefix(call, "done ") }))
	if done != 2 {
		t.Errorf("%d reads succeeded before they were abandoned, want 2", done)
	}
	g.expectIdle(t)
}

func TestCalls(t *testing.T) {
	g := newTestGuard(t, 1, 64<<20)
	handled := 0
	g.disk.onHandle = func() { handled++ }
	if status := g.read(1, 1, 100); !status.Ok() || handled+int(g.disk.costs.Load()) != 2 || !slices.Equal(g.disk.calls, []string{"done 2"}) {
		t.Errorf("a READ: %v, %d handlers, %d costs, calls: %q", status, handled, g.disk.costs.Load(), g.disk.calls)
	}
	if status := g.GetAttr(nil, &fuse.GetAttrIn{}, &fuse.AttrOut{}); !status.Ok() || g.disk.costs.Load() != 2 || len(g.disk.calls) != 1 {
		t.Errorf("a GETATTR: %v, calls: %q", status, g.disk.calls)
	}
	g.expectIdle(t)
}

// A split counts as unresponsive while a check of its files is blocked.
func TestStalledSplit(t *testing.T) {
	g := newTestGuard(t, 2, 0)
	stalled := longWait
	g.opts.Stalled = func(split int) time.Duration { return stalled * time.Duration(split-1) }
	g.tick()
	if waiting := g.opts.Shared.Unresponsive(); len(waiting) != 1 || waiting["split2"] < longWait {
		t.Errorf("waiting: %v", waiting)
	}
	stalled = 0
	g.tick()
	if waiting := g.opts.Shared.Unresponsive(); len(waiting) > 0 {
		t.Errorf("waiting after the check: %v", waiting)
	}
}

// If the files of a split do not respond, few requests use them, the others wait, and all time out.
// Other splits are not affected.
func TestHangingSplit(t *testing.T) {
	const readers = 500
	short := shortPermits(2)
	for rows, permits := range map[int]int{shortRows: short, shortRows + 1: short / 2} {
		g := newTestGuard(t, 2, 64<<20)
		release := g.disk.hang()
		var all sync.WaitGroup
		for range readers {
			all.Go(func() { g.read(1, rows, 1000) })
		}
		g.await(t, "readers that use the files, and all others in the queue", permits, readers-permits)
		other := make(chan fuse.Status, 1)
		go func() { other <- g.read(1, shortRows+1-rows+shortRows, 1000) }() // the other class
		g.await(t, "a handler of the other class", permits+1, readers-permits)
		g.timeOutAll()
		timedOut := 0
		g.errors.Range(func(_, _ any) bool { timedOut++; return true })
		if timedOut != readers+1 || g.disk.maxRunning != permits+1 {
			t.Errorf("%d requests of %d timed out, up to %d used the files at a time", timedOut, readers+1, g.disk.maxRunning)
		}
		testwait.Until(t, "an empty queue", func() (any, bool) {
			waiting := g.splits[1].waiting.Load()
			return waiting, waiting == 0
		})
		release()
		if status := g.read(2, 1, 1); !status.Ok() {
			t.Errorf("another split: %v", status)
		}
		testwait.For(t, "the request of the other class", other)
		testwait.End(t, "the readers", all.Wait)
		if status := g.read(1, 1, 1); !status.Ok() {
			t.Errorf("after the files respond again: %v", status)
		}
		g.expectIdle(t)
	}
}

func TestPanic(t *testing.T) {
	g := newTestGuard(t, 1, 64<<20)
	g.disk.onHandle = func() { panic("at the disco") }
	if status := g.read(1, 1000, 1<<20); status != fuse.EIO || g.panics != 1 || !slices.Equal(g.disk.calls, []string{"undo 2"}) {
		t.Errorf("%v, %d panics, calls: %v", status, g.panics, g.disk.calls)
	}
	g.expectIdle(t)
}

func TestExhaustedRequest(t *testing.T) {
	g := newTestGuard(t, 1, 0)
	for crashes := range state.MaxResentCrashes + 1 {
		_, _, err := g.beginRequest(nil, &fuse.InHeader{NodeId: 1, Unique: 2 | state.Resent}, Cost{})
		if exhausted := errors.Is(err, errExhausted); exhausted != (crashes == state.MaxResentCrashes) {
			t.Errorf("after %d crashes: %v", crashes, err)
		}
		g.requests = nil // the worker crashes
		g.opts.Shared.Crashes.Add(1)
		g.opts.Shared.Workers.Add(1)
	}
}

func TestReplyMemoryIsLimited(t *testing.T) {
	const limit = 4 << 20
	g := newTestGuard(t, 1, 2*limit) // limit for each class
	release := g.disk.hang()
	defer release()
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { g.read(1, 1, mount.MaxRequest) })
	}
	g.await(t, "as many handlers as the memory allows, and the others in the queue", limit/mount.MaxRequest, 50-limit/mount.MaxRequest)
	if used, waiting := g.opts.Shared.ReplyBytes.Load(), g.opts.Shared.Gauges.Waiting.Load(); used != limit || waiting != 46 {
		t.Errorf("%d bytes are used, %d requests wait", used, waiting)
	}
	small := make(chan fuse.Status, 1)
	go func() { small <- g.read(1, 1, smallReply) }()
	g.await(t, "a small reply, which does not wait", limit/mount.MaxRequest+1, 50-limit/mount.MaxRequest)
	if g.TryPrefetch(1) {
		t.Error("a prefetch may begin while requests wait")
	}
	release()
	testwait.End(t, "the readers", all.Wait)
	testwait.For(t, "the small reply", small)
	g.expectIdle(t)
}

type slicedData struct{ fuse.ReadResult }

func (slicedData) Slices() ([][]byte, fuse.Status) { return nil, fuse.OK }

// The requests behind one that times out in the queue are admitted. While many requests wait, the
// buffers of sent replies are freed.
func TestTimeoutInQueue(t *testing.T) {
	g := newTestGuard(t, 1, 0) // memory for one reply of mount.MaxRequest in each class
	release := g.disk.hang()
	defer release()
	var all sync.WaitGroup
	begin := func(size, running, waiting int) {
		all.Go(func() { g.read(1, 1, size) })
		g.await(t, "the request", running, waiting)
	}
	begin(mount.MaxRequest-smallReply-1, 1, 0)
	begin(mount.MaxRequest, 1, 1)
	g.tick()
	begin(smallReply+1, 1, 2)
	buf := bytes.Repeat([]byte{7}, mount.MaxRequest)
	g.splits[1].freeWhenSent(slicedData{fuse.ReadResultData(buf)}, buf).Done()
	if buf[len(buf)/2] != 0 {
		t.Error("the buffer of a sent reply was not freed while many requests wait")
	}
	for range g.opts.timeoutTicks() - 1 {
		g.tick()
	}
	g.await(t, "the last request", 2, 0)
	release()
	testwait.End(t, "the readers", all.Wait)
	g.expectIdle(t)
}

func TestQueueIsFull(t *testing.T) {
	g := newTestGuard(t, 1, 0)
	release := g.disk.hang()
	defer release()
	var all sync.WaitGroup
	for range shortPermits(1) + maxWaiting {
		all.Go(func() { g.read(1, 1, 1) })
	}
	g.await(t, "a full queue", shortPermits(1), maxWaiting)
	if status := g.read(1, 1, 1); status.Ok() {
		t.Error("a request succeeded although the queue was full")
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
				t.Fatalf("byte %d, outside the buffer, was lost", i)
			}
		}
	}
}
