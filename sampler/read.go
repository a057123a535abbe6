package sampler

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"batchfs/cache"
	"batchfs/cache/array"
)

// A request is one Read: which windows it fetches of each source, and where in dst their tokens go.
type request struct {
	sequence *Sequence
	dst      []byte
	plans    []plan // one for each source
	planned  int    // rows of all plans
	current  int    // the source that is being read
	shown    []span // of the batch that is being planned, the rows that dst shows of each part
	edge     []byte // tokens of which dst shows the first or the last in part

	visit func(i int, raw []byte) error // copyRow, made once because to make it is to allocate
}

var requests = sync.Pool{New: func() any {
	req := new(request)
	req.visit = req.copyRow
	return req
}}

// A plan is the windows to be fetched of one source; rows[i] is what windows[i] is fetched for.
type plan struct {
	windows []cache.Window
	rows    []row
}

// A row is one of a batch that dst shows, at least in part.
type row struct {
	base  int // byte of dst at which the row's batch begins; it may lie before dst
	j     int // of that batch
	first int // index in the row of the window's first token
}

// A span is [from, to).
type span struct{ from, to int }

func (s span) has(i int) bool { return i >= s.from && i < s.to }

// overlap returns which of count units have bytes in [0, n). The units are size bytes each, one after the other from byte at
// on; at may be negative.
func overlap(at, size, count, n int) span {
	from := min(max(0, -at/size), count)
	return span{from, min(count, max(from, (n-at+size-1)/size))}
}

// maxPlanned is how many rows are planned at a time, which bounds the memory of a request for many short rows.
const maxPlanned = 1 << 10

// Read fills dst with the bytes of batches k, k+1, … one after the other, from byte off of batch k on. off may be beyond that
// batch. Only the tokens that dst shows are fetched. The error is one of reading tokens, says which token the dtype cannot
// hold or is beyond the vocabulary, or that there is no such batch; what is in dst is then undefined.
func (q *Sequence) Read(dst []byte, k uint64, off int64) error {
	if len(dst) == 0 {
		return nil
	}
	req := requests.Get().(*request)
	defer requests.Put(req)
	req.begin(q, dst)
	defer req.end()
	size := q.parts.batch.Bytes()
	k, off = k+uint64(off/size), off%size
	for base := -int(off); base < len(dst); base, k = base+int(size), k+1 {
		if k >= MaxBatches {
			return fmt.Errorf("batch %d: numbers end at %d", k, uint64(MaxBatches-1))
		}
		if err := req.planBatch(k, base); err != nil {
			return err
		}
	}
	return req.fetch()
}

// fetch reads what is planned, and begins new plans.
func (req *request) fetch() error {
	// Also a source of which no row is shown is asked: no batch is served while any source is known to have changed.
	for i, source := range req.sequence.sources {
		req.current = i
		p := &req.plans[i]
		if err := source.tokens.Read(p.windows, req.visit); err != nil {
			return err
		}
		p.windows, p.rows = p.windows[:0], p.rows[:0]
	}
	req.planned = 0
	return nil
}

func (req *request) begin(q *Sequence, dst []byte) {
	req.sequence, req.dst, req.planned = q, dst, 0
	for len(req.plans) < len(q.sources) {
		req.plans = append(req.plans, plan{})
	}
	for i := range q.sources {
		p := &req.plans[i]
		p.windows, p.rows = p.windows[:0], p.rows[:0]
	}
}

// end drops what a request in the pool must not keep from the collector.
func (req *request) end() { req.sequence, req.dst = nil, nil }

// planBatch plans the rows of batch k, which begins at byte base of dst, that dst shows. Of many it fetches the first ones.
func (req *request) planBatch(k uint64, base int) error {
	q := req.sequence
	req.shown = req.shown[:0]
	for i := range q.parts.list {
		p := &q.parts.list[i]
		shown := overlap(p.row(base, 0), p.rowBytes(), q.BatchSize, len(req.dst))
		for j := shown.from; j < shown.to; j++ {
			if req.isPlanned(j) {
				continue
			}
			if req.planned == maxPlanned {
				if err := req.fetch(); err != nil {
					return err
				}
			}
			req.planRow(k, base, j)
			req.planned++
		}
		req.shown = append(req.shown, shown)
	}
	return nil
}

// isPlanned reports whether an earlier part shows row j.
func (req *request) isPlanned(j int) bool {
	for _, s := range req.shown {
		if s.has(j) {
			return true
		}
	}
	return false
}

// planRow plans the window that row j of batch k needs for what dst shows of its parts.
func (req *request) planRow(k uint64, base, j int) {
	q := req.sequence
	lo, hi := math.MaxInt, 0
	for i := range q.parts.list {
		p := &q.parts.list[i]
		if s := overlap(p.row(base, j), p.size, p.len, len(req.dst)); s.from < s.to {
			lo, hi = min(lo, p.first+s.from), max(hi, p.first+s.to)
		}
	}
	source, start := q.Start(k, j)
	to := &req.plans[source]
	to.windows = append(to.windows, cache.Window{Start: start + int64(lo), Len: hi - lo})
	to.rows = append(to.rows, row{base, j, lo})
}

// copyRow puts the tokens of window i of the current source where dst shows them.
func (req *request) copyRow(i int, raw []byte) error {
	q, from := req.sequence, &req.plans[req.current]
	r := from.rows[i]
	if bad := q.sources[req.current].vocab.find(raw); bad >= 0 {
		return q.beyond(req.current, from.windows[i].Start+int64(bad), raw[bad*q.width:])
	}
	for n := range q.parts.list {
		p := &q.parts.list[n]
		at := p.row(r.base, r.j)
		s := overlap(at, p.size, p.len, len(req.dst))
		if s.from == s.to {
			continue
		}
		first := p.first + s.from - r.first // of the part's tokens in raw
		raw := raw[first*q.width:][:(s.to-s.from)*q.width]
		if bad := req.put(at+s.from*p.size, raw, p); bad >= 0 {
			return q.overflow(req.current, from.windows[i].Start+int64(first+bad), raw[bad*q.width:], p.dtype)
		}
	}
	return nil
}

// put converts raw to tokens of a part from byte at of dst on, where the first and the last token may lie in dst in part. It
// returns the index of a token that does not fit the part's dtype, or -1.
func (req *request) put(at int, raw []byte, p *part) (bad int) {
	dst, stored := req.dst, req.sequence.stored
	n := len(raw) / req.sequence.width * p.size
	if at >= 0 && at+n <= len(dst) {
		return convert(dst[at:at+n], raw, p.dtype, stored)
	}
	if cap(req.edge) < n {
		req.edge = make([]byte, n)
	}
	whole := req.edge[:n]
	bad = convert(whole, raw, p.dtype, stored)
	copy(dst[max(at, 0):], whole[max(-at, 0):])
	return bad
}

// beyond is the error for the token at a position of a source that is beyond the vocabulary, which raw begins with.
func (q *Sequence) beyond(source int, pos int64, raw []byte) error {
	tokens := q.sources[source].tokens
	value := uint32(binary.LittleEndian.Uint16(raw))
	if q.width == 4 {
		value = binary.LittleEndian.Uint32(raw)
	}
	return &cache.VocabularyError{Place: tokens.Locate(pos), Token: value, Size: tokens.VocabSize()}
}

// overflow is the error for the token at a position of a source, which raw begins with.
func (q *Sequence) overflow(source int, pos int64, raw []byte, dtype array.DType) error {
	at := q.sources[source].tokens.Locate(pos)
	return fmt.Errorf("%s: token %d is %d, which dtype %s cannot hold; set dtype to one that can, e.g. native",
		at.Path, at.Index, binary.LittleEndian.Uint32(raw), dtype)
}
