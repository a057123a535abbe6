package readers

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// However a step is split into ranks, it has the same rows in the same order, and each epoch has each window once.
func TestElastic(t *testing.T) {
	const T, windows, rows = 16, 1000, 48
	config := filepath.Join(t.TempDir(), "config.toml")
	data := e2e.Tokens(t, filepath.Join(filepath.Dir(config), "train.bin"), T*windows+1, 2)
	e2e.Write(t, config, fmt.Appendf(nil, "batch.block_size = %d\nsplits.train.tokens = %q\n", T, data))
	m := e2e.Mount(t, "-c", config)
	for _, order := range []string{"random", "shuffle", "sequential"} {
		t.Run(order, func(t *testing.T) {
			var whole string // the x of all rows, one after the other
			for _, split := range []struct{ batchSize, world int }{{48, 1}, {24, 2}, {12, 4}, {6, 8}} {
				command := []string{"cat"}
				for k := range 2*windows/rows + 1 {
					for rank := range split.world {
						const path = "train/batch_size=%d,world=%d/rank=%d,order=%s/batch/%d"
						command = append(command, m.Path(fmt.Sprintf(path, split.batchSize, split.world, rank, order, k)))
					}
				}
				var all []byte
				for batch := range slices.Chunk([]byte(e2e.Run(t, command...)), 2*split.batchSize*T*2) {
					all = append(all, batch[:len(batch)/2]...)
				}
				if whole == "" {
					whole = string(all)
				}
				if string(all) != whole {
					t.Errorf("%d ranks of %d rows get other rows than 1 of 48", split.world, split.batchSize)
				}
			}

			x := uint16s([]byte(whole))
			var starts []int
			for row := range slices.Chunk(x, T) {
				starts = append(starts, int(row[0]))
			}
			first, second := starts[:windows], starts[windows:2*windows]
			if same := slices.Equal(first, second); same != (order == "sequential") {
				t.Errorf("the second epoch has the order of the first: %v", same)
			}
			if order == "random" {
				return
			}
			for _, epoch := range [][]int{first, second} {
				for window, start := range slices.Sorted(slices.Values(epoch)) {
					if start != window*T {
						t.Fatalf("window %d begins at %d: not each window once", window, start)
					}
				}
			}
		})
	}
}

// A run whose mount was killed resumes from the trainer's own count of steps, and gets the batches that it would have got.
func TestResume(t *testing.T) {
	const steps = 2000
	runs := 12
	if testing.Short() {
		runs = 3
	}
	config := filepath.Join(t.TempDir(), "config.toml")
	data := e2e.Tokens(t, filepath.Join(filepath.Dir(config), "train.bin"), 60_000, 2)
	e2e.Write(t, config, fmt.Appendf(nil, "batch.block_size = 256\nsplits.train.tokens = %q\n", data))
	orders := []string{"shuffle", "torch", "random", "sequential"}
	want := map[string][]string{}
	for _, order := range orders {
		want[order] = e2e.Lines(t, "train", 0, steps, "-c", config, "--set", "batch.order="+order)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	for i := range runs {
		order, byNumber, after := orders[i%len(orders)], chance.IntN(2) == 0, chance.IntN(steps-1100)
		t.Run(fmt.Sprintf("%d %s", i, order), func(t *testing.T) {
			t.Parallel()
			flags := []string{"-c", config, "--set", "batch.order=" + order}
			m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), flags...)
			trainer := []string{"pread_kept", m.Path("train/next"), fmt.Sprint(steps)}
			if byNumber {
				trainer = []string{"stretch", m.Path("train/batch"), "0", fmt.Sprint(steps)}
			}
			// The reader is a thousand lines ahead at most, which is what a pipe holds.
			got := interrupted(t, trainer, after, func() {
				processes := append(m.Workers(t), m.Cmd.Process.Pid)
				m.Cmd.Process.Kill()
				e2e.AwaitEnded(t, processes...)
			})
			e2e.Run(t, e2e.PlainBatchfs, "unmount", m.Dir)

			step := len(got)
			t.Logf("killed after %d steps", step)
			var rest []string
			switch left := fmt.Sprint(steps - step); i % 3 {
			case 0:
				m = e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), flags...)
				rest = e2e.Read(t, "stretch", m.Path("train/batch"), fmt.Sprint(step), fmt.Sprint(steps))
			case 1:
				m = e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), flags...)
				rest = e2e.Read(t, "pread_kept", m.Path(fmt.Sprintf("train/start=%d/next", step)), left)
			case 2:
				flags = append(flags, "--set", fmt.Sprintf("batch.start=%d", step))
				m = e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), flags...)
				rest = e2e.Read(t, "pread_kept", m.Path("train/next"), left)
			}
			if got = append(got, rest...); len(got) != steps {
				t.Fatalf("%d steps", len(got))
			}
			for k := range got {
				if got[k] != want[order][k] {
					t.Fatalf("step %d got %s, uninterrupted it gets %s", k, got[k], want[order][k])
				}
			}
		})
	}
}

// interrupted runs a method of clients/readers.py, calls interrupt after so many of its lines, which must make it fail,
// and returns all its lines.
func interrupted(t *testing.T, args []string, after int, interrupt func()) (lines []string) {
	t.Helper()
	cmd := e2e.Command(t, e2e.Python, append([]string{"clients/readers.py"}, args...)...)
	out, err := cmd.StdoutPipe()
	e2e.NoError(t, err)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	e2e.NoError(t, cmd.Start())
	for scanner := bufio.NewScanner(out); scanner.Scan(); {
		lines = append(lines, scanner.Text())
		if len(lines) == after+1 {
			interrupt()
		}
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(stderr.String(), "Error: [Errno ") {
		t.Errorf("the reader ended with %v\n%s", err, &stderr)
	}
	return lines
}

// The torch orders are what nanoGPT draws with the PyTorch that is installed.
func TestInstalledTorch(t *testing.T) {
	e2e.Long(t)
	if out, err := e2e.Command(t, e2e.Python, "-c", "import torch").CombinedOutput(); err != nil {
		e2e.Lack(t, "no PyTorch: %s", out)
	}
	const B, T, seed, ranks, n = 5, 16, 42, 2, 50
	dir := t.TempDir()
	data, state := e2e.Tokens(t, filepath.Join(dir, "train.bin"), 60_000, 2), filepath.Join(dir, "state.bin")
	var args []string
	for _, arg := range []int{B, T, seed, ranks, n} {
		args = append(args, fmt.Sprint(arg))
	}
	want := e2e.Read(t, "nanogpt", data, append(args, state)...)
	var major, minor int
	if _, err := fmt.Sscanf(want[0], "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	order := "torch"
	if major == 2 && minor < 7 {
		order = "torch-2.6"
	}
	flags := []string{"--data", dir}
	for _, set := range []string{
		fmt.Sprintf("batch_size=%d", B), fmt.Sprintf("block_size=%d", T), fmt.Sprintf("seed=%d", seed),
		"dtype=int64", "order=" + order,
	} {
		flags = append(flags, "--set", "batch."+set)
	}
	batches := slices.Collect(slices.Chunk(want[1:], n)) // of the ranks, and from the state on
	if len(batches) != ranks+1 || len(batches[ranks]) != n {
		t.Fatalf("PyTorch gave %d batches", len(want)-1)
	}
	expect := func(what string, got, want []string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: other batches than those of PyTorch %s", what, want[0])
		}
	}
	m := e2e.Mount(t, flags...)
	for rank := range ranks {
		dir := m.Path(fmt.Sprintf("train/rank=%d,world=%d", rank, ranks))
		expect(fmt.Sprintf("rank %d", rank), e2e.Read(t, "stretch", dir+"/batch", "0", fmt.Sprint(n)), batches[rank])
		expect(fmt.Sprintf("next of rank %d", rank), e2e.Read(t, "pread_kept", dir+"/next", fmt.Sprint(n)), batches[rank])
	}
	m = e2e.Mount(t, append(flags, "--set", "batch.torch_state="+state)...)
	expect("from a state on", e2e.Read(t, "stretch", m.Path("train/batch"), "0", fmt.Sprint(n)), batches[ranks])
}
