// Package sampler turns numbers into batches: batch k of a [Sequence] is a pure function of its tokens, its settings
// and k. It opens no file and reads no clock.
package sampler

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"

	"batchfs/cache"
)

// MaxBatches bounds the numbers of batches: k is below it.
const MaxBatches = 1 << 40

// Bounds of settings, so that the number of a row fits 64 bits for every batch, and the size of a batch does.
const (
	MaxRows      = 1 << 24 // of a batch, times World
	MaxBlockSize = 1 << 31
)

// Settings are what a batch depends on besides its tokens and its number. They must be within the bounds.
type Settings struct {
	Split     string // its name: two splits of one seed draw different rows
	BatchSize int    // B, rows of a batch
	BlockSize int    // T, tokens of a row
	DType     DType
	Layout    Layout
	Order     Order
	Seed      uint64
	Rank      int // this reader's share: rows k*B*World + Rank*B + j
	World     int

	Weights    []float64 // of the sources of the tokens, each above 0; nil for one source
	TorchState []byte    // what torch.get_rng_state() gives, for the torch orders to start from; nil: from Seed
}

// Layout says how a batch is laid out.
type Layout string

const (
	XY        Layout = "xy"     // x of shape (B, T), then y of shape (B, T): x shifted by one
	WholeRows Layout = "tokens" // shape (B, T+1)
)

// Sequence is an endless row of batches. It is safe for concurrent use.
type Sequence struct {
	Settings
	tokens  *cache.Tokens
	sources []source
	mixture *mixture
	out     int // bytes of a token in a batch
}

// A source has rows of its own, in its own order, of which the mixture picks the next when it is its turn.
type source struct {
	windows windows
	order   order
}

// New checks that there are enough tokens. The error names what is to be changed.
func New(tokens *cache.Tokens, s Settings) (*Sequence, error) {
	if s.Weights == nil {
		s.Weights = []float64{1}
	}
	m, err := newMixture(s.Weights)
	if err != nil {
		return nil, err
	}
	blank := &Sequence{Settings: s, tokens: tokens, mixture: m, sources: make([]source, len(s.Weights))}
	return blank.With(s)
}

// With is the sequence of the same tokens under other settings. The sources and their weights stay.
func (q *Sequence) With(s Settings) (*Sequence, error) {
	s.Weights = q.Weights
	if s.DType == Native {
		s.DType = map[int]DType{2: Uint16, 4: Uint32}[q.tokens.Width]
	}
	n := &Sequence{Settings: s, tokens: q.tokens, mixture: q.mixture, out: s.DType.Size()}
	for i, old := range q.sources {
		w, err := old.windows, error(nil)
		if w.size != int64(s.BlockSize) {
			w, err = newWindows(q.runs(i), s.BlockSize)
		}
		if err != nil {
			return nil, err
		}
		o, err := newOrder(s, i, w)
		if err != nil {
			return nil, err
		}
		n.sources = append(n.sources, source{w, o})
	}
	return n, nil
}

// runs are those of source i.
func (q *Sequence) runs(i int) []cache.Run {
	all := q.tokens.Runs()
	first := slices.IndexFunc(all, func(r cache.Run) bool { return r.Source == i })
	end := first
	for end < len(all) && all[end].Source == i {
		end++
	}
	return all[first:end]
}

// Shape is that of one batch: (2, B, T), or (B, T+1) for layout tokens.
func (q *Sequence) Shape() []int {
	if q.Layout == XY {
		return []int{2, q.BatchSize, q.BlockSize}
	}
	return []int{q.BatchSize, q.BlockSize + 1}
}

// BatchBytes is the size of one batch.
func (q *Sequence) BatchBytes() int64 {
	n := int64(q.out)
	for _, d := range q.Shape() {
		n *= int64(d)
	}
	return n
}

// RowsPerEpoch is R, the number of disjoint windows, those of all sources together.
func (q *Sequence) RowsPerEpoch() (n int64) {
	for _, s := range q.sources {
		n += s.windows.disjoint.total()
	}
	return n
}

// Share is how many of how many rows are of source i, in every stretch of that many that begins at a multiple of it.
func (q *Sequence) Share(i int) (rows, of int) { return q.mixture.shares[i], q.mixture.period() }

// BatchesPerEpoch is the least number of batches that hold RowsPerEpoch rows, of all ranks together.
func (q *Sequence) BatchesPerEpoch() int64 {
	global := int64(q.BatchSize) * int64(q.World)
	return (q.RowsPerEpoch() + global - 1) / global
}

// Row is the global number of row j of batch k.
func (q *Sequence) Row(k uint64, j int) uint64 {
	b := uint64(q.BatchSize)
	return k*b*uint64(q.World) + uint64(q.Rank)*b + uint64(j)
}

// Start is the position in the array of tokens at which row j of batch k begins.
func (q *Sequence) Start(k uint64, j int) int64 {
	source, index := q.mixture.place(q.Row(k, j))
	return q.sources[source].order.start(index)
}

// Epoch is that of row j of batch k: how often its source has given as many rows as it has disjoint windows.
func (q *Sequence) Epoch(k uint64, j int) uint64 {
	source, index := q.mixture.place(q.Row(k, j))
	return index / uint64(q.sources[source].windows.disjoint.total())
}

// A request is one Read.
type request struct {
	sequence *Sequence
	dst      []byte
	windows  []cache.Window
	rows     []row
	ragged   []byte

	visit func(cache.Window, []byte) error // lay, made once because to make it is to allocate
}

var requests = sync.Pool{New: func() any {
	req := new(request)
	req.visit = req.lay
	return req
}}

// A row is what a window is fetched for.
type row struct {
	base  int // byte of dst at which the row's batch begins; it may lie before dst
	j     int // of that batch
	first int // index in the row of the window's first token
}

// A part is the x, the y or the whole of a row.
type part struct {
	at    int // byte of dst at which its first token goes; it may lie before dst or beyond
	shift int // index in the row of its first token
	len   int // tokens
}

// part is the i-th part of row j of the batch that begins at dst[base].
func (q *Sequence) part(i, base, j int) part {
	p := part{shift: i, len: q.BlockSize}
	if q.Layout == WholeRows {
		p.len++
	}
	p.at = base + (i*q.BatchSize+j)*p.len*q.out
	return p
}

// parts is how many a row has.
func (q *Sequence) parts() int {
	if q.Layout == WholeRows {
		return 1
	}
	return 2
}

// within returns which units [from, to), each of size bytes, of count ones that begin at byte at have bytes in [0, n).
func within(at, size, count, n int) (from, to int) {
	from = min(max(0, -at/size), count)
	to = min(count, max(from, (n-at+size-1)/size))
	return from, to
}

// Read fills dst with the bytes of batches k, k+1, … one after the other, from byte off of batch k on. Only the tokens
// that dst shows are fetched.
func (q *Sequence) Read(dst []byte, k uint64, off int64) error {
	if len(dst) == 0 {
		return nil
	}
	req := requests.Get().(*request)
	defer requests.Put(req)
	defer func() { req.sequence, req.dst = nil, nil }()
	req.sequence, req.dst, req.windows, req.rows = q, dst, req.windows[:0], req.rows[:0]
	size := q.BatchBytes()
	k, off = k+uint64(off/size), off%size
	for base := -int(off); base < len(dst); base, k = base+int(size), k+1 {
		if k >= MaxBatches {
			return fmt.Errorf("batch %d: numbers end at %d", k, uint64(MaxBatches-1))
		}
		seen := [2]int{} // rows planned for the parts before this one
		for i := range q.parts() {
			first := q.part(i, base, 0)
			from, to := within(first.at, first.len*q.out, q.BatchSize, len(dst))
			for j := from; j < to; j++ {
				if j < seen[0] || j >= seen[1] {
					q.plan(req, len(dst), k, base, j)
				}
			}
			seen = [2]int{from, to}
		}
	}
	return q.tokens.Read(req.windows, req.visit)
}

// lay puts the tokens of a window where dst shows them.
func (req *request) lay(w cache.Window, raw []byte) error {
	q, dst, r := req.sequence, req.dst, req.rows[w.Tag]
	for i := range q.parts() {
		p := q.part(i, r.base, r.j)
		from, to := within(p.at, q.out, p.len, len(dst))
		if from == to {
			continue
		}
		raw := raw[(p.shift+from-r.first)*q.tokens.Width:][:(to-from)*q.tokens.Width]
		if bad := q.place(dst, p.at+from*q.out, raw, &req.ragged); bad >= 0 {
			return q.misfit(w.Start+int64(p.shift+from-r.first+bad), raw[bad*q.tokens.Width:])
		}
	}
	return nil
}

// plan notes the window that row j of batch k needs for the n bytes of dst.
func (q *Sequence) plan(req *request, n int, k uint64, base, j int) {
	lo, hi := math.MaxInt, 0
	for i := range q.parts() {
		p := q.part(i, base, j)
		if from, to := within(p.at, q.out, p.len, n); from < to {
			lo, hi = min(lo, p.shift+from), max(hi, p.shift+to)
		}
	}
	req.windows = append(req.windows, cache.Window{Start: q.Start(k, j) + int64(lo), Len: hi - lo, Tag: len(req.rows)})
	req.rows = append(req.rows, row{base, j, lo})
}

// place converts raw to dst[at:], where the first and the last token may lie in dst in part. It returns the index of a
// token that does not fit the dtype, or -1.
func (q *Sequence) place(dst []byte, at int, raw []byte, ragged *[]byte) (bad int) {
	n := len(raw) / q.tokens.Width * q.out
	if at >= 0 && at+n <= len(dst) {
		return convert(dst[at:at+n], raw, q.DType, q.tokens.Width)
	}
	if cap(*ragged) < n {
		*ragged = make([]byte, n)
	}
	whole := (*ragged)[:n]
	bad = convert(whole, raw, q.DType, q.tokens.Width)
	copy(dst[max(at, 0):], whole[max(-at, 0):])
	return bad
}

func (q *Sequence) misfit(pos int64, raw []byte) error {
	at := q.tokens.Locate(pos)
	return fmt.Errorf("%s: token %d is %d, which dtype %s cannot hold; set dtype to one that can, e.g. native",
		at.Path, at.Index, binary.LittleEndian.Uint32(raw), q.DType)
}
