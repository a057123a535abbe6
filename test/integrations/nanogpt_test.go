package integrations

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
	const small, large = 1, 1<<28/65_521 + 2 // from 2^28 tokens on a row draws two words
	var own, mounted, linked []string        // what clients/nanogpt.py runs, in two processes, as PyTorch takes long to begin
	for _, ramps := range []int{small, large} {
		dir, links := t.TempDir(), t.TempDir()
		e2e.Write(t, filepath.Join(dir, "val.bin"), ramp[:10_000])
		train := e2e.Must(os.Create(filepath.Join(dir, "train.bin")))(t)
		for range ramps {
			e2e.Must(train.Write(ramp))(t)
		}
		e2e.NoError(t, train.Close()) // mount refuses a file that is open for writing
		own = append(own, dir, filepath.Join(dir, "rng.bin"), "")
		linked = append(linked, links, filepath.Join(links, "rng.bin"), "")
	}
	nanoGPT := func(runs []string) string {
		return e2e.Run(t, append([]string{e2e.Python, "clients/nanogpt.py"}, runs...)...)
	}
	want := nanoGPT(own)
	if strings.Count(want, "\nval ") != 24 {
		t.Errorf("two runs of nanoGPT: %s", want)
	}
	for i := 0; i < len(own); i += 3 {
		m := e2e.Mount(t, "--data", own[i], "--set", "batch.batch_size=6", "--set", "batch.block_size=16", "--set", "batch.order=torch",
			"--set", "batch.torch_state="+own[i+1])
		mounted = append(mounted, own[i], filepath.Join(linked[i], "again.bin"), strings.ReplaceAll(recipe[1], "/mnt/batches", m.Dir))
		for _, split := range []string{"train", "val"} {
			e2e.NoError(t, os.Symlink(m.Path(split+"/tokens.bin"), filepath.Join(linked[i], split+".bin")))
		}
	}
	e2e.Equal(t, "the runs from mounts, and from tokens.bin", nanoGPT(append(mounted, linked...)), want+want)
}
