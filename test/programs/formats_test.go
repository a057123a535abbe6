package programs

import (
	"path/filepath"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// npyRows writes arrays of every dtype that batchfs serves, with NumPy's own headers, and then compares what a mount serves of them.
const npyRows = `
import os, sys
import numpy as np
directory, mountpoint = sys.argv[1:]
random = np.random.default_rng(1)
arrays = {}
for dtype in "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64".split():
    for version, shape in ((1, 0), (9,)), ((2, 0), (7, 3)), ((3, 0), (5, 2, 1, 4)):
        a = np.frombuffer(random.bytes(8 * int(np.prod(shape))), dtype=np.uint8 if dtype == "bool" else dtype)[:int(np.prod(shape))].reshape(shape)
        arrays[f"{dtype}-{len(shape)}"] = version, (a % 2 == 1) if dtype == "bool" else a
if not mountpoint:
    for name, (version, a) in arrays.items():
        with open(f"{directory}/{name}.npy", "wb") as f:
            np.lib.format.write_array(f, a, version=version)
        print(f"[splits.{name}]\ntokens = '{directory}/{name}.npy'")
    sys.exit()
for name, (_, a) in arrays.items():
    served = np.load(f"{mountpoint}/{name}/batches.npy")
    assert served.dtype == a.dtype and served.shape == (len(a), 1) + a.shape[1:], (name, served.dtype, served.shape)
    assert served.tobytes() == a.tobytes(), name
print(len(arrays), "arrays")
`

// Rows of what NumPy writes are NumPy's, whatever the dtype, the further axes and the version of the format.
func TestRowsOfNumPyFiles(t *testing.T) {
	dir := t.TempDir()
	config := "[batch]\nlayout = 'rows'\nbatch_size = 1\norder = 'sequential'\n" + e2e.Run(t, e2e.Python, "-c", npyRows, dir, "")
	e2e.Write(t, filepath.Join(dir, "config.toml"), []byte(config))
	m := e2e.Mount(t, "-c", filepath.Join(dir, "config.toml"))
	e2e.Says(t, "36 arrays", e2e.Python, "-c", npyRows, dir, m.Dir)
}

// What datatrove and Megatron-LM wrote mounts by its name alone, and a worker that was not there when it was opened knows its documents.
func TestDocumentsOfADataDirectory(t *testing.T) {
	dir := t.TempDir()
	for from, to := range map[string]string{
		"a.ds": "train_00000.ds", "a.ds.index": "train_00000.ds.index", "a.ds.metadata": "train_00000.ds.metadata",
		"a_text_document.bin": "val_text_document.bin", "a_text_document.idx": "val_text_document.idx",
	} {
		raw := e2e.Content(t, filepath.Join("../cache/testdata", from))
		e2e.Write(t, filepath.Join(dir, to), raw)
	}
	m := e2e.Mount(t, "--data", dir, "--set", "batch.documents=true", "--set", "batch.order=sequential", "--set", "batch.batch_size=1",
		"--set", "batch.block_size=20")
	e2e.Kill(t, m, m.AwaitWorker(t))
	// Documents of 7 tokens: rows of 20 begin at 0, 20, 40 and 60.
	const show = `import sys, numpy as np
for row in np.load(sys.argv[1])[:4, 0]: print(*row)`
	want := ""
	for _, row := range []string{"0 7 14", "0 1 8 15", "0 2 9 16", "0 3 10 17"} {
		want += row + strings.Repeat(" 20", 21-len(strings.Fields(row))) + "\n"
	}
	for _, split := range []string{"train", "val"} {
		e2e.Equal(t, split, e2e.Run(t, e2e.Python, "-c", show, m.Path(split+"/batches.cu_seqlens.npy")), want)
	}
	e2e.Run(t, "cmp", m.Path("train/batches.bin"), m.Path("val/batches.bin"))
}
