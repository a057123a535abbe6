package fs

import (
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/cache/array"
	"batchfs/fs/state"
	"batchfs/internal/wait"
)

// expiring is a tree whose deadlines are passed by ticks of the test alone: two ticks, and a request is late. replies are the
// errors that were sent in the place of handlers.
func expiring(t *testing.T, splits ...Sequence) (tr *tree, tick func(), replies map[uint64]syscall.Errno) {
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
func blocked() (s *fake, waits <-chan struct{}, release func()) {
	s = counting("train", 1000)
	entered, gate := make(chan struct{}, 100), make(chan struct{})
	s.now = func(uint64) (Sequence, error) {
		entered <- struct{}{}
		<-gate
		return s, nil
	}
	s.info = func() []byte { return []byte("{}\n") }
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

// A read that panics has no answer: it is sent again, to another process, and does not count as answered.
func TestPanickingReadIsNotAnswered(t *testing.T) {
	s := counting("train", 1000)
	s.read = func([]byte, uint64, int64) error { panic("at the disco") }
	tr := plant(t, s)
	gaveUp := false
	tr.giveUp = func() { gaveUp = true }
	r := tr.reader(t, "train/batch/3", 0)
	before := tr.shared.Answered.Load()
	done := make(chan struct{})
	go func() { // which the panic ends
		defer close(done)
		r.read(0, 1000)
		t.Error("there is an answer")
	}()
	wait.For(t, "the panic", done)
	if now := tr.shared.Answered.Load(); now != before || !gaveUp {
		t.Errorf("%d requests count as answered, want %d; gave up: %v", now, before, gaveUp)
	}
	if n := len(tr.deadlines.requests); n > 0 {
		t.Errorf("%d requests are under way", n)
	}
}

// A request that ends worker after worker is answered with an error, and whatever else is sent again meanwhile does not make
// that later.
func TestExhaustedRequest(t *testing.T) {
	s := counting("train", 1000)
	tr := plant(t, s)
	const poisonous = 2
	for ended := 1; ended <= state.MaxAttempts; ended++ { // so many workers, before this one
		for id := uint64(4); id < 300; id += 2 { // innocent ones, most of which are answered
			r, err := tr.deadlines.begin(id|state.Resent, tr.find("train/next"))
			if err != nil {
				t.Fatalf("after %d workers: request %d: %v", ended, id, err)
			}
			if id%100 != 0 {
				tr.deadlines.end(r)
			} else if r.clear != nil {
				r.clear()
			}
		}
		r, err := tr.deadlines.begin(poisonous|state.Resent, tr.find("train/next"))
		if r != nil && r.clear != nil {
			defer r.clear() // not by its timer, which may come when the shared memory is gone
		}
		if exhausted := errors.Is(err, errExhausted); exhausted != (ended == state.MaxAttempts) {
			t.Errorf("after %d workers: %v", ended, err)
		}
		tr = grow(t, tr.shared, s)
	}
	if !strings.Contains(errExhausted.Error(), "5 processes ended that were to answer this") {
		t.Error(errExhausted)
	}
}

// A handler that is late may find that the kernel has forgotten its file. Its read is an error then, and ends no process.
func TestLateHandlerOfAForgottenFile(t *testing.T) {
	s, waits, release := blocked()
	other := counting("train/seed=1", 1000)
	other.now = func(uint64) (Sequence, error) { return s.Now(array.NoBatch) }
	s.with = func(string) (Sequence, error) { return other, nil }
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
	if _, err := tr.sequences.now(number, array.NoBatch); !errors.Is(err, syscall.ESTALE) {
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

// suspected is a tree in which requests of next are suspects: three workers ended with them.
func suspected(t *testing.T, ids ...uint64) *tree {
	t.Helper()
	tr := plant(t, counting("train", 1000))
	for range 3 {
		for _, id := range ids {
			tr.shared.Attempt(id | state.Resent)
		}
		tr.shared.Workers.Add(1)
		tr.shared.Blame()
	}
	return tr
}

// deathsLeft is how many more workers may end because of a suspect.
func deathsLeft(tr *tree, id uint64) (n int) {
	for {
		if _, exhausted := tr.shared.Attempt(id | state.Resent); exhausted {
			return n
		}
		tr.shared.Suspect(id)
		tr.shared.Workers.Add(1)
		tr.shared.Blame()
		n++
	}
}

// A suspect that waits while a worker ends of something else is not blamed, whenever the worker ends.
func TestInnocentSuspect(t *testing.T) {
	const guilty, innocent = 2, 4
	for why, want := range map[string]int{"panic": 1, "restart": 2, "panic of a lookup": 2} {
		synctest.Test(t, func(t *testing.T) { // no time passes, and the other one waits until the first is cleared
			tr := suspected(t, guilty, innocent)
			d := &tr.deadlines
			first, err := d.begin(guilty|state.Resent, tr.find("train/next"))
			if err != nil {
				t.Fatal(err)
			}
			begun := make(chan *request, 1)
			go func() {
				r, _ := d.begin(innocent|state.Resent, tr.find("train/next"))
				begun <- r
			}()
			synctest.Wait()
			switch why {
			case "panic":
				first.abandoned = true
				d.blame(first)
				d.end(first)
			case "panic of a lookup": // whose reader gets EIO
				d.end(first)
			}
			d.close()
			first.clear() // as after a while
			(<-begun).clear()
			tr.shared.Workers.Add(1)
			tr.shared.Blame()
			if got := deathsLeft(tr, innocent); got != 2 {
				t.Errorf("%s: the innocent request has %d deaths left, want 2", why, got)
			}
			if got := deathsLeft(tr, guilty); why != "panic of a lookup" && got != want {
				t.Errorf("%s: the other one has %d deaths left, want %d", why, got, want)
			}
		})
	}
}

// A suspect that was answered while it waited is not handled any more.
func TestLateSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := suspected(t, 2, 4)
		tr.deadlines.limit = time.Second
		tr.deadlines.answer = func(uint64, syscall.Errno) {}
		first, err := tr.deadlines.begin(2|state.Resent, tr.find("train/next"))
		if err != nil {
			t.Fatal(err)
		}
		late := make(chan error, 1)
		go func() {
			_, err := tr.deadlines.begin(4|state.Resent, tr.find("train/next"))
			late <- err
		}()
		synctest.Wait()
		tr.deadlines.tick(time.Second)
		tr.deadlines.tick(time.Second)
		first.clear()
		if err := <-late; err != errLate {
			t.Errorf("it begins: %v", err)
		}
		if n := len(tr.deadlines.requests); n != 1 {
			t.Errorf("%d requests are under way, want the first one", n)
		}
	})
}
