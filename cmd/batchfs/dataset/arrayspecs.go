package dataset

import (
	"cmp"
	"fmt"
	"slices"

	"batchfs/cache"
	"batchfs/cache/localfile"
	"batchfs/cmd/batchfs/config"
	"batchfs/sampler"
)

// An ArraySpec is an array of a source as the configuration describes it. Its files need not exist.
type ArraySpec struct {
	Source  int
	Name    string // of an array beside the tokens; empty for the main one
	Files   []string
	Options cache.Options // to open some of the files with
}

// ArraySpecs returns the arrays of all sources of a split, the main one of each source first.
func (o *Opener) ArraySpecs(s *config.Split) ([]ArraySpec, error) {
	_, parts, _, err := o.arraySpecsOf(s)
	return parts, err
}

// arraySpecsOf returns a split that knows what lies beside its files, its arrays, and what vocab.json says.
func (o *Opener) arraySpecsOf(s *config.Split) (*config.Split, []ArraySpec, vocabHint, error) {
	files, err := s.Files(o.Remote)
	if err != nil {
		return nil, nil, vocabHint{}, err
	}
	h, err := readVocabHint(s, files)
	if err == nil {
		s = h.apply(s)
		if err = s.CheckAligned(); err != nil {
			err = fmt.Errorf("%w, as vocab.json beside the tokens says; %s", err, noArrays)
		}
	}
	if err != nil {
		return nil, nil, vocabHint{}, fmt.Errorf("splits.%s: %w", s.Name, err)
	}
	var parts []ArraySpec
	for i, from := range files {
		arrays := slices.Concat([][]string{from.Main}, from.Aligned)
		if h.Arrays != nil {
			for _, b := range h.Arrays[i] {
				arrays = append(arrays, b.Files)
			}
		}
		for n, paths := range arrays {
			p := ArraySpec{Source: i, Files: paths, Options: options(s, o, i, n, h)}
			p.Name = p.Options.AlignedArray
			parts = append(parts, p)
		}
	}
	return s, parts, h, nil
}

// options returns how to open array n of source i; 0 is the main one.
func options(s *config.Split, by *Opener, i, n int, h vocabHint) cache.Options {
	m := by.Config.Memory
	o := cache.Options{Remote: by.Remote, Follow: s.OnChange == "follow", Join: s.Join, Access: m.Access, DropPageCache: m.PageCache == "drop"}
	if n == 0 {
		o.Format, o.Tensor, o.DType, o.Axes, o.GuessedDType = s.Format, s.Tensor, s.TokenDType, s.Shape, !s.IsSet("token_dtype")
		if o.GuessedDType {
			o.DType = cmp.Or(h.TokenDType, o.DType)
		}
		o.VocabSize = cmp.Or(s.VocabSizeOf(i), h.VocabSize)
		switch {
		case s.Ends == sampler.EndsByIndex && s.FilesAreDocuments:
			o.Documents = cache.FilesAreDocuments
		case s.Ends == sampler.EndsByIndex:
			o.Documents = cache.DocumentsIndexed
		}
		return o
	}
	if o.Access == localfile.Remap { // a mapping costs as much for the few bytes of a mask as for tokens
		o.Access = localfile.Pread
	}
	b := s.AlignedOf(i)[n-1]
	o.Format, o.Tensor, o.DType, o.Axes, o.AlignedArray = b.Format, b.Tensor, b.DType, b.Shape, b.Name
	return o
}
