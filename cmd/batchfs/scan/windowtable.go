package scan

import (
	"cmp"
	"context"
	"math/bits"
	"slices"
	"sync/atomic"
)

// Every run of minRun tokens holds a whole window that begins at a multiple of windowStride.
const (
	minRun       = 64
	windowStride = minRun / 2
	windowTokens = minRun - windowStride + 1
)

// A window whose tokens occur more often than maxOccurrences in the searched files is boilerplate.
const maxOccurrences = 16

// A keyedWindow is a window of the split that is searched for. Windows with the same tokens count
// occurrences in the first of them.
type keyedWindow struct {
	hash        uint64
	number      uint32 // of the window in the table's part of the split
	occurrences uint32
	seen        uint64 // see matcher.isWithin
}

// A windowTable finds windows by hash. It takes 24 bytes for each window, 2 to 5 in the filters and
// 1 or 2 in the buckets, and thus less than one byte for each token. Its methods can be called
// concurrently.
type windowTable struct {
	coarse, fine bloomFilter // coarse decides most cases, and fits in the processor's cache
	buckets      []uint32    // index of the first window in each bucket, which the highest bits select
	bucketShift  int
	windows      []keyedWindow
}

// A bloomFilter tells most hashes that were not added to it. Each hash sets two bits of a word.
type bloomFilter struct {
	words []uint64
	shift int
}

func newBloomFilter(width int) bloomFilter {
	return bloomFilter{make([]uint64, 1<<max(width, 0)), 64 - max(width, 0)}
}

func (b bloomFilter) add(hash uint64) { b.words[hash>>b.shift] |= 1<<(hash>>6&63) | 1<<(hash&63) }

// keep keeps the indexes of the hashes that may have been added. It does not branch, so that the
// processor loads many words at a time.
func (b bloomFilter) keep(hashes []uint64, list []int) []int {
	n := 0
	for _, i := range list {
		hash := hashes[i]
		word := b.words[hash>>b.shift]
		list[n] = i
		n += int(word >> (hash >> 6 & 63) & (word >> (hash & 63)) & 1)
	}
	return list[:n]
}

// newWindowTable takes over windows.
func newWindowTable(windows []keyedWindow) *windowTable {
	slices.SortFunc(windows, func(a, b keyedWindow) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.number, b.number))
	})
	width := bits.Len(uint(len(windows)))
	t := &windowTable{coarse: newBloomFilter(width - 4), fine: newBloomFilter(width - 2), windows: windows, bucketShift: 64 - max(width-2, 0)}
	t.buckets = make([]uint32, 1<<(64-t.bucketShift)+1)
	for i, w := range windows {
		t.coarse.add(w.hash)
		t.fine.add(w.hash)
		t.buckets[w.hash>>t.bucketShift+1] = uint32(i + 1)
	}
	for i := range t.buckets[1:] {
		t.buckets[i+1] = max(t.buckets[i], t.buckets[i+1]) // a bucket may be empty
	}
	return t
}

// candidates returns the indexes of the hashes that a window may have. It is wrong for about one
// hash in a hundred. It reuses list.
func (t *windowTable) candidates(hashes []uint64, list []int) []int {
	list = list[:0]
	for i := range hashes {
		list = append(list, i)
	}
	return t.fine.keep(hashes, t.coarse.keep(hashes, list))
}

// find counts an occurrence and returns the windows with the hash, or none if they are boilerplate.
func (t *windowTable) find(hash uint64) []keyedWindow {
	bucket := hash >> t.bucketShift
	i, end := t.buckets[bucket], t.buckets[bucket+1]
	for j := end; i < j; {
		if middle := (i + j) / 2; t.windows[middle].hash < hash {
			i = middle + 1
		} else {
			j = middle
		}
	}
	list := t.windows[i:end]
	// Processors would contend for the counters of boilerplate if it were counted on and on.
	if len(list) == 0 || list[0].hash != hash || atomic.LoadUint32(&list[0].occurrences) > maxOccurrences ||
		atomic.AddUint32(&list[0].occurrences, 1) > maxOccurrences {
		return nil
	}
	n := 1
	for n < len(list) && list[n].hash == hash {
		n++
	}
	return list[:n]
}

// hashWindows calls visit with the hashes of the windows of a file that begin at at, at+1, and so
// on. Together, they begin at [from, to).
func hashWindows(ctx context.Context, f *checkedFile, from, to int64, visit func(at int64, hashes []uint64)) error {
	const batch = 4096
	baseToWindow := uint64(1)
	for range windowTokens {
		baseToWindow *= hashBase
	}
	d, size, sum := decoder{dtype: f.array.DType()}, f.array.DType().Size(), uint64(0)
	recent, hashes := make([]uint64, windowTokens, windowTokens+batch), make([]uint64, batch)
	return read(ctx, f.array, from, min(to+windowTokens-1, f.numbers), func(at int64, raw []byte) error {
		at -= windowTokens - 1
		for len(raw) > 0 {
			tokens := d.decode(raw[:min(len(raw), batch*size)])
			raw, recent = raw[len(tokens)*size:], append(recent[:windowTokens], tokens...)
			for i, v := range tokens {
				sum = sum*hashBase + v - recent[i]*baseToWindow
				hashes[i] = (sum ^ sum>>32) * hashBase
			}
			copy(recent, recent[len(tokens):])
			skip := min(max(from-at, 0), int64(len(tokens)))
			visit(at+skip, hashes[skip:len(tokens)])
			at += int64(len(tokens))
		}
		return nil
	})
}
