package state

import (
	"math"
	"sync/atomic"
)

// A sequenceInfo describes a sequence.
type sequenceInfo struct {
	fingerprint  [64]byte      // of the tokens, padded with zeros
	epochBatches atomic.Uint64 // batches per epoch; 0 if the order has no epochs
	stage        atomic.Uint32 // number of the current phase
	failing      atomic.Bool   // whether reads fail: see SetFailing
}

// Fingerprint returns the fingerprint of a sequence's tokens, or "" before Describe.
func (s *Shared) Fingerprint(sequence int) string { return getText(s.infos[sequence].fingerprint[:]) }

// EpochBatches returns the number of batches per epoch, or 0 if the order has no epochs.
func (s *Shared) EpochBatches(sequence int) uint64 { return s.infos[sequence].epochBatches.Load() }

// Describe records the fingerprint and epoch length of a sequence, and the names of the sources of
// a mixture.
func (s *Shared) Describe(sequence int, fingerprint string, epochBatches uint64, names []string) {
	copy(s.infos[sequence].fingerprint[:], fingerprint) // all fingerprints have the same length
	s.infos[sequence].epochBatches.Store(epochBatches)
	for i, name := range names[:min(len(names), MaxSources)] {
		setText(s.sourceNames[sequence][i][:], name)
	}
}

// SetPhase records the current phase of a split and its weights.
func (s *Shared) SetPhase(sequence, phase int, weights []float64) {
	s.infos[sequence].stage.Store(uint32(phase))
	for i, weight := range weights[:min(len(weights), MaxSources)] {
		s.RowsBySource[sequence][i].weight.Store(math.Float64bits(weight))
	}
}

// Phase returns the current phase of a split.
func (s *Shared) Phase(sequence int) int { return int(s.infos[sequence].stage.Load()) }

// SourceName returns the name of a source of a mixture, or "" if there is no such source.
func (s *Shared) SourceName(sequence, source int) string {
	return getText(s.sourceNames[sequence][source][:])
}

// MaxSources is the number of sources of a mixture that are counted.
const MaxSources = 64

// A SourceRows counts the rows from one source that a split and all its settings directories
// deliver. It is safe for concurrent use.
type SourceRows struct {
	Rows   atomic.Uint64 // rows in batches whose first byte was delivered
	weight atomic.Uint64 // bits of Weight
}

// Weight returns the fraction of rows that come from the source.
func (r *SourceRows) Weight() float64 { return math.Float64frombits(r.weight.Load()) }

// Program returns the version of the serving batchfs.
func (s *Shared) Program() string { return getText(s.mountState.program[:]) }

// SetProgram records the version of the serving batchfs.
func (s *Shared) SetProgram(version string) { setText(s.mountState.program[:], version) }
