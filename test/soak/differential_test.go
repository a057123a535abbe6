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

// keys are settings, by their names in config.toml or in the reference.
type keys = map[string]any

func oneOf(chance *rand.Rand, values ...any) any { return values[chance.IntN(len(values))] }

func configTable(t testing.TB, head string, settings keys) string {
	t.Helper()
	text := head + "\n"
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		// JSON of these values is valid TOML.
		text += fmt.Sprintf("%s = %s\n", key, e2e.Must(json.Marshal(settings[key]))(t))
	}
	return text
}

// A randomSplits is a configuration of random splits, with the files that it names.
type randomSplits struct {
	t      testing.TB
	chance *rand.Rand
	dir    string
	files  int
	config string
}

// writeFile writes a file of n random elements of size bytes each. If fill is not nil, it then
// changes each element.
func (r *randomSplits) writeFile(n, size int, fill func(element []byte)) string {
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

// widths holds the size of a number of each dtype, in bytes.
var widths = map[string]int{
	"bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
	"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}

// integers are the values that a path may set dtype to, if all numbers are below 128.
var integers = []any{"native", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"}

func (r *randomSplits) dtype() string {
	return slices.Sorted(maps.Keys(widths))[r.chance.IntN(len(widths))]
}

// elementSize returns the size in bytes of an element of a shape, which may be nil.
func elementSize(dtype string, shape any) int {
	n, axes := widths[dtype], []int(nil)
	if shape != nil {
		axes = shape.([]int)
	}
	for _, axis := range axes {
		n *= axis
	}
	return n
}

// validElements returns a function that makes each byte of a bool 0 or 1. For other dtypes, it
// returns nil.
func validElements(dtype string) func([]byte) {
	if dtype != "bool" {
		return nil
	}
	return func(element []byte) {
		for i := range element {
			element[i] &= 1
		}
	}
}

// A randomSplit describes a split: its settings, the values that paths may set, and the content of
// its files.
type randomSplit struct {
	layouts, dtypes []any
	leastBlock      int // exclusive lower limit of block_size
	batch           keys
	rowLen          int                  // elements
	size            int                  // size of an element in bytes
	fill            func(element []byte) // may be nil
}

func (r *randomSplits) tokens() randomSplit {
	chance := r.chance
	dtype := oneOf(chance, "uint8", "uint16", "uint16", "int16", "uint32", "uint32", "int32", "uint64", "int64").(string)
	s := randomSplit{layouts: []any{"xy", "tokens"}, dtypes: []any{"native", "uint16", "uint32", "int32", "uint64", "int64"}, size: widths[dtype]}
	most := 50_000
	// With blocks of a single token, there must be many different tokens, or two batches might be
	// equal.
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
	}
	if masks := []any{"mask"}; chance.IntN(3) == 0 {
		if s.batch["eot"] != nil {
			masks = append(masks, true)
		}
		s.batch["mask_targets"], s.batch["ignore_index"] = oneOf(chance, masks...), -1-chance.IntN(100)
		s.layouts, s.dtypes = []any{"xy"}, []any{"int32", "int64"}
	}
	return s
}

func (r *randomSplits) rows() randomSplit {
	chance, dtype := r.chance, r.dtype()
	shape := oneOf(chance, []int{64}, []int{8, 8}, []int{2, 3, 11}, []int{1, 1000})
	s := randomSplit{layouts: []any{"rows"}, dtypes: []any{"native"}, rowLen: 1, size: elementSize(dtype, shape), fill: validElements(dtype)}
	// With fewer rows, two batches that next returns at about the same time might be equal.
	s.batch = keys{"batch_size": 4 + chance.IntN(12), "block_size": 1 + chance.IntN(400), "token_dtype": dtype, "shape": shape}
	// Every integer dtype holds these numbers.
	if strings.Contains(dtype, "int") && chance.IntN(2) == 0 {
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

const world = 3

// writeFiles writes the files of a split or of a source, and of its aligned arrays.
func (r *randomSplits) writeFiles(s randomSplit, aligned []keys) (files []string, arrays []keys) {
	r.t.Helper()
	chance, elements := r.chance, 0
	add := func(n int) { files, elements = append(files, r.writeFile(n, s.size, s.fill)), elements+n }
	if s.layouts[0] != "rows" {
		for range 1 + chance.IntN(5) {
			add(s.rowLen + 1 + chance.IntN(5000))
		}
	}
	for range 1 + chance.IntN(2) {
		add(s.batch["batch_size"].(int) * s.rowLen * world * 80)
	}
	arrays = []keys{}
	for _, kind := range aligned {
		dtype := kind["dtype"].(string)
		size, fill := elementSize(dtype, kind["shape"]), validElements(dtype)
		// An array has one file more than the tokens. With the same number of files, their sizes
		// would have to match.
		var paths []string
		left := elements
		for range files {
			n := 1 + chance.IntN(left/2)
			paths, left = append(paths, r.writeFile(n, size, fill)), left-n
		}
		array := maps.Clone(kind)
		array["files"] = append(paths, r.writeFile(left, size, fill))
		arrays = append(arrays, array)
	}
	return files, arrays
}

// add adds a split to the configuration. It returns the split, and its settings by their names in
// the reference.
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
	var aligned []keys
	if chance.IntN(3) > 0 {
		for i := range 1 + chance.IntN(3) {
			kind := keys{"name": fmt.Sprintf("aligned_%d", i), "at": oneOf(chance, "x", "y"), "dtype": r.dtype()}
			if chance.IntN(2) == 0 {
				kind["shape"] = oneOf(chance, []int{1}, []int{5}, []int{2, 3}, []int{3, 1, 2})
			}
			aligned = append(aligned, kind)
		}
	}
	if batch["mask_targets"] == "mask" {
		aligned = append(aligned, keys{"name": "mask", "at": "y", "dtype": oneOf(chance, "bool", "uint8", "int64")})
	}
	settings = maps.Clone(batch)
	settings["split"] = name
	var tables string
	addTables := func(head string, list ...keys) {
		for _, settings := range list {
			tables += configTable(r.t, fmt.Sprintf("[[splits.%s.%s]]", name, head), settings)
		}
	}
	if chance.IntN(3) == 0 && !isTorch {
		var sources, stages []keys
		staged := chance.IntN(2)
		for i := range 2 - staged + chance.IntN(2) {
			files, arrays := r.writeFiles(split, aligned)
			source, weight := keys{"tokens": files}, float64(1+chance.IntN(9))/10
			if i > 0 && chance.IntN(2) == 0 { // the first source has no end
				source["max_epochs"] = float64(1+chance.IntN(50)) / 10
			}
			inReference := keys{"files": files, "arrays": arrays}
			maps.Copy(inReference, source)
			delete(inReference, "tokens")
			if staged == 0 {
				source["weight"], inReference["weight"] = weight, weight
			}
			addTables("sources", source)
			addTables("sources.arrays", arrays...)
			sources = append(sources, inReference)
		}
		for i := range staged * (1 + chance.IntN(3)) {
			stage, weights := keys{}, []int{1 + chance.IntN(9), chance.IntN(9), chance.IntN(9)}[:len(sources)]
			if i > 0 {
				stage["from_row"] = 30 * i
			}
			addTables("stages", stage)
			tables += "weights = {"
			for source, weight := range weights {
				tables += fmt.Sprintf("%.*s%d = %d", 2*min(source, 1), ", ", source, weight)
			}
			tables += "}\n"
			stage["weights"] = weights
			stages = append(stages, stage)
		}
		settings["sources"] = sources
		if stages != nil {
			settings["stages"] = stages
		}
	} else {
		files, arrays := r.writeFiles(split, aligned)
		if isTorch && len(files) > 1 || chance.IntN(2) == 0 {
			batch["join"], settings["join"] = true, true
		}
		addTables("arrays", arrays...)
		batch["tokens"], settings["files"], settings["arrays"] = files, files, arrays
	}
	r.config += configTable(r.t, fmt.Sprintf("[splits.%s]", name), batch) + tables
	return split, settings
}

// path returns the path of a random settings directory, with one component or two, and the settings
// of its sequence.
func (s randomSplit) path(chance *rand.Rand, base keys) (directory string, under keys) {
	path, under := []string{}, maps.Clone(base)
	set := func(key string, value any) {
		path = append(path, fmt.Sprintf("%s=%v", key, value))
		under[key] = value
	}
	set("rank", chance.IntN(world))
	set("world", world)
	for _, setOne := range []func(){
		func() { set("seed", chance.IntN(1000)) },
		func() {
			if s.batch["layout"] != "rows" { // with few rows, two batches may be equal
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
			setOne()
		}
	}
	if under["order"] == "shuffle" && chance.IntN(2) == 0 {
		under["shuffle_block"], under["local_world"] = 1<<16+chance.IntN(1<<16), world
		path = append(path, fmt.Sprintf("shuffle_block=%d,local_world=%d", under["shuffle_block"], world))
	}
	cut := 2 + chance.IntN(len(path)-1) // a rank is rejected without its world
	chance.Shuffle(cut, func(i, j int) { path[i], path[j] = path[j], path[i] })
	return filepath.Join(strings.Join(path[:cut], ","), strings.Join(path[cut:], ",")), under
}

// Rows and aligned arrays of any dtype, shape, files and sources are what an independent reference
// computes, in every file of the mount, at any offset and with every access. BATCHFS_SEED
// repeats a run.
func TestArraysAgreeWithReference(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if text := os.Getenv("BATCHFS_SEED"); text != "" {
		seed = e2e.Must(strconv.ParseUint(text, 10, 64))(t)
	}
	t.Logf("BATCHFS_SEED=%d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	splits, many := &randomSplits{t: t, chance: chance, dir: t.TempDir()}, 10
	switch {
	case e2e.InSoak():
		many = 60
	case testing.Short():
		many = 4
	}
	settings := map[string]keys{} // keyed by directory
	for i := range many {
		name := fmt.Sprintf("split%d", i)
		split, base := splits.add(name)
		directory, under := split.path(chance, base)
		settings[name], settings[filepath.Join(name, directory)] = base, under
	}
	t.Logf("the configuration:\n%s", splits.config)
	config := e2e.Write(t, filepath.Join(splits.dir, "config.toml"), splits.config)
	for _, access := range []string{"remap", "advise", "pread"} {
		t.Run(access, func(t *testing.T) {
			t.Parallel()
			m := e2e.Mount(t, "-c", config, "--set", "memory.access="+access, "--set", "memory.page_cache=drop")
			var sequences [][2]any
			for _, directory := range slices.Sorted(maps.Keys(settings)) {
				sequences = append(sequences, [2]any{m.Path(directory), settings[directory]})
			}
			file := e2e.Write(t, filepath.Join(t.TempDir(), "sequences.json"), e2e.Must(json.Marshal(sequences))(t))
			cmd := e2e.Job(t, e2e.Python, "clients/differential.py", file, fmt.Sprint(uint32(seed)), fmt.Sprint(25*many))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("clients/differential.py: %v\n%s", err, out)
			}
		})
	}
}

// The reference agrees with published numbers, with draws of PyTorch and with the golden file.
func TestReference(t *testing.T) {
	e2e.SkipIfShort(t)
	e2e.Equal(t, "the self-test", e2e.RunJob(t, e2e.Python, "clients/reference.py", "--selftest"), "ok\n")
}

// Rows of random documents are what another independent reference computes. That reference agrees
// with its golden file.
func TestDocumentsAgreeWithReference(t *testing.T) {
	e2e.SkipIfShort(t)
	e2e.Equal(t, "documents.py --golden", e2e.RunJob(t, e2e.Python, "clients/documents.py", "--golden", "../sampler/testdata/documents.json"), "ok\n")
	for seed := range 2 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			dir := t.TempDir()
			e2e.RunJob(t, e2e.Python, "clients/documents.py", "--make", dir, fmt.Sprint(seed))
			m := e2e.Mount(t, "-c", filepath.Join(dir, "config.toml"))
			e2e.Contains(t, "documents.py --check", e2e.RunJob(t, e2e.Python, "clients/documents.py", "--check", dir, m.Dir), "compared ")
		})
	}
}
