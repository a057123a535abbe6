package scan

import (
	"fmt"
	"io"
	"maps"
	"math"
	"math/bits"
	"slices"

	"batchfs/cmd/batchfs/terminal"
)

// A histogram counts numbers by powers of two: 0, 1, 2 to 3, 4 to 7 and so on. Negative numbers
// share one bin.
type histogram [66]int64

// A Bin counts the values from From to To, inclusive. To is 0 for the bin of negative numbers, and
// From is math.MaxInt64 for that of the numbers above it.
type Bin struct {
	From  int64  `json:"from"`
	To    uint64 `json:"to"`
	Count int64  `json:"count"`
}

const negativeBin = 65

func (h *histogram) add(list []uint64, isSigned bool) {
	for _, n := range list {
		if isSigned && int64(n) < 0 {
			h[negativeBin]++
		} else {
			h[bits.Len64(n)]++
		}
	}
}

// bins returns all bins except empty ones at both ends.
func (h *histogram) bins() []Bin {
	all := []Bin{{math.MinInt64, 0, h[negativeBin]}, {0, 0, h[0]}}
	for i, count := range h[1:negativeBin] {
		all = append(all, Bin{int64(min(uint64(1)<<i, math.MaxInt64)), 1<<i + (1<<i - 1), count})
	}
	for len(all) > 0 && all[0].Count == 0 {
		all = all[1:]
	}
	for len(all) > 0 && all[len(all)-1].Count == 0 {
		all = all[:len(all)-1]
	}
	return all
}

func (b Bin) label() string {
	switch {
	case b.From < 0:
		return "below 0"
	case uint64(b.From) == b.To:
		return fmt.Sprint(b.From)
	}
	return fmt.Sprintf("%d to %d", b.From, b.To)
}

func drawBins(out io.Writer, bins []Bin) {
	var most, all int64
	labels := 0
	for _, b := range bins {
		most, all, labels = max(most, b.Count), all+b.Count, max(labels, len(b.label()))
	}
	for _, b := range bins {
		fmt.Fprintf(out, "  %*s  %s %.3g%%\n", labels, b.label(), terminal.Bar(float64(b.Count), float64(most), 40), 100*float64(b.Count)/float64(all))
	}
}

// lengths counts documents by their number of tokens. It is small, because documents of n different
// lengths have at least n²/2 tokens.
type lengths map[int64]int64

// Lengths describes the lengths of documents in tokens. P10 is the length that 10% of the documents
// do not exceed, and so on.
type Lengths struct {
	Documents int64 `json:"documents"` // number of documents whose length was read
	Shortest  int64 `json:"min"`
	P10       int64 `json:"p10"`
	Median    int64 `json:"p50"`
	P90       int64 `json:"p90"`
	P99       int64 `json:"p99"`
	Longest   int64 `json:"max"`
	Mean      int64 `json:"mean"`
	// Long is the number of documents that are longer than a row; nil if its length is not known.
	Long *int64 `json:"long_documents,omitempty"`
	Bins []Bin  `json:"bins"`
	row  int64  // tokens of a row, or 0
}

// describe returns the description of the documents in l, or nil if there are none. row is the
// number of tokens in a row, or 0.
func (l lengths) describe(row int64) *Lengths {
	if len(l) == 0 {
		return nil
	}
	d := Lengths{row: row}
	var h histogram
	tokens, long := int64(0), int64(0)
	sorted := slices.Sorted(maps.Keys(l))
	for _, length := range sorted {
		d.Documents += l[length]
		tokens += length * l[length]
		h[bits.Len64(uint64(length))] += l[length]
		if length > row {
			long += l[length]
		}
	}
	if row > 0 {
		d.Long = &long
	}
	d.Shortest, d.Longest, d.Mean, d.Bins = sorted[0], sorted[len(sorted)-1], tokens/d.Documents, h.bins()
	percentile := func(p float64) int64 {
		seen := int64(0)
		for _, length := range sorted {
			if seen += l[length]; float64(seen) >= p*float64(d.Documents) {
				return length
			}
		}
		return d.Longest
	}
	d.P10, d.Median, d.P90, d.P99 = percentile(0.1), percentile(0.5), percentile(0.9), percentile(0.99)
	return &d
}
