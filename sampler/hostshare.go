package sampler

import "math/bits"

// A hostShare is the windows of a source that an epoch has, once each: all windows, or the windows of a host, which lie within a stretch of
// the source. Where the stretch begins in the middle of a run, windows begin anew there; from the next run on they are the source's.
type hostShare struct {
	starts *starts
	n      int64 // windows
	from   int64 // position of the first
	head   int64 // windows in the run that the stretch begins in the middle of
	first  int64 // number of the source's first window behind the head
	block  int64 // windows of the blocks that are shuffled, or 0
}

func (s *starts) whole() hostShare {
	all := hostShare{starts: s, n: s.disjoint}
	if groups := int64(len(s.groups())); groups > 0 {
		all.block = (s.disjoint + groups - 1) / groups
	}
	return all
}

// newHostShare is the share of one of several hosts, with blocks of so many bytes. The source, an array, is cut between hosts: see Array.Cut.
func newHostShare(w *starts, a Array, bytes int64, host, hosts int) hostShare {
	_, from := cutAt(a, bytes, host, hosts)
	to, _ := cutAt(a, bytes, host+1, hosts)
	column := columnOf(a)
	s := hostShare{starts: w, from: from, block: max(bytes/(w.step*int64(column.width*column.numbers)), 1)}
	run, first := w.extentAt(from)
	if s.first = first; from > run.Start {
		s.head = w.fit(min(to, run.Start+run.Len) - from)
		s.first += w.fit(run.Len)
	}
	run, behind := w.extentAt(to)
	s.n = s.head + max(behind+w.fit(to-run.Start)-s.first, 0)
	return s
}

// cutAt is where a source is cut in front of a host: nearest to where all hosts have as many elements.
func cutAt(a Array, bytes int64, host, hosts int) (end, begin int64) {
	high, low := bits.Mul64(uint64(a.Len()), uint64(host))
	pos, _ := bits.Div64(high, low, uint64(hosts))
	return a.Cut(int64(pos), bytes)
}

// at is the position of window i.
func (s *hostShare) at(i int64) int64 {
	if i < s.head {
		return s.from + i*s.starts.step
	}
	return s.starts.disjointAt(s.first + i - s.head)
}
