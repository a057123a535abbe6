package dataset

import (
	"fmt"
	"path/filepath"
	"slices"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/vocabulary"
)

// checkAligned returns an error unless each file of an array has as many elements as the file of tokens beside it. Package sampler
// compares only the sums.
func checkAligned(main, beside *cache.Array) error {
	tokens := main.Manifest().Files
	for i, f := range beside.Manifest().Files {
		if n, of := f.Format.Count, tokens[i].Format.Count; n != of {
			return fmt.Errorf("%s has %d elements, but there are %d in %s", f.Path, n, of, tokens[i].Path)
		}
	}
	return nil
}

// A vocabHint is what the vocab.json beside token files says of them, where the configuration says nothing.
type vocabHint struct {
	VocabSize  int64       // 0: nothing
	TokenDType array.DType // "": nothing
	EOT        int64       // one more than the token that is the last of each document; 0: nothing

	Arrays [][]config.AlignedArray // of each source; nil where the configuration has the key
}

// apply returns a split that knows what this hint says of documents and arrays, and nothing of another one.
func (h vocabHint) apply(s *config.Split) *config.Split { return s.WithFound(h.EOT-1, h.Arrays) }

const noArrays = "make the files again with batchfs prepare, name others in arrays, or set arrays = [] to serve none"

// readVocabHint returns what vocab.json says beside the files of sources without a vocab_size. If all have one, a vocab.json that cannot be
// used is no error, and only its other fields count.
func readVocabHint(s *config.Split, files []config.SourceFiles) (h vocabHint, err error) {
	var all, guessed []string
	for i, written := range s.VocabSizes() {
		all = append(all, files[i].Main...)
		if written == 0 {
			guessed = append(guessed, files[i].Main...)
		}
	}
	v, shards, err := vocabulary.Of(all)
	switch {
	case len(guessed) == 0:
		err = nil
	case len(guessed) < len(all):
		v, _, err = vocabulary.Of(guessed)
	}
	if err == nil && !s.ArraysAreSet() {
		for _, from := range files {
			arrays, err := alignedShards(from.Main, shards)
			if err != nil {
				return h, fmt.Errorf("%w; %s", err, noArrays)
			}
			h.Arrays = append(h.Arrays, arrays)
		}
	}
	if v == nil {
		return h, err
	}
	h.VocabSize = int64(v.Size)
	if dtype := array.DType(v.TokenDType); dtype == array.Uint16 || dtype == array.Uint32 {
		h.TokenDType = dtype
	}
	if v.EOTAt == "end" && v.EOT != nil {
		h.EOT = int64(*v.EOT) + 1
	}
	return h, nil
}

// alignedShards returns the arrays beside files. All files must have the same.
func alignedShards(files []string, shards map[string]vocabulary.Shard) (list []config.AlignedArray, err error) {
	described := func(file string) (all []string) {
		for _, a := range shards[file].Arrays {
			all = append(all, a.Name+" of "+a.DType)
		}
		return all
	}
	first := described(files[0])
	for n, a := range shards[files[0]].Arrays {
		b, ok := config.NewAlignedArray(a.Name, a.DType)
		if !ok {
			return nil, fmt.Errorf("vocab.json beside %s names an array %q that no split can have", files[0], first[n])
		}
		list = append(list, b)
	}
	for _, file := range files {
		if now := described(file); !slices.Equal(now, first) {
			return nil, fmt.Errorf("vocab.json names arrays %q beside %s, and %q beside %s: all files of a split must have the same",
				first, files[0], now, file)
		}
		for n, a := range shards[file].Arrays {
			list[n].Files = append(list[n].Files, filepath.Join(filepath.Dir(file), filepath.Base(a.File)))
		}
	}
	return list, nil
}
