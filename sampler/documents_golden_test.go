package sampler

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"batchfs/cache/array"
)

// TestGoldenDocuments pins batches with documents for ever, as TestGolden does those without: see there before you run it with -update.
// Each line is the number of a batch, and the beginning of the sha256 of each of its arrays. test/clients/documents.py has the same.
func TestGoldenDocuments(t *testing.T) {
	checkGolden(t, "testdata/documents.json", (*goldenDocuments).compute, func(g *goldenDocuments) *[]string { return &g.Batches })
}

// goldenDocuments are settings under the names of config.toml. Of each source, document i has 1 + i*i*7919 mod Most tokens. Tokens are
// their positions among those of all sources.
type goldenDocuments struct {
	Documents   []int       `json:"documents"` // of each source
	Most        int64       `json:"most"`
	Split       string      `json:"split"`
	BatchSize   int         `json:"batch_size"`
	BlockSize   int         `json:"block_size"`
	DType       array.DType `json:"dtype"`
	Layout      Layout      `json:"layout"`
	Order       Order       `json:"order"`
	Seed        uint64      `json:"seed"`
	Rank        int         `json:"rank"`
	World       int         `json:"world"`
	Rows        Rows        `json:"rows"`
	MaskTargets bool        `json:"mask_targets"`
	EOT         uint64      `json:"eot"`
	Batches     []string    `json:"batches"`
}

func (g *goldenDocuments) compute(t *testing.T) (batches []string) {
	var sources []Source
	var weights []float64
	first := int64(0)
	for _, count := range g.Documents {
		var ends documentEndsAt
		end := int64(0)
		for i := range int64(count) {
			end += 1 + i*i*7919%g.Most
			ends = append(ends, end)
		}
		source := documented(array.Uint32, ends)
		source.Main.(*stub).salt = first
		first += end
		sources, weights = append(sources, source), append(weights, 1)
	}
	q, err := New(sources, Settings{Split: g.Split, BatchSize: g.BatchSize, BlockSize: g.BlockSize, DType: g.DType, Layout: g.Layout, Order: g.Order,
		Seed: g.Seed, Rank: g.Rank, World: g.World, Rows: g.Rows, Ends: EndsByIndex, EOT: g.EOT, Documents: true, MaskTargets: g.MaskTargets,
		Weights: weights})
	must(t, err)
	for _, k := range []uint64{0, 1, 17, 1_000_000, MaxBatches - 1} {
		batch, line := read(t, q, k), fmt.Sprint(k)
		for _, a := range q.Batch().Arrays {
			line += fmt.Sprintf(" %s %.8x", a.Name, sha256.Sum256(batch[a.Offset:][:a.Bytes()]))
		}
		batches = append(batches, line)
	}
	return batches
}
