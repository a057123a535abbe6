package soak

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// randomSeed returns BATCHFS_SEED, or another seed each time. It logs which.
func randomSeed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("BATCHFS_SEED"); text != "" {
		seed = e2e.Must(strconv.ParseUint(text, 10, 64))(t)
	}
	t.Logf("BATCHFS_SEED=%d", seed)
	return seed
}

// keys are settings, as config.toml or the reference has them.
type keys = map[string]any

func oneOf(chance *rand.Rand, values ...any) any { return values[chance.IntN(len(values))] }

// tableOf is a table of config.toml.
func tableOf(t testing.TB, head string, of keys) string {
	t.Helper()
	text := head + "\n"
	for _, key := range slices.Sorted(maps.Keys(of)) {
		text += fmt.Sprintf("%s = %s\n", key, e2e.Must(json.Marshal(of[key]))(t)) // of these values, JSON is TOML
	}
	return text
}

// randomSplits are a configuration of random splits, and the files that it names.
type randomSplits struct {
	t      testing.TB
	chance *rand.Rand
	dir    string
	files  int
	config string
}

func newRandomSplits(t testing.TB, chance *rand.Rand) *randomSplits {
	return &randomSplits{t: t, chance: chance, dir: t.TempDir()}
}

// write writes the configuration, and returns its path.
func (r *randomSplits) write() string {
	r.t.Helper()
	r.t.Logf("the configuration:\n%s", r.config)
	return e2e.Write(r.t, filepath.Join(r.dir, "config.toml"), r.config)
}

// file makes a file of n elements of size bytes, with what fill writes over random bytes, if it is not nil.
func (r *randomSplits) file(n, size int, fill func(element []byte)) string {
	r.t.Helper()
	r.files++
	data := make([]byte, n*size)
	for i := range data {
		data[i] = byte(r.chance.Uint32())
	}
	if fill != nil {
		for element := range slices.Chunk(data, size) {
			fill(element)
		}
	}
	return e2e.Write(r.t, filepath.Join(r.dir, fmt.Sprintf("%d.bin", r.files)), data)
}

// widths are the dtypes, and the bytes of a number of each.
var widths = map[string]int{
	"bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
	"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}

// integers are what a path may set dtype to, for numbers that are below 128.
var integers = []any{"native", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"}

func (r *randomSplits) dtype() string {
	return slices.Sorted(maps.Keys(widths))[r.chance.IntN(len(widths))]
}

// bytesOf are the bytes of an element of a shape, which may be nil.
func bytesOf(dtype string, shape any) int {
	n, axes := widths[dtype], []int(nil)
	if shape != nil {
		axes = shape.([]int)
	}
	for _, axis := range axes {
		n *= axis
	}
	return n
}

// numbers returns what writes bool values over the bytes of a dtype, which may have no others, and nil for other dtypes.
func numbers(dtype string) func([]byte) {
	if dtype != "bool" {
		return nil
	}
	return func(element []byte) {
		for i := range element {
			element[i] &= 1
		}
	}
}

// A randomSplit has the settings of a split, what settings in a path may be, and what its files hold.
type randomSplit struct {
	layouts, dtypes []any
	leastBlock      int
	batch           keys
	rowLen          int                  // elements
	size            int                  // of an element, in bytes
	fill            func(element []byte) // may be nil
}

// tokens returns a split of tokens.
func (r *randomSplits) tokens() randomSplit {
	chance := r.chance
	dtype := oneOf(chance, "uint8", "uint16", "uint16", "int16", "uint32", "uint32", "int32", "uint64", "int64").(string)
	s := randomSplit{layouts: []any{"xy", "tokens"}, dtypes: []any{"native", "uint16", "uint32", "int32", "uint64", "int64"}, size: widths[dtype]}
	most := 50_000
	// Blocks of one token too, but of tokens of many kinds: batches should differ.
	if dtype == "uint8" || dtype == "int16" || chance.IntN(4) == 0 {
		most, s.dtypes, s.leastBlock = 100, integers, 16
	}
	s.rowLen = s.leastBlock + 1 + chance.IntN(400)
	s.fill = func(token []byte) {
		clear(token)
		n := chance.IntN(most)
		token[0] = byte(n)
		if len(token) > 1 {
			token[1] = byte(n >> 8)
		}
	}
	s.batch = keys{"batch_size": 1 + chance.IntN(12), "block_size": s.rowLen, "token_dtype": dtype}
	if chance.IntN(3) == 0 {
		s.batch["eot"], s.batch["documents"] = chance.IntN(100), chance.IntN(3) > 0
		if chance.IntN(2) == 0 {
			s.batch["mask_targets"] = true
			s.layouts, s.dtypes = []any{"xy"}, []any{"int32", "int64"}
		}
	}
	return s
}

// rows returns a split of rows of a matrix.
func (r *randomSplits) rows() randomSplit {
	chance, dtype := r.chance, r.dtype()
	shape := oneOf(chance, []int{64}, []int{8, 8}, []int{2, 3, 11}, []int{1, 1000})
	s := randomSplit{layouts: []any{"rows"}, dtypes: []any{"native"}, rowLen: 1, size: bytesOf(dtype, shape), fill: numbers(dtype)}
	// Of fewer rows, two batches that next may give at about the same time would be equal.
	s.batch = keys{"batch_size": 4 + chance.IntN(12), "block_size": 1 + chance.IntN(400), "token_dtype": dtype, "shape": shape}
	if strings.Contains(dtype, "int") && chance.IntN(2) == 0 { // numbers that each integer dtype holds
		s.dtypes = integers
		s.fill = func(element []byte) {
			for i := range element {
				if element[i] &= 127; i%widths[dtype] > 0 {
					element[i] = 0
				}
			}
		}
	}
	return s
}

// world is how many ranks read a split.
const world = 3

// filesOf makes files of a split, or of a source of one, and of arrays beside them.
func (r *randomSplits) filesOf(s randomSplit, beside []keys) (files []string, arrays []keys) {
	r.t.Helper()
	chance, elements := r.chance, 0
	add := func(n int) { files, elements = append(files, r.file(n, s.size, s.fill)), elements+n }
	if s.layouts[0] != "rows" {
		for range 1 + chance.IntN(5) {
			add(s.rowLen + 1 + chance.IntN(5000))
		}
	}
	for range 1 + chance.IntN(2) {
		add(s.batch["batch_size"].(int) * s.rowLen * world * 80)
	}
	arrays = []keys{}
	for _, kind := range beside {
		dtype := kind["dtype"].(string)
		size, fill := bytesOf(dtype, kind["shape"]), numbers(dtype)
		// As many files as the tokens have would have to have their sizes. The last of them ends the array.
		var of []string
		left := elements
		for range files {
			n := 1 + chance.IntN(left/2)
			of, left = append(of, r.file(n, size, fill)), left-n
		}
		array := maps.Clone(kind)
		array["files"] = append(of, r.file(left, size, fill))
		arrays = append(arrays, array)
	}
	return files, arrays
}

// add adds a split, and returns it with its settings as the reference calls them.
func (r *randomSplits) add(name string) (split randomSplit, settings keys) {
	r.t.Helper()
	chance := r.chance
	split = r.tokens()
	if chance.IntN(3) == 0 {
		split = r.rows()
	}
	order := oneOf(chance, "random", "shuffle", "sequential", "torch", "torch-2.6").(string)
	batch, isTorch := split.batch, strings.HasPrefix(order, "torch")
	batch["order"], batch["seed"] = order, chance.IntN(1000)
	batch["layout"], batch["dtype"] = oneOf(chance, split.layouts...), oneOf(chance, split.dtypes...)
	var beside []keys
	if chance.IntN(3) > 0 {
		for i := range 1 + chance.IntN(3) {
			kind := keys{"name": fmt.Sprintf("beside_%d", i), "at": oneOf(chance, "x", "y"), "dtype": r.dtype()}
			if chance.IntN(2) == 0 {
				kind["shape"] = oneOf(chance, []int{1}, []int{5}, []int{2, 3}, []int{3, 1, 2})
			}
			beside = append(beside, kind)
		}
	}
	settings = maps.Clone(batch)
	settings["split"] = name
	var tables string
	table := func(head string, list ...keys) {
		for _, of := range list {
			tables += tableOf(r.t, fmt.Sprintf("[[splits.%s.%s]]", name, head), of)
		}
	}
	if chance.IntN(3) == 0 && !isTorch {
		var sources []keys
		for range 2 + chance.IntN(2) {
			files, arrays := r.filesOf(split, beside)
			weight := float64(1+chance.IntN(9)) / 10
			table("sources", keys{"tokens": files, "weight": weight})
			table("sources.arrays", arrays...)
			sources = append(sources, keys{"files": files, "weight": weight, "arrays": arrays})
		}
		settings["sources"] = sources
	} else {
		files, arrays := r.filesOf(split, beside)
		if isTorch && len(files) > 1 || chance.IntN(2) == 0 {
			batch["join"], settings["join"] = true, true
		}
		table("arrays", arrays...)
		batch["tokens"], settings["files"], settings["arrays"] = files, files, arrays
	}
	r.config += tableOf(r.t, fmt.Sprintf("[splits.%s]", name), batch) + tables
	return split, settings
}

// path is a random directory of settings, in one name or in two, and the settings of the sequence there.
func (s randomSplit) path(chance *rand.Rand, of keys) (directory string, under keys) {
	path, under := []string{}, maps.Clone(of)
	set := func(key string, value any) {
		path = append(path, fmt.Sprintf("%s=%v", key, value))
		under[key] = value
	}
	set("rank", chance.IntN(world))
	set("world", world)
	for _, more := range []func(){
		func() { set("seed", chance.IntN(1000)) },
		func() {
			if s.batch["layout"] != "rows" { // of few rows, two batches may be equal
				set("batch_size", 1+chance.IntN(s.batch["batch_size"].(int)))
			}
		},
		func() { set("block_size", s.leastBlock+1+chance.IntN(s.batch["block_size"].(int)-s.leastBlock)) },
		func() { set("layout", oneOf(chance, s.layouts...)) },
		func() { set("dtype", oneOf(chance, s.dtypes...)) },
		func() {
			if !strings.HasPrefix(fmt.Sprint(s.batch["order"]), "torch") {
				set("order", oneOf(chance, "random", "shuffle", "sequential"))
			}
		},
		func() { path = append(path, fmt.Sprint("start=", 1+chance.IntN(50))) },
		func() { path = append(path, fmt.Sprint("steps=", 5+chance.IntN(50))) },
	} {
		if chance.IntN(3) == 0 {
			more()
		}
	}
	if under["order"] == "shuffle" && chance.IntN(2) == 0 {
		under["shuffle_block"], under["local_world"] = 1<<16+chance.IntN(1<<16), world
		path = append(path, fmt.Sprintf("shuffle_block=%d,local_world=%d", under["shuffle_block"], world))
	}
	cut := 2 + chance.IntN(len(path)-1) // a rank is refused without its world
	chance.Shuffle(cut, func(i, j int) { path[i], path[j] = path[j], path[i] })
	return filepath.Join(strings.Join(path[:cut], ","), strings.Join(path[cut:], ",")), under
}

// Rows of any array, and arrays beside the tokens, of any dtype, further axes, files and source, are in every file what a reference
// computes that shares no code with the program, from any byte on, by every access. BATCHFS_SEED repeats a run.
func TestArraysAgreeWithReference(t *testing.T) {
	seed := randomSeed(t)
	chance := rand.New(rand.NewPCG(seed, 0))
	splits, many := newRandomSplits(t, chance), 10
	switch {
	case e2e.InSoak():
		many = 60
	case testing.Short():
		many = 4
	}
	settings := map[string]keys{} // of each directory
	for i := range many {
		name := fmt.Sprintf("split%d", i)
		split, of := splits.add(name)
		directory, under := split.path(chance, of)
		settings[name], settings[filepath.Join(name, directory)] = of, under
	}
	config := splits.write()
	for _, access := range []string{"remap", "advise", "pread", "map"} {
		t.Run(access, func(t *testing.T) {
			t.Parallel()
			m := e2e.Mount(t, "-c", config, "--set", "memory.access="+access, "--set", "memory.page_cache=drop")
			var sequences [][2]any
			for _, directory := range slices.Sorted(maps.Keys(settings)) {
				sequences = append(sequences, [2]any{m.Path(directory), settings[directory]})
			}
			file := e2e.Write(t, filepath.Join(t.TempDir(), "sequences.json"), e2e.Must(json.Marshal(sequences))(t))
			cmd := e2e.Command(t, e2e.Python, "clients/differential.py", file, fmt.Sprint(uint32(seed)), fmt.Sprint(25*many))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// The reference is itself held to published numbers, to what PyTorch drew and to the golden file.
func TestReference(t *testing.T) {
	e2e.Long(t)
	e2e.Equal(t, "the self-test", e2e.Run(t, e2e.Python, "clients/reference.py", "--selftest"), "ok\n")
}
