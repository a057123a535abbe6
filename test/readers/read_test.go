package readers

import (
	"fmt"
	fnv1a "hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// In every way that programs are known to read, they get whole batches of about the size of a
// request.
func TestEveryReaderGetsWholeBatches(t *testing.T) {
	t.Parallel()
	sizes := []struct {
		name   string
		bytes  int
		layout string
		b, t   int
		steps  int
	}{
		{"s48k", 48 << 10, "xy", 12, 1024, 5},
		{"s1m-2", 1<<20 - 2, "tokens", 1, 1<<19 - 2, 4},
		{"s1m", 1 << 20, "xy", 256, 1024, 4},
		{"s1m2", 1<<20 + 2, "tokens", 1, 1 << 19, 4},
		{"s6m", 6 << 20, "xy", 1536, 1024, 2},
	}
	dir := t.TempDir()
	data := e2e.WriteTokens(t, filepath.Join(dir, "train.bin"), 3_000_000, 2)
	var config strings.Builder
	for _, s := range sizes {
		fmt.Fprintf(&config, "[splits.%s]\ntokens = %q\nbatch_size = %d\nblock_size = %d\nlayout = %q\nsteps = %d\n", s.name, data, s.b, s.t, s.layout, s.steps)
	}
	file := e2e.Write(t, filepath.Join(dir, "config.toml"), []byte(config.String()))
	m := e2e.Mount(t, "-c", file)

	for _, s := range sizes {
		t.Run(s.name, func(t *testing.T) {
			if s.bytes > 1<<20 {
				e2e.SkipIfShort(t)
			}
			t.Parallel()
			batches := e2e.Cat(t, s.name, "-c", file, "--count", fmt.Sprint(s.steps))
			npy := e2e.Cat(t, s.name, "-c", file, "--count", fmt.Sprint(s.steps), "--format", "npy")
			e2e.Equal(t, "bytes of all batches", len(batches), s.steps*s.bytes)
			second := batches[s.bytes:][:s.bytes]
			path := func(name string) string { return m.Path(s.name + "/" + name) }
			for name, size := range map[string]int{"next": s.bytes, "batch/0": s.bytes, "batches.bin": len(batches), "batches.npy": len(npy)} {
				e2e.Equal(t, "the size of "+name, e2e.Must(os.Stat(path(name)))(t).Size(), int64(size))
			}
			r := reads{}
			// The .npy files are also read through NumPy.
			for name, data := range map[string][]byte{"batch/1.npy": second, "batches.npy": batches} {
				r.add(name, e2e.Digest(data), "npload", "npload_mmap")
			}
			for name, data := range map[string][]byte{"batch/1": second, "batches.bin": batches, "batches.npy": npy} {
				r.add(name, e2e.Digest(data), "read", "readinto", "pread", "fromfile", "memmap", "mmap_shared", "mmap_private", "sendfile", "copyfile",
					"head_then_rest", "rewind")
				checkFile(t, path(name), data)
			}
			r.check(t, m.Path(s.name))
			checkNext(t, m, s.name, file, s.bytes)
		})
	}
}

// checkFile checks that every program that reads a file gets data.
func checkFile(t *testing.T, path string, data []byte) {
	t.Helper()
	digest := e2e.Digest(data)
	copied := filepath.Join(t.TempDir(), "copy")
	for _, command := range []string{`cat "$1" >"$2"`, `cp "$1" "$2"`, `dd if="$1" of="$2" bs=4k status=none`, `tail -c +1 "$1" >"$2"`} {
		e2e.Run(t, "sh", "-c", command, "sh", path, copied)
		e2e.Equal(t, command, e2e.Digest(e2e.Content(t, copied)), digest)
	}
	e2e.Equal(t, "tail -c", e2e.Run(t, "tail", "-c", "777", path) == string(data[len(data)-777:]), true)
	for _, chunk := range []string{"0", "4096", "1000003"} {
		e2e.CheckOutput(t, fnv(data), e2e.CReader, path, chunk, "3")
	}
}

// checkNext checks every way to read next. Each read of the whole file takes a number. A batch has
// size bytes.
func checkNext(t *testing.T, m *e2e.Mounted, split, config string, size int) {
	t.Helper()
	batches := e2e.Cat(t, split, "-c", config, "--count", "16")
	k := 0
	next := func() []byte { k++; return batches[(k-1)*size:][:size] }
	path := m.Path(split + "/next")
	r := reads{}
	for _, method := range []string{"read", "readinto", "pread", "fromfile", "copyfile", "head_then_rest", "rewind"} {
		r.add("next", e2e.Digest(next()), method)
	}
	r.add("next.npy", e2e.Digest(next()), "npload")
	// A file without a page cache cannot be mapped shared, and sendfile needs a size.
	r.add("next", "errno ENODEV", "mmap_shared", "memmap")
	r.add("next", "errno EINVAL", "sendfile")
	r.check(t, m.Path(split))
	for _, got := range e2e.Read(t, "pread_kept", path, "3") {
		e2e.Equal(t, "pread_kept next", got, e2e.Digest(next()))
	}
	e2e.CheckOutput(t, fnv(next()), e2e.CReader, path, "0", "1")
	e2e.CheckOutput(t, fnv(next()), e2e.CReader, path, "4096", "5")
	e2e.Equal(t, "dd next", e2e.Digest([]byte(e2e.Run(t, "dd", "if="+path, "bs=4k", "status=none"))), e2e.Digest(next()))
	tail, head := e2e.Run(t, "tail", "-c", "99", path), e2e.Run(t, "head", "-c", "100", path)
	e2e.Equal(t, "tail next", strings.HasSuffix(string(next()), tail), true)
	e2e.Equal(t, "head next", strings.HasPrefix(string(next()), head), true)
	e2e.Equal(t, "the cursor", m.NextNumber(t, split), k)
}

// reads are reads that one process does one after another, because Python takes long to start.
type reads struct{ args, want []string }

// add adds reads of a file with several methods of clients/readers.py, all of which print want.
func (r *reads) add(file, want string, methods ...string) {
	for _, method := range methods {
		r.args = append(r.args, method+":"+file)
		r.want = append(r.want, want)
	}
}

// check does the reads in a directory, and checks what they print.
func (r *reads) check(t testing.TB, dir string) {
	t.Helper()
	lines := e2e.Read(t, "each", dir, r.args...)
	if len(lines) != len(r.want) {
		t.Fatalf("got %d lines, want one for each of %s", len(lines), r.args)
	}
	for i, got := range lines {
		e2e.Equal(t, r.args[i]+" in "+dir, got, r.want[i])
	}
}

// fnv returns the line that clients/reader.c prints for data.
func fnv(data []byte) string {
	h := fnv1a.New64a()
	h.Write(data)
	return fmt.Sprintf("%d %016x", len(data), h.Sum64())
}
