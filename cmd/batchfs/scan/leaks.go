package scan

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"batchfs/cmd/batchfs/terminal"
)

const (
	// A split is searched for in parts of leakPart tokens, whose tables take up to 1 GiB.
	leakPart = 1 << 30
	// A run is followed up to maxReach tokens beyond the part of a file in which it was found.
	maxReach = 1 << 16
)

// A leakSearch finds the runs of minRun or more tokens of one split that also occur in files of
// other splits. A position in the split is the index of a token in its file, plus the tokens of the
// files before it and one for each, so that files do not touch.
type leakSearch struct {
	split       string
	in          []string // the other splits
	held, other []*checkedFile
	starts      []int64      // position at which each file of the split begins, and the end
	boilerplate []tokenRange // ascending
	table       *gramTable
	base        int64 // position at which the table begins

	mu      sync.Mutex
	runs    []commonRun
	reduced int // length of runs after the last call of maximalRuns
}

type tokenRange struct{ from, to int64 }

// A commonRun consists of n tokens at a position of the split, which are also at a position of the
// main arrays.
type commonRun struct{ at, other, n int64 }

// findLeaks searches each split in all larger ones.
func (c *check) findLeaks(ctx context.Context) error {
	files, sizes := map[string][]*checkedFile{}, map[string]int64{}
	for _, f := range c.mainFiles() {
		if s := f.splitArray.split; isTokens(f.array) && !f.failed {
			files[s] = append(files[s], f)
			sizes[s] += f.numbers
		}
	}
	splits := slices.DeleteFunc(slices.Clone(c.report.Splits), func(s string) bool { return files[s] == nil })
	slices.SortStableFunc(splits, func(a, b string) int { return cmp.Compare(sizes[b], sizes[a]) })
	splits = slices.Compact(splits)
	var larger []*checkedFile
	for i, split := range splits {
		if i > 0 {
			s := newLeakSearch(split, splits[:i], files[split], larger)
			if err := c.search(ctx, s); err != nil {
				return err
			}
			c.leaks = append(c.leaks, s)
		}
		larger = append(larger, files[split]...)
	}
	return nil
}

func newLeakSearch(split string, in []string, held, other []*checkedFile) *leakSearch {
	s := &leakSearch{split: split, in: in, held: held, other: other, starts: []int64{0}}
	for i, f := range held {
		s.starts = append(s.starts, s.starts[i]+f.numbers+1)
	}
	return s
}

// search reads the other files once for each part of the split.
func (c *check) search(ctx context.Context, s *leakSearch) error {
	jobs, size := []part(nil), int64(0)
	for i, f := range s.other {
		size += f.array.Bytes()
		for from, n := int64(0), c.partSize/int64(f.array.DType().Size()); from < f.numbers; from += n {
			jobs = append(jobs, part{file: i, from: from, to: min(from+n, f.numbers)})
		}
	}
	end := s.starts[len(s.held)]
	progress := terminal.NewProgress(c.stderr, "searching for "+s.split, size*((end+c.leakPart-1)/c.leakPart), terminal.Bytes)
	defer progress.Finish()
	for to := int64(0); s.base < end; s.base = to {
		to = min(s.base+c.leakPart, end)
		s.table = newGramTable(to - s.base)
		err := s.selectGrams(ctx, to, func(g selectedGram) error {
			err := s.table.add(g.hash, g.at-s.base)
			if err != nil {
				to = g.at - gramsInRun + 1 // the next part holds the rest
			}
			return err
		})
		if err != nil && err != errFull {
			return err
		}
		var failure error
		err = onAllProcessors(ctx, len(jobs), func(i int) error { return s.searchPart(ctx, jobs[i], progress) }, func(err error) {
			failure = cmp.Or(failure, err)
		})
		if err = cmp.Or(err, failure); err != nil {
			return err
		}
		if err := s.selectGrams(ctx, to, s.markBoilerplate); err != nil {
			return err
		}
	}
	s.table, s.runs = nil, maximalRuns(s.withoutBoilerplate(maximalRuns(s.runs)))
	return nil
}

// selectGrams calls visit with the selected grams of runs at positions [s.base, to), in order.
func (s *leakSearch) selectGrams(ctx context.Context, to int64, visit func(selectedGram) error) error {
	for i, f := range s.held {
		start := s.starts[i]
		err := selectGrams(ctx, f, start, max(s.base-start, 0), min(to-start, f.numbers), nil, func(list []selectedGram) error {
			for _, g := range list {
				if err := visit(g); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// searchPart finds the runs with grams that are selected in a part of another file.
func (s *leakSearch) searchPart(ctx context.Context, p part, progress *terminal.Progress) error {
	m := matchers.Get().(*matcher)
	defer matchers.Put(m)
	clear(m.ends[:])
	f, reported := s.other[p.file], p.from
	return selectGrams(ctx, f, 0, p.from, p.to, &m.comparer.a, func(list []selectedGram) error {
		if n := len(list); n > 0 {
			progress.Add(int(list[n-1].at-reported) * f.array.DType().Size())
			reported = list[n-1].at
		}
		for _, g := range s.table.candidates(list) {
			m.slots, _, _ = s.table.find(g.hash, m.slots)
			if len(m.slots) > 0 && !s.table.count(m.slots[0]) {
				for _, slot := range m.slots {
					m.match(s, p, g.at, s.base+s.table.position(slot))
				}
			}
		}
		return nil
	})
}

var matchers = sync.Pool{New: func() any { return new(matcher) }}

// A matcher compares tokens of a part of a file with the split. It belongs to one goroutine.
type matcher struct {
	comparer comparer
	slots    []int
	// ends has the index at which the last run ends for some distances between index and position.
	ends [1 << 10]struct{ distance, end int64 }
}

// match records the run through the grams at an index of the other file and a position.
func (m *matcher) match(s *leakSearch, p part, index, at int64) {
	distance := index - at
	last := &m.ends[uint64(distance)*hashBase>>(64-10)]
	if last.distance == distance && index < last.end {
		return
	}
	i := streamIndex(s.starts, at)
	file, held, heldIndex := s.other[p.file], s.held[i], at-s.starts[i]
	after := m.comparer.equal(file, index, held, heldIndex, p.to+maxReach-index, false)
	if after < gramTokens {
		return // the hashes are equal by chance
	}
	before := m.comparer.equal(file, index, held, heldIndex, index-p.from+maxReach, true)
	last.distance, last.end = distance, index+after
	if before+after >= minRun {
		s.add(commonRun{at - before, file.offset + index - before, before + after})
	}
}

func (s *leakSearch) add(r commonRun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs = append(s.runs, r); len(s.runs) > 2*s.reduced+1024 {
		s.runs = maximalRuns(s.runs)
		s.reduced = len(s.runs)
	}
}

// maximalRuns returns the runs that are not within others, sorted by position. Their ends are
// sorted too.
func maximalRuns(runs []commonRun) []commonRun {
	slices.SortFunc(runs, func(a, b commonRun) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(b.n, a.n)) })
	kept := runs[:0]
	for _, r := range runs {
		if len(kept) > 0 {
			last := &kept[len(kept)-1]
			if r.at+r.n <= last.at+last.n {
				continue
			}
			if r.at <= last.at+last.n && r.at-r.other == last.at-last.other { // parts of one run
				last.n = r.at + r.n - last.at
				continue
			}
		}
		kept = append(kept, r)
	}
	return kept
}

// markBoilerplate must be called with grams in order of position.
func (s *leakSearch) markBoilerplate(g selectedGram) error {
	if !s.table.isBoilerplate(g.hash) {
		return nil
	}
	if n := len(s.boilerplate); n > 0 && s.boilerplate[n-1].to >= g.at {
		s.boilerplate[n-1].to = g.at + gramTokens
	} else {
		s.boilerplate = append(s.boilerplate, tokenRange{g.at, g.at + gramTokens})
	}
	return nil
}

// withoutBoilerplate returns the parts of runs that remain without boilerplate. Parts of fewer than
// gramsInRun tokens may be the ends of boilerplate.
func (s *leakSearch) withoutBoilerplate(runs []commonRun) (kept []commonRun) {
	for _, r := range runs {
		i, _ := slices.BinarySearchFunc(s.boilerplate, r.at, func(b tokenRange, at int64) int { return cmp.Compare(b.to, at+1) })
		for end := r.at + r.n; r.n > 0; i++ {
			next := tokenRange{end, end}
			if i < len(s.boilerplate) && s.boilerplate[i].from < end {
				next = s.boilerplate[i]
			}
			if n := next.from - r.at; n >= gramsInRun {
				kept = append(kept, commonRun{r.at, r.other, n})
			}
			r = commonRun{next.to, r.other + next.to - r.at, end - next.to}
		}
	}
	return kept
}
