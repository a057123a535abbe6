package scan

import (
	"cmp"
	"context"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"batchfs/cmd/batchfs/terminal"
)

const (
	// A split is searched for in parts of leakPart tokens, whose tables take up to 1 GiB.
	leakPart = 1 << 30
	// A run is followed up to maxReach tokens beyond the part of a file in which it was found.
	maxReach = 1 << 16
)

// A leakSearch finds the runs of minRun or more tokens of one split that also occur in files of
// other splits. A position in the split is the index of a token in its file, plus the number of
// windows of the files before it times windowStride, so that files do not touch.
type leakSearch struct {
	split       string
	in          []string // the other splits
	held, other []*checkedFile
	starts      []int64  // position at which each file of the split begins, and the end
	boilerplate []uint64 // a bit for each window
	table       *windowTable
	base        int64 // number of the table's first window

	mu      sync.Mutex
	runs    []commonRun
	reduced int // length of runs after the last call of maximalRuns
}

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
		s.starts = append(s.starts, s.starts[i]+(f.numbers/windowStride+1)*windowStride)
	}
	s.boilerplate = make([]uint64, s.starts[len(held)]/windowStride/64+1)
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
	for at := int64(0); at < end; at += c.leakPart {
		if err := s.load(ctx, at, min(at+c.leakPart, end)); err != nil {
			return err
		}
		var failure error
		err := onAllProcessors(ctx, len(jobs), func(i int) error { return s.searchPart(ctx, jobs[i], progress) }, func(err error) {
			failure = cmp.Or(failure, err)
		})
		if err = cmp.Or(err, failure); err != nil {
			return err
		}
		s.markBoilerplate()
	}
	s.table, s.runs = nil, maximalRuns(s.runs)
	return nil
}

// load makes the table of the windows at positions [from, to), which are multiples of windowStride.
func (s *leakSearch) load(ctx context.Context, from, to int64) error {
	windows := make([]keyedWindow, 0, (to-from)/windowStride)
	s.base, s.table = from/windowStride, nil
	for i, f := range s.held {
		start := s.starts[i]
		err := hashWindows(ctx, f, max(from-start, 0), min(to-start, f.numbers), func(at int64, hashes []uint64) {
			for j := -at & (windowStride - 1); j < int64(len(hashes)); j += windowStride {
				w := keyedWindow{hash: hashes[j], number: uint32((start+at+j)/windowStride - s.base)}
				// Adjacent equal windows repeat one token. If a run consists of such windows, they
				// are boilerplate, but there may be millions of them to compare.
				if j+1 < int64(len(hashes)) && hashes[j] == hashes[j+1] {
					w.occurrences = maxOccurrences
				}
				windows = append(windows, w)
			}
		})
		if err != nil {
			return err
		}
	}
	s.table = newWindowTable(windows)
	return nil
}

// searchPart finds the runs with windows that begin in a part of another file.
func (s *leakSearch) searchPart(ctx context.Context, p part, progress *terminal.Progress) error {
	f := s.other[p.file]
	m := matcher{s: s, file: f, part: p, ends: map[int64]int64{}, comparer: comparers.Get().(*comparer)}
	defer comparers.Put(m.comparer)
	var candidates []int
	return hashWindows(ctx, f, p.from, p.to, func(at int64, hashes []uint64) {
		progress.Add(len(hashes) * f.array.DType().Size())
		candidates = s.table.candidates(hashes, candidates)
		for _, i := range candidates {
			windows := s.table.find(hashes[i])
			for j := range windows {
				m.match(at+int64(i), &windows[j])
			}
		}
	})
}

var comparers = sync.Pool{New: func() any { return new(comparer) }}

// A matcher compares tokens of a part of a file with the split. It belongs to one goroutine.
type matcher struct {
	s    *leakSearch
	file *checkedFile
	part part
	// ends has the index at which the last run ends, keyed by the distance between index and
	// position.
	ends     map[int64]int64
	maxEnds  int
	comparer *comparer
}

// match records the run through the window at an index of the file and a window of the split.
func (m *matcher) match(index int64, w *keyedWindow) {
	at := (m.s.base + int64(w.number)) * windowStride
	if index < m.ends[index-at] || m.isWithin(index, atomic.LoadUint64(&w.seen)) {
		return
	}
	i := streamIndex(m.s.starts, at)
	held, heldIndex := m.s.held[i], at-m.s.starts[i]
	after := m.comparer.equal(m.file, index, held, heldIndex, m.part.to+maxReach-index, false)
	if after < windowTokens {
		return // the hashes are equal by chance
	}
	before := m.comparer.equal(m.file, index, held, heldIndex, index-m.part.from+maxReach, true)
	if len(m.ends) > m.maxEnds {
		for key, end := range m.ends {
			if end <= index {
				delete(m.ends, key)
			}
		}
		m.maxEnds = 2*len(m.ends) + 1024
	}
	m.ends[index-at] = index + after
	if h := heldIndex; before < 1<<16 && after < 1<<16 && before < h && h+after < held.numbers {
		left, right := m.comparer.b.token(held, h-before-1), m.comparer.b.token(held, h+after)
		atomic.StoreUint64(&w.seen, uint64(before)<<48|uint64(after)<<32|uint64(left)<<16|uint64(right))
	}
	if before+after >= minRun {
		m.s.add(commonRun{at - before, m.file.offset + index - before, before + after})
	}
}

// isWithin reports whether a run through a window cannot reach beyond an earlier one. seen has how
// far that one reached from the window's position, back and ahead, and the low bits of the tokens
// that follow it there. Most windows that occur several times are in copies of one text.
func (m *matcher) isWithin(index int64, seen uint64) bool {
	left, right := index-int64(seen>>48)-1, index+int64(seen>>32&0xffff)
	return seen != 0 && (left < 0 || m.comparer.a.token(m.file, left) != uint16(seen>>16)) &&
		(right >= m.file.numbers || m.comparer.a.token(m.file, right) != uint16(seen))
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

func (s *leakSearch) markBoilerplate() {
	occurrences := uint32(0)
	for i, w := range s.table.windows {
		if i == 0 || w.hash != s.table.windows[i-1].hash {
			occurrences = w.occurrences
		}
		if occurrences > maxOccurrences {
			number := s.base + int64(w.number)
			s.boilerplate[number/64] |= 1 << (number % 64)
		}
	}
}

func (s *leakSearch) isBoilerplate(number int64) bool {
	return s.boilerplate[number/64]>>(number%64)&1 != 0
}

func (s *leakSearch) boilerplateTokens() (n int64) {
	for _, word := range s.boilerplate {
		n += int64(bits.OnesCount64(word)) * windowStride
	}
	return n
}
