package fs

import (
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// An ahead makes batches ready before they are asked for: those that follow one that was read in order, as next does and
// whoever counts batch/<k> up. The goroutine that answered a request goes on with that, so nothing is made for a cursor
// that nobody reads.
type ahead struct {
	batches int   // to be ready beyond the last one that was asked for
	bytes   int64 // that all of them may take
	log     *slog.Logger

	mu      sync.Mutex
	streams []*stream // the one that was read last is the last; guarded by mu, as what they hold is
	used    int64     // bytes; guarded by mu
}

// A stream is batches of a sequence that are read in order. Readers may share it, and overtake each other.
type stream struct {
	sequence *Sequence
	next     uint64   // one more than the highest number that was asked for
	ring     []*ready // batch k in ring[k%len(ring)]; empty until a second batch was read
}

// A ready batch is one that was made ready, or is being.
type ready struct {
	sync.RWMutex        // held for writing while it is made, for reading while it is delivered
	number       uint64 // written with ahead.mu held too
	made         bool   // without an error
	bytes        []byte
	delivered    atomic.Int64 // bytes; -1: not asked for
}

const (
	maxStreams = 256
	// A reader may be that many batches behind another of the same stream.
	maxBehind = 64
)

// asked notes that batch k of s is read. It returns the stream that k belongs to and, if k is ready or being made, that
// batch, to be unlocked for reading.
func (a *ahead) asked(s *Sequence, k uint64) (*stream, *ready) {
	if a.batches == 0 {
		return nil, nil
	}
	a.mu.Lock()
	st := a.find(s, k)
	if k >= st.next {
		st.next = k + 1
		if st.ring == nil {
			a.makeRing(st)
		}
	}
	var r *ready
	if len(st.ring) > 0 {
		r = st.ring[k%uint64(len(st.ring))]
		if r.number != k {
			r = nil
		} else {
			r.delivered.CompareAndSwap(-1, 0)
		}
	}
	a.mu.Unlock()
	if r == nil {
		return st, nil
	}
	r.RLock()
	if r.number != k || !r.made {
		r.RUnlock()
		return st, nil
	}
	return st, r
}

// find returns the stream that batch k belongs to, a new one if it follows none. The caller holds mu, as of the functions
// below.
func (a *ahead) find(s *Sequence, k uint64) *stream {
	for i, st := range slices.Backward(a.streams) {
		if st.sequence == s && st.next <= k+maxBehind && k <= st.next+uint64(a.batches) {
			a.streams = append(slices.Delete(a.streams, i, i+1), st)
			return st
		}
	}
	if len(a.streams) == maxStreams {
		a.dropOldest()
	}
	st := &stream{sequence: s, next: k + 1}
	a.streams = append(a.streams, st)
	return st
}

func (a *ahead) dropOldest() {
	st := a.streams[0]
	a.used -= int64(len(st.ring)) * st.sequence.BatchBytes
	st.ring = []*ready{} // it may be in use
	a.streams = slices.Delete(a.streams, 0, 1)
}

// makeRing gives a stream, which is the last, as many batches as there is memory for: those to come and the one that is read.
func (a *ahead) makeRing(st *stream) {
	size := st.sequence.BatchBytes
	n := min(int64(a.batches)+1, a.bytes/size)
	if n < 2 {
		st.ring = []*ready{}
		return
	}
	for a.used+n*size > a.bytes {
		a.dropOldest()
	}
	a.used += n * size
	for range n {
		r := &ready{number: MaxBatches}
		r.delivered.Store(-1)
		st.ring = append(st.ring, r)
	}
}

// prepare makes the next batches of a stream ready.
func (a *ahead) prepare(st *stream) {
	for r := a.claim(st); r != nil; r = a.claim(st) {
		a.make(st, r)
	}
}

// make makes a batch. An error, or panic, is for the reader of that batch to get, who reads it again.
func (a *ahead) make(st *stream, r *ready) {
	defer r.Unlock()
	defer func() {
		if p := recover(); p != nil {
			a.log.Error("making a batch ready panicked", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	r.made = st.sequence.Read(r.bytes, r.number, 0) == nil
}

// claim returns one of the next batches that is neither ready nor being made, locked for writing, or nil.
func (a *ahead) claim(st *stream) *ready {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := uint64(len(st.ring))
	for k := st.next; k+1 < st.next+n && k < MaxBatches; k++ {
		r := st.ring[k%n]
		if r.number == k {
			continue
		}
		part := r.delivered.Load()
		if part >= 0 && part < st.sequence.BatchBytes && r.number+maxBehind > k {
			continue // somebody is in the middle of it
		}
		if !r.TryLock() {
			continue
		}
		if r.bytes == nil {
			r.bytes = make([]byte, st.sequence.BatchBytes)
		}
		r.number, r.made = k, false
		r.delivered.Store(-1)
		return r
	}
	return nil
}

// A reply is a fuse.ReadResult. When it was sent, the batches that come next are made ready.
type reply struct {
	parts  [2][]byte
	ahead  *ahead
	stream *stream // may be nil
	ready  *ready  // that the second part lies in, or nil
}

var replies = sync.Pool{New: func() any { return new(reply) }}

// Slices are what is sent. Without this method go-fuse would be done with a reply before it sends it.
func (r *reply) Slices() ([][]byte, fuse.Status) { return r.parts[:], fuse.OK }

func (r *reply) Bytes([]byte) ([]byte, fuse.Status) { return slices.Concat(r.parts[:]...), fuse.OK }

func (r *reply) Size() int { return len(r.parts[0]) + len(r.parts[1]) }

func (r *reply) Done() {
	done := *r
	*r = reply{}
	replies.Put(r)
	if done.ready != nil {
		done.ready.delivered.Add(int64(len(done.parts[1])))
		done.ready.RUnlock()
	}
	if done.stream != nil {
		done.ahead.prepare(done.stream)
	}
}
