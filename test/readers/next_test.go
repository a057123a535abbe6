// Package readers tests the files of a healthy mount: every way to read them, numbers of next,
// settings in paths, seeks, permissions, and resuming after a kill. Package integrations tests
// third-party programs.
package readers

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }

// If many processes open next at the same time, each gets a different number.
func TestEveryNumberGoesToOneReader(t *testing.T) {
	t.Parallel()
	const processes, opens = 16, 150
	config, batches := e2e.SmallConfig(t, processes*opens)
	m := e2e.Mount(t, "-c", config)
	var readers [processes]*e2e.Client
	for i := range readers {
		readers[i] = e2e.StartClient(t, exec.Command(e2e.Python, "clients/readers.py", "numbers", m.Path("train/next"), fmt.Sprint(opens)))
	}
	var got []string
	for _, r := range readers {
		got = append(got, strings.Split(strings.TrimSpace(r.End(t)), "\n")...)
	}
	e2e.SameSet(t, got, batches)
	e2e.Equal(t, "the cursor", m.NextNumber(t, "train"), processes*opens)
}

// Listing, opening and examining files takes no numbers.
func TestLookingTakesNothing(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	for _, command := range []string{
		`ls -lR .`, `stat train/* val/*`, `find . -ls`, `: <train/next`, `wc -c train/next`, `du -a .`, `tail -c 0 train/next`, `test -r train/next`,
	} {
		e2e.Run(t, "sh", "-c", "cd "+m.Dir+" && "+command)
		if c := m.Cursor(t, "train"); c != "0" {
			t.Fatalf("after %s, the cursor is %s, want 0", command, c)
		}
	}
	m.Stop(t)
	// The number of a batch that was only partly read is returned when the kernel reports the
	// close, which may be a little later, and only if no later number was taken by then.
	m = e2e.Mount(t, "-c", config, "--set", "batch.batch_size=64", "--set", "batch.block_size=8192")
	for _, name := range append(strings.Fields(e2e.Run(t, "ls", m.Path("train"))), "batch/5") {
		e2e.Run(t, "file", "-P", "bytes=65536", m.Path("train/"+name))
		e2e.Await(t, "a cursor of 0 after the command file on "+name, func() (any, bool) {
			cursor := m.Cursor(t, "train")
			return cursor, cursor == "0"
		})
	}
}

// Rows may be read in any order, and repeatedly. C's stdio reads no further than the program does.
func TestEachByteOnce(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	larger := []string{"-c", config, "--set", "batch.batch_size=48"} // x is several blocks of stdio
	want := e2e.Digests(t, "train", 0, 20, larger...)
	m := e2e.Mount(t, larger...)
	for _, way := range []string{"backwards", "rows_twice", "odd_rows_first", "fromfile_x_then_y", "stdio_rewind"} {
		t.Run(way, func(t *testing.T) {
			from, _ := strconv.Atoi(m.Cursor(t, "train"))
			if got := e2e.Read(t, way, m.Path("train/next"), "3"); !slices.Equal(got, want[from:][:3]) {
				t.Errorf("got %s, want batches %d to %d: %s", got, from, from+2, want[from:][:3])
			}
		})
	}
}

// Threads and processes that share a handle get whole and different batches, even if the kernel
// splits each read(2) because a batch is larger than a request or the buffer is not aligned to a
// page.
func TestSharedHandlesOfLargeBatches(t *testing.T) {
	t.Parallel()
	each := e2e.NormalOrShort(10, 4) // batches that each thread or process reads
	config, _ := e2e.SmallConfig(t, 1)
	for _, size := range []int{256, 512, 640} { // KiB of x
		set := []string{"-c", config, "--set", "batch.batch_size=256", "--set", fmt.Sprintf("batch.block_size=%d", 2*size)}
		want := e2e.Digests(t, "train", 0, 2*4*each, set...)
		m := e2e.Mount(t, set...)
		for _, way := range []string{"unaligned_threads", "unaligned_forks"} {
			from, _ := strconv.Atoi(m.Cursor(t, "train"))
			e2e.SameSet(t, e2e.Read(t, way, m.Path("train/next"), "4", strconv.Itoa(each)), want[from:][:4*each])
		}
		m.Stop(t)
	}
}

// A program that maps next gets SIGBUS, and the log names the program.
func TestMappedNext(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	cmd := e2e.Command(t, e2e.Python, "-c", "import mmap, os; print(mmap.mmap(os.open('train/next', os.O_RDONLY), 0, mmap.MAP_PRIVATE)[0])")
	cmd.Dir = m.Dir
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(err.Error(), "bus error") {
		t.Errorf("reading a mapped next: %v, output %q, want a bus error", err, out)
	}
	if log := m.Out.String(); strings.Count(log, "cannot be mapped") != 1 || !strings.Contains(log, "program="+filepath.Base(e2e.Python)) {
		t.Errorf("the log does not name %s once as a program that maps next:\n%s", e2e.Python, log)
	}
}

// Reads of an open handle return the rest of a batch, then the next batch.
func TestHandleOfNext(t *testing.T) {
	t.Parallel()
	config, want := e2e.SmallConfig(t, 600)
	for name, program := range map[string]*exec.Cmd{"one thread": e2e.OneThread(e2e.Batchfs), "threads": exec.Command(e2e.Batchfs)} {
		t.Run(name, func(t *testing.T) { testHandle(t, e2e.MountProgram(t, program, "-c", config), want) })
	}
}

// testHandle checks that several ways to read next get the batches want, in order.
func testHandle(t *testing.T, m *e2e.Mounted, want []string) {
	t.Helper()
	next := m.Path("train/next")
	k := 0
	expect := func(way string, got ...string) {
		t.Helper()
		for _, g := range got {
			if g != want[k] {
				t.Fatalf("%s: got %s, want batch %d, %s", way, g, k, want[k])
			}
			k++
		}
	}
	// fromfile uses C's stdio, which seeks to the end of a file to learn its size, and reads the
	// last block. next.npy shares the cursor of next.
	expect("a rewind before the end of the batch, reading the rest after a part, fromfile twice and load", e2e.Read(t, "each", m.Path("train"),
		"rewind:next", "head_then_rest:next", "fromfile:next", "fromfile:next", "npload:next.npy")...)
	expect("reads at offset 0 after the last byte", e2e.Read(t, "pread_kept", next, "20")...)

	// Threads that share a handle get whole batches, each number once.
	const threads, reads = 8, 50
	e2e.SameSet(t, e2e.Read(t, "next_threads", next, fmt.Sprint(threads), fmt.Sprint(reads)), want[k:k+threads*reads])
	k += threads * reads
	expect("the next open", e2e.Read(t, "read", next)...)

	e2e.Equal(t, "the cursor of val after reading train", m.Cursor(t, "val"), "0")
}
