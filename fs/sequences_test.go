package fs

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/state"
	"batchfs/internal/testwait"
)

// trainSequences returns the sequences of a new mount of one split, and the split's directory.
func trainSequences(t *testing.T) (q *sequenceTable, dir inode) {
	tr := newTestTree(t, countingBatches("train", 100))
	return tr.sequences, tr.find("train")
}

func (t *sequenceTable) lookUpBy(user uint32, dir inode, name string) (number int, errno syscall.Errno) {
	_, number, errno, _ = t.lookup(dir, name, user, lastUnique.Add(2), nil)
	return number, errno
}

func (t *sequenceTable) mustLookUp(tb testing.TB, dir inode, name string) int {
	tb.Helper()
	number, errno := t.lookUpBy(0, dir, name)
	if errno != 0 {
		tb.Fatalf("lookup of %s: %v", name, errno)
	}
	return number
}

// check checks that every number is free, is retired or has one name, and that the shared state
// agrees.
func (t *sequenceTable) check(tb testing.TB) {
	tb.Helper()
	t.mu.Lock()
	byName, free := maps.Clone(t.byName), slices.Clone(t.freeNumbers)
	t.mu.Unlock()
	if len(byName)+len(free)+len(t.retiredNumbers) != t.shared.SequencesUsed() {
		tb.Errorf("%d names, %d free and %d retired numbers of %d used", len(byName), len(free), len(t.retiredNumbers), t.shared.SequencesUsed())
	}
	seen := map[int]bool{}
	for name, number := range byName {
		stored := t.shared.Sequences[number].Name()
		if s := t.get(number); s == nil || s.Current().Spec().Name != name || stored != name || seen[number] {
			tb.Errorf("number %d of %q: sequence %v, name %q in the shared state, seen before: %v", number, name, s, stored, seen[number])
		}
		seen[number] = true
	}
	for _, number := range free {
		if t.get(number) != nil || t.shared.Sequences[number].Used() || seen[number] {
			tb.Errorf("free number %d: sequence %v, seen before: %v", number, t.get(number), seen[number])
		}
		seen[number] = true
	}
}

func TestWeightsAreRecordedForSplits(t *testing.T) {
	mixture := countingBatches("train", 100)
	mixture.spec.SourceNames, mixture.spec.Phases = []string{"a", "b"}, []Phase{{0, []float64{0.75, 0.25}}, {7, []float64{1, 0}}}
	with := mixture.with
	mixture.with = func(settings string) (Sequence, error) {
		s, err := with(settings)
		if err == nil {
			s.Current().Spec().SourceNames, s.Current().Spec().Phases = mixture.spec.SourceNames, mixture.spec.Phases
		}
		return s, err
	}
	tr := newTestTree(t, mixture)
	split := tr.find("train")
	settings := tr.sequences.mustLookUp(t, split, "seed=1")
	for number, want := range map[int]float64{split.sequence(): 0.25, settings: 0} {
		if got := tr.shared.RowsBySource[number][1].Weight(); got != want {
			t.Errorf("sequence %d: the weight of source 1 is %v, want %v", number, got, want)
		}
	}
	for k, want := range map[uint64]int{0: 0, 6: 0, 7: 1, 100: 1} {
		tr.recordPhase(split.sequence(), mixture.spec.Phases, k)
		if got := tr.shared.Phase(split.sequence()); got != want || tr.shared.RowsBySource[split.sequence()][0].Weight() != mixture.spec.Phases[want].Weights[0] {
			t.Errorf("batch %d is in phase %d, want %d", k, got, want)
		}
	}
}

// The phase stays as it was if another worker takes over or the split follows changed tokens, and
// the weights are those of the configuration in force.
func TestPhaseRemains(t *testing.T) {
	mixture := func(phases ...Phase) *fakeSequence {
		s := countingBatches("train", 100)
		s.spec.SourceNames, s.spec.Phases = []string{"a", "b"}, phases
		return s
	}
	first, second := Phase{0, []float64{0.75, 0.25}}, Phase{7, []float64{0.5, 0.5}}
	s := mixture(first, second)
	tr := newTestTree(t, s)
	number := tr.find("train").sequence()
	check := func(when string, phase int, weight float64) {
		t.Helper()
		if got, w := tr.shared.Phase(number), tr.shared.RowsBySource[number][1].Weight(); got != phase || w != weight {
			t.Errorf("%s: phase %d with weight %v, want %d with %v", when, got, w, phase, weight)
		}
	}
	check("at first", 0, 0.25)
	tr.recordPhase(number, s.spec.Phases, 7)
	tr = takeOver(t, tr.shared, s)
	check("after a takeover", 1, 0.5)
	changed := mixture(first, second)
	s.latest = func(uint64) (*fakeBatchList, error) { return changed.fakeBatchList, nil }
	tr.sequences.get(number).Latest(nil)
	check("after a change", 1, 0.5)
	tr = takeOver(t, tr.shared, mixture(first, Phase{7, []float64{0.125, 0.875}}, Phase{9, []float64{1, 0}}))
	check("after a restart with other weights", 1, 0.875)
	tr = takeOver(t, tr.shared, mixture(Phase{0, []float64{0.25, 0.75}}))
	check("after a restart with one phase", 0, 0.75)
}

// A sequence keeps its number, even after a takeover, while the kernel knows one of its files or if
// its cursor has moved. Otherwise, the number is reused, and nothing of the sequence is left.
func TestSequenceNumbers(t *testing.T) {
	type known struct {
		number  int
		lookups uint64
		moved   bool
	}
	s := countingBatches("train", 100)
	tr := newTestTree(t, s)
	dir := tr.find("train")
	model := map[string]*known{}
	most := 0
	random := rand.New(rand.NewPCG(1, 1))
	for range 10_000 {
		q := tr.sequences
		name := fmt.Sprint("seed=", random.IntN(40))
		k := model[name]
		switch op := random.IntN(1000); {
		case op == 0:
			tr = takeOver(t, tr.shared, s)
			tr.sequences.check(t)
		case op < 400:
			number := q.mustLookUp(t, dir, name)
			seq := &q.shared.Sequences[number]
			if k == nil {
				k = &known{number: number}
				model[name] = k
				if _, lastError := q.shared.TextsOf(number); seq.CursorMoved() || seq.Reads.Load() != 0 || seq.Errors.Load() != 0 || lastError != "" {
					t.Fatal("a sequence begins with the state of the one before it")
				}
			}
			k.lookups++
			if number != k.number || seq.Lookups.Load() != k.lookups || k.moved && !seq.CursorMoved() {
				t.Fatalf("%s has number %d and %d lookups, want %d and %d", name, number, seq.Lookups.Load(), k.number, k.lookups)
			}
		case k == nil:
		case op < 980:
			if k.lookups > 0 {
				n := 1 + random.Uint64N(k.lookups)
				q.forget(k.number, n)
				k.lookups -= n
			}
			if k.lookups == 0 && !k.moved {
				delete(model, name)
			}
		case len(model) < 30 && k.lookups > 0:
			seq := &q.shared.Sequences[k.number]
			seq.Reads.Add(1)
			q.recordError(k.number, lastUnique.Add(2), "broken")
			if k.moved = k.moved || op > 990; k.moved {
				seq.Cursor.Add(1)
			}
		}
		most = max(most, len(model))
		for name, k := range model {
			if s := tr.sequences.get(k.number); s == nil || s.Current().Spec().Name != "train/"+name {
				t.Fatalf("number %d of %s is %v", k.number, name, s)
			}
		}
	}
	tr.sequences.check(t)
	if used := tr.shared.SequencesUsed(); used > 1+most {
		t.Errorf("%d numbers were used for %d sequences at a time", used, 1+most)
	}
}

func TestAllNumbersInUse(t *testing.T) {
	q, dir := trainSequences(t)
	var numbers []int
	for i := range state.MaxSequences - 2 {
		numbers = append(numbers, q.mustLookUp(t, dir, fmt.Sprint("seed=", i)))
	}
	if _, errno := q.lookUpBy(0, dir, "seed=more"); errno != syscall.ENOSPC {
		t.Errorf("lookup of one too many: %v, want ENOSPC", errno)
	}
	if got := q.mustLookUp(t, dir, "seed=5"); got != numbers[5] {
		t.Errorf("existing settings have number %d, had %d", got, numbers[5])
	}
	q.forget(numbers[5], 2)
	if got := q.mustLookUp(t, dir, "seed=more"); got != numbers[5] {
		t.Errorf("after one was forgotten, the number is %d, want %d", got, numbers[5])
	}
	q.check(t)
}

func TestSettingsQuota(t *testing.T) {
	const quota, owner, greedy, other = 3, 7, 8, 9
	s := countingBatches("train", 100)
	tr := newTestTree(t, s)
	dir := tr.find("train")
	var q *sequenceTable
	lookUp := func(user uint32, name string, want syscall.Errno) (number int) {
		t.Helper()
		number, errno := q.lookUpBy(user, dir, name)
		if errno != want {
			t.Errorf("user %d looks %s up: %v, want %v", user, name, errno, want)
		}
		return number
	}
	var numbers []int
	for range 2 {
		q = takeOver(t, tr.shared, s).sequences
		q.access.SettingsPerUser, q.access.UID = quota, owner
		for i := range quota {
			numbers = append(numbers, lookUp(greedy, fmt.Sprint("seed=", i), 0))
		}
		lookUp(greedy, "seed=100", syscall.EDQUOT)
		for user, seed := range map[uint32]int{0: 1000, owner: 2000} {
			for i := range quota + 1 {
				lookUp(user, fmt.Sprint("seed=", seed+i), 0)
			}
		}
		lookUp(other, "seed=0", 0) // already exists
		lookUp(other, "seed=200", 0)
	}
	tr.shared.Sequences[numbers[1]].Cursor.Add(1)
	q.forget(numbers[1], 2)
	lookUp(greedy, "seed=100", syscall.EDQUOT) // settings whose cursor has moved never end
	q.forget(numbers[2], 2)
	lookUp(greedy, "seed=100", 0)
	lookUp(greedy, "seed=101", syscall.EDQUOT)
	q.check(t)
}

// Settings that the kernel has forgotten keep their number, name and cursor if the cursor has
// moved.
func TestIdleSettings(t *testing.T) {
	tr := newTestTree(t, countingBatches("train", 100))
	q := tr.sequences
	number := q.mustLookUp(t, tr.find("train"), "seed=5")
	tr.shared.Sequences[number].Cursor.Add(1)
	q.forget(number, 1)
	if s := &tr.shared.Sequences[number]; !s.Used() || s.Next() != 1 {
		t.Errorf("used: %v, cursor %d", s.Used(), s.Next())
	}
	if q.byNumber[number].Load() != nil {
		t.Error("the Sequence of idle settings takes memory")
	}
	if s := q.get(number); s == nil || s.Current().Spec().Name != "train/seed=5" || q.mustLookUp(t, tr.find("train"), "seed=5") != number {
		t.Errorf("the number of idle settings has %v", s)
	}
}

func TestOldNamesAreInvalidated(t *testing.T) {
	q, dir := trainSequences(t)
	const n = maxValidNames + 10
	for i := range n {
		q.mustLookUp(t, dir, fmt.Sprint("seed=", i))
	}
	outdated := make(chan state.Name)
	go func() {
		for {
			outdated <- q.nextOutdatedName()
		}
	}()
	for i := range n - maxValidNames {
		if p := testwait.For(t, "a name to be forgotten", outdated); p != (state.Name{Dir: uint64(dir), Name: fmt.Sprint("seed=", i)}) {
			t.Fatalf("name %d to be forgotten is %v", i, p)
		}
	}
	q.mustLookUp(t, dir, "seed=last")
	if p := testwait.For(t, "another name to be forgotten", outdated); p != (state.Name{Dir: uint64(dir), Name: fmt.Sprint("seed=", n-maxValidNames)}) {
		t.Errorf("the next name is %v", p)
	}
}

// A changingSequence simulates a split that follows changes of its tokens. In version v, the bytes
// of batches are those of a counting sequence XOR v.
type changingSequence struct {
	name       string
	size       int64
	version    atomic.Uint64
	duringRead func()
	lags       bool // whether only LatestFor and LatestWhole notice a change
}

func (c *changingSequence) latest() *fakeBatchList {
	v := c.version.Load()
	s := countingBatches(c.name, c.size).fakeBatchList
	fill := s.read
	s.Version, s.FollowsChanges, s.Steps = Version(v), true, 5-v%2
	s.check = func(uint64) error {
		if c.version.Load() != v {
			return fmt.Errorf("changed: %w", syscall.ESTALE)
		}
		return nil
	}
	s.read = func(dst []byte, k uint64, off int64) error {
		if c.duringRead != nil {
			c.duringRead()
		}
		if err := s.check(k); err != nil {
			return err
		}
		err := fill(dst, k, off)
		for i := range dst {
			dst[i] ^= byte(v)
		}
		return err
	}
	s.batchJSONLen = func() int64 { return int64(2 + v%3) }
	return s
}

// identify names the batch and the version that data shows.
func (c *changingSequence) identify(data []byte) string {
	for v := range c.version.Load() + 1 {
		for k := range uint64(20) {
			want := make([]byte, c.size)
			countingBatches(c.name, c.size).Read(want, k, 0)
			for i := range want {
				want[i] ^= byte(v)
			}
			if bytes.Equal(data, want) {
				return fmt.Sprintf("batch %d of version %d", k, v)
			}
		}
	}
	return fmt.Sprintf("%d bytes that are not a batch", len(data))
}

func newChangingTree(t *testing.T, size int64) (*tree, *changingSequence) {
	c := &changingSequence{name: "train", size: size}
	s := &fakeSequence{current: c.latest()}
	s.latest = func(k uint64) (*fakeBatchList, error) {
		if b := s.Current(); c.lags && k == noBatch || b.Check(0) == nil {
			return b.(*fakeBatchList), nil
		}
		return c.latest(), nil
	}
	return newTestTree(t, s), c
}

// A handle of next switches to changed tokens only between batches, and neither repeats nor skips a
// number.
func TestNextFollowsChanges(t *testing.T) {
	for _, lags := range []bool{false, true} {
		t.Run(fmt.Sprint("lags=", lags), func(t *testing.T) { testNextFollowsChanges(t, lags) })
	}
}

func testNextFollowsChanges(t *testing.T, lags bool) {
	const size = 1000
	tr, c := newChangingTree(t, size)
	c.lags = lags
	tr.prefetcher.depth = 0 // batches are read only when requested
	first := tr.openFile(t, "train/next", 0)
	expect := func(r *reader, want string) {
		t.Helper()
		data, status := r.read(0, size)
		if got := c.identify(data); !status.Ok() || got != want {
			t.Errorf("%v, %s, want %s", status, got, want)
		}
	}
	expectStale := func(r *reader, off int64) {
		t.Helper()
		if data, status := r.read(off, size); status != fuse.Status(syscall.ESTALE) {
			t.Errorf("the rest of a batch of old tokens: %v, %d bytes, want ESTALE", status, len(data))
		}
	}
	expect(first, "batch 0 of version 0")
	c.version.Add(1)
	expect(first, "batch 1 of version 1")
	expect(first, "batch 2 of version 1")
	expect(tr.openFile(t, "train/next", 0), "batch 3 of version 1")

	// The tokens change in the middle of a batch, and this reader or another notices it.
	for _, noticed := range []bool{false, true} {
		part := tr.openFile(t, "train/next", 0)
		part.read(0, 400)
		c.version.Add(1)
		if noticed {
			tr.sequences.get(1).Latest(nil)
		}
		expectStale(part, 400)
		expectStale(part, 900)
		v, k := c.version.Load(), 3+c.version.Load()
		expect(part, fmt.Sprintf("batch %d of version %d", k-1, v))
		if noticed {
			expect(part, fmt.Sprintf("batch %d of version %d", k, v))
		}
	}

	// They change after a whole batch, whose bytes can no longer be read.
	expectStale(first, 500)
	c.version.Add(1)
	expect(first, "batch 7 of version 4")

	// They change several times during a read.
	times := 5
	c.duringRead = func() {
		if times--; times >= 0 {
			c.version.Add(1)
		}
	}
	expect(first, "batch 8 of version 9")
	c.duringRead = nil
	expect(first, "batch 9 of version 9")

	// They change during a read, while another handle takes the next number.
	other := tr.openFile(t, "train/next", 0)
	c.duringRead = func() {
		c.duringRead = nil
		expect(other, "batch 11 of version 9")
		c.version.Add(1)
	}
	expect(first, "batch 10 of version 10")
	expect(first, "batch 12 of version 10")
	expect(other, "batch 13 of version 10")

	// If the header is read alone, as numpy.load does, the array has the tokens of that moment.
	framed := tr.openFile(t, "train/next.npy", 0)
	c.version.Add(1)
	framed.read(0, headerBytes)
	if data, status := framed.read(headerBytes, size); !status.Ok() || c.identify(data) != "batch 14 of version 11" {
		t.Errorf("next.npy after its header: %v, %s", status, c.identify(data))
	}
	framed.read(0, headerBytes)
	c.version.Add(1)
	expectStale(framed, headerBytes)

	// If changes never end, the read fails and takes no number.
	c.duringRead = func() { c.version.Add(1) }
	expectStale(first, 0)
	c.duringRead = nil
	expect(first, fmt.Sprintf("batch 16 of version %d", c.version.Load()))
}

// A prefetched batch of old tokens is never sent, even if the change is not known yet.
func TestNoPrefetchedBatchOfOldTokens(t *testing.T) {
	const size = 1000
	tr, c := newChangingTree(t, size)
	c.lags = true
	r := tr.openFile(t, "train/next", 0)
	for k := range 10 {
		data, status := r.read(0, size)
		if got, want := c.identify(data), fmt.Sprintf("batch %d of version %d", k, c.version.Load()); !status.Ok() || got != want {
			t.Fatalf("%v, %s, want %s", status, got, want)
		}
		if k%4 == 3 {
			c.version.Add(1)
		}
	}
}

// A request that is repeated gets the same number, even if the tokens have changed.
func TestRepeatedRequestsUnderChanges(t *testing.T) {
	const size = 1000
	tr, c := newChangingTree(t, size)
	r := tr.openFile(t, "train/next", 0)
	for k := range 10 {
		r.read(size, 0)
		for range 3 {
			data, status := r.repeat(0, size)
			if got, want := c.identify(data), fmt.Sprintf("batch %d of version %d", k, c.version.Load()); !status.Ok() || got != want {
				t.Fatalf("%v, %s, want %s", status, got, want)
			}
			if k%2 == 0 {
				c.version.Add(1)
			}
		}
	}
}

// The error of a READ during which a file changes says to open the file again if the split follows
// changes, and otherwise what the error of the changed file says.
func TestErrorOfChange(t *testing.T) {
	for _, follows := range []bool{true, false} {
		s := countingBatches("train", 1000)
		s.FollowsChanges, s.TokensFileSize = follows, 1000
		tr := newTestTree(t, s)
		changed := fmt.Errorf("mount again (%w)", syscall.ESTALE)
		s.check = func(uint64) error { return changed }
		s.read = func([]byte, uint64, int64) error { return changed }
		want := changed
		if follows {
			want = state.ErrOutdated
		}
		for _, path := range []string{"next", "batch/3", "batch/3.npy", "batches.bin", "sequence.bin", "tokens.bin"} {
			r := tr.openFile(t, "train/"+path, 0)
			_, status := r.read(0, 1<<20)
			if _, got := tr.shared.TextsOf(1); status != fuse.Status(syscall.ESTALE) || got != want.Error() {
				t.Errorf("%s: %v, %s, want %v", path, status, got, want)
			}
		}
	}
}

// A handle of a numbered file never shows two versions.
func TestNumberedFilesUnderChanges(t *testing.T) {
	const size = 6000
	for changes := 1; changes < 20; changes++ {
		tr, c := newChangingTree(t, size)
		old := map[string]*reader{}
		for _, path := range []string{
			"train/batch/3", "train/batch/3.npy", "train/batch/3.safetensors", "train/batch/3.json", "train/batches.bin", "train/batches.npy",
			"train/sequence.bin",
		} {
			old[path] = tr.openFile(t, path, 0)
		}
		for range changes {
			c.version.Add(1)
			tr.openFile(t, "train/next", 0).read(0, size)
		}
		for path, r := range old {
			// Only the old batches.npy may have offset 5*size. The last offset is its end.
			for _, off := range []int64{0, 4096, 5 * size, 5*size + 4096} {
				if data, status := r.read(off, size); status != fuse.Status(syscall.ESTALE) {
					t.Errorf("%s, %d changes after it was opened, at %d: %v, %d bytes, want ESTALE", path, changes, off, status, len(data))
				}
			}
			in := &fuse.GetAttrIn{InHeader: fuse.InHeader{NodeId: uint64(r.node)}}
			if status := tr.GetAttr(nil, in, &fuse.AttrOut{}); changes%8 != 0 && status != fuse.Status(syscall.ESTALE) {
				t.Errorf("attributes of %s, %d changes after it was opened: %v, want ESTALE", path, changes, status)
			}
			data, status := tr.openFile(t, path, 0).read(0, size)
			if got, want := c.identify(data), fmt.Sprintf("batch 3 of version %d", changes); !status.Ok() || path == "train/batch/3" && got != want {
				t.Errorf("%s opened again: %v, %s, want %s", path, status, got, want)
			}
		}
	}
}

// A reply to a lookup never mixes two versions.
func TestLookupsUnderChanges(t *testing.T) {
	tr, c := newChangingTree(t, 1000)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				c.version.Add(1)
				tr.sequences.get(1).Latest(nil)
			}
		}
	})
	defer testwait.End(t, "the goroutines", wg.Wait)
	defer close(stop)
	for range 20_000 {
		in := &fuse.InHeader{NodeId: uint64(tr.find("train"))}
		var out fuse.EntryOut
		if status := tr.Lookup(nil, in, "batches.bin", &out); !status.Ok() {
			t.Fatal(status)
		}
		v := out.Generation
		if i := inode(out.NodeId); i != i.withVersion(Version(v)) || out.Size != 1000*(5-v%2) {
			t.Fatalf("batches.bin of generation %d is inode %#x of %d bytes", v, i, out.Size)
		}
	}
}
