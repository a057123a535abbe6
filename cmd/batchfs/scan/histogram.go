package scan

import (
	"fmt"
	"io"
	"math"
	"math/bits"

	"batchfs/cmd/batchfs/terminal"
)

// A histogram counts numbers by powers of two: 0, 1, 2 to 3, 4 to 7 and so on. Negative numbers
// share one bin.
type histogram [66]int64

// A Bin counts the values from From to To, inclusive. To is 0 for the bin of negative numbers.
type Bin struct {
	From  int64  `json:"from"`
	To    uint64 `json:"to"`
	Count int64  `json:"count"`
}

const negativeBin = 65

func (h *histogram) add(n uint64) { h[bits.Len64(n)]++ }

// bins returns all bins except empty ones at both ends.
func (h *histogram) bins() []Bin {
	all := []Bin{{math.MinInt64, 0, h[negativeBin]}, {0, 0, h[0]}}
	for i, count := range h[1:negativeBin] {
		all = append(all, Bin{int64(min(1<<i, math.MaxInt64)), 1<<i + (1<<i - 1), count})
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
		share, bar := 100*float64(b.Count)/float64(all), terminal.Bar(float64(b.Count), float64(most))
		fmt.Fprintf(out, "  %*s  %s %.3g%%\n", labels, b.label(), bar, share)
	}
}
