package dataset

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"batchfs/cache"
	"batchfs/cache/localfile"
	"batchfs/cmd/batchfs/config"
	"batchfs/sampler"
)

// An ArraySpec describes an array of a source according to the configuration and vocab.json. Its
// files need not exist.
type ArraySpec struct {
	Source  int    // index of the source in the split
	Name    string // name of an aligned array; empty for the main array
	Files   []string
	Options cache.Options

	// EOT is the token that ends each document, or -1 if it is unknown or each file is one
	// document. If MayOnlyPad is true, EOT may have been configured only to pad rows.
	EOT        int64
	MayOnlyPad bool
}

// ArraySpecs returns the arrays of all sources of a split, the main array of each source first.
// Files that globs match and that have no elements are left out.
func (o *Opener) ArraySpecs(s *config.Split) ([]ArraySpec, error) {
	_, specs, _, err := o.resolveArrays(s, nil)
	return specs, err
}

// resolveArrays returns a split completed from vocab.json, its arrays, and what vocab.json says.
// For previous, see open.
func (o *Opener) resolveArrays(
	s *config.Split, previous [][]*cache.Array,
) (*config.Split, []ArraySpec, vocabHint, error) {
	files, err := s.Files(o.Remote)
	if err != nil {
		return nil, nil, vocabHint{}, err
	}
	for i := range files {
		o.leaveOutEmpty(s, i, &files[i], previous)
	}
	h, err := readVocabHint(s, files, o.Remote)
	if err == nil {
		s = h.apply(s)
		if err = s.CheckAligned(); err != nil {
			err = fmt.Errorf("%w, according to vocab.json next to the tokens; %s", err, arraysAdvice)
		}
	}
	if err != nil {
		return nil, nil, vocabHint{}, fmt.Errorf("splits.%s: %w", s.Name, err)
	}
	eot := h.EOT - 1
	if s.IsSet("eot") {
		eot = s.EndOfText
	}
	if s.FilesAreDocuments {
		eot = -1
	}
	var specs []ArraySpec
	for i, from := range files {
		arrays := slices.Concat([][]string{from.Main}, from.Aligned)
		if h.Arrays != nil {
			for _, b := range h.Arrays[i] {
				arrays = append(arrays, b.Files)
			}
		}
		for n, paths := range arrays {
			spec := ArraySpec{Source: i, Files: paths, Options: cacheOptions(s, o, i, n, h), EOT: eot}
			spec.Name, spec.Options.Matched = spec.Options.AlignedArray, from.Matched
			spec.MayOnlyPad = s.IsSet("eot") && s.Rows != sampler.Windows
			specs = append(specs, spec)
		}
	}
	return s, specs, h, nil
}

// leaveOutEmpty removes from source i the files that globs match and that have no elements. It
// keeps files of previous arrays: one that has become empty is probably being overwritten.
func (o *Opener) leaveOutEmpty(s *config.Split, i int, files *config.SourceFiles, previous [][]*cache.Array) {
	matched := maps.Clone(files.Matched)
	if i < len(previous) {
		for _, a := range previous[i] {
			for _, path := range a.Files() {
				delete(matched, path)
			}
		}
	}
	for n := range 1 + len(files.Aligned) {
		paths := &files.Main
		if n > 0 {
			paths = &files.Aligned[n-1]
		}
		opts := cacheOptions(s, o, i, n, vocabHint{})
		opts.Matched = matched
		*paths = cache.WithoutEmpty(*paths, opts)
	}
}

// cacheOptions returns how to open array n of source i; array 0 is the main one.
func cacheOptions(s *config.Split, opener *Opener, i, n int, h vocabHint) cache.Options {
	m := opener.Config.Memory
	reading := localfile.Options{Access: m.Access, DropPageCache: m.PageCache == "drop", Maps: opener.maps, Log: opener.log}
	opts := cache.Options{Remote: opener.Remote, Follow: s.OnChange == "follow", Join: s.Join, Reading: reading}
	if n == 0 {
		opts.Format, opts.Tensor, opts.DType, opts.Axes, opts.GuessedDType = s.Format, s.Tensor, s.TokenDType, s.Shape, !s.IsSet("token_dtype")
		if opts.GuessedDType {
			opts.DType = cmp.Or(h.TokenDType, opts.DType)
		}
		opts.VocabSize, opts.BOS = cmp.Or(s.VocabSizeOf(i), h.VocabSize), s.BOS
		switch {
		case !s.UsesDocuments():
		case s.FilesAreDocuments:
			opts.Documents = cache.FilesAreDocuments
		default:
			opts.Documents = cache.DocumentsIndexed
		}
		return opts
	}
	// A mapping costs as much for the few bytes of a mask as for the tokens.
	if opts.Reading.Access == localfile.Remap {
		opts.Reading.Access = localfile.Pread
	}
	b := s.AlignedOf(i)[n-1]
	opts.Format, opts.Tensor, opts.DType, opts.Axes, opts.AlignedArray = b.Format, b.Tensor, b.DType, b.Shape, b.Name
	return opts
}
