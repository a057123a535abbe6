package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// small is a configuration of batches that fit a request many times over, and the first n batches of train.
func small(t *testing.T, n int) (config string, batches []string) {
	t.Helper()
	dir := t.TempDir()
	config = filepath.Join(dir, "config.toml")
	write(t, config, []byte(`
[batch]
batch_size = 4
block_size = 16
[splits.train]
tokens = "train.bin"
[splits.val]
tokens = "train.bin"
order = "sequential"
`))
	tokens(t, filepath.Join(dir, "train.bin"), 60_000, 2)
	all := cat(t, "train", "-c", config, "--count", fmt.Sprint(n))
	size := len(all) / n
	for k := range n {
		batches = append(batches, line(all[k*size:][:size]))
	}
	return config, batches
}

// Every number of next goes to exactly one of many processes that open it at once.
func TestEveryNumberGoesToOneReader(t *testing.T) {
	const processes = 16
	opens := 500
	if testing.Short() {
		opens = 100
	}
	config, batches := small(t, processes*opens)
	m := mount(t, "-c", config)
	readers := make([]*exec.Cmd, processes)
	outs := make([]strings.Builder, processes)
	for i := range readers {
		readers[i] = exec.Command(python, "clients/readers.py", "numbers", m.path("train/next"), fmt.Sprint(opens))
		readers[i].Stdout, readers[i].Stderr = &outs[i], os.Stderr
		if err := readers[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for i, r := range readers {
		if err := r.Wait(); err != nil {
			t.Error(err)
		}
		got = append(got, strings.Split(strings.TrimSpace(outs[i].String()), "\n")...)
	}
	sameSet(t, got, batches)
	if c := m.cursor(t, "train"); c != fmt.Sprint(processes*opens) {
		t.Errorf("cursor is %s", c)
	}
}

// sameSet fails unless got is want in some order.
func sameSet(t *testing.T, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if len(slices.Compact(slices.Clone(want))) != len(want) {
		t.Fatal("two of the batches are equal, which shows nothing")
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d batches, %d different ones: not each of the %d once", len(got), len(slices.Compact(slices.Clone(got))), len(want))
	}
}

func TestLookingTakesNothing(t *testing.T) {
	config, _ := small(t, 1)
	m := mount(t, "-c", config)
	for _, command := range []string{
		`ls -lR .`, `stat train/* val/*`, `find . -ls`, `file train/* train/batch/5`, `: <train/next`, `wc -c train/next`, `du -a .`,
		`tail -c 0 train/next`, `test -r train/next`,
	} {
		run(t, "sh", "-c", "cd "+m.dir+" && "+command)
		if c := m.cursor(t, "train"); c != "0" {
			t.Fatalf("%s: cursor is %s", command, c)
		}
	}
}

func TestHandleOfNext(t *testing.T) {
	config, want := small(t, 600)
	m := mount(t, "-c", config)
	next := m.path("train/next")
	k := 0
	expect := func(what string, got ...string) {
		t.Helper()
		for _, g := range got {
			if g != want[k] {
				t.Fatalf("%s: got %s, want batch %d, %s", what, g, k, want[k])
			}
			k++
		}
	}
	expect("a rewind before the end keeps the batch", read(t, "rewind", next)...)
	expect("reading on after a part", read(t, "head_then_rest", next)...)
	expect("after the last byte, offset 0 is a new batch", read(t, "pread_kept", next, "20")...)
	// C's stdio reads the end of a file to learn its size.
	expect("fromfile", read(t, "fromfile", next)...)
	expect("fromfile again", read(t, "fromfile", next)...)
	expect("both names take from one cursor", read(t, "npload", m.path("train/next.npy"))...)

	// Threads that share a handle: whole batches, each number once.
	const threads, reads = 8, 50
	sameSet(t, read(t, "next_threads", next, fmt.Sprint(threads), fmt.Sprint(reads)), want[k:k+threads*reads])
	k += threads * reads
	expect("and the next open goes on", read(t, "read", next)...)

	if got := m.cursor(t, "val"); got != "0" {
		t.Errorf("reading train moved val to %s", got)
	}
}

func TestStartAndSteps(t *testing.T) {
	config, want := small(t, 12)
	m := mount(t, "-c", config, "--set", "batch.start=10", "--set", "batch.steps=3")
	if got := m.cursor(t, "train"); got != "10" {
		t.Errorf("cursor is %s, want start", got)
	}
	if got := read(t, "numbers", m.path("train/next"), "2"); !slices.Equal(got, want[10:]) {
		t.Errorf("next from start on: %s, want %s", got, want[10:])
	}
	if got := read(t, "read", m.path("train/batches.bin"))[0]; !strings.HasPrefix(got, fmt.Sprint(3*2*4*16*2)+" ") {
		t.Errorf("batches.bin of 3 steps: %s", got)
	}
}
