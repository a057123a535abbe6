package dataset

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/vocabulary"
)

// A vocabHint holds settings from the vocab.json next to token files, for keys that the
// configuration does not set. Snapshots store it.
type vocabHint struct {
	VocabSize  int64       // 0 if unknown
	TokenDType array.DType // empty if unknown
	EOT        int64       // one more than the token that ends each document; 0 if unknown

	Arrays [][]config.AlignedArray // aligned arrays of each source; nil if configured
}

// apply returns s with the end-of-text token and arrays of h, which replace those of an earlier
// hint.
func (h vocabHint) apply(s *config.Split) *config.Split {
	return s.WithFoundSettings(h.EOT-1, h.Arrays)
}

const arraysAdvice = "run batchfs prepare again, list other arrays in arrays, or set arrays = [] to serve none"

// readVocabHint returns the settings in the vocab.json next to the sources without a vocab_size, or
// next to all if each has one. Then, an unusable vocab.json is not an error, and only its arrays
// count. The arrays are those of all sources, and their files are removed from the token files.
func readVocabHint(s *config.Split, files []config.SourceFiles, remote *blob.Remote) (h vocabHint, err error) {
	var all, guessed []string
	for i, written := range s.VocabSizes() {
		all = append(all, files[i].Main...)
		if written == 0 {
			guessed = append(guessed, files[i].Main...)
		}
	}
	v, shards, err := vocabulary.ForFiles(all, remote)
	if errors.As(err, new(vocabulary.UnavailableError)) {
		return h, err
	}
	listed := slices.Sorted(maps.Keys(shards))
	sizes, sizesErr := blob.Sizes(listed, remote)
	if sizesErr != nil {
		return h, sizesErr
	}
	width := int64(0) // size of a token in a file without a header, in bytes; 0 if unknown
	if v != nil && array.DType(v.TokenDType).Known() {
		width = int64(array.DType(v.TokenDType).Size())
	}
	if s.IsSet("token_dtype") && s.TokenDType.Known() { // the files may have been rewritten
		width = min(width, int64(s.TokenDType.Size()))
	}
	for _, path := range listed {
		switch size, exists := sizes[path]; {
		case !exists:
			return h, fmt.Errorf("%s is missing, but vocab.json lists it: run the interrupted batchfs prepare again, continue the "+
				"batchfs.writer with resume=True or call batchfs.finish again, restore the file, or, to serve the other files without "+
				"it, move vocab.json away", path)
		case size == 0 && shards[path].Tokens > 0 && !slices.Contains(all, path):
			return h, fmt.Errorf("%s is empty, but vocab.json lists it with %d tokens: restore the file, or, to serve the other files without it, "+
				"move vocab.json away", path, shards[path].Tokens)
		case size > 0 && size < width*shards[path].Tokens:
			return h, fmt.Errorf("%s has %d bytes, but vocab.json lists it with %d tokens of %d bytes: copy the file again, or, if "+
				"vocab.json is older, move that away",
				path, size, shards[path].Tokens, width)
		}
	}
	for i := range files {
		files[i].Main = withoutArrays(files[i].Main, shards)
	}
	switch {
	case len(guessed) == 0:
		err = nil
	case len(guessed) < len(all):
		v, _, err = vocabulary.ForFiles(guessed, remote)
	}
	if err == nil && !s.ArraysAreSet() {
		for _, from := range files {
			arrays, err := alignedShards(from.Main, shards)
			if err != nil {
				return h, fmt.Errorf("%w; %s", err, arraysAdvice)
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

// withoutArrays returns files without aligned arrays of others among them, which a glob may match.
func withoutArrays(files []string, shards map[string]vocabulary.Shard) []string {
	arrays := map[string]bool{}
	for _, file := range files {
		for _, a := range shards[file].Arrays {
			arrays[blob.Sibling(file, filepath.Base(a.File))] = true
		}
	}
	return slices.DeleteFunc(files, func(file string) bool {
		_, isShard := shards[file]
		return arrays[file] && !isShard
	})
}

// alignedShards returns the aligned arrays of files, which must all have the same ones.
func alignedShards(files []string, shards map[string]vocabulary.Shard) (list []config.AlignedArray, err error) {
	described := func(file string) (all []string) {
		for _, a := range shards[file].Arrays {
			text := a.Name + " of " + a.DType
			if a.Shape != nil {
				text += fmt.Sprint(" ", a.Shape)
			}
			all = append(all, text)
		}
		return all
	}
	first := described(files[0])
	for n, a := range shards[files[0]].Arrays {
		b, ok := config.NewAlignedArray(a.Name, a.DType, a.Shape)
		if !ok {
			return nil, fmt.Errorf("vocab.json next to %s names an array %q that no split can have", files[0], first[n])
		}
		list = append(list, b)
	}
	for _, file := range files {
		if other := described(file); !slices.Equal(other, first) {
			return nil, fmt.Errorf("vocab.json names arrays %q next to %s, but %q next to %s: all files of a split must have the same arrays",
				first, files[0], other, file)
		}
		for n, a := range shards[file].Arrays {
			list[n].Files = append(list[n].Files, blob.Sibling(file, filepath.Base(a.File)))
		}
	}
	return list, nil
}
