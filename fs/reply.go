package fs

import (
	"slices"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/state"
)

// A reply is a fuse.ReadResult. Once it is sent, the next batches are prefetched.
type reply struct {
	parts      [2][]byte
	split      int
	timer      state.ReadTimer
	prefetcher *prefetcher
	reader     *inOrder // reader to prefetch for when the reply is sent; may be nil
	slot       *slot    // prefetched batch that parts[1] aliases, read-locked; may be nil

	sequence Batches
	number   int    // number of sequence
	begun    uint64 // first batch whose first byte is in the reply; equal to end if there is none
	end      uint64 // one more than the last batch with bytes in the reply; 0 if there is none
}

var replies = sync.Pool{New: func() any { return new(reply) }}

// Slices are what is sent. Without this method go-fuse would call Done before it sends the reply.
func (r *reply) Slices() ([][]byte, fuse.Status) { return r.parts[:], fuse.OK }

func (r *reply) Bytes([]byte) ([]byte, fuse.Status) { return slices.Concat(r.parts[:]...), fuse.OK }

func (r *reply) Size() int { return len(r.parts[0]) + len(r.parts[1]) }

func (r *reply) Done() {
	done := *r
	*r = reply{}
	replies.Put(r)
	done.timer.End()
	if done.slot != nil {
		done.slot.sent.Add(int64(len(done.parts[1])))
		done.slot.RUnlock()
	}
	if done.reader != nil {
		done.prefetcher.run(done.reader, done.split)
	}
}

// Done accounts for a READ. A request is counted once, even if it is sent again.
func (t *tree) Done(in *fuse.ReadIn, result fuse.ReadResult) {
	r, ok := result.(*reply)
	if !ok { // the file shows no batches
		return
	}
	if inode(in.NodeId).kind().isNext() {
		t.handles.Commit(in.Unique)
	}
	t.shared.CountOnce(in.Unique, func() { t.account(r) })
}

// account adds a reply to the counters of its sequence and its sources.
func (t *tree) account(r *reply) {
	entry := &t.shared.Sequences[r.number]
	entry.Reads.Add(1)
	entry.Bytes.Add(uint64(r.Size()))
	if r.slot != nil {
		entry.Ready.Add(1)
	}
	if r.end == 0 {
		return
	}
	entry.RecordBatch(r.end - 1)
	if r.begun == r.end {
		return
	}
	entry.Begun.Add(r.end - r.begun)
	counts := &t.shared.Sources[r.split]
	for source := range r.sequence.Spec().SourceWeights {
		for k := r.begun; k < r.end; k++ {
			counts[min(source, state.MaxSources-1)].Rows.Add(r.sequence.RowsOf(source, k))
		}
	}
}

func (t *tree) Discard(result fuse.ReadResult) {
	if r, ok := result.(*reply); ok {
		r.timer.Discard()
		r.timer, r.reader = state.ReadTimer{}, nil // without a reader, Done prefetches nothing
	}
}
