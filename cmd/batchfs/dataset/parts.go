package dataset

import (
	"slices"

	"batchfs/cache"
	"batchfs/cmd/batchfs/config"
)

// A Part is an array of a source as the configuration describes it. Nobody has opened its files, or looked whether they exist.
type Part struct {
	Source  int
	Name    string // of an array beside the tokens; empty for the main one
	Files   []string
	Options cache.Options // to open some of the files with
}

// Parts are the arrays of all sources of a split, the main one of each source first.
func Parts(s *config.Split, m config.Memory) (all []Part, err error) {
	s, files, h, err := withFound(s)
	if err != nil {
		return nil, err
	}
	for i, from := range files {
		for n, paths := range slices.Concat([][]string{from.Main}, from.Beside) {
			o := options(s, m, i, n, h)
			all = append(all, Part{Source: i, Name: o.Beside, Files: paths, Options: o})
		}
	}
	return all, nil
}
