package cache

import (
	"iter"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cache/blocks"
	"batchfs/cache/format"
	"batchfs/cache/localfile"
)

// An Array is kept in one or several files, one after the other. Its elements are tokens, or each is an array of numbers itself.
// A position counts elements from the first, in the order of the files. It is safe for concurrent use.
//
// It has no lock. Read and Release take the locks of its files, one at a time.
type Array struct {
	number  int64 // bytes of a number
	width   int64 // bytes of an element
	vocab   int64 // Options.VocabSize, of tokens
	shards  []shard
	extents []array.Extent

	documents *Documents // nil if Options did not ask, or no file says where they end
	unleased  string     // see Unleased

	followed []*blob.StoreBlob // objects that the store is asked about in turn, one at each RevalidateNext
	asked    atomic.Int64      // how often it was
}

type shard struct {
	blob   blob.Blob
	format format.Format
	start  int64  // position of its first element
	index  *index // where its documents end; nil where no file says it

	pass atomic.Int64 // the last Pass that had it
}

func (s *shard) end() int64 { return s.start + s.format.Count }

// Len is the number of elements.
func (a *Array) Len() int64 { return a.shards[len(a.shards)-1].end() }

// Bytes is the size of all elements.
func (a *Array) Bytes() int64 { return a.Len() * a.width }

// DType is the type of the numbers in the files.
func (a *Array) DType() array.DType { return a.shards[0].format.DType }

// Axes are the shape of an element, or none for a token. Do not change them.
func (a *Array) Axes() []int { return a.shards[0].format.Axes }

// VocabSize is Options.VocabSize, or 0 where elements are no tokens. Read does not compare tokens with it.
func (a *Array) VocabSize() int64 { return a.vocab }

// Files are the paths of the files of elements, in order.
func (a *Array) Files() []string {
	paths := make([]string, len(a.shards))
	for i := range a.shards {
		paths[i] = a.shards[i].blob.Path()
	}
	return paths
}

// Blobs returns the files of elements, each followed by the one that says where its documents end, if
// there is one.
func (a *Array) Blobs() iter.Seq[blob.Blob] {
	return func(yield func(blob.Blob) bool) {
		for i := range a.shards {
			if !a.shards[i].yieldBlobs(yield) {
				return
			}
		}
	}
}

// yieldBlobs calls yield for the files of a shard, and reports whether all calls returned true.
func (s *shard) yieldBlobs(yield func(blob.Blob) bool) bool {
	return yield(s.blob) && (s.index == nil || yield(s.index.blob))
}

// Extents are the stretches that windows must stay within, in order and without gaps. Do not change them.
func (a *Array) Extents() []array.Extent { return a.extents }

// Cut is where the array can be cut nearest to a position: at a multiple of block bytes of a file, or between two files. Elements below
// end lie before that, and those from begin on behind it: an element with bytes on both sides is neither.
func (a *Array) Cut(pos, block int64) (end, begin int64) {
	s := a.shardAt(min(pos, a.Len()-1))
	first, last := s.format.Offset, s.format.Offset+s.format.Count*a.width // bytes of the file
	at := first + (pos-s.start)*a.width
	cut := max(at/block*block, first)
	if next := min(at/block*block+block, last); next-at < at-cut {
		cut = next
	}
	return s.start + (cut-first)/a.width, s.start + (cut-first+a.width-1)/a.width
}

// Locate is where the element at a position stands.
func (a *Array) Locate(pos int64) array.Location {
	s := a.shardAt(pos)
	return array.Location{Path: s.blob.Path(), Index: pos - s.start}
}

// RevalidateNext asks the store whether it still has one of the objects of a followed array, the
// next one at each call. It does not wait for the answer, which [blob.Blob.Check] gives from then
// on.
func (a *Array) RevalidateNext() {
	if n := int64(len(a.followed)); n > 0 {
		go a.followed[a.asked.Add(1)%n].Revalidate()
	}
}

// A Pass is a series of calls of BlobsOf that yields each file once.
type Pass int64

var passes atomic.Int64

// NewPass returns a new Pass.
func NewPass() Pass { return Pass(passes.Add(1)) }

// BlobsOf returns the files that a window is read from, without those that p has had.
func (a *Array) BlobsOf(w array.Window, p Pass) iter.Seq[blob.Blob] {
	return func(yield func(blob.Blob) bool) {
		for piece := range a.span(w).Parts(a.piece) {
			if s := &a.shards[piece.Index]; s.pass.Swap(int64(p)) != int64(p) && !s.yieldBlobs(yield) {
				return
			}
		}
	}
}

// Unleased returns a file whose writers Open could not determine, or an empty string. See
// Options.CheckNoWriters.
func (a *Array) Unleased() string { return a.unleased }

// Release drops the mappings and descriptors that are kept between two reads, which keep the space of deleted files taken.
func (a *Array) Release() {
	for file := range a.Blobs() {
		file.Release()
	}
}

func (a *Array) shardAt(pos int64) *shard { return &a.shards[a.shardNumber(pos)] }

func (a *Array) shardNumber(pos int64) int {
	return sort.Search(len(a.shards), func(i int) bool { return a.shards[i].start > pos }) - 1
}

var rangeLists = sync.Pool{New: func() any { return new([]localfile.Range) }}

// Read calls visit for each window, in any order, with its index in ws and its numbers as they stand in the file: see blob.Blob. Each window
// must lie within a run.
func (a *Array) Read(ws []array.Window, visit func(i int, raw []byte) error) error {
	list := rangeLists.Get().(*[]localfile.Range)
	defer rangeLists.Put(list)
	todo := slices.Grow((*list)[:0], len(ws))
	for i, w := range ws {
		r := a.span(w)
		r.Index = i
		todo = append(todo, r)
	}
	*list = todo
	if len(a.shards) > 1 {
		localfile.SortRanges(todo) // each file is opened once then
	}
	return localfile.ReadPieces(todo, a.piece, a.readShard, visit)
}

func (a *Array) readShard(i int64, ranges []localfile.Range, visit func(int, []byte) error) error {
	return a.shards[i].blob.Read(ranges, visit)
}

// span is the bytes of the array that hold a window.
func (a *Array) span(w array.Window) localfile.Range {
	return localfile.Range{From: w.Start * a.number, To: (w.Start + int64(w.Len)) * a.number}
}

// piece returns the shard that holds a byte of the array.
func (a *Array) piece(at int64) localfile.Piece {
	i := a.shardNumber(at / a.width)
	s := &a.shards[i]
	return localfile.Piece{Index: int64(i), Start: s.start*a.width - s.format.Offset, End: s.end() * a.width}
}

// objectRanges returns what objects of a store hold of bytes of the array, and the shards of these
// objects.
func (a *Array) objectRanges(bytes localfile.Range) iter.Seq2[*shard, blocks.ObjectRange] {
	return func(yield func(*shard, blocks.ObjectRange) bool) {
		for piece, r := range bytes.Parts(a.piece) {
			s := &a.shards[piece.Index]
			if b, ok := s.blob.(*blob.StoreBlob); ok && !yield(s, b.Range(r.From, r.To)) {
				return
			}
		}
	}
}

// Prefetch has a window fetched that lies in a store, after the windows of earlier calls, and does not
// wait. It returns false if there is no room yet for all of it: the caller must then repeat the call
// later.
func (a *Array) Prefetch(w array.Window, d blocks.Demand) (room bool) {
	for _, r := range a.objectRanges(a.span(w)) {
		if !r.Prefetch(d) {
			return false
		}
	}
	return true
}

// Blocks calls visit for each block of size bytes, numbered within its file, that holds some of a window.
func (a *Array) Blocks(w array.Window, size int64, visit func(file int, block int64)) {
	for piece, r := range a.span(w).Parts(a.piece) {
		for block := range blocks.Holding(r.From, r.To, size) {
			visit(int(piece.Index), block)
		}
	}
}

// FileBytes are the sizes of Files.
func (a *Array) FileBytes() []int64 {
	sizes := make([]int64, len(a.shards))
	for i := range a.shards {
		sizes[i] = a.shards[i].blob.Identity().Size
	}
	return sizes
}

// Between are the elements that have bytes in the bytes [from, to) of a file, from position begin to before end.
func (a *Array) Between(file int, from, to int64) (begin, end int64) {
	s := &a.shards[file]
	from, to = max(from-s.format.Offset, 0), max(to-s.format.Offset, 0)
	return s.start + min(from/a.width, s.format.Count), s.start + min((to+a.width-1)/a.width, s.format.Count)
}

// IsRemote reports whether some of the array lies in a store.
func (a *Array) IsRemote() bool { return slices.ContainsFunc(a.Files(), blob.IsRemote) }
