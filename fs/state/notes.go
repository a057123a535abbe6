package state

import (
	"slices"
	"sync/atomic"
)

// A BadName is a path that has no file, and why.
type BadName struct{ Path, Why string }

// The last bad names: number i is in ring[i%len(ring)].
type badNames struct {
	noted atomic.Uint64
	ring  [10]struct { // zeros behind the texts
		path [512]byte
		why  [768]byte
	}
}

// NoteBadName notes that a path was looked up that has no file, unless it is among the last ones. The caller serialises calls, as of
// BadNames in the process that serves.
func (s *Shared) NoteBadName(n BadName) {
	if slices.ContainsFunc(s.BadNames(), func(b BadName) bool { return b.Path == n.Path }) {
		return
	}
	at := &s.badNames.ring[s.badNames.noted.Load()%uint64(len(s.badNames.ring))]
	setText(at.path[:], n.Path)
	setText(at.why[:], n.Why)
	s.badNames.noted.Add(1)
}

// BadNames are the last ten, the latest first.
func (s *Shared) BadNames() (last []BadName) {
	ring := &s.badNames.ring
	for i := s.badNames.noted.Load(); i > 0 && len(last) < len(ring); i-- {
		at := &ring[(i-1)%uint64(len(ring))]
		last = append(last, BadName{getText(at.path[:]), getText(at.why[:])})
	}
	return last
}

// A described sequence is what the worker knows of its tokens.
type described struct {
	fingerprint  [64]byte      // zeros behind it
	epochBatches atomic.Uint64 // 0: its order has no epochs
}

// Fingerprint is the fingerprint of a sequence's tokens, or empty.
func (s *Shared) Fingerprint(sequence int) string {
	return getText(s.described[sequence].fingerprint[:])
}

// EpochBatches is how many batches an epoch of a sequence has, or 0 if its order has none.
func (s *Shared) EpochBatches(sequence int) uint64 { return s.described[sequence].epochBatches.Load() }

// Describe notes both.
func (s *Shared) Describe(sequence int, fingerprint string, epochBatches uint64) {
	copy(s.described[sequence].fingerprint[:], fingerprint) // all have one length
	s.described[sequence].epochBatches.Store(epochBatches)
}

// Program is the version of batchfs that serves.
func (s *Shared) Program() string { return getText(s.mount.program[:]) }

// SetProgram notes it.
func (s *Shared) SetProgram(version string) { setText(s.mount.program[:], version) }
