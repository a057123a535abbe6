package test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// However a step is split into ranks, it has the same rows in the same order, and no window comes twice in an epoch.
func TestElastic(t *testing.T) {
	const T, windows, rows = 16, 1000, 48
	config := filepath.Join(t.TempDir(), "config.toml")
	data := tokens(t, filepath.Join(filepath.Dir(config), "train.bin"), T*windows+1, 2)
	write(t, config, fmt.Appendf(nil, "batch.block_size = %d\nsplits.train.tokens = %q\n", T, data))
	m := mount(t, "-c", config)
	for _, order := range []string{"random", "shuffle", "sequential"} {
		t.Run(order, func(t *testing.T) {
			var whole string // the x of all rows, one after the other
			for _, split := range []struct{ batchSize, world int }{{48, 1}, {24, 2}, {12, 4}, {6, 8}} {
				command := []string{"cat"}
				for k := range 2*windows/rows + 1 {
					for rank := range split.world {
						const path = "train/batch_size=%d,world=%d/rank=%d,order=%s/batch/%d"
						command = append(command, m.path(fmt.Sprintf(path, split.batchSize, split.world, rank, order, k)))
					}
				}
				var all []byte
				for batch := range slices.Chunk([]byte(run(t, command...)), 2*split.batchSize*T*2) {
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

// A run goes on after its mount was killed, from the trainer's own count of steps, as if nothing had happened.
func TestResume(t *testing.T) {
	const steps = 2000
	runs := 12
	if testing.Short() {
		runs = 3
	}
	config := filepath.Join(t.TempDir(), "config.toml")
	data := tokens(t, filepath.Join(filepath.Dir(config), "train.bin"), 60_000, 2)
	write(t, config, fmt.Appendf(nil, "batch.block_size = 256\nsplits.train.tokens = %q\n", data))
	orders := []string{"shuffle", "torch", "random", "sequential"}
	want := map[string][]string{}
	for _, order := range orders {
		want[order] = lines(t, "train", 0, steps, "-c", config, "--set", "batch.order="+order)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	for i := range runs {
		order, byNumber, after := orders[i%len(orders)], chance.IntN(2) == 0, chance.IntN(steps-1100)
		t.Run(fmt.Sprintf("%d %s", i, order), func(t *testing.T) {
			t.Parallel()
			flags := []string{"-c", config, "--set", "batch.order=" + order}
			m := mountProgram(t, exec.Command(plainBatchfs), flags...)
			trainer := []string{"pread_kept", m.path("train/next"), fmt.Sprint(steps)}
			if byNumber {
				trainer = []string{"stretch", m.path("train/batch"), "0", fmt.Sprint(steps)}
			}
			// The reader is a thousand lines ahead at most, which is what a pipe holds.
			got := interrupted(t, trainer, after, func() {
				processes := append(m.workers(t), m.cmd.Process.Pid)
				m.cmd.Process.Kill()
				awaitEnded(t, processes...)
			})
			run(t, plainBatchfs, "unmount", m.dir)

			step := len(got)
			t.Logf("killed after %d steps", step)
			var rest []string
			switch left := fmt.Sprint(steps - step); i % 3 {
			case 0:
				m = mountProgram(t, exec.Command(plainBatchfs), flags...)
				rest = read(t, "stretch", m.path("train/batch"), fmt.Sprint(step), fmt.Sprint(steps))
			case 1:
				m = mountProgram(t, exec.Command(plainBatchfs), flags...)
				rest = read(t, "pread_kept", m.path(fmt.Sprintf("train/start=%d/next", step)), left)
			case 2:
				flags = append(flags, "--set", fmt.Sprintf("batch.start=%d", step))
				m = mountProgram(t, exec.Command(plainBatchfs), flags...)
				rest = read(t, "pread_kept", m.path("train/next"), left)
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
	cmd := command(t, python, append([]string{"clients/readers.py"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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

// A split's batches do not depend on what becomes of another, though it has the same tokens, order and seed.
func TestSplitsDoNotDisturbEachOther(t *testing.T) {
	t.Parallel()
	config, _ := small(t, 1)
	for _, order := range []string{"random", "shuffle", "torch"} {
		t.Run(order, func(t *testing.T) {
			flags := []string{"-c", config, "--set", "splits.train.order=" + order, "--set", "splits.val.order=" + order}
			want := lines(t, "train", 0, 500, flags...)
			m := mount(t, flags...)
			val := command(t, python, "clients/readers.py", "disturb", m.path("val"), "1")
			stop, err := val.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := val.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			val.Stderr = os.Stderr
			if err := val.Start(); err != nil {
				t.Fatal(err)
			}
			files := bufio.NewScanner(out)
			var count atomic.Int64
			counted := make(chan struct{})
			files.Scan() // it has begun
			go func() {
				for files.Scan() {
					count.Add(1)
				}
				close(counted)
			}()
			var got []string
			meanwhile := func(args ...string) {
				got = append(got, read(t, args[0], m.path(args[1]), args[2:]...)...)
				more := count.Load() + 10
				await(t, "files of val that are read", func() bool { return count.Load() >= more })
			}
			meanwhile("numbers", "train/next", "100")
			meanwhile("numbers", "train/next", "100")
			meanwhile("stretch", "train/batch", "200", "400")
			meanwhile("pread_kept", "train/start=400/next", "100")
			if !slices.Equal(got, want) {
				t.Error("train gave other batches")
			}
			stop.Close()
			<-counted
			if err := val.Wait(); err != nil {
				t.Error(err)
			}
			if got := m.cursor(t, "train"); got != "200" {
				t.Errorf("the cursor of train is %s", got)
			}
		})
	}
}

// Looking up settings without end costs no memory, and what is in use among them stays what it is.
func TestManySettings(t *testing.T) {
	const first, warm, most = 1000, 20_000, 8 << 10 // KiB, of which the garbage collector takes some more or less
	n := soak(100_000)
	config, _ := small(t, 1)
	m := mountProgram(t, exec.Command(plainBatchfs), "-c", config)
	reader := exec.CommandContext(t.Context(), "sh", "-c", `exec 3<"$1"; head -c 100 <&3; echo open >&2; read line; cat <&3`,
		"sh", m.path("train/seed=5/next"))
	in, err := reader.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	opened, err := reader.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	var held strings.Builder
	reader.Stdout = &held
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	stop := answersSoon(t, reader)
	if _, err := opened.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	stop()
	for range 3 {
		run(t, "cat", m.path("train/seed=6/next"))
	}

	looks := func(first, n int) (aSecond int) {
		text := read(t, "looks", m.path("train"), fmt.Sprint(first), fmt.Sprint(first+n), "8")[0]
		aSecond, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return aSecond
	}
	looks(first, warm)
	for looked := warm; ; looked += n {
		before := resident(m.worker(t))
		aSecond := looks(first+looked, n)
		after := resident(m.worker(t))
		t.Logf("%d settings, %d a second: VmRSS %d KiB after %d, %d KiB after all", n, aSecond, before, looked, after)
		if after-before <= most {
			break
		}
		if looked >= warm+4*n { // a leak grows every time
			t.Fatalf("looking up %d settings made %d KiB resident, from %d", n, after, before)
		}
	}

	if got := m.cursor(t, "train/seed=5") + " " + m.cursor(t, "train/seed=6"); got != "1 3" {
		t.Errorf("the cursors are %s, want 1 and 3", got)
	}
	fmt.Fprintln(in, "go on")
	defer answersSoon(t, reader)()
	if err := reader.Wait(); err != nil {
		t.Error(err)
	}
	for seed, next := range map[string]int{"5": 1, "6": 3} {
		want := lines(t, "train", 0, next+1, "-c", config, "--set", "splits.train.seed="+seed)
		if got := take(t, m, "train/seed="+seed+"/next"); got != want[next] {
			t.Errorf("seed %s goes on with %s, want batch %d, %s", seed, got, next, want[next])
		}
		if got := line([]byte(held.String())); seed == "5" && got != want[0] {
			t.Errorf("the reader that stayed got %s, want batch 0, %s", got, want[0])
		}
	}
}

// A mount is ready soon, however many or large its files.
func TestReady(t *testing.T) {
	const shards = 10_000
	dir := t.TempDir()
	for i := range shards {
		tokens(t, filepath.Join(dir, "shards", fmt.Sprintf("%05d.bin", i)), 65, 2)
	}
	terabyte := filepath.Join(dir, "terabyte.bin")
	write(t, terabyte, nil)
	if err := os.Truncate(terabyte, 1<<40); err != nil {
		lack(t, "no file of a terabyte here: %v", err)
	}
	for _, test := range []struct {
		name, tokens string
		orders       []string
		within       time.Duration
	}{
		{"shards", filepath.Join(dir, "shards/*.bin"), []string{"random", "shuffle", "sequential"}, 2 * time.Second},
		{"terabyte", terabyte, []string{"random", "shuffle", "sequential", "torch", "torch-2.6"}, time.Second},
	} {
		for _, order := range test.orders {
			t.Run(test.name+" "+order, func(t *testing.T) {
				began := time.Now()
				m := mountProgram(t, exec.Command(plainBatchfs), "-c", "/dev/null", "--set", "batch.block_size=64",
					"--set", "batch.order="+order, "--set", "splits.train.tokens="+test.tokens)
				inTime(t, "to get ready", time.Since(began), test.within)
				for _, file := range []string{"next", "batch/0", "batch/1099511627775"} {
					if got := take(t, m, "train/"+file); !strings.HasPrefix(got, fmt.Sprint(2*12*64*2)+" ") {
						t.Errorf("%s is %s", file, got)
					}
				}
			})
		}
	}
}

// The torch orders are what nanoGPT draws with the PyTorch that is installed.
func TestInstalledTorch(t *testing.T) {
	long(t)
	if out, err := command(t, python, "-c", "import torch").CombinedOutput(); err != nil {
		lack(t, "no PyTorch: %s", out)
	}
	const B, T, seed, ranks, n = 5, 16, 42, 2, 50
	dir := t.TempDir()
	data, state := tokens(t, filepath.Join(dir, "train.bin"), 60_000, 2), filepath.Join(dir, "state.bin")
	var args []string
	for _, arg := range []int{B, T, seed, ranks, n} {
		args = append(args, fmt.Sprint(arg))
	}
	want := read(t, "nanogpt", data, append(args, state)...)
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
	m := mount(t, flags...)
	for rank := range ranks {
		dir := m.path(fmt.Sprintf("train/rank=%d,world=%d", rank, ranks))
		expect(fmt.Sprintf("rank %d", rank), read(t, "stretch", dir+"/batch", "0", fmt.Sprint(n)), batches[rank])
		expect(fmt.Sprintf("next of rank %d", rank), read(t, "pread_kept", dir+"/next", fmt.Sprint(n)), batches[rank])
	}
	m = mount(t, append(flags, "--set", "batch.torch_state="+state)...)
	expect("from a state on", read(t, "stretch", m.path("train/batch"), "0", fmt.Sprint(n)), batches[ranks])
}
