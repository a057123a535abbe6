package readers

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

var nanoGPTBlock = regexp.MustCompile("(?ms)^```python\n(# nanoGPT.*?)^```$")

// A run of nanoGPT that reads a mount in the way that docs/runs.md says gets the batches that nanoGPT itself draws, evaluation
// included, and has the same losses. So has one that was not changed, whose data directory has links to files tokens.bin of a mount.
func TestNanoGPT(t *testing.T) {
	e2e.Long(t)
	e2e.NeedPython(t, "torch")
	recipe := nanoGPTBlock.FindStringSubmatch(e2e.ReadPage(t, "docs/runs.md"))
	if recipe == nil {
		t.Fatal("docs/runs.md has no block that begins with # nanoGPT")
	}
	var ramp []byte // its length is prime, so rows that begin 2^16 tokens apart differ
	for i := range 65_521 {
		ramp = binary.LittleEndian.AppendUint16(ramp, uint16(i*i%293))
	}
	for name, ramps := range map[string]int{"small": 1, "large": 1<<28/65_521 + 2} { // from 2^28 tokens on a row draws two words
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			e2e.Write(t, filepath.Join(dir, "val.bin"), ramp[:10_000])
			train := e2e.Must(os.Create(filepath.Join(dir, "train.bin")))(t)
			for range ramps {
				e2e.Must(train.Write(ramp))(t)
			}
			e2e.NoError(t, train.Close()) // mount refuses a file that is open for writing
			state := filepath.Join(dir, "rng.bin")
			want := e2e.Run(t, e2e.Python, "clients/nanogpt.py", dir, state)
			m := e2e.Mount(t, "--data", dir, "--set", "batch.batch_size=6", "--set", "batch.block_size=16",
				"--set", "batch.order=torch", "--set", "batch.torch_state="+state)
			code := strings.ReplaceAll(recipe[1], "/mnt/batches", m.Dir)
			got := e2e.Run(t, e2e.Python, "clients/nanogpt.py", dir, filepath.Join(dir, "again.bin"), code)
			if got != want || strings.Count(want, "\nval ") != 12 {
				t.Errorf("the run from the mount:\n%s\nnanoGPT's own:\n%s", got, want)
			}
			links := t.TempDir()
			for _, split := range []string{"train", "val"} {
				e2e.NoError(t, os.Symlink(m.Path(split+"/tokens.bin"), filepath.Join(links, split+".bin")))
			}
			e2e.Equal(t, "the run from tokens.bin", e2e.Run(t, e2e.Python, "clients/nanogpt.py", links, filepath.Join(dir, "linked.bin")), want)
		})
	}
}
