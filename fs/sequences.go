package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"
)

// sequences are those of a mount by their numbers, which are part of inode numbers. The splits have the first ones, from 1
// on. The others are splits under the settings of a path, train/rank=3,world=8: they come when they are looked up, and go
// when the kernel has forgotten all their files, unless their cursor has moved. For it to forget, it is told to when
// many have been looked up since.
type sequences struct {
	table    *table
	log      *slog.Logger
	splits   int
	byNumber [maxSequences]atomic.Pointer[Sequence]

	mu     sync.Mutex
	byName map[string]int // guarded by mu, as all below and the faults of the table
	free   []int          // numbers that were used and are not now
	recent []pathName     // looked up, oldest first
	many   *sync.Cond     // of mu: recent has more than the kernel is to remember

	badLogged  rate.Sometimes
	fullLogged sync.Once
}

// A pathName is a name in a directory that settings are read from.
type pathName struct {
	dir  inode
	name string
}

const (
	// The kernel is to remember this many of them. Those in use stay whatever it forgets, and are looked up again. To forget
	// one it may have to wait for the answer to another lookup, as a thread that nothing ends: that should be rare.
	maxRecent = 1 << 10
	// It forgets a name only between two lookups in the directory, however many are under way. So as many names as may be
	// are handed to it at once, and while many more are waiting, who looks up waits too.
	forgetters = 8
	tooMany    = 4 * maxRecent
)

func newSequences(splits []*Sequence, table *table, log *slog.Logger) (*sequences, error) {
	if len(splits) >= maxSequences {
		return nil, fmt.Errorf("%d splits, more than %d", len(splits), maxSequences-1)
	}
	q := &sequences{
		table:     table,
		log:       log,
		splits:    len(splits),
		byName:    map[string]int{},
		badLogged: rate.Sometimes{First: 100, Interval: time.Second},
	}
	q.many = sync.NewCond(&q.mu)
	if table.usedStates.Load() == 0 {
		for _, s := range splits {
			q.add(s)
		}
		return q, nil
	}
	return q, q.goOn(splits)
}

// goOn gives the sequences of the table their numbers.
func (q *sequences) goOn(splits []*Sequence) error {
	bySplit := map[string]*Sequence{}
	for _, s := range splits {
		bySplit[s.Name] = s
	}
	for n := range int(q.table.usedStates.Load()) {
		number := n + 1
		state := &q.table.states[number]
		if state.used.Load() == 0 {
			q.free = append(q.free, number)
			continue
		}
		name := getText(state.name[:])
		split, settings, isPath := strings.Cut(name, "/")
		s := bySplit[split]
		if s == nil {
			return fmt.Errorf("split %s is of the mount, but not of the configuration", split)
		}
		if isPath {
			under, err := s.With(settings)
			if err != nil {
				under = s.unsuited(name, settings, err)
			}
			s = under
		}
		q.byNumber[number].Store(s)
		q.byName[name] = number
	}
	for number := 1; number <= q.splits; number++ {
		if s := q.get(number); s == nil || bySplit[s.Name] == nil {
			return errors.New("the mount has other splits than the configuration")
		}
	}
	return nil
}

// unsuited stands for the sequence under settings that suited the tokens, or the program, of an earlier worker. All that is
// read of it is an error, until they suit again.
func (s *Sequence) unsuited(name, settings string, err error) *Sequence {
	err = fmt.Errorf("%w (%w)", err, syscall.ESTALE)
	u := *s
	u.Name = name
	u.BatchBytes, u.Steps = 1<<40, 1 // no read is beyond the end
	u.Info = func() []byte { return []byte("{}\n") }
	u.Provenance = nil
	u.Read = func([]byte, uint64, int64) error { return err }
	u.With = func(string) (*Sequence, error) { return nil, err }
	u.Now = func() (*Sequence, error) {
		now, nowErr := s.Now()
		if nowErr != nil {
			return &u, nowErr
		}
		if suited, err := now.With(settings); err == nil {
			return suited, nil
		}
		return &u, err
	}
	return &u
}

func (q *sequences) get(number int) *Sequence { return q.byNumber[number].Load() }

// add gives a sequence a number, or 0 if all are in use. The caller holds mu, or is alone.
func (q *sequences) add(s *Sequence) (number int) {
	used := &q.table.usedStates
	switch n := len(q.free); {
	case n > 0:
		number, q.free = q.free[n-1], q.free[:n-1]
	case used.Load() < maxSequences-1:
		number = int(used.Add(1))
	default:
		return 0
	}
	state := &q.table.states[number]
	state.cursor.Store(s.Start)
	state.reads.Store(0)
	state.bytes.Store(0)
	state.errors.Store(0)
	state.lookups.Store(0)
	state.waiting.Store(0)
	setText(state.name[:], s.Name)
	setText(state.fault[:], "")
	state.used.Store(1)
	q.byNumber[number].Store(s)
	q.byName[s.Name] = number
	return number
}

// lookUp finds the sequence of directory dir under the settings that name has. Its files count as looked up once more.
func (q *sequences) lookUp(dir inode, name string) (number int, errno syscall.Errno) {
	of, _ := q.now(dir.sequence()) // an error is for those who read
	s, err := of.With(name)
	if err != nil {
		q.badLogged.Do(func() { q.log.Warn("no such settings", "path", of.Name+"/"+name, "err", err) })
		if errors.Is(err, syscall.ENOENT) {
			return 0, syscall.ENOENT
		}
		return 0, syscall.EINVAL
	}
	q.mu.Lock()
	number, known := q.byName[s.Name]
	if !known {
		number = q.add(s)
	}
	if number > 0 {
		q.table.states[number].lookups.Add(1)
		q.recent = append(q.recent, pathName{dir, name})
	}
	waiting := len(q.recent)
	q.mu.Unlock()
	if waiting > maxRecent {
		q.many.Signal()
	}
	if waiting > tooMany {
		time.Sleep(time.Millisecond)
	}
	if number == 0 {
		q.fullLogged.Do(func() {
			q.log.Error("too many sequences are in use: others cannot be looked up", "most", maxSequences-1)
		})
		return 0, syscall.ENOSPC
	}
	return number, 0
}

// outdated waits for a name that the kernel is to forget.
func (q *sequences) outdated() (p pathName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.recent) <= maxRecent {
		q.many.Wait()
	}
	p, q.recent = q.recent[0], q.recent[1:]
	return p
}

// forget notes that the kernel has forgotten so many lookups of files of a sequence.
func (q *sequences) forget(number int, lookups uint64) {
	if number <= q.splits || q.table.states[number].lookups.Add(-lookups) > 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	s, state := q.get(number), &q.table.states[number]
	if s == nil || state.lookups.Load() > 0 || state.cursor.Load() != s.Start {
		return
	}
	delete(q.byName, s.Name)
	q.byNumber[number].Store(nil)
	state.used.Store(0)
	q.free = append(q.free, number)
}

// now is the sequence after a look at its files. If they changed and are followed, another takes its place.
func (q *sequences) now(number int) (*Sequence, error) {
	was := q.get(number)
	s, err := was.Now()
	if s != was {
		q.byNumber[number].CompareAndSwap(was, s)
	}
	return s, err
}

// fault notes an error of a sequence, and says whether it repeats the one before: whether it differs in numbers only, as
// that of another place in the same file does.
func (q *sequences) fault(number int, err string) (repeats bool) {
	state := &q.table.states[number]
	state.errors.Add(1)
	err = err[:min(len(err), len(state.fault))]
	q.mu.Lock()
	defer q.mu.Unlock()
	repeats = digits.ReplaceAllString(getText(state.fault[:]), "") == digits.ReplaceAllString(err, "")
	setText(state.fault[:], err)
	return repeats
}

var digits = regexp.MustCompile(`\d+`)

// all calls visit with the number of every sequence: the splits in their order, then the others.
func (q *sequences) all(visit func(number int, s *Sequence, fault string)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	fault := func(number int) string { return getText(q.table.states[number].fault[:]) }
	for number := 1; number <= q.splits; number++ {
		visit(number, q.get(number), fault(number))
	}
	for _, number := range q.byName {
		if number > q.splits {
			visit(number, q.get(number), fault(number))
		}
	}
}

// isSettings tells a name that settings are read from. No split has one, nor a file.
func isSettings(name string) bool { return strings.Contains(name, "=") }
