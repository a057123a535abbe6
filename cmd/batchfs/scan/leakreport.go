package scan

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"batchfs/cache"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/internal/jsonbytes"
	"batchfs/internal/printable"
)

// minLeak is the smallest leak that is a problem in a file without documents, in tokens.
const minLeak = 1000

// A Shared says how much of a split also occurs in larger ones.
type Shared struct {
	Split       string   `json:"split"`
	In          []string `json:"in"`
	Tokens      int64    `json:"tokens"`      // of the split
	Covered     int64    `json:"covered"`     // tokens in runs, without boilerplate
	Boilerplate int64    `json:"boilerplate"` // tokens of boilerplate
}

func (s Shared) print(out io.Writer) {
	in := strings.Join(s.In, " or ")
	percent := func(n int64) string {
		return fmt.Sprintf("%.3g%% of %s", 100*float64(n)/float64(max(s.Tokens, 1)), s.Split)
	}
	printable.Fprintf(out, "%s (%s) is also in %s\n", percent(s.Covered), terminal.Plural(s.Covered, "token", "tokens"), in)
	if s.Boilerplate > 0 {
		printable.Fprintf(out, "%s is boilerplate, found more than %d times in %s and not counted above\n", percent(s.Boilerplate), maxOccurrences, in)
	}
}

// reportLeaks reports what the searches found, largest first. Each token counts once.
func (c *check) reportLeaks(ctx context.Context, minOverlap int64) error {
	files, indexed := c.mainFiles(), map[*checkedFile]*cache.Array{}
	for _, f := range files {
		if len(c.leaks) > 0 && isTokens(f.array) {
			if a, err := f.openDocuments(); err == nil && a.Documents() != nil {
				indexed[f] = a
			}
		}
	}
	var leaks []Problem
	for _, s := range c.leaks {
		found := len(leaks)
		for i, f := range s.held {
			report := func(begin, end int64, document *int64) {
				p, longest := s.leak(f, s.starts[i], begin, end)
				if p.Count == 0 {
					return
				}
				if document != nil {
					p.Document, p.Size = new(*document), end-begin
				}
				p.locate(longest, files, indexed)
				leaks = append(leaks, p)
			}
			if err := s.visitLeaks(ctx, f, s.starts[i], indexed[f], report); err != nil {
				return err
			}
		}
		shared := Shared{Split: s.split, In: s.in}
		for _, b := range s.boilerplate {
			shared.Boilerplate += b.to - b.from
		}
		for _, f := range s.held {
			shared.Tokens += f.numbers
		}
		for _, p := range leaks[found:] {
			shared.Covered += p.Count
		}
		c.report.Shared = append(c.report.Shared, shared)
	}
	slices.SortStableFunc(leaks, func(a, b Problem) int { return cmp.Compare(b.Count, a.Count) })
	for _, p := range leaks {
		large := p.Count >= minLeak
		if p.Document != nil {
			large = 2*p.Count >= p.Size
		}
		if large || minOverlap > 0 && p.Passage >= minOverlap {
			c.report.Problems = append(c.report.Problems, p)
		} else {
			c.report.Common = append(c.report.Common, p)
		}
	}
	return nil
}

// visitLeaks calls report with the positions of each document of a file or, if there is no index,
// of each sequence of runs that touch. The file begins at position start.
func (s *leakSearch) visitLeaks(ctx context.Context, f *checkedFile, start int64, indexed *cache.Array, report func(begin, end int64, document *int64)) error {
	if indexed != nil {
		begin, document := start, int64(0)
		return readEnds(ctx, indexed.Documents(), 0, indexed.Documents().Count(), func(ends []int64) error {
			for _, end := range ends {
				report(begin, start+end, &document)
				begin, document = start+end, document+1
			}
			return nil
		})
	}
	i, _ := slices.BinarySearchFunc(s.runs, start, func(r commonRun, at int64) int { return cmp.Compare(r.at, at) })
	for i < len(s.runs) && s.runs[i].at < start+f.numbers {
		begin, end := s.runs[i].at, int64(0)
		for end = begin; i < len(s.runs) && s.runs[i].at <= end; i++ {
			end = s.runs[i].at + s.runs[i].n
		}
		report(begin, end, nil)
	}
	return nil
}

// leak returns what runs cover at positions [begin, end) of a file that begins at start, and the
// longest of these runs.
func (s *leakSearch) leak(f *checkedFile, start, begin, end int64) (p Problem, longest commonRun) {
	p = f.problem(Leak)
	covered := begin
	first, _ := slices.BinarySearchFunc(s.runs, begin, func(r commonRun, at int64) int { return cmp.Compare(r.at+r.n, at+1) })
	for _, r := range s.runs[first:] {
		if r.at >= end {
			break
		}
		if r.n > longest.n {
			longest = r
		}
		if from, to := max(r.at, covered), min(r.at+r.n, end); from < to {
			if p.Count == 0 {
				p.Index = from - start
			}
			p.Count += to - from
			covered = to
		}
	}
	p.Passage = longest.n
	if skipped := begin - longest.at; skipped > 0 { // the run begins in an earlier document
		longest.other += skipped
	}
	return p, longest
}

// locate says in a leak where its longest run is. indexed has the files with documents.
func (p *Problem) locate(longest commonRun, files []*checkedFile, indexed map[*checkedFile]*cache.Array) {
	i, found := slices.BinarySearchFunc(files, longest.other, func(f *checkedFile, at int64) int { return cmp.Compare(f.offset, at) })
	if !found {
		i--
	}
	other, what, place := files[i], "", ""
	p.Other, p.OtherIndex = jsonbytes.String(other.path), longest.other-other.offset
	if p.Document != nil {
		what = fmt.Sprintf(" of the %d", p.Size)
		place = fmt.Sprintf("document %d: ", *p.Document)
	}
	in := other.path
	if a := indexed[other]; a != nil {
		if number, err := a.Documents().NumberAt(p.OtherIndex); err == nil {
			p.OtherDocument = &number
			in += fmt.Sprintf(", document %d", number)
		}
	}
	p.Message = jsonbytes.String(fmt.Sprintf("%s: %s%d%s tokens, from index %d on, also occur in %s; the longest passage has %d tokens "+
		"and is in %s, from index %d on",
		p.File, place, p.Count, what, p.Index, other.splitArray.split, p.Passage, in, p.OtherIndex))
}
