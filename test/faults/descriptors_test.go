package faults

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// With every access, a mount can read more shards than its process may have descriptors, and keeps
// few of them open.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	const shards, limit, tokens = 400, 256, 200
	dir, data := t.TempDir(), e2e.TokensOfVersion(0, shards*tokens)
	for i := range shards {
		e2e.Write(t, filepath.Join(dir, fmt.Sprintf("train-%04d.bin", i)), data[2*tokens*i:][:2*tokens])
	}
	settings := []string{"--data", dir, "--set", "batch.batch_size=25", "--set", "batch.block_size=32"}
	want := ""
	for _, access := range []string{"remap", "advise", "pread"} {
		for _, pages := range []string{"keep", "drop"} {
			t.Run(access+","+pages, func(t *testing.T) {
				limited := exec.Command("sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, limit), e2e.Batchfs)
				m := e2e.MountProgram(t, limited, append(settings, "--set", "memory.access="+access, "--set", "memory.page_cache="+pages)...)
				steps := m.Info(t, "train").Steps
				if want == "" {
					want = e2e.Digest(e2e.Cat(t, append(settings, "train", "--count", fmt.Sprint(steps))...))
				}
				e2e.Equal(t, "an epoch", e2e.FileDigest(t, m, "train/batches.bin"), want)
				open := 0
				for _, link := range e2e.OpenFiles(t, m.Worker(t)) {
					if strings.HasPrefix(link, dir) {
						open++
					}
				}
				if open > limit/4 {
					t.Errorf("%d shards stay open, want at most %d", open, limit/4)
				}
			})
		}
	}
}
