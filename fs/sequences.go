package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/state"
	"batchfs/internal/failpoint"
)

// A sequenceTable holds the sequences of a mount by their numbers, which are part of inode numbers.
// It is safe for concurrent use.
//
// The splits have the first numbers, from 1. The other sequences belong to settings directories,
// such as train/rank=3,world=8: they begin when they are looked up, and end when the kernel has
// forgotten all their files, unless their cursor has moved. All but the latest maxValidNames names
// of settings directories are invalidated, so that the kernel forgets them; open files keep
// working. A flood of lookups may overwrite names before they are invalidated; the kernel forgets
// those when it needs the memory.
//
// The shared state holds what the next worker needs. That worker creates the Sequence of a settings
// directory when it first uses it.
//
// While mu is held, only locks of package state are taken.
type sequenceTable struct {
	shared     *state.Shared
	log        *limitedLog // separate from the tree's, so that bad paths do not use up its limit
	access     Permissions
	splitCount int

	// byNumber has the Sequence of each number, or nil if it is not created yet. It is written with
	// mu held.
	byNumber [state.MaxSequences]atomic.Pointer[Sequence]

	splitNumbers [state.MaxSequences]atomic.Uint32 // see splitOf

	// mu guards all fields below, and the lookups, names and last errors in the shared state.
	mu               sync.Mutex
	byName           map[string]int // number of each sequence
	freeNumbers      []int          // numbers of ended sequences
	retiredNumbers   []int          // oldest first; reused last
	doubts           map[int]*doubt // by sequence number
	settingsByUser   map[uint32]int // settings directories that each user was the first to look up
	namesInvalidated uint64         // recorded names that were invalidated or overwritten
	tooManyNames     *sync.Cond     // signaled when names may need invalidation; its lock is mu
}

const (
	// maxValidNames is the number of latest names that are not invalidated. If an invalidated name
	// is in use, the kernel looks it up again. Invalidations should be rare, because one may wait
	// in the kernel for another lookup, in a thread that cannot be killed.
	maxValidNames = 1 << 10

	// invalidators is the number of goroutines that invalidate names. An invalidation waits while
	// any lookup runs in the same directory.
	invalidators = 8
)

// maxNameLen is the length of the longest file name, in bytes.
const maxNameLen = 255

func newSequenceTable(
	splits []Sequence, shared *state.Shared, access Permissions, log *slog.Logger,
) (*sequenceTable, error) {
	if len(splits) >= state.MaxSequences {
		return nil, fmt.Errorf("there are %d splits, more than the limit of %d", len(splits), state.MaxSequences-1)
	}
	t := &sequenceTable{
		shared:         shared,
		log:            newLimitedLog(log),
		access:         access,
		splitCount:     len(splits),
		byName:         map[string]int{},
		doubts:         map[int]*doubt{},
		settingsByUser: map[uint32]int{},
	}
	t.tooManyNames = sync.NewCond(&t.mu)
	shared.ResumeLookups()
	if shared.SequencesUsed() == 0 {
		for _, s := range splits {
			t.add(s, access.UID)
		}
		return t, nil
	}
	return t, t.resume(splits)
}

// resume takes over the sequences in the shared state from an earlier worker.
func (t *sequenceTable) resume(splits []Sequence) error {
	bySplit := map[string]Sequence{}
	for _, s := range splits {
		bySplit[s.Current().Spec().Name] = s
	}
	mounted := 0
	for number := 1; number <= t.shared.SequencesUsed(); number++ {
		seq := &t.shared.Sequences[number]
		split, settings, _ := strings.Cut(seq.Name(), "/")
		s := bySplit[split]
		switch {
		case !seq.Used():
		case settings == "" && s == nil:
			return fmt.Errorf("split %s is mounted, but not in the configuration", split)
		case settings == "":
			t.hold(number, s)
			mounted++
		case seq.Lookups.Load() == 0 && !seq.CursorMoved():
			// The earlier worker was killed before it counted a lookup or removed the sequence.
			t.shared.Remove(number)
		}
		if !seq.Used() {
			continue
		}
		t.indexName(number, seq.Name(), seq.User())
		if number > t.splitCount && seq.Lookups.Load() > 0 {
			t.doubts[number] = &doubt{}
		}
	}
	t.freeNumbers, t.retiredNumbers = t.shared.FreeNumbers()
	if mounted < t.splitCount {
		return errors.New("the configuration has splits that are not mounted")
	}
	return nil
}

// hold assigns a number to the sequence s, and keeps its description in the shared state up to
// date. The caller holds mu, unless nobody else uses the table yet.
func (t *sequenceTable) hold(number int, s Sequence) {
	s.OnChange(func(b BatchList) {
		if t.peek(number) == s {
			t.describe(number, b.Spec())
		}
	})
	t.byNumber[number].Store(&s)
	t.describe(number, s.Current().Spec())
}

// peek returns the sequence of a number, or nil if this process has not created it.
func (t *sequenceTable) peek(number int) Sequence {
	if s := t.byNumber[number].Load(); s != nil {
		return *s
	}
	return nil
}

// get returns the sequence of a number, which it creates if needed. It returns nil if the number is
// not in use or if the settings no longer suit the tokens: see errForgotten.
func (t *sequenceTable) get(number int) Sequence {
	if s := t.peek(number); s != nil || number <= t.splitCount {
		return s
	}
	t.mu.Lock()
	seq := &t.shared.Sequences[number]
	used, name := seq.Used(), seq.Name()
	t.mu.Unlock()
	if !used {
		return nil
	}
	_, settings, _ := strings.Cut(name, "/")
	s, err := t.peek(t.splitOf(number)).With(settings)
	if err != nil {
		t.log.tryLog(slog.LevelError, "settings that were in use no longer suit the tokens", "path", name, "err", err)
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !seq.Used() || seq.Name() != name {
		return nil // its last file was forgotten in the meantime
	}
	if t.peek(number) == nil {
		t.hold(number, s)
	}
	return t.peek(number)
}

// add gives a number to a sequence that user looked up, or returns 0 if all are in use. The caller
// holds mu, unless nobody else uses the table yet.
func (t *sequenceTable) add(s Sequence, user uint32) (number int) {
	if n := len(t.freeNumbers); n > 0 {
		number, t.freeNumbers = t.freeNumbers[n-1], t.freeNumbers[:n-1]
	} else if number = t.shared.NewNumber(); number == 0 {
		if len(t.retiredNumbers) == 0 {
			return 0
		}
		number, t.retiredNumbers = t.retiredNumbers[0], t.retiredNumbers[1:]
	}
	spec := s.Current().Spec()
	t.shared.Add(number, spec.Name, spec.Start, user)
	t.hold(number, s)
	t.indexName(number, spec.Name, user)
	return number
}

// describe records the properties of a sequence in the shared state.
func (t *sequenceTable) describe(number int, spec *Spec) {
	names := spec.SourceNames
	if strings.Contains(spec.Name, "/") {
		names = nil // rows are counted only for splits, because the counters take 3 KiB
	}
	t.shared.Describe(number, spec.Metadata["fingerprint"], spec.EpochBatches, names)
	if len(names) > 0 {
		// The phase of the batch that was read last remains, unless a restart has removed it.
		phase := min(t.shared.Phase(number), len(spec.Phases)-1)
		t.shared.SetPhase(number, phase, spec.Phases[phase].Weights)
	}
}

// indexName records the name and split of a sequence that user looked up. The caller holds mu,
// unless nobody else uses the table yet.
func (t *sequenceTable) indexName(number int, name string, user uint32) {
	split, _, _ := strings.Cut(name, "/")
	t.byName[name] = number
	t.settingsByUser[user]++
	t.splitNumbers[number].Store(uint32(t.byName[split]))
}

// splitOf returns the number of the split to which a sequence belongs or belonged, or 0 for number
// 0.
func (t *sequenceTable) splitOf(number int) int { return int(t.splitNumbers[number].Load()) }

// lookup returns the sequence of dir under the settings in name, and its number. It counts the
// lookup, which is request id. If the settings are wrong, err is the reason.
func (t *sequenceTable) lookup(
	dir inode, name string, user uint32, id uint64, cancel <-chan struct{},
) (s Sequence, number int, errno syscall.Errno, err error) {
	parent := t.get(dir.sequence())
	if parent == nil {
		return nil, 0, syscall.ESTALE, nil
	}
	b, _ := parent.LatestFor(0, cancel) // reads of batches report the error
	if s, err = parent.With(name); err != nil {
		t.log.tryLog(slog.LevelWarn, "no such settings", "path", b.Spec().Name+"/"+name, "err", err)
		if errors.Is(err, syscall.ENOENT) {
			return nil, 0, syscall.ENOENT, err
		}
		return nil, 0, syscall.EINVAL, err
	}
	number, errno = t.acquire(s, state.Name{Dir: uint64(dir), Name: name}, user, id)
	switch errno {
	case syscall.EDQUOT:
		t.log.tryLog(slog.LevelWarn, "a user has as many settings directories as mount.settings_per_user allows: new ones fail with EDQUOT",
			"uid", user, "settings_per_user", t.access.SettingsPerUser)
	case syscall.ENOSPC:
		t.log.tryLog(slog.LevelError, "too many settings directories are in use: new ones fail with ENOSPC", "most", state.MaxSequences-1)
	}
	return s, number, errno, nil
}

// acquire returns the number of a sequence, which it adds if needed, and counts the lookup. It
// fails with EDQUOT if the user has too many settings directories, and with ENOSPC if all numbers
// are in use.
func (t *sequenceTable) acquire(s Sequence, name state.Name, user uint32, id uint64) (number int, errno syscall.Errno) {
	t.mu.Lock()
	defer t.mu.Unlock()
	number, known := t.byName[s.Current().Spec().Name]
	if !known {
		if user != 0 && user != t.access.UID && t.settingsByUser[user] >= t.access.SettingsPerUser {
			return 0, syscall.EDQUOT
		}
		if number = t.add(s, user); number == 0 {
			return 0, syscall.ENOSPC
		}
	}
	if number > t.splitCount {
		t.shared.RecordDirectory(number, uint64(settingsInode(number, inode(name.Dir), name.Name)))
		t.addLookup(number, id)
	}
	t.shared.RecordName(name)
	t.tooManyNames.Signal()
	return number, 0
}

// countLookup counts request id as a lookup of a file of a sequence. It ignores splits, because
// they never end.
func (t *sequenceTable) countLookup(number int, id uint64) {
	if number <= t.splitCount {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addLookup(number, id)
}

// addLookup is countLookup for callers that hold mu. number must not be a split's.
func (t *sequenceTable) addLookup(number int, id uint64) {
	t.shared.CountLookup(number, id)
	t.doubts[number].reset()
}

// invalidate makes the kernel forget outdated names. It never returns. The next worker invalidates
// the same names again.
func (t *sequenceTable) invalidate(server *fuse.Server) {
	for {
		n := t.nextOutdatedName()
		server.EntryNotify(n.Dir, n.Name) // harmless if the kernel has already forgotten the name
	}
}

// nextOutdatedName waits until a name should be invalidated, and returns it.
func (t *sequenceTable) nextOutdatedName() (n state.Name) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.shared.NamesRecorded()-t.namesInvalidated <= maxValidNames {
		t.tooManyNames.Wait()
	}
	t.namesInvalidated, n = t.shared.NameFrom(t.namesInvalidated)
	t.namesInvalidated++
	return n
}

// forget subtracts lookups that the kernel has forgotten, and drops the sequence if none is left.
func (t *sequenceTable) forget(number int, lookups uint64) {
	if number <= t.splitCount {
		return
	}
	failpoint.Hit("forget")
	t.mu.Lock()
	defer t.mu.Unlock()
	seq := &t.shared.Sequences[number]
	if !seq.Used() { // retired
		return
	}
	t.doubts[number].reset()
	if seq.Lookups.Add(-min(lookups, seq.Lookups.Load())) == 0 && t.drop(number) {
		t.shared.Remove(number)
		t.freeNumbers = append(t.freeNumbers, number)
	}
}

// drop releases a Sequence whose files the kernel has forgotten. It reports whether the sequence
// ends: one whose cursor has moved does not. The caller holds mu.
func (t *sequenceTable) drop(number int) (ends bool) {
	seq := &t.shared.Sequences[number]
	delete(t.doubts, number)
	t.byNumber[number].Store(nil) // get can create it again
	if seq.CursorMoved() {
		return false
	}
	delete(t.byName, seq.Name())
	t.settingsByUser[seq.User()]--
	return true
}

// recordError records the last error of a sequence, counts request id as failed, and returns the
// sequence's name. Number 0 stands for the whole mount, whose name is empty.
func (t *sequenceTable) recordError(number int, id uint64, err string) (name string) {
	seq := &t.shared.Sequences[number]
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shared.CountOnce(id, func() { seq.Errors.Add(1) })
	t.shared.SetLastError(number, err)
	return seq.Name()
}

var errForgotten = fmt.Errorf("batchfs has forgotten the file, or its settings no longer suit the tokens (%w)",
	syscall.ESTALE)

// isSettings reports whether a name consists of settings. No split or file has such a name.
func isSettings(name string) bool { return strings.Contains(name, "=") }

func isSettingsDir(dir inode, name string) bool { return dir.kind() == splitDir && isSettings(name) }
