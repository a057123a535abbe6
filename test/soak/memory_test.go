package soak

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"batchfs/test/e2e"
)

// The memory of batchfs and its trainers does not grow with what was read, except with access =
// "map".
func TestMemoryStaysFlat(t *testing.T) {
	e2e.SkipUnlessSoak(t)
	e2e.NeedFUSE(t)
	dir := t.TempDir()
	const MiB = 1 << 20
	file := e2e.WriteTokens(t, filepath.Join(dir, "tokens.bin"), 32*MiB, 2)
	figures := filepath.Join(dir, "memory.json")
	e2e.Run(t, e2e.Batchfs, "bench", "--memory", "--tokens", file, "--dir", dir, "--python", e2e.Python, "--batches", "600", "--json", figures)
	text := e2e.Content(t, figures)
	var loadings []struct {
		Name         string
		Measurements []struct {
			PageCache       int64 `json:"page_cache"`
			Trainer, Daemon struct{ RSS int64 }
		} `json:"samples"`
	}
	e2e.NoError(t, json.Unmarshal(text, &loadings))
	grown, held, cached := map[string]int64{}, map[string]int64{}, map[string][2]int64{}
	for _, l := range loadings {
		first, last := l.Measurements[0], l.Measurements[len(l.Measurements)-1]
		grown[l.Name] = last.Daemon.RSS - first.Daemon.RSS
		cached[l.Name] = [2]int64{first.PageCache, last.PageCache}
		held[l.Name] = last.Trainer.RSS - first.Trainer.RSS
		if g := held[l.Name]; g > 4*MiB && last.Daemon.RSS > 0 {
			t.Errorf("%s: the trainer grew by %d MiB, want at most 4", l.Name, g/MiB)
		}
	}
	// The heap grows a little until the first garbage collections.
	for _, name := range []string{"batchfs remap", "batchfs advise", "batchfs pread"} {
		if g, ok := grown[name]; !ok || g > 20*MiB {
			t.Errorf("%s: batchfs grew by %d MiB, want at most 20", name, g/MiB)
		}
	}
	if g := grown["batchfs map"]; g < 40*MiB {
		t.Errorf("batchfs map: batchfs grew by %d MiB with a file of 64, want at least 40", g/MiB)
	}
	keep, drop := cached["page_cache = keep"], cached["page_cache = drop"]
	// On tmpfs, the whole file is always in the page cache.
	if keep[0] < 8*MiB && drop[1] >= keep[1]/2 {
		t.Errorf("%d MiB of the file are in the page cache with keep and %d with drop, want less than half", keep[1]/MiB, drop[1]/MiB)
	}
}

// Elements that are larger than the memory budget are read in parts, whatever memory.access is.
func TestElementsLargerThanTheBudget(t *testing.T) {
	e2e.SkipUnlessSoak(t)
	const elements, bytes = 8, 64 << 20
	path := filepath.Join(t.TempDir(), "matrices.bin")
	file := e2e.Must(os.Create(path))(t)
	defer file.Close()
	e2e.NoError(t, file.Truncate(elements*bytes))
	for i := range elements { // the rest are holes
		number := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(i)))
		for _, pos := range []int64{0, bytes - 4} {
			e2e.Must(file.WriteAt(number, int64(i)*bytes+pos))(t)
		}
	}
	e2e.NoError(t, file.Close()) // mount rejects a file that is open for writing
	for _, access := range []string{"pread", "remap", "advise"} {
		m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "--set", "splits.train.tokens="+path, "--set", "splits.train.layout=rows",
			"--set", "splits.train.token_dtype=float32", "--set", "splits.train.shape=[4096, 4096]", "--set", "batch.batch_size=1",
			"--set", "batch.order=shuffle", "--set", "memory.budget=33554432", "--set", "memory.access="+access)
		const code = `
import io, json, sys
import numpy as np
for name in ["next.npy", "next.npy", "batch/0.npy", "batch/1.npy", "batch/2.npy"]:
    data = open(f"{sys.argv[1]}/{name}", "rb", buffering=0).read()
    rows = np.load(io.BytesIO(data))
    assert rows.shape == (1, 4096, 4096) and rows.dtype == np.float32 and rows[0, 0, 0] == rows[0, -1, -1] and not rows[0, 1:-1].any()
    if name.startswith("batch"):
        origin = json.load(open(f"{sys.argv[1]}/{name.removesuffix('npy')}json"))["rows"][0]
        assert rows[0, 0, 0] == origin["start"], (rows, origin)
`
		e2e.Run(t, e2e.Python, "-c", code, m.Path("train"))
		peak := e2e.ProcNumber(m.Worker(t), "VmHWM")
		t.Logf("%s: a worker took %d MiB at most", access, peak>>10)
		// The limit is the budget plus the memory that every worker needs.
		if peak > (32+40)<<10 {
			t.Errorf("%s: a worker took %d MiB, want at most %d", access, peak>>10, 32+40)
		}
		m.Stop(t)
	}
}

// The matrix example reads each row once. From the mount, it needs memory for only one batch,
// unlike with np.memmap.
func TestMatrixExample(t *testing.T) {
	e2e.SkipUnlessSoak(t)
	const rows, columns = 16_001, 1024
	path := filepath.Join(t.TempDir(), "matrix.bin")
	raw := make([]byte, 0, 4*rows*columns)
	for range rows * columns {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(rand.Float32()))
	}
	e2e.Write(t, path, raw)
	m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "--set", "splits.train.tokens="+path, "--set", "splits.train.layout=rows",
		"--set", "splits.train.token_dtype=float32", "--set", fmt.Sprintf("splits.train.shape=[%d]", columns),
		"--set", "batch.order=shuffle", "--set", "batch.batch_size=64")
	output := e2e.Run(t, e2e.Python, "../examples/matrix_numpy.py", path, m.Dir)
	var mounted, mapped int
	if n, err := fmt.Sscanf(output, fmt.Sprintf("the mount: %d rows once each, memory grew by %%d MiB\nnp.memmap: %[1]d rows once each, memory grew by %%d MiB", rows), &mounted, &mapped); n < 2 {
		t.Fatalf("matrix_numpy.py printed %s (%v)", output, err)
	}
	if mounted > 8 || mapped < 48 {
		t.Errorf("reading the mount took %d MiB and a memmap %d MiB with a file of 62, want at most 8 and at least 48", mounted, mapped)
	}
}
