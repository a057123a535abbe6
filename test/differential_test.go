package test

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What a mount shows, whatever it is of and whatever happens to its processes, is what a reference computes that shares no code
// with it, byte for byte; and each number of next goes to one read. BATCHFS_SEED repeats a run: its configurations, and what its
// readers read, but not how they meet.
func TestDifferential(t *testing.T) {
	long(t)
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BATCHFS_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		noError(t, err)
	}
	reads, rounds, strikes, failed := 0, 0, 0, map[string]int{}
	for end := time.Now().Add(lasting(10*time.Second, 10*time.Minute)); time.Now().Before(end) && !t.Failed(); rounds++ {
		t.Run(fmt.Sprint(rounds), func(t *testing.T) {
			chance := rand.New(rand.NewPCG(seed, uint64(rounds)))
			t.Logf("BATCHFS_SEED=%d", seed)
			d := newDifferential(t, chance)
			strikes += d.run(t, chance, perConfiguration)
			reads += d.reads
			for name, n := range d.failed {
				failed[name] += n
			}
		})
	}
	t.Logf("BATCHFS_SEED=%d: %d configurations, %d reads, %d strikes, reads failed %v", seed, rounds, reads, strikes, failed)
	n := 0
	for _, of := range failed {
		n += of
	}
	if n > strikes/300+1 || len(failed) > 1 {
		t.Errorf("reads failed: %v", failed)
	}
}

// So long each configuration is read.
const perConfiguration = 4 * time.Second

// A differential is a mount of a random configuration.
type differential struct {
	m         *mounted
	sequences [][2]any // the path of each directory to read, and its settings for the reference
	file      string   // of them
	reads     int
	failed    map[string]int // reads, by errno
}

// newDifferential mounts a random configuration.
func newDifferential(t *testing.T, chance *rand.Rand) *differential {
	t.Helper()
	dir := t.TempDir()
	d := &differential{failed: map[string]int{}}
	type keys = map[string]any
	oneOf := func(values ...any) any { return values[chance.IntN(len(values))] }
	width := 2 << chance.IntN(2)
	batch := keys{
		"batch_size": 1 + chance.IntN(12), "block_size": 1 + chance.IntN(400), "layout": oneOf("xy", "tokens"), "seed": chance.IntN(1000),
		"token_dtype": map[int]any{2: "uint16", 4: "uint32"}[width], "dtype": oneOf("native", "uint16", "uint32", "int32", "int64"),
		"order": oneOf("random", "shuffle", "sequential", "torch", "torch-2.6"),
	}
	// Of fewer rows, two batches that next may give at about the same time would be equal.
	const world = 3
	least := batch["batch_size"].(int) * batch["block_size"].(int) * world * 80

	var files []string
	file := func(n int) string {
		path := filepath.Join(dir, fmt.Sprintf("%d.bin", len(files)))
		data := make([]byte, 0, n*width)
		for range n {
			token := chance.IntN(50_000)
			data = append(data, byte(token), byte(token>>8))
			data = append(data, make([]byte, width-2)...)
		}
		write(t, path, data)
		files = append(files, path)
		return path
	}
	split := keys{}
	var sources []keys
	shards := func() (paths []string) {
		for range 1 + chance.IntN(5) {
			paths = append(paths, file(batch["block_size"].(int)+1+chance.IntN(5000)))
		}
		return append(paths, file(least))
	}
	isTorch := strings.HasPrefix(batch["order"].(string), "torch")
	switch kind := chance.IntN(4); {
	case kind == 0 && !isTorch:
		for range 2 + chance.IntN(2) {
			sources = append(sources, keys{"tokens": shards(), "weight": float64(1+chance.IntN(9)) / 10})
		}
	case kind == 1 && !isTorch:
		split["tokens"] = shards()
	case kind == 2:
		split["tokens"], split["join"] = shards(), true
	default:
		split["tokens"] = []string{file(least)}
	}
	memory := keys{"access": oneOf("pread", "remap", "advise", "map"), "page_cache": oneOf("keep", "drop"), "ahead": chance.IntN(5)}

	var config strings.Builder
	table := func(head string, of keys) {
		fmt.Fprintln(&config, head)
		for _, key := range slices.Sorted(maps.Keys(of)) {
			fmt.Fprintf(&config, "%s = %s\n", key, jsonOf(t, of[key])) // of these values, JSON is TOML
		}
	}
	table("[batch]", batch)
	table("[memory]", memory)
	table("[splits.train]", split)
	for _, source := range sources {
		table("[[splits.train.sources]]", source)
	}
	t.Logf("the configuration:\n%s", &config)
	configFile := filepath.Join(dir, "config.toml")
	write(t, configFile, []byte(config.String()))
	d.m = mountProgram(t, exec.Command(plainBatchfs), "-c", configFile)

	of := keys{"split": "train"} // as the reference calls it
	maps.Copy(of, batch)
	for key, value := range split {
		of[map[string]string{"tokens": "files", "join": "join"}[key]] = value
	}
	if sources != nil {
		var all []keys
		for _, source := range sources {
			all = append(all, keys{"files": source["tokens"], "weight": source["weight"]})
		}
		of["sources"] = all
	}
	d.sequences = [][2]any{{d.m.path("train"), of}}
	for range 3 {
		path, under := []string{}, maps.Clone(of)
		set := func(key string, value any) {
			path = append(path, fmt.Sprintf("%s=%v", key, value))
			under[key] = value
		}
		set("rank", chance.IntN(world))
		set("world", world)
		for _, more := range []func(){
			func() { set("seed", chance.IntN(1000)) },
			func() { set("batch_size", 1+chance.IntN(batch["batch_size"].(int))) },
			func() { set("block_size", 1+chance.IntN(batch["block_size"].(int))) },
			func() { set("layout", oneOf("xy", "tokens")) },
			func() { set("dtype", oneOf("native", "uint16", "uint32", "int32", "int64")) },
			func() {
				if !isTorch {
					set("order", oneOf("random", "shuffle", "sequential"))
				}
			},
			func() { path = append(path, fmt.Sprint("start=", 1+chance.IntN(50))) },
			func() { path = append(path, fmt.Sprint("steps=", 5+chance.IntN(50))) },
		} {
			if chance.IntN(3) == 0 {
				more()
			}
		}
		cut := 2 + chance.IntN(len(path)-1) // in one directory, or in two; a rank is refused without its world
		chance.Shuffle(cut, func(i, j int) { path[i], path[j] = path[j], path[i] })
		directory := filepath.Join(strings.Join(path[:cut], ","), strings.Join(path[cut:], ","))
		d.sequences = append(d.sequences, [2]any{d.m.path("train/" + directory), under})
	}
	d.file = filepath.Join(dir, "sequences.json")
	write(t, d.file, jsonOf(t, d.sequences))
	return d
}

// run reads for a while, strikes the processes meanwhile, and compares. It returns how many strikes there were.
func (d *differential) run(t *testing.T, chance *rand.Rand, last time.Duration) (strikes int) {
	t.Helper()
	before := map[string]int{}
	for _, s := range d.sequences {
		before[s[0].(string)] = d.cursor(t, s[0].(string))
	}
	var readers []*stormReader
	for range 4 {
		readers = append(readers, startStorm(t, exec.Command(python, "clients/differential.py", d.file, fmt.Sprint(chance.Uint32()))))
	}
	for _, r := range readers {
		r.ready(t)
	}
	restart := func(t testing.TB, m *mounted, _ int) { run(t, plainBatchfs, "restart", m.dir) }
	for end := time.Now().Add(last); time.Now().Before(end); {
		time.Sleep(time.Duration(chance.Int64N(int64(time.Second))))
		if worker := d.m.worker(t); worker > 0 {
			[]func(testing.TB, *mounted, int){kill, kill, stopAndKill, restart}[chance.IntN(4)](t, d.m, worker)
			strikes++
		}
	}
	taken, failures := map[string]map[int]int{}, 0
	for _, r := range readers {
		r.in.Close()
		late := time.AfterFunc(limit, func() { r.cmd.Process.Kill() })
		text, err := io.ReadAll(r.out)
		noError(t, err)
		if err := r.cmd.Wait(); err != nil {
			t.Errorf("%v: %v\n%s", r.cmd.Args, err, text)
		}
		late.Stop()
		for line := range strings.Lines(string(text)) {
			var path, name string
			var k, n int
			switch {
			case scan(line, "number %s %d %d", &path, &k, &n):
				if taken[path] == nil {
					taken[path] = map[int]int{}
				}
				taken[path][k] += n
			case scan(line, "failed %s %d", &name, &n):
				d.failed[name] += n
				failures += n
			case scan(line, "reads %d", &n):
				d.reads += n
			}
		}
	}
	for path, first := range before {
		cursor, numbers := d.cursor(t, path), taken[path]
		for k, n := range numbers {
			if n > 1 || k < first || k >= cursor {
				t.Errorf("%s: %d reads of next got batch %d, of those from %d to %d", path, n, k, first, cursor-1)
			}
		}
		if missing := cursor - first - len(numbers); missing > failures {
			t.Errorf("%s: nobody got %d of the numbers from %d to %d, and %d reads failed", path, missing, first, cursor-1, failures)
		}
	}
	return strikes
}

// cursor is what that of a directory says.
func (d *differential) cursor(t *testing.T, path string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(run(t, "cat", filepath.Join(path, "cursor"))))
	noError(t, err)
	return n
}
