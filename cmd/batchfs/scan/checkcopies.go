package scan

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"batchfs/cache/array"
	"batchfs/internal/jsontext"
)

const (
	// maxCommonRun is the shortest duplicated run that is reported by default, in tokens. Documents
	// may quote shorter ones. For small files, it is a quarter of their average size, but at least
	// minCommonRun.
	maxCommonRun = 1 << 16
	minCommonRun = 1 << 8
	// maxRunHashes limits the memory for fingerprints: 16 bytes for each, and 24 for each pair of
	// equal ones.
	maxRunHashes = 1 << 21
)

// mainFiles returns the files of main arrays that could be opened.
func (c *check) mainFiles() []*checkedFile {
	return slices.DeleteFunc(slices.Clone(c.files), func(f *checkedFile) bool { return f.array == nil || !f.splitArray.main() })
}

// chooseWindow sets how many tokens a fingerprint covers. Duplicates of at least twice as many
// tokens are found.
func (c *check) chooseWindow(run int64) {
	files, numbers := c.mainFiles(), int64(0)
	for _, f := range files {
		numbers += f.numbers
	}
	if run == 0 {
		run = min(maxCommonRun, max(minCommonRun, numbers/max(4*int64(len(files)), 1)))
	}
	run = max(run, 4*numbers/maxRunHashes, 16)
	c.window = 1 << (bits.Len64(uint64(run)) - 2)
	c.report.CommonRun = run
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
		fmt.Fprintln(sum, f.array.DType(), f.array.Axes(), f.numbers)
		for _, r := range f.results {
			sum.Write(r.Sum)
		}
		content := string(sum.Sum(nil))
		original := first[content]
		if original == nil {
			first[content] = f
			continue
		}
		same[f] = original
		p := f.problem(Duplicate)
		p.Count, p.Other = f.array.Len(), jsontext.String(original.path)
		if f.path == original.path {
			c.addProblem(p, "%s is listed twice, in source %d of splits.%s and in source %d of splits.%s; remove it from one of them",
				f.path, original.splitArray.Source, original.splitArray.split, f.splitArray.Source, f.splitArray.split)
		} else {
			c.addProblem(p, "%s has the same content as %s; remove one of them", f.path, original.path)
		}
	}
	return same
}

// reportOverlaps reports runs of numbers that occur twice, except in files with the same content.
func (c *check) reportOverlaps(same map[*checkedFile]*checkedFile) {
	files := c.mainFiles()
	var starts []int64
	var hashes []runHash
	for _, f := range files {
		starts = append(starts, f.offset)
		for _, r := range f.results {
			for b := r.RunHashes; len(b) >= 16; b = b[16:] {
				hashes = append(hashes, runHash{binary.LittleEndian.Uint64(b), int64(binary.LittleEndian.Uint64(b[8:]))})
			}
		}
	}
	for _, run := range duplicateRuns(hashes, c.window, starts) {
		a, b := files[streamIndex(starts, run.a)], files[streamIndex(starts, run.b)]
		if a != b && same[a] == same[b] && run.a-a.offset == run.b-b.offset {
			continue
		}
		run = extendRun(run, a, b, c.window)
		if run.n < c.report.CommonRun {
			continue
		}
		p, per := b.problem(Overlap), numbersPerElement(a.array)
		// A problem covers whole elements only.
		p.Index = (run.b - b.offset + per - 1) / per
		p.Count = (run.b-b.offset+run.n)/per - p.Index
		p.Other, p.OtherIndex = jsontext.String(a.path), (run.a-run.b+b.offset+p.Index*per-a.offset)/per
		elsewhere := ""
		if a.splitArray.split != b.splitArray.split {
			elsewhere = " of split " + a.splitArray.split
		}
		c.addProblem(p, "%s: %d elements, from index %d on, are also in %s%s, from index %d on", b.path, p.Count, p.Index, a.path, elsewhere, p.OtherIndex)
	}
}

// extendRun returns a duplicated run in its full length. Fingerprints may miss up to w-1 numbers on
// each side.
func extendRun(run duplicateRun, a, b *checkedFile, w int64) duplicateRun {
	numbers := func(f *checkedFile, from, n int64) (list []uint64) {
		d := decoder{dtype: f.array.DType()}
		f.array.Read([]array.Window{{Start: from - f.offset, Len: int(n)}}, func(_ int, raw []byte) error {
			list = d.decode(raw)
			return nil
		})
		return list // empty if they cannot be read; the run then stays as it is
	}
	if n := min(w, run.a-a.offset, run.b-b.offset); n > 0 {
		x, y := numbers(a, run.a-n, n), numbers(b, run.b-n, n)
		for n = 0; int(n) < min(len(x), len(y)) && x[len(x)-1-int(n)] == y[len(y)-1-int(n)]; n++ {
		}
		run = duplicateRun{run.a - n, run.b - n, run.n + n}
	}
	endA, endB := run.a+run.n, run.b+run.n
	if n := min(w, a.offset+a.numbers-endA, b.offset+b.numbers-endB); n > 0 {
		x, y := numbers(a, endA, n), numbers(b, endB, n)
		for n = 0; int(n) < min(len(x), len(y)) && x[n] == y[n]; n++ {
		}
		run.n += n
	}
	return run
}
