package fs

import (
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/state"
	"batchfs/internal/wait"
)

// expiring is a tree whose deadlines are passed by ticks of the test alone: two ticks, and a request is late. replies are the
// errors that were sent in the place of handlers.
func expiring(t *testing.T, splits ...*Sequence) (tr *tree, tick func(), replies map[uint64]syscall.Errno) {
	tr = plant(t, splits...)
	replies = map[uint64]syscall.Errno{}
	tr.deadlines.limit = time.Second
	tr.deadlines.answer = func(id uint64, errno syscall.Errno) { replies[id] = errno }
	return tr, func() { tr.deadlines.tick(time.Second); tr.deadlines.tick(time.Second) }, replies
}

// A request on a file of the whole mount may be late too, and has no sequence to blame.
func TestLateRequestOfNoSequence(t *testing.T) {
	tr, tick, replies := expiring(t, counting("train", 1000))
	for id, path := range map[uint64]string{2: "README", 4: "status.json"} {
		i := tr.find(path)
		r, err := tr.deadlines.begin(id, i)
		if err != nil {
			t.Fatal(err)
		}
		tick()
		if replies[id] != syscall.ETIMEDOUT {
			t.Errorf("%s: %v", path, replies[id])
		}
		tr.deadlines.end(r)
		if status := tr.fault(i, errors.New("broken")); status != fuse.EIO {
			t.Errorf("%s: %v", path, status)
		}
	}
	if n := tr.shared.Sequences[0].Errors.Load(); n != 4 {
		t.Errorf("%d errors are counted, want 4", n)
	}
}

// blocked is a split whose token files give no answer until release is called.
func blocked() (s *Sequence, waits <-chan struct{}, release func()) {
	s = counting("train", 1000)
	entered, gate := make(chan struct{}, 100), make(chan struct{})
	s.Now = func(uint64) (*Sequence, error) {
		entered <- struct{}{}
		<-gate
		return s, nil
	}
	s.Info = func() []byte { return []byte("{}\n") }
	return s, entered, sync.OnceFunc(func() { close(gate) })
}

// What a handler did for a reader that has got an error meanwhile is undone when it ends.
func TestLateRequestsLeaveNothing(t *testing.T) {
	s, waits, release := blocked()
	tr, tick, replies := expiring(t, s)
	defer release()
	dir := makeInode(splitDir, 1, 0)
	late := map[uint64]func(id uint64){
		2: func(id uint64) { // a lookup of settings
			tr.Lookup(nil, &fuse.InHeader{NodeId: uint64(dir), Unique: id}, "seed=1", &fuse.EntryOut{})
		},
		4: func(id uint64) { // an open of a live text
			in := &fuse.OpenIn{}
			in.NodeId, in.Unique = uint64(makeInode(infoFile, 1, 0)), id
			tr.Open(nil, in, &fuse.OpenOut{})
		},
		6: func(id uint64) { // an open of a numbered text
			in := &fuse.OpenIn{}
			in.NodeId, in.Unique = uint64(tr.numbered(batchJSON, 1, 7)), id
			tr.Open(nil, in, &fuse.OpenOut{})
		},
	}
	var wg sync.WaitGroup
	for id, handle := range late {
		wg.Go(func() { handle(id) })
		wait.For(t, "a handler that waits for token files", waits)
	}
	tick()
	for id := range late {
		if replies[id] != syscall.ETIMEDOUT {
			t.Errorf("request %d: %v", id, replies[id])
		}
	}
	if n := tr.deadlines.stuck[1]; n != len(late) {
		t.Errorf("%d handlers are stuck, want %d", n, len(late))
	}
	release()
	wait.End(t, "the goroutines", wg.Wait)
	if n := len(tr.texts.open); n > 0 {
		t.Errorf("%d texts are kept for nobody", n)
	}
	if number, known := tr.sequences.byName["train/seed=1"]; known {
		t.Errorf("settings that nobody knows have number %d, %d lookups", number, tr.shared.Lookups(number))
	}
	if n := tr.deadlines.stuck[1]; n != 0 {
		t.Errorf("%d handlers are still stuck", n)
	}
}

// An open of next that is answered in its handler's place keeps no handle.
func TestLateOpenOfNext(t *testing.T) {
	tr, tick, _ := expiring(t, counting("train", 1000))
	in := &fuse.OpenIn{}
	in.NodeId, in.Unique = uint64(tr.find("train/next")), 2
	open := func() (fh uint64) {
		var out fuse.OpenOut
		if status := tr.Open(nil, in, &out); !status.Ok() {
			t.Fatal(status)
		}
		return out.Fh
	}
	first := open()
	tr.handles.Release(first)
	r, err := tr.deadlines.begin(4, inode(in.NodeId))
	if err != nil {
		t.Fatal(err)
	}
	fh, _ := tr.handles.Open(1, false, 4)
	r.undo = func() { tr.handles.Release(fh) }
	tick()
	tr.deadlines.end(r)
	if next := open(); next%state.MaxHandles != fh%state.MaxHandles {
		t.Errorf("handle %d has another slot than %d, which nobody has", next, fh)
	}
}

// While many handlers of a sequence are stuck its requests fail at once, and those of others do not.
func TestStuckSequence(t *testing.T) {
	tr, tick, _ := expiring(t, counting("a", 1000), counting("b", 1000))
	var stuck []*request
	for id := range uint64(maxStuck) {
		r, err := tr.deadlines.begin(2*id+2, tr.find("a/next"))
		if err != nil {
			t.Fatal(err)
		}
		stuck = append(stuck, r)
	}
	tick()
	if _, err := tr.deadlines.begin(1000, tr.find("a/next")); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("a request of a stuck sequence: %v", err)
	}
	r, err := tr.deadlines.begin(1002, tr.find("b/next"))
	if err != nil {
		t.Fatal(err)
	}
	tr.deadlines.end(r)
	if waiting := tr.shared.Waiting(); len(waiting) != 1 || waiting["a"] < time.Second {
		t.Errorf("waiting: %v", waiting)
	}
	for _, r := range stuck {
		tr.deadlines.end(r)
	}
	tick()
	if waiting := tr.shared.Waiting(); len(waiting) != 0 {
		t.Errorf("waiting when none is stuck any more: %v", waiting)
	}
	if r, err := tr.deadlines.begin(1004, tr.find("a/next")); err != nil {
		t.Errorf("a request when none is stuck any more: %v", err)
	} else {
		tr.deadlines.end(r)
	}
}

// The number of a read that is late goes to the next reader, whether it was assigned before or after.
func TestLateReadGivesItsNumberBack(t *testing.T) {
	const size = 1000
	whole := state.Span{Off: 0, Len: size, Size: size}
	for _, first := range []string{"assigned", "late"} {
		tr, tick, _ := expiring(t, counting("train", size))
		slow := tr.reader(t, "train/next", 0)
		r, err := tr.deadlines.begin(1_000_000, slow.node)
		if err != nil {
			t.Fatal(err)
		}
		if first == "late" {
			tick()
		}
		read := state.Read{FH: slow.fh, ID: 1_000_000, Span: whole}
		if k, err := tr.deadlines.assign(r, read); k != 0 || (err != nil) != (first == "late") {
			t.Fatal(k, err)
		}
		if first == "assigned" {
			tick()
		}
		if got := tr.reader(t, "train/next", 0).batch(t, size); got != 0 {
			t.Errorf("%s first: the next reader got batch %d, want 0", first, got)
		}
		tr.deadlines.end(r)
	}
}

// A read that panics is an error, and its number goes to the next reader.
func TestPanickingRead(t *testing.T) {
	s := counting("train", 1000)
	whole, panics := s.Read, true
	s.Read = func(dst []byte, k uint64, off int64) error {
		if panics {
			panic("at the disco")
		}
		return whole(dst, k, off)
	}
	tr := plant(t, s)
	gaveUp := 0
	tr.giveUp = func() { gaveUp++ }
	if _, status := tr.reader(t, "train/next", 0).read(0, 1000); status != fuse.EIO || gaveUp != 1 {
		t.Errorf("%v; gave up %d times", status, gaveUp)
	}
	panics = false
	if got := tr.reader(t, "train/next", 0).batch(t, 1000); got != 0 {
		t.Errorf("the next reader gets batch %d, want 0", got)
	}
	if n := len(tr.deadlines.requests); n > 0 {
		t.Errorf("%d requests are under way", n)
	}
}

// A handler that is late may find that the kernel has forgotten its file. Its read is an error then, and ends no process.
func TestLateHandlerOfAForgottenFile(t *testing.T) {
	s, waits, release := blocked()
	other := counting("train/seed=1", 1000)
	other.Now = func(uint64) (*Sequence, error) { return s.Now(NoBatch) }
	s.With = func(string) (*Sequence, error) { return other, nil }
	tr := plant(t, s)
	defer release()
	number := tr.sequences.add(other, 0)
	tr.shared.CountLookup(number, 2)
	fh, _ := tr.handles.Open(number, false, 4)
	status := make(chan fuse.Status, 1)
	go func() {
		in := &fuse.ReadIn{Fh: fh, Size: 100, ReadFlags: fuse.READ_LOCKOWNER}
		in.NodeId, in.Unique = uint64(makeInode(nextNPY, number, 0)), 6
		_, st := tr.Read(nil, in, make([]byte, 100))
		status <- st
	}()
	wait.For(t, "a handler that waits for token files", waits)
	tr.handles.Release(fh)
	tr.sequences.forget(number, 1)
	release()
	if st := wait.For(t, "the answer to the read", status); st != fuse.Status(syscall.ESTALE) {
		t.Errorf("its read: %v, want ESTALE", st)
	}
	in := &fuse.GetAttrIn{}
	in.NodeId = uint64(makeInode(nextNPY, number, 0))
	if st := tr.GetAttr(nil, in, &fuse.AttrOut{}); st != fuse.Status(syscall.ESTALE) {
		t.Errorf("its attributes: %v, want ESTALE", st)
	}
	if _, err := tr.sequences.now(number, NoBatch); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("its tokens: %v, want ESTALE", err)
	}
}

// A late read of a text that another process opened keeps no text.
func TestLateReadOfAResumedText(t *testing.T) {
	s, waits, release := blocked()
	tr, tick, _ := expiring(t, s)
	defer release()
	done := make(chan struct{})
	go func() {
		defer close(done)
		in := &fuse.ReadIn{Fh: 77, Size: 100, ReadFlags: fuse.READ_LOCKOWNER}
		in.NodeId, in.Unique = uint64(makeInode(infoFile, 1, 0)), 2
		tr.Read(nil, in, make([]byte, 100))
	}()
	wait.For(t, "a handler that waits for token files", waits)
	tick()
	release()
	wait.For(t, "the end of the read", done)
	if n := len(tr.texts.open); n > 0 {
		t.Errorf("%d texts are kept for nobody", n)
	}
}
