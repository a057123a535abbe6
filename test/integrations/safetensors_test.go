package integrations

import (
	"testing"

	"batchfs/test/e2e"
)

// loaded is Python that compares what the library reads with the raw files and info.json of a
// directory.
const loaded = `
import json, sys
import numpy as np
from safetensors import numpy, safe_open
path = sys.argv[1]
info = json.load(open(f"{path}/info.json"))
def check(k, tensors, metadata):
    raw = np.fromfile(f"{path}/batch/{k}", info["dtype"]).reshape(info["shape"])
    want = {"x": raw[0], "y": raw[1]} if raw.ndim == 3 else {"tokens": raw}
    assert tensors.keys() == want.keys(), tensors.keys()
    for name, array in want.items():
        assert tensors[name].dtype == array.dtype and (tensors[name] == array).all(), name
    assert metadata == {"batch": str(k), "sequence": info["sequence"], "fingerprint": info["fingerprint"]}, metadata
for k in 17, 2**40 - 1:
    file = f"{path}/batch/{k}.safetensors"
    with safe_open(file, framework="np") as f:
        check(k, {name: f.get_tensor(name) for name in f.keys()}, f.metadata())
        check(k, numpy.load_file(file), f.metadata())
data = open(f"{path}/next.safetensors", "rb").read() # the library shows metadata only for files
check(0, numpy.load(data), json.loads(data[8:8 + int.from_bytes(data[:8], "little")])["__metadata__"])
`

// The safetensors library reads .safetensors files, and finds their arrays and metadata.
func TestSafetensors(t *testing.T) {
	e2e.NeedPython(t, "safetensors.numpy")
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	for _, dir := range []string{
		"train", "train/dtype=int64", "train/layout=tokens", "train/layout=tokens,dtype=int64",
		"val/rank=2,world=3,dtype=uint32",
	} {
		t.Run(dir, func(t *testing.T) {
			e2e.Run(t, e2e.Python, "-c", loaded, m.Path(dir))
			e2e.Equal(t, "the cursor", m.Cursor(t, dir), "1")
		})
	}
}
