// Package state is what the processes of one mount share: a block of memory of fixed layout that outlives any worker.
//
// [Shared] is the state that a replacement worker needs: what was agreed with the kernel, the cursor of each sequence, and
// which batch each open handle of next holds. The supervisor keeps the memory, the worker that serves writes it, and commands such as
// doctor look at it. [Handles] hands out handles and batch numbers in it. A worker may be killed between any two steps; the
// next one completes what it finds half done.
package state

import (
	"bytes"
	"time"

	"batchfs/internal/clock"
)

// Set cuts a text that does not fit.
func (m *Text) Set(b []byte) { m.len.Store(uint64(copy(m.bytes[:], b))) }

// Get returns the bytes in the shared memory itself, none before the first Set.
func (m *Text) Get() []byte { return m.bytes[:min(m.len.Load(), uint64(len(m.bytes)))] }

func (m *Text) String() string { return string(m.Get()) }

// Used says whether there is such a sequence.
func (e *SequenceState) Used() bool { return e.used.Load() != 0 }

// Name is the path of the sequence's directory in the mount.
func (e *SequenceState) Name() string { return getText(e.name[:]) }

// User is the id of the user who looked the sequence up first.
func (e *SequenceState) User() uint32 { return uint32(e.user.Load()) }

// LastError is the last error, cut to 512 bytes, or empty.
func (e *SequenceState) LastError() string { return getText(e.lastError[:]) }

// SetLastError records the last error. The caller serialises SetLastError and LastError.
func (e *SequenceState) SetLastError(text string) { setText(e.lastError[:], text) }

// CursorMoved says whether the cursor is not where it began: such a sequence is never forgotten, because a number must never come twice.
func (e *SequenceState) CursorMoved() bool { return e.Next() != e.start.Load() }

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

// SequencesUsed is the highest number that any sequence ever had, of those that this build has room for.
func (s *Shared) SequencesUsed() int { return int(min(s.sequencesUsed.Load(), MaxSequences-1)) }

// NewNumber returns a number that no sequence has had yet, or 0 when there is none left. The caller serialises calls, as of
// Add and Remove.
func (s *Shared) NewNumber() int {
	if s.SequencesUsed() == MaxSequences-1 {
		return 0
	}
	return int(s.sequencesUsed.Add(1))
}

// Add begins a sequence under a number that none has. user looked it up first.
func (s *Shared) Add(number int, name string, start uint64, user uint32) {
	q := &s.Sequences[number]
	q.Cursor.Store(start)
	q.seek.Store(0)
	q.start.Store(start)
	q.user.Store(uint64(user))
	q.SequenceCounters = SequenceCounters{}
	q.WaitingSince.Store(0)
	q.Lookups.Store(0)
	setText(q.name[:], name)
	setText(q.lastError[:], "")
	s.beginLookups(number)
	q.used.Store(1)
}

// Remove ends a sequence: its number may begin another.
func (s *Shared) Remove(number int) { s.Sequences[number].used.Store(0) }

// NewConnection forgets the handles, names and requests of the connection that has ended. Cursors and counters stay.
func (s *Shared) NewConnection() {
	s.Init.Set(nil)
	s.InitReply.Set(nil)
	for i := range s.slotsUsed.Load() {
		s.slots[i].sequence.Store(0)
		s.readers[i].since.Store(0)
	}
	for n := range s.SequencesUsed() {
		s.Sequences[n+1].Lookups.Store(0)
	}
	s.names.recorded.Store(0)
	s.assigning.id.Store(0)
	clear(s.assignments[:])
	clear(s.unfinished[:])
	clear(s.attempts[:])
	clear(s.counted[:])
	s.lookups.counting.id.Store(0)
	clear(s.lookups.counted[:])
}

// SinceHeartbeat is how long ago the worker last answered the supervisor, which asks every second.
func (s *Shared) SinceHeartbeat() time.Duration {
	return time.Duration(clock.Now() - s.Heartbeat.Load())
}

// Waiting returns how long the longest request has waited, for each sequence whose token files have not answered for more than a second.
func (s *Shared) Waiting() map[string]time.Duration {
	waiting := map[string]time.Duration{}
	for n := range s.SequencesUsed() {
		q := &s.Sequences[n+1]
		if since := q.WaitingSince.Load(); since != 0 && q.Used() {
			waiting[q.Name()] = time.Duration(clock.Now() - since)
		}
	}
	return waiting
}
