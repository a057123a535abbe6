package faults

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"batchfs/internal/testwait"
	"batchfs/test/e2e"
)

// followedFiles is the number of token files. Batch k is read from file k mod followedFiles, so
// each file has batches that the kernel has not cached.
const followedFiles = 100

// A followedMount serves a split that follows changes. Each of its files takes 30 ms to open.
type followedMount struct {
	slow    *e2e.SlowFS
	mounted *e2e.Mounted
	dir     string
}

func mountFollowed(t *testing.T) *followedMount {
	t.Helper()
	f := &followedMount{dir: t.TempDir()}
	for i := range followedFiles {
		e2e.Write(t, f.file(i), e2e.TokensOfVersion(i%6, 65))
	}
	f.slow = e2e.NewSlowFS(t, f.dir)
	f.mounted = e2e.Mount(t, "-c", "/dev/null", "--set", "splits.train.tokens="+f.slow.Dir+"/*.bin", "--set", "splits.train.on_change=follow",
		"--set", "batch.order=sequential", "--set", "batch.batch_size=1", "--set", "batch.block_size=64")
	f.slow.Delay(t, "open", 30*time.Millisecond)
	return f
}

func (f *followedMount) file(i int) string { return filepath.Join(f.dir, fmt.Sprintf("%03d.bin", i)) }

// read reads batches of a file with several readers, until each has read at least enough batches
// and the time last is over. Reads may fail only with ESTALE.
func (f *followedMount) read(t *testing.T, file, readers, enough int, last time.Duration) (slowest time.Duration, reads, failed int) {
	var running sync.WaitGroup
	var mu sync.Mutex
	for reader := range readers {
		running.Go(func() {
			end := time.Now().Add(last)
			for n := 0; n < enough || time.Now().Before(end); n++ {
				began := time.Now()
				err := f.readBatch(file + followedFiles*(reader+readers*n))
				took := time.Since(began)
				mu.Lock()
				slowest, reads = max(slowest, took), reads+1
				if err != nil {
					failed++
				}
				if err != nil && !errors.Is(err, syscall.ESTALE) {
					t.Error(err)
				}
				mu.Unlock()
				time.Sleep(10 * time.Millisecond) // leaves the processors to other tests
			}
		})
	}
	testwait.End(t, "the readers", running.Wait)
	return slowest, reads, failed
}

func (f *followedMount) readBatch(k int) error {
	file, err := os.Open(f.mounted.Path(fmt.Sprint("train/batch/", k)))
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.ReadAll(file)
	return err
}

// While a changed file cannot be served, its readers share attempts to reload the split, which are
// at least a second apart. Batches of other files are served. Batches of the changed file are
// served again once it is repaired.
func TestReadersShareAReload(t *testing.T) {
	t.Parallel()
	const changed = 37
	last := e2e.NormalOrSoak(time.Second, 4*time.Second)
	f := mountFollowed(t)
	var slowest [2]time.Duration
	for i, readers := range []int{1, 64} {
		// The file ends within a token.
		e2e.ReplaceFile(t, f.file(changed), e2e.TokensOfVersion(i, 100)[:199])
		opens, began := f.slow.Count(t, "open"), time.Now()
		var reads, failed int
		slowest[i], reads, failed = f.read(t, changed, readers, 1, last)
		reloads := (f.slow.Count(t, "open") - opens) / followedFiles
		t.Logf("%d readers: %d reads, the slowest took %v; %d reloads", readers, reads, slowest[i], reloads)
		if most := 2 + int(time.Since(began).Seconds()); failed < reads || reloads > most {
			t.Errorf("%d readers: %d of %d reads failed, want all; %d reloads, want at most %d", readers, failed, reads, reloads, most)
		}
	}
	e2e.CheckDuration(t, "the slowest of 64 reads", slowest[1], slowest[0]*3/2)
	var all sync.WaitGroup
	all.Go(func() { f.read(t, changed, 64, 1, last/2) })
	if _, reads, failed := f.read(t, changed+1, 4, 10, last/2); failed > 0 {
		t.Errorf("%d of %d batches of an unchanged file failed, want none", failed, reads)
	}
	testwait.End(t, "the readers of the changed file", all.Wait)
	e2e.ReplaceFile(t, f.file(changed), e2e.TokensOfVersion(3, 65))
	k := changed
	e2e.AwaitSuccess(t, "the repaired file", func() error {
		k += followedFiles
		return f.readBatch(k)
	})
}
