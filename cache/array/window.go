package array

import "fmt"

// A Window is a range of an array, counted in numbers rather than elements: [Start, Start+Len). If
// each element has n numbers, those of element i begin at i*n.
type Window struct {
	Start int64
	Len   int
}

// An Extent is a stretch of an array that no window may leave: one file, or all files if they are
// joined.
type Extent struct {
	Name    string // path of the first file
	Start   int64  // position of the first element
	Len     int64  // elements
	Matched bool   // whether only globs name the first file, so it may be too short for a row
}

// A Location is the place of an element.
type Location struct {
	Path  string
	Index int64 // number of the element in the file
}

// BOSError returns the error for a document, numbered within its file, that begins with another
// token than bos. at is the place of that token.
func BOSError(at Location, document int64, token string, bos uint64) error {
	return fmt.Errorf("%s: document %d begins with token %s, at index %d, and every document must begin with bos, which is %d; "+
		"batchfs prepare --eot begin writes such documents", at.Path, document, token, at.Index, bos)
}

// A VocabularyError reports a token beyond the vocabulary.
type VocabularyError struct {
	Location
	Token string // decimal digits of the token
	Size  int64  // size of the vocabulary
}

func (e *VocabularyError) Error() string {
	return fmt.Sprintf("%s: token %d is %s, and tokens must be below vocab_size, which is %d; are the file, token_dtype and vocab_size "+
		"(or a vocab.json next to the files of the split) right?", e.Path, e.Index, e.Token, e.Size)
}
