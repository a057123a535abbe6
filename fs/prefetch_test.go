package fs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/internal/testwait"
)

// recordingBatches returns a counting sequence, and a function that returns which batches were
// read.
func recordingBatches(name string, batchBytes int64) (s *fakeSequence, batchesRead func() []uint64) {
	var mu sync.Mutex
	var list []uint64
	s = countingBatches(name, batchBytes)
	read := s.read
	s.read = func(dst []byte, k uint64, off int64) error {
		mu.Lock()
		list = append(list, k)
		mu.Unlock()
		return read(dst, k, off)
	}
	return s, func() []uint64 {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
}

func TestPrefetchForReadersInOrder(t *testing.T) {
	const size = 1000
	for _, paths := range [][]string{
		{"train/next", "train/next", "train/next", "train/next"},
		{"train/next", "train/next.npy", "train/next.safetensors", "train/next"},
		{"train/batch/0", "train/batch/1", "train/batch/2", "train/batch/3"},
	} {
		s, batchesRead := recordingBatches("train", size)
		tr := newTestTree(t, s)
		for i, path := range paths {
			want := [][]uint64{{0}, {0, 1, 2, 3}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4, 5}}[i]
			r := tr.openFile(t, path, 0)
			if _, status := r.read(0, 1<<20); !status.Ok() {
				t.Fatal(status)
			}
			if got := batchesRead(); !slices.Equal(got, want) {
				t.Fatalf("%v: after %d batches, those read are %v, want %v", paths, i+1, got, want)
			}
		}
	}
}

// Each pass over the same batches computes the first two, and finds the others prefetched.
func TestPrefetchForRepeatedPasses(t *testing.T) {
	const size, batches = 1000, 20
	s, batchesRead := recordingBatches("train", size)
	tr := newTestTree(t, s)
	for pass := range 3 {
		for k := range batches {
			r := tr.openFile(t, fmt.Sprintf("train/batch/%d", k), 0)
			r.readBatch(t, size)
			if read := batchesRead(); k > 0 && !slices.Contains(read[max(0, len(read)-3):], uint64(k+1)) {
				t.Fatalf("pass %d: batch %d is not prefetched after batch %d; read %v", pass, k+1, k, read)
			}
		}
	}
}

func TestNoPrefetchForOtherReaders(t *testing.T) {
	s, batchesRead := recordingBatches("train", 1000)
	tr := newTestTree(t, s)
	for _, k := range []int{7, 3000, 5, 2000, 1000, 0} {
		r := tr.openFile(t, fmt.Sprintf("train/batch/%d", k), 0)
		for range 3 {
			r.readBatch(t, 1000)
		}
	}
	// batches.bin is read ahead by the kernel, not by the prefetcher.
	all := tr.openFile(t, "train/batches.bin", 0)
	for off := range int64(4) {
		all.read(1000*off, 1000)
	}
	if got := batchesRead(); len(got) != 6*3+4 {
		t.Errorf("read %v", got)
	}
}

// Every reader gets the right bytes, and the buffers stay within their limit.
func TestPrefetchedBytesAreTheSame(t *testing.T) {
	sizes := map[string]int64{"small": 100, "page": 5000, "large": 30_000, "huge": 60_000}
	var splits []*fakeSequence
	var all []Sequence
	for name, size := range sizes {
		splits = append(splits, countingBatches(name, size))
		all = append(all, splits[len(splits)-1])
	}
	tr := newTestTree(t, all...)
	tr.prefetcher.maxBytes = 100_000 // too little to prefetch huge batches
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(worker)))
			s := splits[worker%len(splits)]
			kinds := []string{"next", "batch"}
			k := uint64(random.IntN(20))
			for range 100 {
				path := s.Spec().Name + "/" + kinds[worker/4]
				switch {
				case worker < 4:
				case random.IntN(20) == 0:
					k = uint64(random.IntN(1000))
					fallthrough
				default:
					path += fmt.Sprintf("/%d", k)
					k++
				}
				r := tr.openFile(t, path, 0)
				var got []byte
				for part := int64(1 + random.IntN(int(s.Spec().Batch.Bytes()))); int64(len(got)) < s.Spec().Batch.Bytes(); {
					data, status := r.read(int64(len(got)), int(part))
					if !status.Ok() {
						t.Error(status)
						return
					}
					got = append(got, data...)
				}
				k := r.node.rest()
				if worker < 4 {
					k = uint64(batchNumber(got, s.Spec().Batch.Bytes()))
				}
				want := make([]byte, s.Spec().Batch.Bytes())
				s.Read(want, k, 0)
				if !bytes.Equal(got, want) {
					t.Errorf("%s: not batch %d", path, k)
					return
				}
				r.Release(nil, &fuse.ReleaseIn{InHeader: fuse.InHeader{NodeId: uint64(r.node)}, Fh: r.fh})
				tr.prefetcher.mu.Lock()
				used := int64(0)
				for _, r := range tr.prefetcher.readers {
					used += int64(len(r.buffers)) * r.batchSize
				}
				if used != tr.prefetcher.bufferBytes.Load() || used > tr.prefetcher.maxBytes {
					t.Errorf("%d bytes are reserved, counted as %d, of %d", used, tr.prefetcher.bufferBytes.Load(), tr.prefetcher.maxBytes)
				}
				tr.prefetcher.mu.Unlock()
			}
		})
	}
	testwait.End(t, "the goroutines", wg.Wait)
}

// A reply that is discarded releases its prefetched batch, counts none of its bytes as sent, and
// starts no prefetch.
func TestDiscardedReply(t *testing.T) {
	s, batchesRead := recordingBatches("train", 1000)
	tr := newTestTree(t, s)
	for k := range 2 {
		r := tr.openFile(t, fmt.Sprintf("train/batch/%d", k), 0)
		r.readBatch(t, 1000)
	}
	in := &fuse.ReadIn{InHeader: fuse.InHeader{NodeId: uint64(tr.find("train/batch/2")), Unique: 1_000_000}, Size: 1000}
	result, status := tr.HandleRead(nil, 0, in, make([]byte, 1000))
	if !status.Ok() {
		t.Fatal(status)
	}
	buffer, before := result.(*reply).buffer, batchesRead()
	if buffer == nil {
		t.Fatal("batch 2 is not prefetched")
	}
	tr.Discard(result)
	if got := batchesRead(); buffer.sent.Load() != 0 || !buffer.TryLock() || !slices.Equal(got, before) {
		t.Errorf("%d bytes are sent, the batches read are %v after %v, or the buffer is locked", buffer.sent.Load(), got, before)
	}
}

// The buffers of a batch that is being sent are not given to another reader, so their memory counts
// until then.
func TestBuffersInUseAreNotEvicted(t *testing.T) {
	s, batchesRead := recordingBatches("train", 1000)
	tr := newTestTree(t, s)
	p := tr.prefetcher
	p.maxBytes = 2000 // for one reader
	read := func(k uint64) { tr.openFile(t, fmt.Sprintf("train/batch/%d", k), 0).readBatch(t, 1000) }
	read(0)
	read(1)
	_, sending := p.acquireBuffer(s.Current(), 2)
	_, waiting := p.recordRequest(s.Current(), 2)
	if sending == nil || waiting != sending {
		t.Fatal("batch 2 is not prefetched")
	}
	read(1000)
	read(1001)
	if sending.batch != 2 || slices.Contains(batchesRead(), 1002) {
		t.Errorf("batch 2 is evicted while it is sent; read %v", batchesRead())
	}
	sending.RUnlock()
	read(1002)
	if waiting.batch == 2 || p.bufferBytes.Load() != 2000 || !slices.Contains(batchesRead(), 1003) {
		t.Errorf("batch 2 is not evicted after it was sent; read %v", batchesRead())
	}
}

// A prefetched batch is not sent if its tokens have changed. A batch whose prefetch failed is
// computed again.
func TestPrefetchErrors(t *testing.T) {
	s, _ := recordingBatches("train", 1000)
	var changed error
	s.check = func(uint64) error { return changed }
	read, broken := s.read, false
	s.read = func(dst []byte, k uint64, off int64) error {
		if changed != nil {
			return changed
		}
		if broken && k == 4 {
			return errors.New("cannot be read")
		}
		return read(dst, k, off)
	}
	tr := newTestTree(t, s)
	next := tr.openFile(t, "train/next", 0)
	next.readBatch(t, 1000)
	next.readBatch(t, 1000) // prefetches 2 and 3
	changed = fmt.Errorf("changed (%w)", syscall.ESTALE)
	if _, status := next.read(0, 1000); status != fuse.Status(syscall.ESTALE) {
		t.Errorf("changed: %v", status)
	}
	changed, broken = nil, true
	for k := 2; k < 4; k++ {
		if got := next.readBatch(t, 1000); got != k {
			t.Errorf("batch %d, want %d", got, k)
		}
	}
	if _, status := next.read(0, 1000); status != fuse.EIO {
		t.Errorf("broken: %v", status)
	}
	broken = false
	if got := next.readBatch(t, 1000); got != 4 {
		t.Errorf("batch %d, want 4", got)
	}
	// The buffer of the failed prefetch is used for later batches.
	r := tr.prefetcher.readers[0]
	n := len(r.buffers)
	for k := 5; k < 5+n; k++ {
		next.readBatch(t, 1000)
	}
	if b := r.buffers[4%n]; b.batch <= 4 {
		t.Errorf("the buffer of batch 4 has batch %d after batch %d was read", b.batch, 4+n)
	}
}
