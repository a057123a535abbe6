package scan

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"

	"batchfs/cmd/batchfs/terminal"
)

const (
	// leakPart is the number of tokens of a split that are searched for at a time. Their table
	// takes up to 1 GiB.
	leakPart = 1 << 30
	// maxReach is how many tokens a run can extend beyond the part of a file in which it is found.
	maxReach = 1 << 16
)

// A leakSearch finds the runs of minRun or more tokens that a split shares with other splits. The
// position of a token is its index in all files of the split together. Between two files, one
// position is unused, so that no run continues in the next file.
type leakSearch struct {
	split       string
	in          []string       // names of the other splits
	held, other []*checkedFile // files of the split, and files of the other splits
	parts       []part         // all parts of held, in order
	starts      []int64        // position of the first token of each file in held, and the end
	boilerplate []tokenRange   // in ascending order
	table       *gramTable
	base        int64 // position of the first token in the table

	mu      sync.Mutex
	runs    []commonRun
	reduced int // length of runs after the last call of maximalRuns
}

type tokenRange struct{ from, to int64 } // positions [from, to)

// A commonRun is a run of n tokens that begins at position at of the split. A copy of it begins at
// position other of the concatenated main arrays.
type commonRun struct{ at, other, n int64 }

// findLeaks searches for each split in all larger ones.
func (c *check) findLeaks(ctx context.Context) error {
	var splits []string
	files, sizes := map[string][]*checkedFile{}, map[string]int64{}
	for _, f := range c.mainFiles() {
		if s := f.splitArray.split; isTokens(f.array) && !f.failed {
			if files[s] == nil {
				splits = append(splits, s)
			}
			files[s] = append(files[s], f)
			sizes[s] += f.numbers
		}
	}
	slices.SortStableFunc(splits, func(a, b string) int { return cmp.Compare(sizes[b], sizes[a]) })
	var larger []*checkedFile
	for i, split := range splits {
		held := files[split]
		if i > 0 {
			s := &leakSearch{split: split, in: splits[:i], held: held, other: larger, parts: partsOf(held, c.partSize/16), starts: []int64{0}}
			for i, f := range held {
				s.starts = append(s.starts, s.starts[i]+f.numbers+1)
			}
			if err := c.search(ctx, s); err != nil {
				return err
			}
			c.leaks = append(c.leaks, s)
		}
		larger = append(larger, held...)
	}
	return nil
}

// search reads the other files once for each leakPart tokens of the split.
func (c *check) search(ctx context.Context, s *leakSearch) error {
	others, size := partsOf(s.other, c.partSize), int64(0)
	for _, f := range s.other {
		size += f.array.Bytes()
	}
	end := s.starts[len(s.held)]
	progress := terminal.NewProgress(c.stderr, "searching for "+s.split, size*((end+c.leakPart-1)/c.leakPart), terminal.Bytes)
	defer progress.Finish()
	for to := int64(0); s.base < end; s.base = to {
		to = min(s.base+c.leakPart, end)
		s.table = newGramTable(to - s.base)
		all := func(uint64) bool { return true }
		err := s.selectGrams(ctx, to, all, func(g selectedGram) error {
			err := s.table.add(g.hash, g.at-s.base)
			if err != nil {
				to = g.at - gramsInRun + 1 // the rest is searched for next
			}
			return err
		})
		if err != nil && err != errFull {
			return err
		}
		if err := doAll(ctx, len(others), func(i int) error { return s.searchPart(ctx, others[i], progress) }); err != nil {
			return err
		}
		if err := s.selectGrams(ctx, to, s.table.isBoilerplate, s.markBoilerplate); err != nil {
			return err
		}
	}
	s.table, s.runs = nil, maximalRuns(s.withoutBoilerplate(maximalRuns(s.runs)))
	return nil
}

// selectGrams selects grams from the runs of the split that begin at positions [s.base, to). It
// calls visit in order with those for which wanted returns true. Calls of wanted are concurrent.
func (s *leakSearch) selectGrams(ctx context.Context, to int64, wanted func(hash uint64) bool, visit func(selectedGram) error) error {
	last := int64(-1)
	for some := range slices.Chunk(s.parts, 2*runtime.GOMAXPROCS(0)) {
		grams := make([][]selectedGram, len(some))
		err := doAll(ctx, len(some), func(i int) error {
			p := some[i]
			start := s.starts[slices.Index(s.held, p.file)]
			return selectGrams(ctx, p.file, start, max(s.base-start, p.from), min(to-start, p.to), nil, func(list []selectedGram) error {
				for _, g := range list {
					if wanted(g.hash) {
						grams[i] = append(grams[i], g)
					}
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
		for _, list := range grams {
			for _, g := range list {
				if g.at == last { // the end of a part and the beginning of the next share this gram
					continue
				}
				last = g.at
				if err := visit(g); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// searchPart selects grams from a part of another split's file, looks them up in the table, and
// records the runs around those that are found.
func (s *leakSearch) searchPart(ctx context.Context, p part, progress *terminal.Progress) error {
	m := matchers.Get().(*matcher)
	defer matchers.Put(m)
	clear(m.ends[:])
	f, reported := p.file, p.from
	return selectGrams(ctx, f, 0, p.from, p.to, &m.comparer.a, func(list []selectedGram) error {
		if n := len(list); n > 0 {
			progress.Add(int(list[n-1].at-reported) * f.size)
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

// A matcher compares a part of a file with the split. It belongs to one goroutine.
type matcher struct {
	comparer comparer
	slots    []int // results of gramTable.find, whose memory is reused
	// ends is a hash table. For a difference between an index in the part's file and a position in
	// the split, it has the index at which the last run ends, so that other grams of that run are
	// not compared again.
	ends [1 << 10]struct{ distance, end int64 }
}

// match compares the tokens around a gram that is at an index of the part's file and at position at
// of the split, and records their run.
func (m *matcher) match(s *leakSearch, p part, index, at int64) {
	distance := index - at
	last := &m.ends[uint64(distance)*hashBase>>(64-10)]
	if last.distance == distance && index < last.end {
		return
	}
	i := streamIndex(s.starts, at)
	file, held, heldIndex := p.file, s.held[i], at-s.starts[i]
	after := m.comparer.equal(file, index, held, heldIndex, p.to+maxReach-index, false)
	if after < gramTokens {
		return // the hashes of different grams are equal
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

// maximalRuns returns the runs that are not within others, in ascending order of their beginnings
// and of their ends.
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

// markBoilerplate adds the tokens of a gram to s.boilerplate. It must be called in the order of
// positions.
func (s *leakSearch) markBoilerplate(g selectedGram) error {
	if n := len(s.boilerplate); n > 0 && s.boilerplate[n-1].to >= g.at {
		s.boilerplate[n-1].to = g.at + gramTokens
	} else {
		s.boilerplate = append(s.boilerplate, tokenRange{g.at, g.at + gramTokens})
	}
	return nil
}

// withoutBoilerplate returns the parts of runs that are outside boilerplate, except parts of fewer
// than gramsInRun tokens: they may be the edges of boilerplate, where no gram was selected.
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
