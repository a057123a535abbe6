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
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"batchfs/test/e2e"
)

// The memory of batchfs and its trainers does not grow with what was read. With page_cache =
// "drop", neither does the page cache.
func TestMemoryStaysFlat(t *testing.T) {
	e2e.SkipUnlessSoak(t)
	e2e.NeedFUSE(t)
	const MiB = 1 << 20
	path := e2e.WriteTokens(t, filepath.Join(t.TempDir(), "tokens.bin"), 32*MiB, 2)
	file := e2e.Must(os.Open(path))(t)
	defer file.Close()
	const code = `
import re, sys
path, worker = sys.argv[1:]
def read(n):
    for _ in range(n):
        open(path, "rb").read()
    return [int(re.search(r"VmRSS:\s*(\d+)", open(f"/proc/{pid}/status").read())[1]) for pid in ("self", worker)]
before = read(1)
print(*(b - a for a, b in zip(before, read(599))))
`
	cached := map[string]uint64{}
	for access, keep := range map[string]string{"remap": "keep", "pread": "drop"} {
		e2e.NoError(t, errors.Join(file.Sync(), unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)))
		m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "--set", "splits.train.tokens="+path,
			"--set", "memory.access="+access, "--set", "memory.page_cache="+keep)
		var trainer, worker int
		e2e.Must(fmt.Sscan(e2e.RunJob(t, e2e.Python, "-c", code, m.Path("train/next"), strconv.Itoa(m.Worker(t))), &trainer, &worker))(t)
		// The heap grows a little until the first garbage collections.
		if trainer > 4<<10 || worker > 20<<10 {
			t.Errorf("%s: the trainer grew by %d KiB and batchfs by %d, want at most 4 MiB and 20 MiB with a file of 64", access, trainer, worker)
		}
		var pages unix.Cachestat_t
		e2e.NoError(t, unix.Cachestat(uint(file.Fd()), &unix.CachestatRange{}, &pages, 0))
		cached[keep] = pages.Cache
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
	for _, access := range []string{"pread", "remap"} {
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
