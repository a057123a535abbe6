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

// A run of nanoGPT with the recipe of docs/runs.md gets the batches that nanoGPT itself draws, and
// has the same losses. So does an unmodified run whose data files are links to tokens.bin of a
// mount.
func TestNanoGPT(t *testing.T) {
	e2e.SkipIfShort(t)
	e2e.NeedPython(t, "torch")
	recipe := nanoGPTBlock.FindStringSubmatch(e2e.ReadPage(t, "docs/runs.md"))
	if recipe == nil {
		t.Fatal("docs/runs.md has no Python block that begins with # nanoGPT")
	}
	// The length of the ramp is prime, so rows that begin 2^16 tokens apart differ.
	var ramp []byte
	for i := range 65_521 {
		ramp = binary.LittleEndian.AppendUint16(ramp, uint16(i*i%293))
	}
	// In files of 2^28 tokens or more, each row takes two random words.
	const small, large = 1, 1<<28/65_521 + 2
	// Arguments of clients/nanogpt.py, three for each run. One process does several runs, because
	// PyTorch takes long to start.
	var own, mounted, linked []string
	for _, ramps := range []int{small, large} {
		dir, links := t.TempDir(), t.TempDir()
		e2e.Write(t, filepath.Join(dir, "val.bin"), ramp[:10_000])
		train := e2e.Must(os.Create(filepath.Join(dir, "train.bin")))(t)
		for range ramps {
			e2e.Must(train.Write(ramp))(t)
		}
		e2e.NoError(t, train.Close()) // mount rejects a file that is open for writing
		own = append(own, dir, filepath.Join(dir, "rng.bin"), "")
		linked = append(linked, links, filepath.Join(links, "rng.bin"), "")
	}
	nanoGPT := func(runs []string) string {
		return e2e.RunJob(t, append([]string{e2e.Python, "clients/nanogpt.py"}, runs...)...)
	}
	want := nanoGPT(own)
	if strings.Count(want, "\nval ") != 24 {
		t.Errorf("two runs of nanoGPT do not print 24 validation losses: %s", want)
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
