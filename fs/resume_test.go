package fs

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/cache/array"
	"batchfs/fs/state"
)

// The requests under way when a worker dies are sent again in any order, also of threads that share a handle.
func TestEverythingComesAgain(t *testing.T) {
	const size, threads, rounds = 1000, 8, 200
	s := counting("train", size)
	tr := plant(t, s)
	readers := []*reader{tr.reader(t, "train/next", 0), tr.reader(t, "train/next", 0), tr.reader(t, "train/next.npy", 0)}
	got := map[int]int{}
	for range rounds {
		var asked []*reader // that one worker read, and partly answered
		for range threads {
			r := *readers[rand.IntN(2)]
			asked = append(asked, &r)
			k := r.batch(t, size)
			if rand.IntN(2) == 0 {
				got[k]++
				asked = asked[:len(asked)-1]
				continue
			}
			r.wanted = k
		}
		tr = grow(t, tr.shared, s)
		for _, r := range readers {
			r.tree = tr
		}
		rand.Shuffle(len(asked), func(i, j int) { asked[i], asked[j] = asked[j], asked[i] })
		for _, r := range asked {
			r.tree = tr
			r.unique |= state.Resent
			data, status := r.again(0, size)
			if !status.Ok() {
				t.Fatal(status)
			}
			if k := number(data, size); k != r.wanted {
				t.Fatalf("a read that took batch %d got batch %d when it came again", r.wanted, k)
			}
			got[r.wanted]++
		}
		clear(got) // numbers of batches repeat after 251
	}
	if c := tr.shared.Sequences[1].Cursor.Load(); c != threads*rounds {
		t.Errorf("cursor is %d, want %d", c, threads*rounds)
	}
}

// The configuration of another mount is refused.
func TestOtherSplitsAreRefused(t *testing.T) {
	a, b := counting("a", 1000), counting("b", 1000)
	tr := plant(t, a, b)
	for _, splits := range [][]Sequence{{a}, {a, b, counting("c", 1000)}, {a, counting("c", 1000)}} {
		if _, err := newSequences(splits, tr.shared, Options{Log: tr.log.Logger}); err == nil {
			t.Errorf("%d splits are taken for a and b", len(splits))
		}
	}
	if q, err := newSequences([]Sequence{b, a}, tr.shared, Options{Log: tr.log.Logger}); err != nil || q.get(1) != a {
		t.Errorf("in another order: %v", err)
	}
}

// A handle of a text that another process opened shows one text, whole or to its end, and never parts of two.
func TestTextsGoOn(t *testing.T) {
	s := counting("train", 1000)
	info := "{}\n"
	s.info = func() []byte { return []byte(info) }
	tr := plant(t, s)
	cursor, begun, done := tr.reader(t, "train/cursor", 0), tr.reader(t, "train/info.json", 0), tr.reader(t, "train/info.json", 0)
	done.read(0, 100)
	tr = grow(t, tr.shared, s)
	status := tr.reader(t, "status.json", 0)
	for _, r := range []*reader{cursor, begun, done} {
		r.tree = tr
	}
	info = "{\"longer\": true}\n"
	if text, st := cursor.read(0, 100); st != fuse.OK || string(text) != "0\n" {
		t.Errorf("cursor shows %q, %v", text, st)
	}
	if text, _ := status.read(0, 1); string(text) != "{" {
		t.Errorf("status.json begins with %q", text)
	}
	if text, st := done.read(3, 100); st != fuse.OK || len(text) > 0 {
		t.Errorf("after its end, a text goes on with %q, %v", text, st)
	}
	if text, st := begun.read(1, 100); st != fuse.Status(syscall.ESTALE) {
		t.Errorf("in its middle, a text goes on with %q, %v", text, st)
	}
	if text, st := begun.read(0, 100); st != fuse.OK || string(text) != info {
		t.Errorf("from its beginning, a text is %q, %v", text, st)
	}
}

// Settings that no longer suit the tokens are an error of who reads them, in every file and from any byte on, and keep nobody from
// serving the rest. Once they suit again, they are served again.
func TestUnsuitedSettingsGoOn(t *testing.T) {
	s, under := manyArrays(3), manyArrays(3)
	under.Name = "train/seed=1"
	s.with = func(string) (Sequence, error) { return under, nil }
	tr := plant(t, s)
	dir := tr.find("train")
	number := tr.sequences.mustLookUp(t, dir, "seed=1")
	var open []*reader
	for _, name := range []string{"next", "next.npy", "next.safetensors", "batch/3", "batch/3.npy", "batch/3.safetensors", "batch/3.json", "batches.bin",
		"batches.npy", fmt.Sprintf("batch/3.%032d.npy", 15), fmt.Sprintf("batches.%032d.npy", 15)} {
		open = append(open, tr.readerIn(t, settingsDir(number, dir, "seed=1"), name, 0))
	}
	for _, arrays := range []array.Batch{oneArray(1000), s.Batch} {
		unfit := *s
		unfit.Batch = arrays
		unfit.with = func(string) (Sequence, error) { return nil, syscall.EINVAL }
		unfit.now = func(uint64) (Sequence, error) { return &unfit, nil }
		tr = grow(t, tr.shared, &unfit)
		for _, r := range open {
			r.tree = tr
			for _, off := range []int64{0, headerBytes - 1, headerBytes, 1 << 30} {
				if data, status := r.read(off, 2*headerBytes); status != fuse.Status(syscall.ESTALE) {
					t.Errorf("with %d arrays, byte %d of kind %d: %v, %d bytes, want ESTALE", len(arrays.Arrays), off, r.node.kind(), status, len(data))
				}
			}
		}
		unfit.now = func(uint64) (Sequence, error) { return s, nil }
	}
	if u, err := tr.sequences.now(number, array.NoBatch); err != nil || u != under {
		t.Errorf("settings that suit again: %v", err)
	}
	for _, r := range open {
		if data, status := r.read(0, 100); !status.Ok() || len(data) == 0 {
			t.Errorf("settings that suit again, kind %d: %v, %d bytes", r.node.kind(), status, len(data))
		}
	}
}

// Settings that were looked up before a worker's death are forgotten after it: rounds of lookups and deaths use up no numbers.
func TestNamesAreForgottenAfterADeath(t *testing.T) {
	s := counting("train", 1000)
	tr := plant(t, s)
	dir := tr.find("train")
	known := map[state.Name]int{} // that the kernel has, with their sequences
	for round := range 20 {
		for i := range maxRecent + 76 {
			name := fmt.Sprintf("seed=%d", 10_000*round+i)
			known[state.Name{Dir: uint64(dir), Name: name}] = tr.sequences.mustLookUp(t, dir, name)
		}
		tr = grow(t, tr.shared, s)
		for len(tr.sequences.recent) > maxRecent {
			n := tr.sequences.outdated()
			tr.sequences.invalidated()
			if number, ok := known[n]; ok { // as the kernel does when it is told
				tr.sequences.forget(number, 1)
				delete(known, n)
			}
		}
	}
	tr.sequences.check(t)
	if used := tr.shared.SequencesUsed(); used > 2*maxRecent+1000 {
		t.Errorf("%d numbers are used, %d names are known", used, len(known))
	}
}

// Taking over makes no sequence before one is asked for, and needs no index of settings but to look settings up: reading and
// forgetting go on while it is made.
func TestTakingOverManySettings(t *testing.T) {
	s := counting("train", 1000)
	with, made := s.with, 0
	s.with = func(settings string) (Sequence, error) {
		made++
		return with(settings)
	}
	tr := plant(t, s)
	tr.sequences.forgetAtOnce()
	dir := tr.find("train")
	const many = 20_000
	number := func(seed int) int { return seed + 2 }
	for i := range many {
		if got := tr.sequences.mustLookUp(t, dir, fmt.Sprint("seed=", i)); got != number(i) {
			t.Fatalf("seed %d has number %d", i, got)
		}
	}
	made = 0
	q, err := newSequences([]Sequence{s}, tr.shared, Options{Log: tr.log.Logger})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := q.get(number(77)); got == nil || got.Spec().Name != "train/seed=77" || made != 1 {
			t.Errorf("%v, %d sequences made", got, made)
		}
	}
	q.forget(number(5), 1)
	if q.get(number(5)) != nil {
		t.Error("what was forgotten is there")
	}
	go q.index()
	q.forget(number(many-5), 1)
	q.forget(number(77), 1)
	again := q.mustLookUp(t, dir, "seed=78")
	if again != number(78) {
		t.Errorf("seed 78 has number %d now", again)
	}
	free := map[int]bool{}
	for range 3 {
		free[q.mustLookUp(t, dir, fmt.Sprint("seed=", many+len(free)))] = true
	}
	if !free[number(5)] || !free[number(77)] || !free[number(many-5)] {
		t.Errorf("numbers %v are used again", free)
	}
	q.check(t)
}

// A lookup that is sent again counts once, so that its sequence is forgotten with its files.
func TestLookupComesAgain(t *testing.T) {
	s := counting("train", 1000)
	tr := plant(t, s)
	dir := tr.find("train")
	for _, name := range []string{"seed=1", "next"} {
		in := &fuse.InHeader{NodeId: uint64(dir), Unique: lastUnique.Add(2)}
		if name == "next" {
			in.NodeId = uint64(settingsDir(tr.sequences.byName["train/seed=1"], dir, "seed=1"))
		}
		for range 3 {
			if status := tr.Lookup(nil, in, name, &fuse.EntryOut{}); !status.Ok() {
				t.Fatal(status)
			}
			tr = grow(t, tr.shared, s)
			in.Unique |= state.Resent
		}
	}
	number := tr.sequences.byName["train/seed=1"]
	if n := tr.shared.Lookups(number); n != 2 {
		t.Errorf("%d lookups are counted, want 2", n)
	}
	tr.Forget(uint64(makeInode(nextRaw, number, 0)), 1)
	tr.Forget(uint64(settingsDir(number, dir, "seed=1")), 1)
	if tr.sequences.get(number) != nil {
		t.Error("the sequence is not forgotten")
	}
}
