package state

import "sync/atomic"

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

// NoteBadName notes that a path was looked up that has no file. The caller serialises calls, as of BadNames in the process that serves.
func (s *Shared) NoteBadName(n BadName) {
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

// A described sequence is what its tokens and settings are called. Only those of splits are noted.
type described struct {
	fingerprint [64]byte // of the tokens, zeros behind it
}

// Fingerprint is that of the tokens of a split, or empty.
func (s *Shared) Fingerprint(split int) string { return getText(s.described[split].fingerprint[:]) }

// SetFingerprint notes it.
func (s *Shared) SetFingerprint(split int, text string) {
	copy(s.described[split].fingerprint[:], text) // all have one length
}

// Program is the version of batchfs that serves.
func (s *Shared) Program() string { return getText(s.mount.program[:]) }

// SetProgram notes it.
func (s *Shared) SetProgram(version string) { setText(s.mount.program[:], version) }
