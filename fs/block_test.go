package fs

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// died is what a worker panics with where a test cuts it off.
type died string

// cutAt runs f until it comes to a point for the n-th time, and returns whether it did.
func cutAt(point string, n int, f func()) (dead bool) {
	defer func(was func(string)) { cut = was }(cut)
	cut = func(at string) {
		if at == point {
			if n--; n == 0 {
				panic(died(point))
			}
		}
	}
	defer func() {
		if r := recover(); r != nil && r != died(point) {
			panic(r)
		} else {
			dead = r != nil
		}
	}()
	f()
	return false
}

// points are where f can be cut.
func points(f func()) []string {
	defer func(was func(string)) { cut = was }(cut)
	seen := map[string]bool{}
	cut = func(at string) { seen[at] = true }
	f()
	return slices.Sorted(maps.Keys(seen))
}

// A worker that dies between any two steps of opening a file or of taking a number is replaced by one that is asked the same
// again: each number goes to one read, none is left out, and a read that was asked twice has the same one.
func TestEveryCut(t *testing.T) {
	const size = 1000
	whole := span{0, size, size}
	all := points(func() {
		tr := plant(t, counting("train", size))
		fh, _ := tr.table.open(makeInode(nextRaw, 1, 0), 0, 1)
		tr.table.number(fh, &tr.table.states[1].cursor, 2, whole, 0)
	})
	if len(all) < 10 {
		t.Fatalf("only %d points: %s", len(all), all)
	}
	for _, point := range all {
		for n := range 4 {
			t.Run(fmt.Sprint(point, " ", n+1), func(t *testing.T) {
				s := counting("train", size)
				tr := plant(t, s)
				id, dead := uint64(0), false
				// ask asks the worker, and if it dies of that its successor.
				ask := func(f func(id uint64)) {
					id += 2
					if dead {
						f(id)
					} else if dead = cutAt(point, n+1, func() { f(id) }); dead {
						tr = grow(t, tr.table.block, s)
						f(id | resent)
					}
				}
				got := map[uint64]int{}
				var handles []uint64
				for range 3 {
					ask(func(id uint64) {
						fh, ok := tr.table.open(makeInode(nextRaw, 1, 0), 0, id)
						if !ok {
							t.Fatal("no slot")
						}
						handles = append(handles, fh)
					})
				}
				if n := len(slices.Compact(slices.Sorted(slices.Values(handles)))); n != 3 {
					t.Fatalf("handles %v", handles)
				}
				for range 4 {
					for _, fh := range handles {
						ask(func(id uint64) {
							k, ok := tr.table.number(fh, &tr.table.states[1].cursor, id, whole, 0)
							if !ok {
								t.Fatal("no number")
							}
							got[k]++
						})
					}
				}
				for k := range uint64(12) {
					if got[k] != 1 {
						t.Errorf("number %d went to %d reads: %v", k, got[k], got)
					}
				}
				if c := tr.table.states[1].cursor.Load(); c != 12 {
					t.Errorf("cursor is %d", c)
				}
				if used := tr.table.usedSlots.Load(); used > 4 {
					t.Errorf("%d slots for 3 handles", used)
				}
			})
		}
	}
}

// What was under way when a worker died comes again in any order, threads that share a handle included.
func TestEverythingComesAgain(t *testing.T) {
	const size, threads, rounds = 1000, 8, 200
	s := counting("train", size)
	tr := plant(t, s)
	readers := []*reader{tr.reader(t, "train/next", 0), tr.reader(t, "train/next", 0), tr.reader(t, "train/next.npy", 0)}
	got := map[int]int{}
	for range rounds {
		var asked []*reader // that one worker read, of which some were answered
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
		tr = grow(t, tr.table.block, s)
		for _, r := range readers {
			r.tree = tr
		}
		rand.Shuffle(len(asked), func(i, j int) { asked[i], asked[j] = asked[j], asked[i] })
		for _, r := range asked {
			r.tree = tr
			r.unique |= resent
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
	if c := tr.table.states[1].cursor.Load(); c != threads*rounds {
		t.Errorf("cursor is %d, want %d", c, threads*rounds)
	}
}

// A successor knows the sequences of settings, their cursors, and what is free.
func TestSequencesGoOn(t *testing.T) {
	s := counting("train", 1000)
	tr := plant(t, s)
	dir := tr.find("train")
	numbers := map[string]int{}
	for _, name := range []string{"seed=1", "seed=2", "seed=3"} {
		numbers[name] = tr.sequences.mustLookUp(t, dir, name)
		tr.table.states[numbers[name]].cursor.Add(uint64(len(numbers)))
	}
	gone := tr.sequences.mustLookUp(t, dir, "seed=4")
	tr.sequences.forget(gone, 1)
	tr = grow(t, tr.table.block, s)
	tr.sequences.check(t)
	for name, number := range numbers {
		if got := tr.sequences.mustLookUp(t, dir, name); got != number {
			t.Errorf("%s has number %d, had %d", name, got, number)
		}
	}
	if got := tr.sequences.mustLookUp(t, dir, "seed=5"); got != gone {
		t.Errorf("number %d was free, and a new sequence has %d", gone, got)
	}
	if got := tr.table.states[numbers["seed=3"]].cursor.Load(); got != 3 {
		t.Errorf("cursor is %d, was 3", got)
	}
}

// A configuration that is not that of the mount is refused.
func TestOtherSplitsAreRefused(t *testing.T) {
	a, b := counting("a", 1000), counting("b", 1000)
	tr := plant(t, a, b)
	for _, splits := range [][]*Sequence{{a}, {a, b, counting("c", 1000)}, {a, counting("c", 1000)}} {
		if _, err := newSequences(splits, tr.table, tr.log); err == nil {
			t.Errorf("%d splits are taken for a and b", len(splits))
		}
	}
	if q, err := newSequences([]*Sequence{b, a}, tr.table, tr.log); err != nil || q.get(1) != a {
		t.Errorf("in another order: %v", err)
	}
}

// A handle of a text that another process opened shows one text, whole or to its end, and never parts of two.
func TestTextsGoOn(t *testing.T) {
	s := counting("train", 1000)
	info := "{}\n"
	s.Info = func() []byte { return []byte(info) }
	tr := plant(t, s)
	cursor, begun, done := tr.reader(t, "train/cursor", 0), tr.reader(t, "train/info.json", 0), tr.reader(t, "train/info.json", 0)
	done.read(0, 100)
	tr = grow(t, tr.table.block, s)
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

// Settings that no longer suit the tokens are an error of who reads them, and keep nobody from serving the rest.
func TestUnsuitedSettingsGoOn(t *testing.T) {
	s := counting("train", 1000)
	tr := plant(t, s)
	number := tr.sequences.mustLookUp(t, tr.find("train"), "seed=1")
	other := *s
	other.With = func(string) (*Sequence, error) { return nil, syscall.EINVAL }
	other.Now = func() (*Sequence, error) { return &other, nil }
	tr = grow(t, tr.table.block, &other)
	if u, err := tr.sequences.now(number); err == nil || u.Read(nil, 0, 0) == nil {
		t.Error("settings that do not suit are served")
	}
	other.Now = func() (*Sequence, error) { return s, nil }
	if u, err := tr.sequences.now(number); err != nil || u.Name != "train/seed=1" {
		t.Errorf("settings that suit again: %v", err)
	}
}

// A number that a failed read gave back is for whoever reads next, also if the failed one comes again.
func TestFailedReadComesAgain(t *testing.T) {
	const size = 1000
	whole := span{0, size, size}
	s := counting("train", size)
	tr := plant(t, s)
	cursor := &tr.table.states[1].cursor
	fh, _ := tr.table.open(makeInode(nextRaw, 1, 0), 0, 2)
	k, _ := tr.table.number(fh, cursor, 4, whole, 0)
	tr.table.failed(fh, cursor, k, whole)
	first, _ := tr.table.number(fh, cursor, 6, whole, 0)
	tr = grow(t, tr.table.block, s)
	if again, _ := tr.table.number(fh, cursor, 4|resent, whole, 0); first != 0 || again != 1 {
		t.Errorf("the next read has %d, and the failed one then %d", first, again)
	}
}

// A read that comes again after the tokens have changed has the number that it had, of the new tokens, and the next read the
// next one. Threads that share the handle have theirs.
func TestOtherTokensWhenItComesAgain(t *testing.T) {
	const size = 1000
	whole := span{0, size, size}
	s := counting("train", size)
	tr := plant(t, s)
	cursor := &tr.table.states[1].cursor
	fh, _ := tr.table.open(makeInode(nextRaw, 1, 0), 0, 2)
	for _, id := range []uint64{4, 6} { // neither is answered
		tr.table.number(fh, cursor, id, whole, 0)
	}
	tr = grow(t, tr.table.block, s)
	for want, id := range []uint64{4 | resent, 6 | resent, 8, 10} {
		if k, ok := tr.table.number(fh, cursor, id, whole, 1); !ok || k != uint64(want) {
			t.Errorf("read %#x has number %d, want %d", id, k, want)
		}
	}
}
