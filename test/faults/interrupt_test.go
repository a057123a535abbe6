package faults

import (
	"fmt"
	"path/filepath"
	"testing"

	"batchfs/test/e2e"
)

// While the file system of the tokens interrupts most requests, no read fails, and neither does a
// page fault of a mapping.
func TestInterruptedFileSystem(t *testing.T) {
	t.Parallel()
	const shards, batches = 4, 8
	source := t.TempDir()
	for i := range shards {
		e2e.Write(t, filepath.Join(source, fmt.Sprintf("train-%d.bin", i)), e2e.TokensOfVersion(i, 200_000))
	}
	settings := []string{"-c", "/dev/null", "--set", "batch.batch_size=12", "--set"}
	want := e2e.Digests(t, "train", 0, batches, append(settings, "splits.train.tokens="+source+"/*.bin")...)
	for _, access := range []string{"remap", "pread"} {
		t.Run(access, func(t *testing.T) {
			t.Parallel()
			slow := e2e.NewSlowFS(t, source)
			m := e2e.Mount(t, append(settings, "splits.train.tokens="+slow.Dir+"/*.bin", "--set", "memory.access="+access)...)
			before := slow.Count(t, "read")
			for _, request := range []string{"lookup", "getattr", "open"} {
				slow.Interrupt(t, request, 1, 2)
			}
			// Five interruptions in a row affect the read-ahead and two attempts to map a page.
			slow.Interrupt(t, "read", 5, 6)
			for k := range batches {
				e2e.Equal(t, fmt.Sprint("batch ", k), e2e.FileDigest(t, m, fmt.Sprint("train/batch/", k)), want[k])
			}
			e2e.Equal(t, "errors", e2e.StatusOf(t, m).Splits["train"].Errors, 0)
			if after := slow.Count(t, "read"); after < before+10*batches {
				t.Errorf("the files had %d read requests before %d batches and %d after, want 10 for each batch: the page cache had most of them", before, batches, after)
			}
		})
	}
}
