package blocks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"batchfs/internal/testwait"
)

// touchedSet returns the working set of blocks [from, to) of an object, and saves that it is being
// read.
func touchedSet(o *CachedObject, from, to int64) *WorkingSet {
	s := NewWorkingSet("reader", []ObjectRange{{o, from * blockBytes, to * blockBytes}})
	s.lastSave.Store(math.MaxInt64) // prevents Touch from saving concurrently
	s.Touch()
	s.save()
	return s
}

// endProcess simulates the end of the process that has the object.
func (o *CachedObject) endProcess() {
	for _, s := range o.cache.disk.workingSets {
		s.lock.Close()
	}
}

// readEpoch reads each block of a working set several times, in random order, and returns the
// number of fetches.
func (s *fakeStore) readEpoch(t *testing.T, r *rand.Rand, o *CachedObject, from, to int64, times int) int64 {
	t.Helper()
	before, set := s.fetched.Load(), touchedSet(o, from, to)
	for _, i := range r.Perm(times * int(to-from)) {
		set.Touch()
		s.checkBlock(t, o, from+int64(i)%(to-from))
	}
	o.cache.Flush()
	set.save()
	return s.fetched.Load() - before
}

// An epoch fetches at most 1.1 times its working set if the directory has room for that set alone,
// whatever other working sets a host had before: in one process or in several, alive or ended,
// overlapping or not.
func TestSuccessiveWorkingSets(t *testing.T) {
	const blocks = 200
	for seed := range uint64(2) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := newFakeStore(blocks * blockBytes)
		o := options(t, blocks/4*int64(100+16*seed)/100)
		object := s.open(t, o, io.Discard, "a")
		for step := range 16 {
			if r.IntN(3) == 0 {
				if r.IntN(2) == 0 {
					object.endProcess()
				}
				object = s.open(t, o, io.Discard, "a")
			}
			hosts := 4 + r.Int64N(7)
			host := r.Int64N(hosts)
			from, to := blocks*host/hosts, blocks*(host+1)/hosts
			if n, most := s.readEpoch(t, r, object, from, to, 3), (to-from)*11/10; n > most {
				t.Errorf("seed %d, step %d: host %d of %d fetched %d blocks for its working set of %d, want %d at most", seed, step, host, hosts, n, to-from, most)
			}
			if n := used(t, o); n > o.Limit {
				t.Fatalf("the directory has %d bytes, may have %d", n, o.Limit)
			}
		}
	}
}

// Working sets that are read in turn keep their blocks even if the directory has no room for all of
// them, and the log suggests a fix once. A block of two sets counts once.
func TestAlternatingWorkingSets(t *testing.T) {
	s := newFakeStore(150 * blockBytes)
	o := options(t, 100)
	var log bytes.Buffer
	object := s.open(t, o, &log, "a")
	sets := []*WorkingSet{touchedSet(object, 0, 100), touchedSet(object, 50, 150)}
	for epoch := range 5 {
		before := s.fetched.Load()
		for i := range int64(100) {
			for n, set := range sets {
				set.Touch()
				s.checkBlock(t, object, 50*int64(n)+i)
			}
			object.cache.Flush()
		}
		n := s.fetched.Load() - before
		if want := []int64{200, 50}[min(epoch, 1)]; n > want+6 {
			t.Errorf("epoch %d fetched %d blocks, want %d at most", epoch, n, want)
		}
	}
	if said := log.String(); strings.Count(said, "level=WARN") != 1 || !strings.Contains(said, "store.cache_bytes") {
		t.Errorf("want one warning that names store.cache_bytes, got:\n%s", said)
	}
}

// A process that reads a working set counts as alive even if another one, which has ended since,
// saved more about the same set.
func TestWorkingSetOfTwoProcesses(t *testing.T) {
	s, o := newFakeStore(20*blockBytes), options(t, 10)
	idle, full := s.open(t, o, io.Discard, "a"), s.open(t, o, io.Discard, "a")
	touchedSet(idle, 0, 20)
	for range 2 {
		set := touchedSet(full, 0, 20)
		readAll(t, s, full)
		full.cache.Flush()
		set.save()
	}
	full.endProcess()
	_, sets, err := Usage(o)
	if err != nil || len(sets) != 1 || !sets[0].Live || sets[0].Enough == 0 {
		t.Errorf("the directory has %+v (%v), want a working set that is being read and lacked room", sets, err)
	}
	if removed, err := Prune(o); err != nil || removed != 0 {
		t.Errorf("Prune removed %d bytes (%v) of what is read", removed, err)
	}
}

// If the clock was set back, the blocks of a reader that has ended still make room, and the time of
// a read is still saved.
func TestClockSetBack(t *testing.T) {
	s, o := newFakeStore(20*blockBytes), options(t, 10)
	r := rand.New(rand.NewPCG(1, 1))
	before := s.open(t, o, io.Discard, "a")
	s.readEpoch(t, r, before, 0, 10, 1)
	file := filepath.Join(o.Dir, workingSetsDir, touchedSet(before, 0, 10).file)
	before.endProcess()
	future := time.Now().AddDate(1, 0, 0)
	must(t, os.Chtimes(file, future, future))
	after := s.open(t, o, io.Discard, "a")
	for range 2 {
		s.readEpoch(t, r, after, 10, 20, 1)
	}
	if n := s.readEpoch(t, r, after, 10, 20, 1); n != 0 {
		t.Errorf("%d of 10 blocks are fetched in every epoch", n)
	}
	set := touchedSet(after, 0, 10)
	set.evictBefore.Store(future.UnixNano())
	if err := after.Persist(0); !errors.Is(err, ErrFull) {
		t.Errorf("a block that has no room without the blocks of another reader: %v, want ErrFull", err)
	}
	set.lastSave.Store(future.UnixNano())
	set.Touch()
	testwait.Until(t, "the time of the read is saved", func() (any, bool) {
		saved := set.lastSave.Load()
		return time.Unix(0, saved), saved < future.UnixNano()
	})
}

// The blocks of an object that was replaced are no longer needed once it is released, although the
// process lives on, unless they are read again.
func TestReleasedWorkingSet(t *testing.T) {
	s, o := newFakeStore(10*blockBytes), options(t, 20)
	old, other := s.open(t, o, io.Discard, "a"), s.open(t, o, io.Discard, "b")
	sets := []*WorkingSet{touchedSet(old, 0, 10), touchedSet(other, 0, 10)}
	old.Release()
	live := func() string {
		_, saved, err := Usage(o)
		must(t, err)
		var live []bool
		for _, set := range sets {
			i := slices.IndexFunc(saved, func(s SavedWorkingSet) bool { return s.file == set.file })
			live = append(live, saved[i].Live)
		}
		return fmt.Sprint(live)
	}
	if got := live(); got != "[false true]" {
		t.Errorf("after the release, live is %s", got)
	}
	touchedSet(old, 0, 10)
	if got := live(); got != "[true true]" {
		t.Errorf("after another read, live is %s", got)
	}
}
