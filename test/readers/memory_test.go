package readers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"batchfs/test/e2e"
)

// What the daemon has resident does not grow with what was read, rows of a matrix neither, but with access = map, which is there to show it.
func TestMemoryStaysFlat(t *testing.T) {
	e2e.Long(t)
	e2e.NeedFUSE(t)
	dir := t.TempDir()
	const MiB = 1 << 20
	file := e2e.Tokens(t, filepath.Join(dir, "tokens.bin"), 32*MiB, 2)
	figures := filepath.Join(dir, "memory.json")
	e2e.Run(t, e2e.Batchfs, "bench", "--memory", "--tokens", file, "--dir", dir, "--python", e2e.Python, "--batches", "600",
		"--json", figures, "--plot", filepath.Join(dir, "memory.svg"))
	text, err := os.ReadFile(figures)
	e2e.NoError(t, err)
	var loadings []struct {
		Name    string
		Samples []struct {
			PageCache       int64 `json:"page_cache"`
			Trainer, Daemon struct{ RSS int64 }
		}
	}
	e2e.NoError(t, json.Unmarshal(text, &loadings))
	grown, held, cached := map[string]int64{}, map[string]int64{}, map[string][2]int64{}
	for _, l := range loadings {
		first, last := l.Samples[0], l.Samples[len(l.Samples)-1]
		grown[l.Name] = last.Daemon.RSS - first.Daemon.RSS
		cached[l.Name] = [2]int64{first.PageCache, last.PageCache}
		held[l.Name] = last.Trainer.RSS - first.Trainer.RSS
		if g := held[l.Name]; g > 4*MiB && last.Daemon.RSS > 0 {
			t.Errorf("%s: its trainer grew by %d MiB", l.Name, g/MiB)
		}
	}
	// The heap grows a little until its first collections.
	for _, name := range []string{"batchfs remap", "batchfs advise", "batchfs pread", "batchfs, rows of a matrix"} {
		if g, ok := grown[name]; !ok || g > 20*MiB {
			t.Errorf("%s: the daemon grew by %d MiB", name, g/MiB)
		}
	}
	if g := grown["batchfs map"]; g < 40*MiB {
		t.Errorf("batchfs map: the daemon grew by %d MiB of a file of 64", g/MiB)
	}
	if g := held["np.memmap of a matrix, kept"]; g < 20*MiB {
		t.Errorf("a memmap of a matrix: the trainer grew by %d MiB of a file of 64", g/MiB)
	}
	keep, drop := cached["page_cache = keep"], cached["page_cache = drop"]
	if keep[0] < 8*MiB && drop[1] >= keep[1]/2 { // but on tmpfs, where all of a file is in the page cache always
		t.Errorf("of the file, %d MiB are in the page cache with keep, %d with drop", keep[1]/MiB, drop[1]/MiB)
	}
}
