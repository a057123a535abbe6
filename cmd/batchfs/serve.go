package main

import (
	"batchfs/cmd/batchfs/dataset"
	"batchfs/fs"
)

// A sequence is a split, or one under the settings of a path, as package fs takes it.
type sequence struct {
	*dataset.Served
	spec fs.Spec
}

func newSequence(s *dataset.Served) *sequence {
	return &sequence{s, fs.Spec{
		Name:      s.Split.Name(),
		Batch:     s.Sequence.Batch(),
		Steps:     s.Steps,
		Start:     s.Split.Start,
		TokensLen: s.TokensLen(),
		Metadata:  s.Metadata(),
		Version:   fs.Version(s.Version),
		Follows:   s.Split.OnChange == "follow",
	}}
}

func (s *sequence) Spec() *fs.Spec { return &s.spec }

func (s *sequence) Now(k uint64) (fs.Sequence, error) {
	now, err := s.Served.Now(k)
	if now == s.Served {
		return s, err
	}
	return newSequence(now), err
}

func (s *sequence) With(settings string) (fs.Sequence, error) {
	other, err := s.Served.With(settings)
	if err != nil {
		return nil, err
	}
	return newSequence(other), nil
}
