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
	// A common run is reported from so many tokens on: what is shorter may be the same text in two documents. In files of fewer
	// tokens than four times as many, it is a quarter of their tokens.
	maxCommonRun = 1 << 16
	minCommonRun = 1 << 8
	// maxRunHashes bounds the fingerprints of all files, which take 16 bytes each, and half as much again where they are compared.
	maxRunHashes = 1 << 21
)

// mains are the main arrays that can be opened.
func (c *check) mains() []*checked {
	return slices.DeleteFunc(slices.Clone(c.files), func(f *checked) bool { return f.array == nil || !f.splitArray.main() })
}

// chooseWindow decides how long the runs with a fingerprint are. Runs of twice as many numbers are found.
func (c *check) chooseWindow(run int64) {
	files, numbers := c.mains(), int64(0)
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

// judgeDuplicates looks for main arrays that hold the same, and returns the first with the content of each.
func (c *check) judgeDuplicates() (same map[*checked]*checked) {
	first := map[string]*checked{} // by content
	same = map[*checked]*checked{}
	for _, f := range c.mains() {
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
		of := first[content]
		if of == nil {
			first[content] = f
			continue
		}
		same[f] = of
		p := f.problem(Duplicate)
		p.Count, p.Other = f.array.Len(), jsontext.String(of.path)
		if f.path == of.path {
			c.found(p, "%s is named twice, in source %d of splits.%s and in source %d of splits.%s; leave it out of one",
				f.path, of.splitArray.Source, of.splitArray.split, f.splitArray.Source, f.splitArray.split)
		} else {
			c.found(p, "%s holds the same as %s; leave one of them out", f.path, of.path)
		}
	}
	return same
}

// judgeOverlaps looks for runs of numbers that stand twice, except in files that are the same.
func (c *check) judgeOverlaps(same map[*checked]*checked) {
	files := c.mains()
	var starts []int64
	var prints []runHash
	for _, f := range files {
		starts = append(starts, f.base)
		for _, r := range f.results {
			for b := r.RunHashes; len(b) >= 16; b = b[16:] {
				prints = append(prints, runHash{binary.LittleEndian.Uint64(b), int64(binary.LittleEndian.Uint64(b[8:]))})
			}
		}
	}
	for _, run := range duplicateRuns(prints, c.window, starts) {
		a, b := files[streamOf(starts, run.a)], files[streamOf(starts, run.b)]
		if a != b && same[a] == same[b] && run.a-a.base == run.b-b.base {
			continue
		}
		run = extend(run, a, b, c.window)
		if run.n < c.report.CommonRun {
			continue
		}
		p, per := b.problem(Overlap), perElement(a.array)
		// Whole elements only.
		p.Index = (run.b - b.base + per - 1) / per
		p.Count = (run.b-b.base+run.n)/per - p.Index
		p.Other, p.OtherIndex = jsontext.String(a.path), (run.a-run.b+b.base+p.Index*per-a.base)/per
		elsewhere := ""
		if a.splitArray.split != b.splitArray.split {
			elsewhere = ", which is in split " + a.splitArray.split
		}
		c.found(p, "%s: the %d elements from number %d on are those of %s from number %d on%s", b.path, p.Count, p.Index, a.path, p.OtherIndex, elsewhere)
	}
}

// extend makes a common run of two files as long as it is. It is longer than it shows by fewer than w numbers on each side.
func extend(run duplicateRun, a, b *checked, w int64) duplicateRun {
	numbers := func(f *checked, from, n int64) (list []uint64) {
		d := decoder{dtype: f.array.DType()}
		f.array.Read([]array.Window{{Start: from - f.base, Len: int(n)}}, func(_ int, raw []byte) error {
			list = d.decode(raw)
			return nil
		})
		return list // none where they cannot be read, and then the run is as long as it shows
	}
	if n := min(w, run.a-a.base, run.b-b.base); n > 0 {
		x, y := numbers(a, run.a-n, n), numbers(b, run.b-n, n)
		for n = 0; int(n) < min(len(x), len(y)) && x[len(x)-1-int(n)] == y[len(y)-1-int(n)]; n++ {
		}
		run = duplicateRun{run.a - n, run.b - n, run.n + n}
	}
	enda, endb := run.a+run.n, run.b+run.n
	if n := min(w, a.base+a.numbers-enda, b.base+b.numbers-endb); n > 0 {
		x, y := numbers(a, enda, n), numbers(b, endb, n)
		for n = 0; int(n) < min(len(x), len(y)) && x[n] == y[n]; n++ {
		}
		run.n += n
	}
	return run
}
