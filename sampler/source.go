package sampler

import (
	"fmt"
	"hash/fnv"
	"weak"

	"batchfs/cache/array"
)

// Array is what a sequence needs of one array of a source. A *cache.Array is one. Positions count from its first element. It must
// be safe for concurrent use.
type Array interface {
	DType() array.DType // of a number in the files
	Axes() []int        // the shape of an element; tokens have none
	Len() int64         // elements
	VocabSize() int64   // all tokens are below it; 0: unknown

	// Extents are the stretches that a row must not leave, in order and without gaps. They never
	// change.
	Extents() []array.Extent

	// Read calls visit once for each window, in any order, with its index in ws and its numbers as in the files. raw is valid
	// during the call only.
	Read(ws []array.Window, visit func(i int, raw []byte) error) error

	// Cut is where the array can be cut nearest to a position: at a multiple of block bytes of a file, or between two files. Elements
	// below end lie before that, and those from begin on behind it: an element with bytes on both sides is neither.
	Cut(pos, block int64) (end, begin int64)

	// Locate says, for an error, where the element at a position stands.
	Locate(pos int64) array.Location
}

// Documents say where the documents of a source end. It must be safe for concurrent use.
type Documents interface {
	// Count is the number of documents. None is empty, and they hold all elements.
	Count() int64

	// Of is the number of the document that holds the element at a position.
	Of(pos int64) (int64, error)

	// Ends sets ends to the positions behind the last elements of documents first, first+1, ...
	Ends(first int64, ends []int64) error
}

// A Source is arrays of one length. The elements at one position belong together.
type Source struct {
	Main      Array
	Aligned   []Array   // as Settings.Arrays
	Documents Documents // nil: where they end is unknown

	// Groups is what Groups of such a sequence gave. Without it, rows of documents are counted: a second for some 10^7 documents.
	Groups []int64

	Tables *Tables // which sources may share; nil: its own, of up to 64 MiB
}

type source struct {
	arrays    []Array // the main one, and those beside it
	documents Documents
	vocab     vocabulary
	cache     *windowCache // shared by all sequences of these tokens
	hostShare              // the windows of an epoch
	order     order
}

func (s Source) arrays() []Array { return append([]Array{s.Main}, s.Aligned...) }

// newSource is a source without settings.
func newSource(from Source, s Settings) (source, error) {
	main := from.Main
	for _, beside := range from.Aligned {
		a, b := main.Extents(), beside.Extents()
		if len(a) != len(b) { // which files may be cut elsewhere
			a, b = []array.Extent{{Name: a[0].Name, Len: main.Len()}}, []array.Extent{{Name: b[0].Name, Len: beside.Len()}}
		}
		for i := range a {
			if a[i].Len != b[i].Len {
				return source{}, fmt.Errorf("%s has %d elements, but there are %d in %s: an array beside the tokens has one for each of them",
					b[i].Name, b[i].Len, a[i].Len, a[i].Name)
			}
		}
	}
	if from.Tables == nil {
		from.Tables = NewTables(defaultTables)
	}
	cache := &windowCache{source: from, counted: s.window(), cached: map[windowSpec]weak.Pointer[starts]{}}
	return source{arrays: from.arrays(), documents: from.Documents, vocab: newVocabulary(main.VocabSize(), main.DType()), cache: cache}, nil
}

func (s source) with(settings Settings, i int) (_ source, err error) {
	if s.starts, err = s.cache.get(settings.window()); err != nil {
		return s, err
	}
	_, host := settings.together()
	if s.hostShare, err = s.hostShareOf(settings, host); err != nil {
		return s, err
	}
	s.order, err = newOrder(settings, i, host, s.hostShare)
	return s, err
}

// hostShareOf needs settings for which s has starts.
func (s *source) hostShareOf(settings Settings, host int) (hostShare, error) {
	if settings.ShuffleBlock == 0 {
		return s.starts.whole(), nil
	}
	hosts := settings.World / settings.LocalWorld
	of := newHostShare(s.starts, s.arrays[0], settings.ShuffleBlock, host, hosts)
	if of.n == 0 {
		return of, fmt.Errorf("%s: cut into blocks of shuffle_block = %d bytes, there is no row for host %d of %d; set shuffle_block to fewer bytes, "+
			"or world to fewer ranks", s.arrays[0].Extents()[0].Name, settings.ShuffleBlock, host, hosts)
	}
	return of, nil
}

// newOrder is the order of a source. Each source has its own random stream, which is named after the split, one of several sources
// "split/source", and each host with a share adds "/host3". No split has a name with a slash.
func newOrder(s Settings, source, host int, of hostShare) (order, error) {
	name, w := s.Name, of.starts
	if len(s.Weights) > 1 {
		name = fmt.Sprintf("%s/%d", s.Name, source)
	}
	if s.ShuffleBlock > 0 {
		name = fmt.Sprintf("%s/host%d", name, host)
	}
	h := fnv.New64a()
	h.Write([]byte(name))
	key := [2]uint64{s.Seed, h.Sum64()}
	switch s.Order {
	case Sequential:
		return &epochs{of, sequential{}}, nil
	case Shuffle:
		if of.block > 0 {
			return &epochs{of, newRunShuffle(key, uint64(of.n), uint64(of.block))}, nil
		}
		return &epochs{of, &shuffle{newPermutations(key, uint64(of.n))}}, nil
	case Torch, Torch26:
		if s.ofSegments() {
			return nil, fmt.Errorf("order %s draws windows; choose another order, or rows = \"windows\" (got rows = %q)", s.Order, s.Rows)
		}
		if len(s.Weights) > 1 {
			return nil, fmt.Errorf("order %s draws from one array of tokens and cannot mix sources; choose another order", s.Order)
		}
		return newTorch(s, w)
	}
	return &random{w, key}, nil
}
