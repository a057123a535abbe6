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

// noting is a counting sequence that notes in what order its batches were made.
func noting(name string, batchBytes int64) (s *fake, made func() []uint64) {
	var mu sync.Mutex
	var list []uint64
	s = counting(name, batchBytes)
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

func TestPrefetchOfWhoReadsInOrder(t *testing.T) {
	const size = 1000
	for _, paths := range [][]string{
		{"train/next", "train/next", "train/next", "train/next"},
		{"train/next", "train/next.npy", "train/next.safetensors", "train/next"},
		{"train/batch/0", "train/batch/1", "train/batch/2", "train/batch/3"},
	} {
		s, made := noting("train", size)
		tr := plant(t, s)
		for i, path := range paths {
			want := [][]uint64{{0}, {0, 1, 2, 3}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4, 5}}[i]
			r := tr.reader(t, path, 0)
			if _, status := r.read(0, 1<<20); !status.Ok() {
				t.Fatal(status)
			}
			if got := made(); !slices.Equal(got, want) {
				t.Fatalf("%v: after %d batches, made are %v, want %v", paths, i+1, got, want)
			}
		}
	}
}

func TestNothingPrefetchedOfWhoDoesNot(t *testing.T) {
	s, made := noting("train", 1000)
	tr := plant(t, s)
	for _, k := range []int{7, 3000, 5, 2000, 1000, 0} {
		r := tr.reader(t, fmt.Sprintf("train/batch/%d", k), 0)
		for range 3 { // the same again is not the next
			r.batch(t, 1000)
		}
	}
	// Nor is what reads ahead by itself.
	all := tr.reader(t, "train/batches.bin", 0)
	for off := range int64(4) {
		all.read(1000*off, 1000)
	}
	if got := made(); len(got) != 6*3+4 {
		t.Errorf("made %v", got)
	}
}

// Each batch has its own bytes, however many readers there are, and the buffers stay within their
// bound.
func TestPrefetchChangesNoByte(t *testing.T) {
	sizes := map[string]int64{"small": 100, "page": 5000, "large": 30_000, "huge": 60_000}
	var splits []Batches
	for name, size := range sizes {
		splits = append(splits, counting(name, size))
	}
	tr := plant(t, splits...)
	tr.prefetcher.maxBytes = 100_000 // two of the largest stream's only, in turn with the others
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
					k = uint64(random.IntN(1000)) // a jump
					fallthrough
				default:
					path += fmt.Sprintf("/%d", k)
					k++
				}
				r := tr.reader(t, path, 0)
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
					k = uint64(number(got, s.Spec().Batch.Bytes()))
				}
				want := make([]byte, s.Spec().Batch.Bytes())
				s.Read(want, k, 0)
				if !bytes.Equal(got, want) {
					t.Errorf("%s: not batch %d", path, k)
					return
				}
				r.Release(nil, &fuse.ReleaseIn{InHeader: fuse.InHeader{NodeId: uint64(r.node)}, Fh: r.fh})
				tr.prefetcher.mu.Lock()
				taken := int64(0)
				for _, r := range tr.prefetcher.readers {
					taken += int64(len(r.slots)) * r.batchSize
				}
				if taken != tr.prefetcher.used.Load() || taken > tr.prefetcher.maxBytes {
					t.Errorf("%d bytes are taken, counted as %d, of %d", taken, tr.prefetcher.used.Load(), tr.prefetcher.maxBytes)
				}
				tr.prefetcher.mu.Unlock()
			}
		})
	}
	testwait.End(t, "the goroutines", wg.Wait)
}

// A batch that was made is not delivered once its tokens are found changed, nor one that could not
// be made.
func TestPrefetchOfFaults(t *testing.T) {
	s, _ := noting("train", 1000)
	var changed error
	s.now = func(uint64) (Batches, error) { return s, changed }
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
	tr := plant(t, s)
	next := tr.reader(t, "train/next", 0)
	next.batch(t, 1000)
	next.batch(t, 1000) // 2 and 3 are ready
	changed = fmt.Errorf("changed (%w)", syscall.ESTALE)
	if _, status := next.read(0, 1000); status != fuse.Status(syscall.ESTALE) {
		t.Errorf("changed: %v", status)
	}
	changed, broken = nil, true
	for k := 2; k < 4; k++ {
		if got := next.batch(t, 1000); got != k {
			t.Errorf("batch %d, want %d", got, k)
		}
	}
	if _, status := next.read(0, 1000); status != fuse.EIO {
		t.Errorf("broken: %v", status)
	}
	broken = false
	if got := next.batch(t, 1000); got != 4 {
		t.Errorf("batch %d, want 4", got)
	}
}
