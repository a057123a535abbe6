package cache

import (
	"iter"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cache/blocks"
	"batchfs/cache/format"
	"batchfs/cache/localfile"
)

// An Array joins the elements of one or more files. An element is a token, or an array of numbers
// of a fixed shape. Positions count elements from 0.
//
// An Array is safe for concurrent use. It has no lock: Read and Release take the locks of its
// files, one at a time.
type Array struct {
	numberBytes  int64
	elementBytes int64
	vocabSize    int64 // 0 if elements are not tokens
	shards       []shard
	extents      []array.Extent

	documents *Documents // nil if not requested, or if no file has an index
	unleased  string     // see Unleased

	revalidated   []*blob.StoreBlob // objects that RevalidateNext checks; nil unless followed
	revalidations atomic.Int64      // number of objects checked
}

type shard struct {
	blob    blob.Blob
	format  format.Format
	matched bool           // see File.Matched
	start   int64          // position of its first element
	index   *documentIndex // nil if there is none

	lastSeries atomic.Int64 // latest Series in which BlobsOf yielded the shard
}

func (s *shard) end() int64 { return s.start + s.format.Count }

// Len returns the number of elements.
func (a *Array) Len() int64 { return a.shards[len(a.shards)-1].end() }

// Bytes returns the size of all elements.
func (a *Array) Bytes() int64 { return a.Len() * a.elementBytes }

// Modified returns the latest modification time of the files that hold elements.
func (a *Array) Modified() (latest time.Time) {
	for i := range a.shards {
		stamp := a.shards[i].blob.Stamp()
		if t := time.Unix(stamp.Sec, stamp.Nsec); t.After(latest) {
			latest = t
		}
	}
	return latest
}

// DType returns the type of the numbers.
func (a *Array) DType() array.DType { return a.shards[0].format.DType }

// Axes returns the shape of an element: nil for a token. The caller must not change it.
func (a *Array) Axes() []int { return a.shards[0].format.Axes }

// VocabSize returns the vocabulary size in Options, or 0 if the elements are not tokens. Read does
// not check tokens against it.
func (a *Array) VocabSize() int64 { return a.vocabSize }

// Files returns the paths of the files that hold elements, in order.
func (a *Array) Files() []string {
	paths := make([]string, len(a.shards))
	for i := range a.shards {
		paths[i] = a.shards[i].blob.Path()
	}
	return paths
}

// Blobs returns the files, each followed by the index of its documents, if any.
func (a *Array) Blobs() iter.Seq[blob.Blob] {
	return func(yield func(blob.Blob) bool) {
		for i := range a.shards {
			if !a.shards[i].yieldBlobs(yield) {
				return
			}
		}
	}
}

// yieldBlobs yields the file and its index, if any, and reports whether yield always returned true.
func (s *shard) yieldBlobs(yield func(blob.Blob) bool) bool {
	return yield(s.blob) && (s.index == nil || yield(s.index.blob))
}

// Extents returns the stretches that windows must stay within, in order and without gaps. The
// caller must not change them.
func (a *Array) Extents() []array.Extent { return a.extents }

// Cut returns the cut nearest to pos: at a multiple of block bytes in a file, or between two files.
// Elements below end lie before the cut, and those from begin lie after it. An element that the cut
// divides is in neither part.
func (a *Array) Cut(pos, block int64) (end, begin int64) {
	s := a.shardAt(min(pos, a.Len()-1))
	// The elements are the bytes [first, last) of the file.
	first, last := s.format.Offset, s.format.Offset+s.format.Count*a.elementBytes
	target := first + (pos-s.start)*a.elementBytes
	cut := max(target/block*block, first)
	if next := min(target/block*block+block, last); next-target < target-cut {
		cut = next
	}
	return s.start + (cut-first)/a.elementBytes, s.start + (cut-first+a.elementBytes-1)/a.elementBytes
}

// Locate returns where the element at a position lies.
func (a *Array) Locate(pos int64) array.Location {
	s := a.shardAt(pos)
	return array.Location{Path: s.blob.Path(), Index: pos - s.start}
}

// RevalidateNext asks the store, in the background, whether an object of a followed array has
// changed: the next object in each call. [blob.Blob.Check] then reports the change.
func (a *Array) RevalidateNext() {
	if n := int64(len(a.revalidated)); n > 0 {
		go a.revalidated[a.revalidations.Add(1)%n].Revalidate()
	}
}

// A Series identifies a series of calls of BlobsOf. Later calls skip the files that earlier ones
// yielded. If two series overlap, a file may be yielded twice.
type Series int64

var allSeries atomic.Int64

// NewSeries begins a Series.
func NewSeries() Series { return Series(allSeries.Add(1)) }

// BlobsOf returns the files that a read of w uses, without those already yielded in the series n.
func (a *Array) BlobsOf(w array.Window, n Series) iter.Seq[blob.Blob] {
	return func(yield func(blob.Blob) bool) {
		for piece := range a.byteRange(w).Parts(a.pieceAt) {
			if s := &a.shards[piece.Index]; s.lastSeries.Swap(int64(n)) != int64(n) && !s.yieldBlobs(yield) {
				return
			}
		}
	}
}

// Unleased returns a file whose writers Open could not determine, or "". See
// Options.CheckNoWriters.
func (a *Array) Unleased() string { return a.unleased }

// Release drops the descriptors kept between reads, which frees the space of deleted files.
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

// Read calls visit for each window, in any order, with the window's index in ws and its numbers as
// they are in the file. raw is valid only during the call. A window that spans files is copied.
func (a *Array) Read(ws []array.Window, visit func(i int, raw []byte) error) error {
	list := rangeLists.Get().(*[]localfile.Range)
	defer rangeLists.Put(list)
	todo := slices.Grow((*list)[:0], len(ws))
	for i, w := range ws {
		r := a.byteRange(w)
		r.Index = i
		todo = append(todo, r)
	}
	*list = todo
	if len(a.shards) > 1 {
		localfile.SortRanges(todo) // opens each file once
	}
	return localfile.ReadPieces(todo, a.pieceAt, a.readShard, visit)
}

func (a *Array) readShard(i int64, ranges []localfile.Range, visit func(int, []byte) error) error {
	return a.shards[i].blob.Read(ranges, visit)
}

func (a *Array) byteRange(w array.Window) localfile.Range {
	return localfile.Range{From: w.Start * a.numberBytes, To: (w.Start + int64(w.Len)) * a.numberBytes}
}

func (a *Array) pieceAt(pos int64) localfile.Piece {
	i := a.shardNumber(pos / a.elementBytes)
	s := &a.shards[i]
	return localfile.Piece{Index: int64(i), Start: s.start*a.elementBytes - s.format.Offset, End: s.end() * a.elementBytes}
}

// objectRanges yields the parts of a range of bytes of the array that lie in a store, each with its
// shard.
func (a *Array) objectRanges(bytes localfile.Range) iter.Seq2[*shard, blocks.ObjectRange] {
	return func(yield func(*shard, blocks.ObjectRange) bool) {
		for piece, r := range bytes.Parts(a.pieceAt) {
			s := &a.shards[piece.Index]
			if b, ok := s.blob.(*blob.StoreBlob); ok && !yield(s, b.Range(r.From, r.To)) {
				return
			}
		}
	}
}

// Prefetch queues the parts of a window that lie in a store: see [blocks.ObjectRange.Prefetch].
func (a *Array) Prefetch(w array.Window, d blocks.Demand) (room bool) {
	for _, r := range a.objectRanges(a.byteRange(w)) {
		if !r.Prefetch(d) {
			return false
		}
	}
	return true
}

// Blocks divides each file into blocks of size bytes, and calls visit for those that hold part of a
// window.
func (a *Array) Blocks(w array.Window, size int64, visit func(file int, block int64)) {
	for piece, r := range a.byteRange(w).Parts(a.pieceAt) {
		for block := range blocks.Holding(r.From, r.To, size) {
			visit(int(piece.Index), block)
		}
	}
}

// FileBytes returns the size of each of Files, in bytes.
func (a *Array) FileBytes() []int64 {
	sizes := make([]int64, len(a.shards))
	for i := range a.shards {
		sizes[i] = a.shards[i].blob.Stamp().Size
	}
	return sizes
}

// ElementsIn returns the positions [begin, end) of the elements that overlap the bytes [from, to)
// of a file.
func (a *Array) ElementsIn(file int, from, to int64) (begin, end int64) {
	s := &a.shards[file]
	from, to = max(from-s.format.Offset, 0), max(to-s.format.Offset, 0)
	return s.start + min(from/a.elementBytes, s.format.Count), s.start + min((to+a.elementBytes-1)/a.elementBytes, s.format.Count)
}

// IsRemote reports whether any file lies in a store.
func (a *Array) IsRemote() bool { return slices.ContainsFunc(a.Files(), blob.IsRemote) }
