package test

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
)

// Rows of any array, and arrays beside the tokens, of any dtype, further axes, files and source, are in every file what a reference
// computes that shares no code with the program, from any byte on. BATCHFS_SEED repeats a run.
func TestArraysAgreeWithReference(t *testing.T) {
	t.Parallel()
	chance := rand.New(rand.NewPCG(randomSeed(t), 0))
	splits, many := newRandomSplits(t, chance), 10
	if testing.Short() {
		many = 4
	}
	var sequences [][2]any
	for i := range many {
		name := fmt.Sprintf("split%d", i)
		split, of := splits.add(name)
		directory, under := split.path(chance, of)
		sequences = append(sequences, [2]any{name, of}, [2]any{filepath.Join(name, directory), under})
	}
	m := mount(t, "-c", splits.write(""))
	for i := range sequences {
		sequences[i][0] = m.path(sequences[i][0].(string))
	}
	file := filepath.Join(t.TempDir(), "sequences.json")
	write(t, file, jsonOf(t, sequences))
	cmd := command(t, python, "clients/differential.py", file, fmt.Sprint(chance.Uint32()), fmt.Sprint(100*many))
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "failed") {
		t.Errorf("%v\n%s", err, out)
	}
}

// Elements that are larger than the memory that a worker may take are read in parts, whatever the access.
func TestElementsLargerThanTheBudget(t *testing.T) {
	long(t)
	const elements, bytes = 8, 64 << 20
	path := filepath.Join(t.TempDir(), "matrices.bin")
	file, err := os.Create(path)
	noError(t, err)
	defer file.Close()
	noError(t, file.Truncate(elements*bytes))
	for i := range elements { // all else are holes
		number := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(i)))
		for _, at := range []int64{0, bytes - 4} {
			_, err := file.WriteAt(number, int64(i)*bytes+at)
			noError(t, err)
		}
	}
	noError(t, file.Close()) // a file that is open for writing is refused
	for _, access := range []string{"pread", "remap", "advise"} {
		m := mountProgram(t, exec.Command(plainBatchfs), "--set", "splits.train.tokens="+path, "--set", "splits.train.layout=rows",
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
		run(t, python, "-c", code, m.path("train"))
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.worker(t)))
		noError(t, err)
		peak, err := strconv.Atoi(regexp.MustCompile(`VmHWM:\s+(\d+)`).FindStringSubmatch(string(text))[1])
		noError(t, err)
		t.Logf("%s: a worker took %d MiB at most", access, peak>>10)
		// The budget, and the memory that every worker takes.
		if peak > (32+40)<<10 {
			t.Errorf("%s: a worker took %d MiB", access, peak>>10)
		}
		m.stop(t)
	}
}

// The example of fine-tuning learns where its mask says, and nowhere else.
func TestFinetuneExample(t *testing.T) {
	long(t)
	dir := t.TempDir()
	example := "../examples/finetune_numpy.py"
	run(t, python, example, "--write", dir)
	m := mount(t, "-c", filepath.Join(dir, "config.toml"))
	t.Log(run(t, python, example, m.dir))
}

// The example of a matrix has each row once, and from the mount in the memory of a batch.
func TestMatrixExample(t *testing.T) {
	long(t)
	const rows, columns = 16_001, 1024
	path := filepath.Join(t.TempDir(), "matrix.bin")
	raw := make([]byte, 0, 4*rows*columns)
	for range rows * columns {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(rand.Float32()))
	}
	write(t, path, raw)
	m := mountProgram(t, exec.Command(plainBatchfs), "--set", "splits.train.tokens="+path, "--set", "splits.train.layout=rows",
		"--set", "splits.train.token_dtype=float32", "--set", fmt.Sprintf("splits.train.shape=[%d]", columns),
		"--set", "batch.order=shuffle", "--set", "batch.batch_size=64")
	before := resident(m.worker(t))
	said := run(t, python, "../examples/matrix_numpy.py", path, m.dir)
	t.Logf("%sthe worker grew by %d MiB", said, (resident(m.worker(t))-before)>>10)
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
	tokens(t, filepath.Join(dir, "tokens.bin"), 4000, 2)
	name := strings.Repeat("<", 100)
	config := "[batch]\nblock_size = 1000\neot = 7\ndocuments = true\nseed = 9223372036854775807\n"
	for range 2 {
		config += fmt.Sprintf("[[splits.%q.sources]]\ntokens = 'tokens.bin'\nweight = 1\n", name)
		for i := range 10 {
			config += fmt.Sprintf("[[splits.%q.sources.arrays]]\nname = '%032d'\nfiles = 'tokens.bin'\ndtype = 'uint16'\nshape = [%s1]\n",
				name, i, strings.Repeat("1, ", 28))
		}
	}
	write(t, filepath.Join(dir, "config.toml"), []byte(config))
	m := mount(t, "-c", filepath.Join(dir, "config.toml"))
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
	run(t, python, "-c", code, m.path(name+"/batch_size=3,rank=16777,world=16778,order=sequential,layout=xy,dtype=uint64"))
}
