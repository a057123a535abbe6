package array

import "fmt"

// A Window is Len numbers from number Start on. The element at position i has
// the numbers i*n to i*n + n-1, where elements have n numbers.
type Window struct {
	Start int64
	Len   int
}

// An Extent is a stretch of the array that a window must not leave: one file, or all of them where they are joined.
type Extent struct {
	Name  string // the file, or the first of those joined
	Start int64  // position of its first element
	Len   int64  // elements
}

// A Location is where an element stands.
type Location struct {
	Path  string
	Index int64 // of the element in the file
}

// A VocabularyError says that a token is not one of its vocabulary.
type VocabularyError struct {
	Location
	Token string
	Size  int64 // of the vocabulary: its tokens are below it
}

func (e *VocabularyError) Error() string {
	return fmt.Sprintf("%s: token %d is %s, and tokens must be below vocab_size, which is %d; are the file, token_dtype and vocab_size "+
		"(or a vocab.json beside the files of the split) right?", e.Path, e.Index, e.Token, e.Size)
}
