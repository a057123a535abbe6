package readers

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// Elements that are larger than the memory that a worker may take are read in parts, whatever the access.
func TestElementsLargerThanTheBudget(t *testing.T) {
	e2e.Long(t)
	const elements, bytes = 8, 64 << 20
	path := filepath.Join(t.TempDir(), "matrices.bin")
	file, err := os.Create(path)
	e2e.NoError(t, err)
	defer file.Close()
	e2e.NoError(t, file.Truncate(elements*bytes))
	for i := range elements { // all else are holes
		number := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(i)))
		for _, at := range []int64{0, bytes - 4} {
			_, err := file.WriteAt(number, int64(i)*bytes+at)
			e2e.NoError(t, err)
		}
	}
	e2e.NoError(t, file.Close()) // a file that is open for writing is refused
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
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.Worker(t)))
		e2e.NoError(t, err)
		peak, err := strconv.Atoi(regexp.MustCompile(`VmHWM:\s+(\d+)`).FindStringSubmatch(string(text))[1])
		e2e.NoError(t, err)
		t.Logf("%s: a worker took %d MiB at most", access, peak>>10)
		// The budget, and the memory that every worker takes.
		if peak > (32+40)<<10 {
			t.Errorf("%s: a worker took %d MiB", access, peak>>10)
		}
		m.Stop(t)
	}
}

// The example of fine-tuning learns where its mask says, and nowhere else.
func TestFinetuneExample(t *testing.T) {
	e2e.Long(t)
	dir := t.TempDir()
	example := "../examples/finetune_numpy.py"
	e2e.Run(t, e2e.Python, example, "--write", dir)
	m := e2e.Mount(t, "-c", filepath.Join(dir, "config.toml"))
	t.Log(e2e.Run(t, e2e.Python, example, m.Dir))
}

// The example of a matrix has each row once, and from the mount in the memory of a batch.
func TestMatrixExample(t *testing.T) {
	e2e.Long(t)
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
	before := e2e.Resident(m.Worker(t))
	said := e2e.Run(t, e2e.Python, "../examples/matrix_numpy.py", path, m.Dir)
	t.Logf("%sthe worker grew by %d MiB", said, (e2e.Resident(m.Worker(t))-before)>>10)
	var mounted, mapped int
	if n, err := fmt.Sscanf(said, fmt.Sprintf("the mount: %d rows once each, memory grew by %%d MiB\nnp.memmap: %[1]d rows once each, memory grew by %%d MiB", rows), &mounted, &mapped); n < 2 {
		t.Fatalf("%v: %s", err, said)
	}
	if mounted > 8 || mapped < 48 {
		t.Errorf("reading the mount took %d MiB, a memmap %d MiB of a file of 62", mounted, mapped)
	}
}

// As many arrays as there may be, with the longest names, the most axes and the longest names of a split and its settings, have files
// whose headers are whole.
func TestLongestNames(t *testing.T) {
	dir := t.TempDir()
	e2e.Tokens(t, filepath.Join(dir, "tokens.bin"), 4000, 2)
	name := strings.Repeat("<", 100)
	config := "[batch]\nblock_size = 1000\neot = 7\ndocuments = true\nseed = 9223372036854775807\n"
	for range 2 {
		config += fmt.Sprintf("[[splits.%q.sources]]\ntokens = 'tokens.bin'\nweight = 1\n", name)
		for i := range 10 {
			config += fmt.Sprintf("[[splits.%q.sources.arrays]]\nname = '%032d'\nfiles = 'tokens.bin'\ndtype = 'uint16'\nshape = [%s1]\n",
				name, i, strings.Repeat("1, ", 28))
		}
	}
	e2e.Write(t, filepath.Join(dir, "config.toml"), []byte(config))
	m := e2e.Mount(t, "-c", filepath.Join(dir, "config.toml"))
	const code = `
import json, sys
import numpy as np
for name in ["next", "batch/1099511627775"]:
    data = open(f"{sys.argv[1]}/{name}.safetensors", "rb").read()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    assert begin == 4096 and len(header) == 2 + 10 + 3 + 1, header
    assert max(t["data_offsets"][1] for name, t in header.items() if name != "__metadata__") == len(data) - begin
assert np.load(f"{sys.argv[1]}/batches.{9:032}.npy", mmap_mode="r").ndim == 32
`
	e2e.Run(t, e2e.Python, "-c", code, m.Path(name+"/batch_size=3,rank=16777,world=16778,order=sequential,layout=xy,dtype=uint64"))
}
