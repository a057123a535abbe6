package fs

import (
	"slices"
	"sort"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/state"
)

// A reply is the fuse.ReadResult of a READ from batches. After it is sent, Done prefetches the next
// batches.
type reply struct {
	parts       [2][]byte
	splitNumber int
	timer       state.ReadTimer
	prefetcher  *prefetcher
	reader      *sequentialReader // may be nil
	buffer      *batchBuffer      // prefetched batch that parts[1] aliases, read-locked; may be nil

	filePart
	firstBegun uint64 // first batch whose first byte is in the reply; end if there is none
	end        uint64 // batch after the last with bytes in the reply; 0 if there is none
}

var replies = sync.Pool{New: func() any { return new(reply) }}

// Slices returns the bytes to send. Without it, go-fuse would call Done before sending them.
func (r *reply) Slices() ([][]byte, fuse.Status) { return r.parts[:], fuse.OK }

func (r *reply) Bytes([]byte) ([]byte, fuse.Status) { return slices.Concat(r.parts[:]...), fuse.OK }

func (r *reply) Size() int { return len(r.parts[0]) + len(r.parts[1]) }

func (r *reply) Done() {
	sent := *r
	*r = reply{}
	replies.Put(r)
	sent.timer.End()
	if sent.buffer != nil {
		sent.buffer.sent.Add(int64(len(sent.parts[1])))
		sent.buffer.RUnlock()
	}
	if sent.reader != nil {
		sent.prefetcher.run(sent.reader, sent.splitNumber)
	}
}

// Succeeded commits the batch number of a READ, and counts the READ once, even if the kernel sends
// it again.
func (t *tree) Succeeded(in *fuse.ReadIn, result fuse.ReadResult) {
	r, ok := result.(*reply)
	if !ok { // the reply has no bytes of batches
		return
	}
	if inode(in.NodeId).kind().isNext() {
		t.handles.Commit(in.Unique)
	}
	t.shared.CountOnce(in.Unique, func() { t.account(r) })
}

// account adds a reply to the counters of its sequence and of the sources of its split.
func (t *tree) account(r *reply) {
	seq := &t.shared.Sequences[r.inode.sequence()]
	t.shared.SetFailing(r.inode.sequence(), false)
	seq.Reads.Add(1)
	seq.Bytes.Add(uint64(r.Size()))
	if r.buffer != nil {
		seq.Prefetched.Add(1)
	}
	if r.end == 0 {
		return
	}
	seq.RecordBatch(r.end - 1)
	if r.firstBegun == r.end {
		return
	}
	seq.Begun.Add(r.end - r.firstBegun)
	sources := &t.shared.RowsBySource[r.splitNumber]
	t.recordStage(r.splitNumber, r.list.Spec().Stages, r.end-1)
	for source := range min(len(r.list.Spec().SourceNames), state.MaxSources) {
		for k := r.firstBegun; k < r.end; k++ {
			sources[source].Rows.Add(r.list.RowsOf(source, k))
		}
	}
}

// recordStage records the stage of batch k of a split.
func (t *tree) recordStage(split int, stages []Stage, k uint64) {
	i := sort.Search(len(stages)-1, func(i int) bool { return stages[i+1].Batch > k })
	if len(stages) > 1 && i != t.shared.Stage(split) {
		t.shared.SetStage(split, i, stages[i].Weights)
	}
}

func (t *tree) Discard(result fuse.ReadResult) {
	if r, ok := result.(*reply); ok {
		r.timer.Discard()
		r.timer, r.reader = state.ReadTimer{}, nil // without a reader, Done prefetches nothing
	}
}
