package soak

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"batchfs/test/e2e"
)

// readAndMeasure is a Python program that reads next in some processes, which begin at the same
// time, and prints by how many KiB the worker and a reader, with their page tables, have grown
// between the first batches and the end.
const readAndMeasure = `
import multiprocessing, os, re, sys
path, worker, first, batches, readers = sys.argv[1], *map(int, sys.argv[2:])
def memory(pid):
    status = open(f"/proc/{pid}/status").read()
    return sum(int(re.search(rf"{name}:\s*(\d+)", status)[1]) for name in ("VmRSS", "VmPTE"))
barrier = multiprocessing.get_context("fork").Barrier(readers)
children = []
while len(children) < readers - 1 and (pid := os.fork()):
    children.append(pid)
is_child = len(children) < readers - 1
results = []
for n in first, batches - first:
    barrier.wait()
    for _ in range(n // readers):
        open(path, "rb", buffering=0).read()
    barrier.wait()
    results.append((memory(worker), memory("self")))
if is_child:
    os._exit(0)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
print(*(after - before for before, after in zip(*results)))
`

// The memory of batchfs and its trainers does not grow with what was read. With page_cache =
// "drop", neither does the page cache.
func TestMemoryStaysFlat(t *testing.T) {
	e2e.SkipUnlessSoak(t)
	e2e.NeedFUSE(t)
	const GiB = 1 << 30
	const bytes = 4 * GiB
	dir := t.TempDir()
	one := e2e.WriteTokens(t, filepath.Join(dir, "one.bin"), bytes/2, 2)
	for i := range 3000 {
		e2e.WriteTokens(t, filepath.Join(dir, fmt.Sprintf("shard_%04d.bin", i)), bytes/2/3000, 2)
	}
	shards := filepath.Join(dir, "shard_*.bin")
	file := e2e.Must(os.Open(one))(t)
	defer file.Close()
	cached := map[string]uint64{}
	for _, test := range []struct {
		access, pages, tokens string
		readers, descriptors  int
	}{
		{"remap", "keep", one, 1, 20_000},
		{"pread", "drop", one, 1, 20_000},
		{"advise", "keep", one, 1, 20_000},
		{"advise", "drop", one, 16, 20_000},
		{"remap", "keep", shards, 64, 256},
		{"advise", "keep", shards, 64, 256},
		{"advise", "drop", shards, 64, 256},
	} {
		e2e.NoError(t, errors.Join(file.Sync(), unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)))
		limited := exec.Command("sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, test.descriptors), e2e.PlainBatchfs)
		m := e2e.MountProgram(t, limited, "--set", "splits.train.tokens="+test.tokens, "--set", "splits.train.token_dtype=uint16",
			"--set", "memory.access="+test.access, "--set", "memory.page_cache="+test.pages)
		var worker, trainer int
		const first, batches = 1000, 30_000
		e2e.Must(fmt.Sscan(e2e.RunJob(t, e2e.Python, "-c", readAndMeasure, m.Path("train/next"), fmt.Sprint(m.Worker(t)),
			fmt.Sprint(first), fmt.Sprint(batches), fmt.Sprint(test.readers)), &worker, &trainer))(t)
		t.Logf("%+v: the worker grew by %d KiB and a trainer by %d", test, worker, trainer)
		if trainer > 8<<10 || worker > 8<<10 {
			t.Errorf("%+v: the worker grew by %d KiB and a trainer by %d after the first %d batches, want at most 8 MiB", test, worker, trainer, first)
		}
		var pages unix.Cachestat_t
		e2e.NoError(t, unix.Cachestat(uint(file.Fd()), &unix.CachestatRange{}, &pages, 0))
		if test.tokens == one {
			cached[test.pages] = pages.Cache
		}
		m.Stop(t)
	}
	if keep, drop := cached["keep"], cached["drop"]; drop >= keep/2 {
		t.Errorf("%d pages of the file are in the page cache with keep and %d with drop, want less than half", keep, drop)
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
		e2e.RunJob(t, e2e.Python, "-c", code, m.Path("train"))
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
	output := e2e.RunJob(t, e2e.Python, "../examples/matrix_numpy.py", path, m.Dir)
	var mounted, mapped int
	if n, err := fmt.Sscanf(output, fmt.Sprintf("the mount: %d rows once each, memory grew by %%d MiB\nnp.memmap: %[1]d rows once each, memory grew by %%d MiB", rows), &mounted, &mapped); n < 2 {
		t.Fatalf("matrix_numpy.py printed %s (%v)", output, err)
	}
	if mounted > 8 || mapped < 48 {
		t.Errorf("reading the mount took %d MiB and a memmap %d MiB with a file of 62, want at most 8 and at least 48", mounted, mapped)
	}
}
