package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/state"
	"batchfs/internal/failpoint"
)

// sequenceTable are the sequences of a mount by number, which is part of inode numbers. The splits
// have the first numbers, starting at 1. The others are splits under the settings of a path,
// train/rank=3,world=8: they begin when they are looked up, and end when the kernel has forgotten
// all their files, unless their cursor has moved. Names beyond maxRecent are invalidated, oldest
// first, so that the kernel forgets them; files that are open keep working. In a flood of lookups
// the oldest may be missed: the kernel forgets those when it needs the memory.
//
// The shared state holds what the next worker must know. That worker makes a Batches of settings
// when it is first used.
//
// Lock order: mu, then nothing but the locks of package state.
type sequenceTable struct {
	shared   *state.Shared
	log      *limitedLog // separate, so that bad paths hide no errors
	access   Access
	splits   int
	byNumber [state.MaxSequences]atomic.Pointer[Batches] // nil: not made yet, or no sequence has the number
	split    [state.MaxSequences]atomic.Uint32           // number of the split that a sequence belongs to, or belonged to

	// mu guards all fields below, and the lookups, names and faults in the shared state.
	mu          sync.Mutex
	byName      map[string]int // number of each sequence
	free        []int          // numbers of ended sequences
	retired     []int          // numbers of retired sequences, oldest first; reused when no others are left
	doubts      map[int]*doubt // sequences whose lookup count may be too high, by number
	ofUser      map[uint32]int // number of settings that each user was the first to look up
	invalidated uint64         // noted names that the kernel was told to forget, or that were overwritten
	tooMany     *sync.Cond     // signals, under mu, that more than maxRecent names may be left
}

const (
	// A name in use survives its invalidation: the kernel looks it up again. An invalidation may wait in the kernel for another
	// lookup, in a thread that cannot be killed, so invalidations should be rare.
	maxRecent = 1 << 10
	// The kernel forgets a name only when no lookup runs in its directory. So many names are invalidated at once.
	invalidators = 8
)

// maxNameLen is the longest name of a file in bytes, as statfs says.
const maxNameLen = 255

func newSequenceTable(splits []Batches, shared *state.Shared, access Access, log *slog.Logger) (*sequenceTable, error) {
	if len(splits) >= state.MaxSequences {
		return nil, fmt.Errorf("%d splits, more than %d", len(splits), state.MaxSequences-1)
	}
	q := &sequenceTable{
		shared: shared,
		log:    newLimitedLog(log),
		access: access,
		splits: len(splits),
		byName: map[string]int{},
		doubts: map[int]*doubt{},
		ofUser: map[uint32]int{},
	}
	q.tooMany = sync.NewCond(&q.mu)
	shared.ResumeLookups()
	if shared.SequencesUsed() == 0 {
		for _, s := range splits {
			q.add(s, access.UID)
		}
		return q, nil
	}
	return q, q.resume(splits)
}

func (q *sequenceTable) resume(splits []Batches) error {
	bySplit := map[string]Batches{}
	for _, s := range splits {
		bySplit[s.Spec().Name] = s
	}
	mounted := 0
	for number := 1; number <= q.shared.SequencesUsed(); number++ {
		entry := &q.shared.Sequences[number]
		split, settings, _ := strings.Cut(entry.Name(), "/")
		s := bySplit[split]
		switch {
		case !entry.Used():
		case settings == "" && s == nil:
			return fmt.Errorf("split %s is mounted, but the configuration lacks it", split)
		case settings == "":
			q.byNumber[number].Store(&s)
			q.describe(number, s)
			mounted++
		case entry.Lookups.Load() == 0 && !entry.CursorMoved(): // a killed worker did not count or remove it
			q.shared.Remove(number)
		}
		if !entry.Used() {
			continue
		}
		q.name(number, entry.Name(), entry.User())
		if number > q.splits && entry.Lookups.Load() > 0 {
			q.doubts[number] = &doubt{}
		}
	}
	q.free, q.retired = q.shared.Free()
	if mounted < q.splits {
		return errors.New("the configuration has splits that are not mounted")
	}
	return nil
}

// peek returns the sequence of a number if this process has it already, and otherwise nil.
func (q *sequenceTable) peek(number int) Batches {
	if s := q.byNumber[number].Load(); s != nil {
		return *s
	}
	return nil
}

// get returns the sequence of a number, or nil if there is none, as for number 0, or if its settings do not suit the tokens any more.
func (q *sequenceTable) get(number int) Batches {
	if s := q.peek(number); s != nil || number <= q.splits {
		return s
	}
	q.mu.Lock()
	entry := &q.shared.Sequences[number]
	used, name := entry.Used(), entry.Name()
	q.mu.Unlock()
	if !used {
		return nil
	}
	of, _ := q.latest(q.splitOf(number)) // readers get the error
	_, settings, _ := strings.Cut(name, "/")
	s, err := of.With(settings)
	if err != nil {
		q.log.limited(slog.LevelError, "settings that were in use do not suit the tokens any more", "path", name, "err", err)
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !entry.Used() || entry.Name() != name {
		return nil // its last file was forgotten meanwhile
	}
	q.byNumber[number].CompareAndSwap(nil, &s)
	return q.peek(number)
}

// add gives a sequence that user looked up a number, or 0 if all are in use. The caller holds mu, or is alone.
func (q *sequenceTable) add(s Batches, user uint32) (number int) {
	if n := len(q.free); n > 0 {
		number, q.free = q.free[n-1], q.free[:n-1]
	} else if number = q.shared.NewNumber(); number == 0 {
		if len(q.retired) == 0 {
			return 0
		}
		number, q.retired = q.retired[0], q.retired[1:]
	}
	q.shared.Add(number, s.Spec().Name, s.Spec().Start, user)
	q.byNumber[number].Store(&s)
	q.describe(number, s)
	q.name(number, s.Spec().Name, user)
	return number
}

func (q *sequenceTable) describe(number int, s Batches) {
	sources := s.Spec().SourceWeights
	if strings.Contains(s.Spec().Name, "/") {
		sources = nil // rows are counted of a split, whatever the settings: a KiB of shared memory each
	}
	q.shared.Describe(number, s.Spec().Metadata["fingerprint"], s.Spec().EpochBatches, sources)
}

// name notes the name of a sequence that user looked up. The caller holds mu, or is alone.
func (q *sequenceTable) name(number int, name string, user uint32) {
	split, _, _ := strings.Cut(name, "/")
	q.byName[name] = number
	q.ofUser[user]++
	q.split[number].Store(uint32(q.byName[split]))
}

// splitOf is the number of the split that a sequence belongs to, or belonged to when it was last used. It is 0 for number 0.
func (q *sequenceTable) splitOf(number int) int { return int(q.split[number].Load()) }

// lookup returns the sequence of directory dir under the settings in name, and its number, and
// counts request id of a user as a lookup. err says what is wrong with the settings.
func (q *sequenceTable) lookup(dir inode, name string, user uint32, id uint64, cancel <-chan struct{}) (s Batches, number int, errno syscall.Errno, err error) {
	of, _ := q.latestFor(dir.sequence(), 0, cancel) // readers get the error
	if of == nil {
		return nil, 0, syscall.ESTALE, nil
	}
	if s, err = of.With(name); err != nil {
		q.log.limited(slog.LevelWarn, "no such settings", "path", of.Spec().Name+"/"+name, "err", err)
		if errors.Is(err, syscall.ENOENT) {
			return nil, 0, syscall.ENOENT, err
		}
		return nil, 0, syscall.EINVAL, err
	}
	number, errno = q.acquire(s, state.Name{Dir: uint64(dir), Name: name}, user, id)
	switch errno {
	case syscall.EDQUOT:
		q.log.limited(slog.LevelWarn, "a user has as many settings directories as mount.settings_per_user allows: new ones fail with EDQUOT",
			"uid", user, "settings_per_user", q.access.SettingsPerUser)
	case syscall.ENOSPC:
		q.log.limited(slog.LevelError, "too many settings directories are in use: new ones fail with ENOSPC", "most", state.MaxSequences-1)
	}
	return s, number, errno, nil
}

// acquire returns the number of a sequence that a user looked up by name, and counts the lookup,
// request id. It fails with EDQUOT if the user has too many settings directories, and with ENOSPC
// if all numbers are in use.
func (q *sequenceTable) acquire(s Batches, name state.Name, user uint32, id uint64) (number int, errno syscall.Errno) {
	q.mu.Lock()
	defer q.mu.Unlock()
	number, known := q.byName[s.Spec().Name]
	if !known {
		if user != 0 && user != q.access.UID && q.ofUser[user] >= q.access.SettingsPerUser {
			return 0, syscall.EDQUOT
		}
		if number = q.add(s, user); number == 0 {
			return 0, syscall.ENOSPC
		}
	}
	if number > q.splits {
		q.shared.RecordDirectory(number, uint64(settingsDir(number, inode(name.Dir), name.Name)))
		q.count(number, id)
	}
	q.shared.RecordName(name)
	q.tooMany.Signal()
	return number, 0
}

// countLookup counts request id, a lookup of a file of a sequence. Lookups in splits are not
// counted, because splits never end.
func (q *sequenceTable) countLookup(number int, id uint64) {
	if number <= q.splits {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count(number, id)
}

// count counts request id, a lookup of settings or of a file below them. The caller holds mu.
func (q *sequenceTable) count(number int, id uint64) {
	q.shared.CountLookup(number, id)
	q.doubts[number].disturb()
}

// invalidate tells the kernel to forget outdated names. The next worker repeats it.
func (q *sequenceTable) invalidate(server *fuse.Server) {
	for {
		n := q.outdated()
		server.EntryNotify(n.Dir, n.Name) // an error means that the kernel has forgotten it by itself
	}
}

// outdated blocks until a name should be invalidated, and returns it.
func (q *sequenceTable) outdated() (n state.Name) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.shared.NamesRecorded()-q.invalidated <= maxRecent {
		q.tooMany.Wait()
	}
	q.invalidated, n = q.shared.NameFrom(q.invalidated)
	q.invalidated++
	return n
}

func (q *sequenceTable) forget(number int, lookups uint64) {
	if number <= q.splits {
		return
	}
	failpoint.Hit("forget")
	q.mu.Lock()
	defer q.mu.Unlock()
	entry := &q.shared.Sequences[number]
	if !entry.Used() { // retired
		return
	}
	q.doubts[number].disturb()
	if entry.Lookups.Add(-min(lookups, entry.Lookups.Load())) == 0 && q.drop(number) {
		q.shared.Remove(number)
		q.free = append(q.free, number)
	}
}

// drop releases what this process holds for a sequence whose files the kernel has forgotten. It
// reports whether the sequence ends, which it does unless its cursor has moved. The caller holds
// mu.
func (q *sequenceTable) drop(number int) (ends bool) {
	entry := &q.shared.Sequences[number]
	delete(q.doubts, number)
	q.byNumber[number].Store(nil) // get makes it again
	if entry.CursorMoved() {
		return false
	}
	delete(q.byName, entry.Name())
	q.ofUser[entry.User()]--
	return true
}

// latest, latestFor and latestWhole are the methods of [Batches] for the sequence of a number.
// They return nil if there is none.
func (q *sequenceTable) latest(number int) (Batches, error) {
	return q.refresh(number, Batches.Latest)
}

func (q *sequenceTable) latestFor(number int, k uint64, cancel <-chan struct{}) (Batches, error) {
	return q.refresh(number, func(s Batches) (Batches, error) { return s.LatestFor(k, cancel) })
}

func (q *sequenceTable) latestWhole(number int, cancel <-chan struct{}) (Batches, error) {
	return q.refresh(number, func(s Batches) (Batches, error) { return s.LatestWhole(cancel) })
}

func (q *sequenceTable) refresh(number int, latest func(Batches) (Batches, error)) (Batches, error) {
	old := q.get(number)
	if old == nil {
		return nil, errForgotten
	}
	s, err := latest(old)
	if held := q.byNumber[number].Load(); s != old && held != nil && *held == old {
		fresh := s // allocated only here
		if q.byNumber[number].CompareAndSwap(held, &fresh) {
			q.describe(number, s)
		}
	}
	return s, err
}

// stalled returns how long a check of the token files of a split has had no response, or 0.
func (q *sequenceTable) stalled(split int) time.Duration { return q.peek(split).Stalled() }

// recordError records the last error of a sequence, counts request id, and returns the sequence's
// name. Number 0 stands for the whole mount, whose name is empty.
func (q *sequenceTable) recordError(number int, id uint64, err string) (name string) {
	entry := &q.shared.Sequences[number]
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shared.CountOnce(id, func() { entry.Errors.Add(1) })
	entry.SetLastError(err)
	return entry.Name()
}

var errForgotten = fmt.Errorf("the kernel has forgotten the file, or its settings do not suit the tokens any more (%w)", syscall.ESTALE)

// isSettings reports whether a name is one of settings. No split and no file has such a name.
func isSettings(name string) bool { return strings.Contains(name, "=") }

// namesSettings reports whether name in directory dir is a settings directory.
func namesSettings(dir inode, name string) bool { return dir.kind() == splitDir && isSettings(name) }
