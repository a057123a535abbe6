package sampler

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cache/localfile"
)

var update = flag.Bool("update", false, "recompute the batches in testdata/golden.json and documents.json")

// TestGolden pins the bytes of batches. Users' runs depend on them: if they changed, a resumed run
// would silently get other data, and nobody could say later what step 12345 saw.
//
// If this test fails, fix the code. Use `go test ./sampler -update` only to add settings, with an
// empty list of batches, and check that git diff shows only additions. A better generator gets a
// new order.
//
// A line of batches is "k sha256 starts". Starts count the tokens of all sources. The hash covers
// the main arrays and, if the settings have aligned arrays or documents, all other arrays, sorted
// by name. test/clients/reference.py, which shares no code with this package, must compute the same
// lines: see its --selftest.
func TestGolden(t *testing.T) {
	checkGolden(t, "testdata/golden.json", func(g *goldenCase) (got []string, batches *[]string) { return g.compute(t), &g.Batches })
}

// TestGoldenDocuments pins the bytes of rows of documents like TestGolden. A line of batches has
// the number of the batch, and the name and the hash of each array. The reference is
// test/clients/documents.py.
func TestGoldenDocuments(t *testing.T) {
	checkGolden(t, "testdata/documents.json", func(g *goldenDocuments) (got []string, batches *[]string) { return g.compute(t), &g.Batches })
}

func checkGolden[C any](t *testing.T, path string, compute func(*C) (got []string, batches *[]string)) {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	var cases []*C
	must(t, json.Unmarshal(raw, &cases))
	for i, g := range cases {
		got, batches := compute(g)
		if !*update && !slices.Equal(got, *batches) {
			t.Errorf("case %d: %+v\nnow gives other batches:\n%s\nwant\n%s", i, *g, strings.Join(got, "\n"), strings.Join(*batches, "\n"))
		}
		*batches = got
	}
	if *update {
		raw, err := json.MarshalIndent(cases, "", "  ")
		must(t, err)
		must(t, os.WriteFile(path, append(raw, '\n'), 0o644))
	}
}

// A goldenCase is settings, as in config.toml, and some batches under them.
type goldenCase struct {
	// Files has the number of elements in each file. Across all files, number i is i, truncated to
	// the dtype.
	Files        []int          `json:"files,omitempty"`
	Sources      []goldenSource `json:"sources,omitempty"` // replaces Files
	Join         bool           `json:"join"`
	TokenDType   array.DType    `json:"token_dtype"`
	Shape        []int          `json:"shape,omitempty"`
	Arrays       []goldenArray  `json:"arrays,omitempty"` // number i of array n is i+n+1
	EOT          uint64         `json:"eot,omitempty"`
	Documents    bool           `json:"documents,omitempty"`
	MaskTargets  any            `json:"mask_targets,omitempty"` // true, or the name of an array
	IgnoreIndex  int64          `json:"ignore_index,omitempty"`
	Split        string         `json:"split"`
	BatchSize    int            `json:"batch_size"`
	BlockSize    int            `json:"block_size"`
	DType        array.DType    `json:"dtype"`
	Layout       Layout         `json:"layout"`
	Order        Order          `json:"order"`
	Seed         uint64         `json:"seed"`
	TorchState   string         `json:"torch_state,omitempty"`
	Rank         int            `json:"rank"`
	World        int            `json:"world"`
	ShuffleBlock int64          `json:"shuffle_block,omitempty"`
	LocalWorld   int            `json:"local_world,omitempty"`
	Stages       []goldenStage  `json:"stages,omitempty"`
	Only         int            `json:"only,omitempty"`
	Batches      []string       `json:"batches"`
}

type goldenSource struct {
	Files     []int   `json:"files"`
	Weight    float64 `json:"weight"`
	MaxEpochs float64 `json:"max_epochs,omitempty"`
}

type goldenStage struct {
	FirstRow   uint64    `json:"from_row,omitempty"`
	FromTokens uint64    `json:"from_tokens,omitempty"`
	Weights    []float64 `json:"weights"`
}

type goldenArray struct {
	Name  string      `json:"name"`
	At    At          `json:"at"`
	DType array.DType `json:"dtype"`
	Shape []int       `json:"shape"`
}

func (g *goldenCase) compute(t *testing.T) (batches []string) {
	s := Settings{
		Name: g.Split, BatchSize: g.BatchSize, BlockSize: g.BlockSize, DType: g.DType, Layout: g.Layout,
		Order: g.Order, Seed: g.Seed, Rank: g.Rank, World: g.World, EOT: g.EOT, HasEOT: g.EOT > 0, Documents: g.Documents, MaskTargets: g.MaskTargets != nil,
		IgnoreIndex:  g.IgnoreIndex,
		ShuffleBlock: g.ShuffleBlock, LocalWorld: g.LocalWorld, Only: g.Only,
	}
	for _, stage := range g.Stages {
		s.Stages = append(s.Stages, Stage(stage))
	}
	s.MaskArray, _ = g.MaskTargets.(string)
	for _, a := range g.Arrays {
		s.Arrays = append(s.Arrays, AlignedArray{a.Name, a.At})
	}
	sources := g.Sources
	if sources == nil {
		sources = []goldenSource{{Files: g.Files, Weight: 1}}
	}
	var lens [][]int // lengths by source and file
	for _, source := range sources {
		var numbers []int
		for _, n := range source.Files {
			for _, axis := range g.Shape {
				n *= axis
			}
			numbers = append(numbers, n)
		}
		lens, s.Weights, s.MaxEpochs = append(lens, numbers), append(s.Weights, source.Weight), append(s.MaxEpochs, source.MaxEpochs)
	}
	if g.TorchState != "" {
		var err error
		s.TorchState, err = os.ReadFile("testdata/" + g.TorchState)
		must(t, err)
	}
	o := cache.Options{DType: g.TokenDType, Axes: g.Shape, Join: g.Join, Reading: localfile.Options{Access: localfile.Pread}}
	tokens := openSources(t, writeSources(t, g.TokenDType.Size(), lens...), o)
	firstElement := int64(0)
	for i := range tokens {
		for n, a := range g.Arrays {
			aligned := newNumbered(a.DType, 0, length(tokens[i]), a.Shape...)
			aligned.salt = firstElement*numbersOf(aligned) + int64(n) + 1
			tokens[i].Aligned = append(tokens[i].Aligned, aligned)
		}
		firstElement += length(tokens[i])
	}
	q, err := New(tokens, s)
	must(t, err)
	for _, k := range []uint64{0, 1, 17, 1_000_000, q.Batches() - 1} {
		if k >= q.Batches() {
			continue
		}
		var starts []string
		for j := range q.BatchSize {
			starts = append(starts, fmt.Sprint(globalPosition(tokens, q, k, j)))
		}
		whole := readBatch(t, q, k)
		sum := sha256.New()
		sum.Write(whole[:q.Batch().MainBytes()])
		if len(g.Arrays) > 0 || g.Documents {
			others := slices.Clone(q.Batch().Arrays[q.Batch().Main:])
			slices.SortFunc(others, func(a, b array.Descriptor) int { return strings.Compare(a.Name, b.Name) })
			for _, a := range others {
				sum.Write(whole[a.Offset:][:a.Bytes()])
			}
		}
		batches = append(batches, fmt.Sprintf("%d %x %s", k, sum.Sum(nil), strings.Join(starts, ",")))
	}
	return batches
}

// goldenDocuments is settings, as in config.toml, and some batches under them.
type goldenDocuments struct {
	// Counts has the number of documents in each source, which is one file with an index. Document
	// i has 1 + i*i*7919 mod Most tokens. A token is its position among all sources, unless it is
	// the first of a document and BOS is set.
	Counts      []int         `json:"documents"`
	Most        int64         `json:"most"`
	Split       string        `json:"split"`
	BatchSize   int           `json:"batch_size"`
	BlockSize   int           `json:"block_size"`
	DType       array.DType   `json:"dtype"`
	Layout      Layout        `json:"layout"`
	Order       Order         `json:"order"`
	Seed        uint64        `json:"seed"`
	Rank        int           `json:"rank"`
	World       int           `json:"world"`
	Rows        RowContent    `json:"rows"`
	MaskTargets bool          `json:"mask_targets"`
	EOT         uint64        `json:"eot"`
	IgnoreIndex int64         `json:"ignore_index,omitempty"`
	BOS         *uint64       `json:"bos,omitempty"`
	TooLong     TooLong       `json:"too_long,omitempty"`
	Numbers     bool          `json:"document_numbers,omitempty"`
	Stages      []goldenStage `json:"stages,omitempty"`
	Batches     []string      `json:"batches"`
}

func (g *goldenDocuments) compute(t *testing.T) (batches []string) {
	t.Helper()
	s := Settings{
		Name: g.Split, BatchSize: g.BatchSize, BlockSize: g.BlockSize, DType: g.DType, Layout: g.Layout, Order: g.Order, Seed: g.Seed, Rank: g.Rank, World: g.World,
		Rows: g.Rows, TooLong: g.TooLong, Documents: true, MaskTargets: g.MaskTargets, EOT: g.EOT, HasEOT: true, IgnoreIndex: g.IgnoreIndex, BOS: g.BOS, DocumentNumbers: g.Numbers,
	}
	for _, stage := range g.Stages {
		s.Stages = append(s.Stages, Stage(stage))
	}
	var sources []Source
	begin := int64(0)
	for _, count := range g.Counts {
		tokens, ends := newNumbered(array.Uint32, 0, 0), documentEnds{}
		for i := range int64(count) {
			for n := range 1 + i*i*7919%g.Most {
				token := begin + int64(len(tokens.values))
				if n == 0 && g.BOS != nil {
					token = int64(*g.BOS)
				}
				tokens.values = append(tokens.values, token)
			}
			ends = append(ends, int64(len(tokens.values)))
		}
		tokens.extents[0].Len = int64(len(tokens.values))
		sources, s.Weights = append(sources, Source{Main: tokens, Documents: ends}), append(s.Weights, 1)
		begin += tokens.Len()
	}
	q, err := New(sources, s)
	must(t, err)
	for _, k := range []uint64{0, 1, 17, 1_000_000, q.Batches() - 1} {
		line, whole := fmt.Sprint(k), readBatch(t, q, k)
		for _, a := range q.Batch().Arrays {
			sum := sha256.Sum256(whole[a.Offset:][:a.Bytes()])
			line += fmt.Sprintf(" %s %x", a.Name, sum[:8])
		}
		batches = append(batches, line)
	}
	return batches
}
