package sampler

import (
	"fmt"

	"batchfs/cache/array"
)

// A SourceArray is one array of a source, such as a *cache.Array. Positions are indexes of
// elements. It must be safe for concurrent use.
type SourceArray interface {
	DType() array.DType // dtype of the numbers in the files
	Axes() []int        // shape of one element; empty for tokens
	Len() int64         // number of elements
	VocabSize() int64   // exclusive upper bound of the tokens; 0 if unknown

	// Extents returns the stretches that windows must not leave, in order and without gaps. They
	// never change.
	Extents() []array.Extent

	// Read calls visit once for each window, in any order, with the window's index in ws and its
	// numbers in the dtype of the files. raw is valid only during the call.
	Read(ws []array.Window, visit func(i int, raw []byte) error) error

	// Cut returns the place nearest to pos at which the array can be cut: at a multiple of block
	// bytes in a file, or between two files. The elements below end lie before the cut, and those
	// from begin lie after it. An element that the cut divides is in neither part.
	Cut(pos, block int64) (end, begin int64)

	// Locate returns the file and the index in it of the element at pos.
	Locate(pos int64) array.Location
}

// Documents locates the documents of a source. It must be safe for concurrent use.
type Documents interface {
	// Count returns the number of documents. They hold all elements, but some may be empty.
	Count() int64

	// NumberAt returns the number of the document that holds the element at pos.
	NumberAt(pos int64) (int64, error)

	// Ends sets ends[i] to the position after the last element of document first+i.
	Ends(first int64, ends []int64) error
}

// A Source is a main array and the arrays aligned with it. All have the same length, and elements
// at the same position belong together.
type Source struct {
	Main      SourceArray
	Aligned   []SourceArray // same order as Settings.Arrays
	Documents Documents     // where documents end, whatever Settings.EOT is; nil if unknown

	// Counts is the result of Sequence.Counts for an earlier sequence of the same rows. If it is
	// empty, New counts the rows of documents, which takes about a second per 10^7 documents.
	Counts RowCounts

	Tables *Tables // may be shared by sources; nil: its own, of up to 64 MiB
}

// RowCounts describes the rows of documents of a source. It is empty for rows of Windows.
type RowCounts struct {
	Groups []int64 // number of rows up to the end of each group of documents
	Long   int64   // number of long documents; see TooLong
}

// A boundSource is a Source under the settings of one sequence.
type boundSource struct {
	arrays    []SourceArray // the main array, then the aligned ones
	documents Documents
	vocab     vocabulary
	cache     *windowCache // shared by all sequences of these tokens
	starts    *starts
	share     hostShare // windows of an epoch
	order     order
}

func (s Source) arrays() []SourceArray { return append([]SourceArray{s.Main}, s.Aligned...) }

// newBoundSource returns a source without settings; bind adds them.
func newBoundSource(from Source, s Settings) (boundSource, error) {
	main := from.Main
	for _, aligned := range from.Aligned {
		a, b := main.Extents(), aligned.Extents()
		if len(a) != len(b) { // the arrays are cut into different files
			a, b = []array.Extent{{Name: a[0].Name, Len: main.Len()}}, []array.Extent{{Name: b[0].Name, Len: aligned.Len()}}
		}
		for i := range a {
			if a[i].Len != b[i].Len {
				return boundSource{}, fmt.Errorf("%s has %d elements, but there are %d in %s: an aligned array needs one element for each token",
					b[i].Name, b[i].Len, a[i].Len, a[i].Name)
			}
		}
	}
	if from.Tables == nil {
		from.Tables = NewTables(defaultTableBytes)
	}
	cache := &windowCache{source: from, countsSpec: s.newWindowSpec()}
	return boundSource{arrays: from.arrays(), documents: from.Documents, vocab: newVocabulary(main.VocabSize(), main.DType()), cache: cache}, nil
}

// bind returns source i under settings.
func (s boundSource) bind(settings Settings, i int) (_ boundSource, err error) {
	spec := settings.newWindowSpec()
	if s.starts, err = s.cache.get(spec, func() (*starts, error) { return s.cache.build(spec) }); err != nil {
		return s, err
	}
	_, host := settings.epochGroup()
	if s.share, err = s.hostShareOf(settings, host); err != nil {
		return s, err
	}
	s.order, err = newOrder(settings, i, host, s.share)
	return s, err
}

// hostShareOf returns a host's share. s.starts must match the settings.
func (s *boundSource) hostShareOf(settings Settings, host int) (hostShare, error) {
	if settings.ShuffleBlock == 0 {
		return s.starts.wholeShare(), nil
	}
	hosts := settings.Hosts()
	share := newHostShare(s.starts, s.arrays[0], settings.ShuffleBlock, host, hosts)
	if share.windows == 0 {
		return share, fmt.Errorf("%s: cut into blocks of shuffle_block = %d bytes, there is no row for host %d of %d; reduce shuffle_block or world",
			s.arrays[0].Extents()[0].Name, settings.ShuffleBlock, host, hosts)
	}
	return share, nil
}
