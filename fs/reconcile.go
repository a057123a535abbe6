package fs

import (
	"maps"
	"slices"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// A doubt tracks a sequence whose lookups an earlier worker counted. The count may be too high, but
// never too low: that worker may have died after it read a FORGET, or while the kernel was copying
// its reply to a lookup.
//
// The kernel can be asked whether it knows a directory. If it does not, it knows no file in it
// either. However, the thread that looked the directory up may not have run since the reply was
// sent, or a FORGET may be on its way. A sequence is therefore retired only if the kernel knows
// none of its directories in missesToRetire successive checks, without a lookup or a FORGET in
// between. If the kernel knows a file of a retired sequence after all, reading it fails with
// ESTALE, unless the number was reused because all others were in use.
type doubt struct {
	misses int // successive checks that found no known directory; guarded by sequenceTable.mu
}

const (
	missesToRetire = 3

	minAskPause = 2 * time.Second
	maxAskPause = 16 * time.Second
)

// reset discards the misses after a lookup or a FORGET. d may be nil. The caller holds
// sequenceTable.mu.
func (d *doubt) reset() {
	if d != nil {
		d.misses = 0
	}
}

// startForgetting begins to invalidate names that the kernel need not know, and to ask it about
// directories that it may have forgotten.
func (t *sequenceTable) startForgetting(server *fuse.Server) {
	for range invalidators {
		go t.invalidate(server)
	}
	go t.reconcile(func(directory uint64) bool {
		// Without the negative offset, the kernel would also drop cached pages, and wait for reads
		// that this process has not answered.
		return server.InodeNotify(directory, -1, 0) != fuse.ENOENT
	})
}

// reconcile asks the kernel about the directories of sequences in doubt, until no sequence is in
// doubt. It must not run inside a request, because knows waits for the kernel.
func (t *sequenceTable) reconcile(knows func(directory uint64) bool) {
	for pause := minAskPause; ; {
		time.Sleep(pause)
		left, unknown := t.askKernel(knows)
		switch {
		case left == 0:
			return
		case unknown > 0:
			pause = minAskPause
		default:
			pause = min(2*pause, maxAskPause)
		}
	}
}

// askKernel asks the kernel once about each sequence in doubt. It returns how many remain in doubt,
// and how many of those the kernel did not know.
func (t *sequenceTable) askKernel(knows func(directory uint64) bool) (left, unknown int) {
	t.mu.Lock()
	numbers := slices.Collect(maps.Keys(t.doubts))
	t.mu.Unlock()
	for _, number := range numbers {
		if directories := t.beginAsking(number); t.endAsking(number, slices.ContainsFunc(directories, knows)) {
			unknown++
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.doubts), unknown
}

// beginAsking counts a miss of a sequence in doubt, and returns its directories. If some are not
// recorded, it ends the doubt; then only forget can end the sequence.
func (t *sequenceTable) beginAsking(number int) []uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	directories, ok := t.shared.Directories(number)
	if !ok {
		delete(t.doubts, number)
	}
	if d := t.doubts[number]; d != nil {
		d.misses++ // counted before asking, because reset may be called in the meantime
	}
	return directories
}

// endAsking acts on the kernel's answer about a sequence. If the kernel knows it, its misses are
// discarded. After missesToRetire misses in a row, the doubt ends: the sequence is retired or, if
// its cursor has moved, only its lookups are cleared. again reports whether the kernel did not know
// the sequence and must be asked about it again.
func (t *sequenceTable) endAsking(number int, known bool) (again bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.doubts[number]
	switch {
	case d == nil:
		return false
	case known:
		d.misses = 0
		return false
	case d.misses < missesToRetire:
		return true
	}
	if t.drop(number) {
		t.shared.Retire(number)
		t.retiredNumbers = append(t.retiredNumbers, number)
	} else {
		t.shared.Sequences[number].Lookups.Store(0)
	}
	return false
}
