package integrations

import (
	"path/filepath"
	"testing"

	"batchfs/test/e2e"
)

// npyRows is Python that writes arrays of every dtype with NumPy, or compares them with what a
// mount serves.
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

// A mount serves the rows of files that NumPy wrote, whatever their dtype, axes and format version.
func TestRowsOfNumPyFiles(t *testing.T) {
	dir := t.TempDir()
	config := "[batch]\nlayout = 'rows'\nbatch_size = 1\norder = 'sequential'\n" + e2e.Run(t, e2e.Python, "-c", npyRows, dir, "")
	e2e.Write(t, filepath.Join(dir, "config.toml"), []byte(config))
	m := e2e.Mount(t, "-c", filepath.Join(dir, "config.toml"))
	e2e.CheckOutput(t, "36 arrays", e2e.Python, "-c", npyRows, dir, m.Dir)
}
