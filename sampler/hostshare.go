package sampler

import "math/bits"

// A hostShare is the windows of a source that an epoch reads: all of them or, with shuffle_block,
// those in the host's part of the source. If the part begins inside an extent, windows there start
// at the cut; in later extents, they are the source's own.
type hostShare struct {
	starts         *starts
	windows        int64
	cut            int64 // position of the cut before the part
	headWindows    int64 // windows before the first extent that begins in the part
	firstAfterHead int64 // source's number for the first window after headWindows
	runLen         int64 // windows in a run; 0: shuffle all at once
}

// wholeShare returns the share that has all windows. For rows of documents, a run is about a group.
func (s *starts) wholeShare() hostShare {
	share := hostShare{starts: s, windows: s.disjointCount}
	if groups := int64(len(s.rows.counts().Groups)); groups > 0 {
		share.runLen = (s.disjointCount + groups - 1) / groups
	}
	return share
}

// newHostShare returns the share that one of hosts has of a, with runs of runBytes bytes.
func newHostShare(s *starts, a SourceArray, runBytes int64, host, hosts int) hostShare {
	_, from := cutAt(a, runBytes, host, hosts)
	to, _ := cutAt(a, runBytes, host+1, hosts)
	column := columnOf(a)
	share := hostShare{starts: s, cut: from, runLen: max(runBytes/(s.spec.stride*int64(column.numberBytes*column.elementNumbers)), 1)}
	extent, first := s.extentOf(from)
	if share.firstAfterHead = first; from > extent.Start {
		share.headWindows = s.spec.disjointIn(min(to, extent.Start+extent.Len) - from)
		share.firstAfterHead += s.spec.disjointIn(extent.Len)
	}
	extent, before := s.extentOf(to)
	share.windows = share.headWindows + max(before+s.spec.disjointIn(to-extent.Start)-share.firstAfterHead, 0)
	return share
}

// cutAt returns the cut before a host, as close as possible to element floor(host*a.Len()/hosts).
func cutAt(a SourceArray, runBytes int64, host, hosts int) (end, begin int64) {
	high, low := bits.Mul64(uint64(a.Len()), uint64(host))
	pos, _ := bits.Div64(high, low, uint64(hosts))
	return a.Cut(int64(pos), runBytes)
}

func (s *hostShare) windowStart(i int64) int64 {
	if i < s.headWindows {
		return s.cut + i*s.starts.spec.stride
	}
	return s.starts.nthDisjoint(s.firstAfterHead + i - s.headWindows)
}
