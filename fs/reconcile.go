package fs

import (
	"maps"
	"slices"
	"time"
)

// A doubt is about a settings directory that the kernel knew when this worker took over. The count
// of its lookups may be too high, and never too low: the worker before may have died with a FORGET
// that it had read, or while the kernel copied its reply to a lookup.
//
// The kernel says whether it knows a directory. If it does not, it knows none of the files in it.
// But it may not know a directory yet, because the thread that looked it up has not run since the
// reply was sent, and a FORGET may be under way. So the sequence is retired only if the kernel does
// not know its directories asksToRetire times in a row, with nothing looked up or forgotten
// meanwhile. Should the kernel know a file of a retired sequence nevertheless, reading it fails
// with ESTALE, because the number begins another sequence only after all others were used.
type doubt struct {
	asked int // how often in a row the kernel knew none of the directories; guarded by sequences.mu
}

const (
	asksToRetire = 3
	// The shortest and the longest pause before the kernel is asked again.
	askPause    = 2 * time.Second
	maxAskPause = 16 * time.Second
)

// disturb notes a lookup or a FORGET. The caller holds sequences.mu.
func (d *doubt) disturb() {
	if d != nil {
		d.asked = 0
	}
}

// reconcile asks the kernel about the directories that are in doubt, until none is. It must run
// outside requests: knows waits for the kernel.
func (q *sequences) reconcile(knows func(directory uint64) bool) {
	for pause := askPause; ; {
		time.Sleep(pause)
		left, unknown := q.ask(knows)
		switch {
		case left == 0:
			return
		case unknown > 0:
			pause = askPause
		default:
			pause = min(2*pause, maxAskPause)
		}
	}
}

// ask asks the kernel once about each directory that is in doubt. It returns how many sequences are
// left in doubt, and how many of these the kernel does not know.
func (q *sequences) ask(knows func(directory uint64) bool) (left, unknown int) {
	q.mu.Lock()
	numbers := slices.Collect(maps.Keys(q.doubts))
	q.mu.Unlock()
	for _, number := range numbers {
		if directories := q.beginAsking(number); q.endAsking(number, slices.ContainsFunc(directories, knows)) {
			unknown++
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.doubts), unknown
}

// beginAsking returns the directories of a sequence.
func (q *sequences) beginAsking(number int) []uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	directories, ok := q.shared.Directories(number)
	if !ok {
		delete(q.doubts, number) // only its count tells when it is forgotten
	}
	if d := q.doubts[number]; d != nil {
		d.asked++ // before the kernel is asked, so that what disturbs it meanwhile counts
	}
	return directories
}

// endAsking retires a sequence if the kernel has long not known it. It reports whether the kernel
// does not know it, and should be asked again.
func (q *sequences) endAsking(number int, known bool) (again bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	d := q.doubts[number]
	switch {
	case d == nil:
		return false
	case known:
		d.asked = 0
		return false
	case d.asked < asksToRetire:
		return true
	}
	if q.drop(number) {
		q.shared.Retire(number)
		q.retired = append(q.retired, number)
	} else {
		q.shared.Sequences[number].Lookups.Store(0)
	}
	return false
}
