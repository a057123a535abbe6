// Package state holds the state that the processes of a mount share, in memory with a fixed layout
// that outlives every worker.
//
// [Shared] holds what a new worker needs: the agreement with the kernel, the cursor of each
// sequence, and the batch of each open handle of next. The supervisor owns the memory, the serving
// worker writes most of it, and commands such as doctor read it. [Handles] assigns handles and
// batch numbers in it. A worker may be killed between any two instructions; its successor completes
// whatever is half done.
package state

import (
	"bytes"
	"errors"
	"time"

	"batchfs/internal/clock"
	"batchfs/internal/failure"
)

// Set sets the text to a copy of b, cut to 4096 bytes.
func (t *Text) Set(b []byte) { t.len.Store(uint64(copy(t.bytes[:], b))) }

// Get returns the text. The result aliases the shared memory.
func (t *Text) Get() []byte { return t.bytes[:min(t.len.Load(), uint64(len(t.bytes)))] }

func (t *Text) String() string { return string(t.Get()) }

// Used reports whether the number belongs to a sequence.
func (q *SequenceState) Used() bool { return q.used.Load() != 0 }

// TextsOf returns the name and the last error of the sequence with a number. The name is empty if
// there is no such sequence, and the error if there was none. Unlike [SequenceState.Name], it may
// be called while this process adds sequences.
func (s *Shared) TextsOf(number int) (name, lastError string) {
	s.textsMu.Lock()
	defer s.textsMu.Unlock()
	if q := &s.Sequences[number]; q.Used() {
		return q.Name(), getText(q.lastError[:])
	}
	return "", ""
}

// SetLastError records an error of a sequence, cut to 512 bytes.
func (s *Shared) SetLastError(number int, text string) {
	s.textsMu.Lock()
	defer s.textsMu.Unlock()
	setText(s.Sequences[number].lastError[:], text)
}

// Name returns the path of the sequence's directory, relative to the mountpoint.
func (q *SequenceState) Name() string { return getText(q.name[:]) }

// User returns the id of the user who looked the sequence up first.
func (q *SequenceState) User() uint32 { return uint32(q.user.Load()) }

// SetFailing records whether the last request of a sequence failed for a reason that a check of its
// token files does not show, such as a token beyond the vocabulary.
func (s *Shared) SetFailing(number int, failing bool) {
	if f := &s.infos[number].failing; f.Load() != failing {
		f.Store(failing)
	}
}

// Failing returns the last value of SetFailing.
func (s *Shared) Failing(number int) bool { return s.infos[number].failing.Load() }

// Next returns the batch number that the next reader of next will take.
func (q *SequenceState) Next() uint64 {
	if seek := q.seek.Load(); seek != 0 {
		return seek - 1
	}
	return q.Cursor.Load()
}

// Seek sets the number that Next returns, and returns the previous one. Readers keep the batches
// that they hold. Any process may call Seek, even if no worker is alive, because the worker moves
// the cursor before it assigns the next number.
func (q *SequenceState) Seek(number uint64) (previous uint64) {
	previous = q.Next()
	q.seek.Store(number + 1)
	return previous
}

// CursorMoved reports whether the cursor has left its initial position. If such a sequence were
// forgotten, it would assign the same numbers again.
func (q *SequenceState) CursorMoved() bool { return q.Next() != q.initialCursor.Load() }

func setText(b []byte, text string) {
	clear(b)
	copy(b, text)
}

func getText(b []byte) string {
	if end := bytes.IndexByte(b, 0); end >= 0 {
		b = b[:end]
	}
	return string(b)
}

// SequencesUsed returns the highest number that a sequence has ever had.
func (s *Shared) SequencesUsed() int { return int(min(s.sequencesUsed.Load(), MaxSequences-1)) }

// NewNumber returns a number that no sequence has had, or 0 if none is left. Callers must serialize
// calls of NewNumber, Add and Remove.
func (s *Shared) NewNumber() int {
	if s.SequencesUsed() == MaxSequences-1 {
		return 0
	}
	return int(s.sequencesUsed.Add(1))
}

// Add begins a sequence under an unused number. user is the id of the user who looked it up first.
func (s *Shared) Add(number int, name string, initialCursor uint64, user uint32) {
	s.textsMu.Lock()
	defer s.textsMu.Unlock()
	q := &s.Sequences[number]
	q.Cursor.Store(initialCursor)
	q.seek.Store(0)
	q.initialCursor.Store(initialCursor)
	q.user.Store(uint64(user))
	q.SequenceCounters = SequenceCounters{}
	q.WaitingSince.Store(0)
	q.Lookups.Store(0)
	setText(q.name[:], name)
	setText(q.lastError[:], "")
	s.resetLookups(number)
	s.SetFailing(number, false)
	q.used.Store(1)
}

// Remove ends a sequence. Its number can be reused.
func (s *Shared) Remove(number int) { s.Sequences[number].used.Store(0) }

// NewConnection discards handles, names and requests of the previous connection, but not cursors
// and counters.
func (s *Shared) NewConnection() {
	s.Init.Set(nil)
	s.InitReply.Set(nil)
	for i := range s.slotsUsed.Load() {
		s.slots[i].sequence.Store(0)
		s.readers[i].signedSince.Store(0)
	}
	for n := range s.SequencesUsed() {
		s.Sequences[n+1].Lookups.Store(0)
	}
	s.names.recorded.Store(0)
	s.assigning.id.Store(0)
	clear(s.assignments[:])
	clear(s.unfinished[:])
	clear(s.resentRequests[:])
	clear(s.countedRequests[:])
	s.lookups.counting.id.Store(0)
	clear(s.lookups.countedLookups[:])
}

// StuckAfter is the time without an answer to a ping after which a worker is said to be stuck.
const StuckAfter = 3 * time.Second

// SinceHeartbeat returns the time since the worker last answered a ping, which it gets every
// second, or since the mount began.
func (s *Shared) SinceHeartbeat() time.Duration {
	return time.Duration(clock.Now() - s.Heartbeat.Load())
}

// Unresponsive returns the names of the splits whose token files have not responded for more
// than a second, and how long their oldest requests have waited.
func (s *Shared) Unresponsive() map[string]time.Duration {
	waiting := map[string]time.Duration{}
	for n := range s.SequencesUsed() {
		q := &s.Sequences[n+1]
		if since := q.WaitingSince.Load(); since != 0 && q.Used() {
			waiting[q.Name()] = time.Duration(clock.Now() - since)
		}
	}
	return waiting
}

// EndRestart records the outcome of the restart in progress: its error, or nil if it succeeded.
// Only the supervisor calls it.
func (s *Shared) EndRestart(err error) {
	kind, message := "", ""
	if err != nil {
		kind, message = failure.KindOf(err).Name, err.Error()
	}
	n := s.Restarts.Load() + 1
	o := &s.outcomes[n%uint64(len(s.outcomes))]
	o.number.Store(0)
	setText(o.kind[:], kind)
	o.message.Set([]byte(message))
	o.number.Store(n)
	s.LastRestart.Set([]byte(message)) // an older command reads only this
	s.Restarts.Store(n)
}

// RestartError returns the error that restart n ended with, or nil if it succeeded. If there is no
// record of it, because the supervisor is older or many restarts have ended since, it returns the
// error of the last restart, without its kind.
func (s *Shared) RestartError(n uint64) error {
	o := &s.outcomes[n%uint64(len(s.outcomes))]
	kind, message := getText(o.kind[:]), o.message.String()
	if o.number.Load() != n {
		kind, message = "", s.LastRestart.String()
	}
	if message == "" {
		return nil
	}
	return failure.Named(kind).Wrap(errors.New(message))
}

// AnnounceRestart tells the supervisor that a signal to restart follows.
func (s *Shared) AnnounceRestart() { s.restartAnnounced.Store(clock.Now()) }

// announcedFor limits the time between the announcement of a restart and its signal.
const announcedFor = 10 * time.Second

// IsRestartAnnounced reports whether AnnounceRestart was called within the last ten seconds.
func (s *Shared) IsRestartAnnounced() bool {
	return clock.Now()-s.restartAnnounced.Load() < int64(announcedFor)
}
