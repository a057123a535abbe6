package state

import (
	"math"
	"sync/atomic"
)

// A sequenceInfo is what the worker knows of a sequence's tokens.
type sequenceInfo struct {
	fingerprint  [64]byte      // zeros behind it
	epochBatches atomic.Uint64 // 0: its order has no epochs
}

// Fingerprint is the fingerprint of a sequence's tokens, or empty.
func (s *Shared) Fingerprint(sequence int) string {
	return getText(s.infos[sequence].fingerprint[:])
}

// EpochBatches is how many batches an epoch of a sequence has, or 0 if its order has none.
func (s *Shared) EpochBatches(sequence int) uint64 { return s.infos[sequence].epochBatches.Load() }

// Describe notes both, and what part of the rows each source of a mixture has.
func (s *Shared) Describe(sequence int, fingerprint string, epochBatches uint64, sources []float64) {
	copy(s.infos[sequence].fingerprint[:], fingerprint) // all have one length
	s.infos[sequence].epochBatches.Store(epochBatches)
	for i, share := range sources[:min(len(sources), MaxSources)] {
		s.Sources[sequence][i].weight.Store(math.Float64bits(share))
	}
}

// MaxSources is how many sources of a mixture are counted, each for itself.
const MaxSources = 64

// A SourceRows is what the batches of a split have of a source, in all its settings.
type SourceRows struct {
	Rows   atomic.Uint64 // of batches whose first byte was delivered
	weight atomic.Uint64 // a float64
}

// Weight is the part of the rows that a source has, or 0 if there is none of its number.
func (r *SourceRows) Weight() float64 { return math.Float64frombits(r.weight.Load()) }

// Program is the version of batchfs that serves.
func (s *Shared) Program() string { return getText(s.mount.program[:]) }

// SetProgram notes it.
func (s *Shared) SetProgram(version string) { setText(s.mount.program[:], version) }
