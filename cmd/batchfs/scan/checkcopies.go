package scan

import (
	"crypto/sha256"
	"fmt"
	"math/bits"
	"slices"

	"batchfs/internal/jsonbytes"
)

const (
	// defaultPassage is the length of the shortest duplicated passage that is reported by default,
	// in tokens. Documents may quote shorter ones. For small files, it is a quarter of their
	// average size, but at least smallestPassage.
	defaultPassage  = 1 << 16
	smallestPassage = 1 << 8
	// maxWindowHashes limits the memory for window hashes: 16 bytes for each, and 24 for each pair
	// of equal ones.
	maxWindowHashes = 1 << 21
)

// mainFiles returns the files of main arrays that could be opened.
func (c *check) mainFiles() []*checkedFile {
	return slices.DeleteFunc(slices.Clone(c.files), func(f *checkedFile) bool { return f.array == nil || !f.splitArray.main() })
}

// chooseWindow sets how many tokens a window hash covers. Duplicates of at least twice as many
// tokens are found.
func (c *check) chooseWindow(shortest int64) {
	files, numbers := c.mainFiles(), int64(0)
	for _, f := range files {
		numbers += f.numbers
	}
	if shortest == 0 {
		shortest = min(defaultPassage, max(smallestPassage, numbers/max(4*int64(len(files)), 1)))
	}
	least := max(4*numbers/maxWindowHashes, 16)
	c.report.MinPassage = max(shortest, least)
	// Larger windows would find no more, and take memory.
	c.window = 1 << (bits.Len64(uint64(min(c.report.MinPassage, max(defaultPassage, least)))) - 2)
}

// reportDuplicates reports files with the same content. For each file, it returns the first one
// with the same content.
func (c *check) reportDuplicates() (same map[*checkedFile]*checkedFile) {
	first := map[string]*checkedFile{} // keyed by content
	same = map[*checkedFile]*checkedFile{}
	for _, f := range c.mainFiles() {
		same[f] = f
		if f.failed {
			continue
		}
		sum := sha256.New()
		fmt.Fprintln(sum, f.dtype, f.array.Axes(), f.numbers)
		for _, r := range f.results {
			sum.Write(r.sum)
		}
		content := string(sum.Sum(nil))
		original := first[content]
		if original == nil {
			first[content] = f
			continue
		}
		same[f] = original
		p := f.problem(Duplicate)
		p.Count, p.Other = f.array.Len(), jsonbytes.String(original.path)
		if f.path == original.path {
			c.addProblem(p, "%s is listed twice, in source %d of splits.%s and in source %d of splits.%s; remove it from one of them",
				f.path, original.splitArray.Source, original.splitArray.split, f.splitArray.Source, f.splitArray.split)
		} else {
			c.addProblem(p, "%s has the same content as %s; remove one of them", f.path, original.path)
		}
	}
	return same
}

// reportOverlaps reports passages that occur twice, other than leaks and the passages of files with
// the same content.
func (c *check) reportOverlaps(same map[*checkedFile]*checkedFile) {
	files := c.mainFiles()
	var starts []int64
	var hashes []windowHash
	for _, f := range files {
		starts = append(starts, f.offset)
		for _, r := range f.results {
			hashes = append(hashes, r.hashes...)
		}
	}
	for _, passage := range duplicatePassages(hashes, c.window, starts) {
		a, b := files[streamIndex(starts, passage.a)], files[streamIndex(starts, passage.b)]
		leak := a.splitArray.split != b.splitArray.split && isTokens(a.array) && isTokens(b.array)
		if leak || a != b && same[a] == same[b] && passage.a-a.offset == passage.b-b.offset {
			continue
		}
		passage = extendPassage(passage, a, b, c.window)
		if passage.n < c.report.MinPassage {
			continue
		}
		p, per := b.problem(Overlap), numbersPerElement(a.array)
		// A problem covers whole elements only.
		p.Index = (passage.b - b.offset + per - 1) / per
		p.Count = (passage.b-b.offset+passage.n)/per - p.Index
		p.Other, p.OtherIndex = jsonbytes.String(a.path), (passage.a-passage.b+b.offset+p.Index*per-a.offset)/per
		elsewhere := ""
		if a.splitArray.split != b.splitArray.split {
			elsewhere = " of split " + a.splitArray.split
		}
		c.addProblem(p, "%s: %d elements, from index %d on, are also in %s%s, from index %d on", b.path, p.Count, p.Index, a.path, elsewhere, p.OtherIndex)
	}
}

// extendPassage returns a duplicated passage in its full length. Window hashes may miss up to w-1
// numbers on each side.
func extendPassage(passage duplicatePassage, a, b *checkedFile, w int64) duplicatePassage {
	var c comparer
	before := c.equal(a, passage.a-a.offset, b, passage.b-b.offset, w, true)
	after := c.equal(a, passage.a-a.offset+passage.n, b, passage.b-b.offset+passage.n, w, false)
	return duplicatePassage{passage.a - before, passage.b - before, before + passage.n + after}
}
