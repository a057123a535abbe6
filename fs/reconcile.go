package fs

import (
	"maps"
	"slices"
	"time"
)

// A doubt tracks a sequence of settings whose lookups were counted by an earlier worker. The count
// may be too high, but never too low: the earlier worker may have died after it read a FORGET, or
// while the kernel was copying its reply to a lookup.
//
// The kernel can be asked whether it knows a directory. If it does not, it knows no file in it
// either. However, it may not know the directory yet, because the thread that looked it up has not
// run since the reply was sent, or a FORGET may be on its way. A sequence is therefore retired only
// if the kernel knows none of its directories missesToRetire times in a row, and nothing was looked
// up or forgotten in the meantime. If the kernel knows a file of a retired sequence after all,
// reading the file fails with ESTALE: the number is reused only after all other numbers were.
type doubt struct {
	misses int // how often in a row the kernel has known no directory; guarded by sequenceTable.mu
}

const (
	missesToRetire = 3
	askPause       = 2 * time.Second  // shortest pause before the kernel is asked again
	maxAskPause    = 16 * time.Second // longest pause
)

// reset resets asked after a lookup or a FORGET. d may be nil. The caller holds sequenceTable.mu.
func (d *doubt) reset() {
	if d != nil {
		d.misses = 0
	}
}

// reconcile asks the kernel about the directories of sequences in doubt until none is left. It must
// not run inside a request, because knows waits for the kernel.
func (q *sequenceTable) reconcile(knows func(directory uint64) bool) {
	for pause := askPause; ; {
		time.Sleep(pause)
		left, unknown := q.askKernel(knows)
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

// askKernel asks the kernel once about each sequence in doubt. It returns the number of sequences
// that remain in doubt, and how many of them the kernel does not seem to know.
func (q *sequenceTable) askKernel(knows func(directory uint64) bool) (left, unknown int) {
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

// beginAsking returns the directories of a sequence in doubt. If some of them are not recorded, it
// ends the doubt, so that only forget can end the sequence.
func (q *sequenceTable) beginAsking(number int) []uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	directories, ok := q.shared.Directories(number)
	if !ok {
		delete(q.doubts, number)
	}
	if d := q.doubts[number]; d != nil {
		d.misses++ // before asking, so that disturb can reset it in the meantime
	}
	return directories
}

// endAsking records whether the kernel knows a sequence, and retires the sequence if the kernel has
// not known it missesToRetire times in a row. It reports whether the kernel did not know the
// sequence but must be asked again.
func (q *sequenceTable) endAsking(number int, known bool) (again bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	d := q.doubts[number]
	switch {
	case d == nil:
		return false
	case known:
		d.misses = 0
		return false
	case d.misses < missesToRetire:
		return true
	}
	if q.drop(number) {
		q.shared.Retire(number)
		q.retiredNumbers = append(q.retiredNumbers, number)
	} else {
		q.shared.Sequences[number].Lookups.Store(0)
	}
	return false
}
