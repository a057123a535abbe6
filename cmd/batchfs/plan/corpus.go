package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"batchfs/cache"
	"batchfs/cache/blocks"
	"batchfs/cache/format"
	"batchfs/cache/localfile"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/sampler"
)

// A corpus is what a run reads: sources, under the settings of all its ranks.
type corpus struct {
	sequence *sampler.Sequence // of rank 0
	sources  []source
	blocks   blocks.Options // of each host; its Limit is 0 where there is no directory
	hosts    int
	ranks    int // of a host
	opened   int // requests that opening it took, if it lies in a store
}

// A source is arrays of one length, and how many windows its epoch has.
type source struct {
	name    string
	arrays  []*cache.Array
	windows int64
}

// A size is a source whose size alone is known.
type size struct {
	name          string
	tokens, shard int64 // shard: tokens of a file
	weight        float64
}

// sizes are the sources that --tokens and --source name, or none.
func (o *options) sizes() (list []size, err error) {
	shard, err := quantity("--shard-tokens", o.shardTokens, counts, 1, maxTokens, "1G")
	if err != nil {
		return nil, err
	}
	sources := o.sources
	if o.tokens != "" {
		sources = []string{"tokens=" + o.tokens + ":1"}
	}
	for _, text := range sources {
		name, rest, named := strings.Cut(text, "=")
		tokens, weight, weighted := strings.Cut(rest, ":")
		w, err := strconv.ParseFloat(weight, 64)
		if !named || !weighted || name == "" || err != nil || !(w > 0) {
			return nil, fmt.Errorf("--source: must be a name, tokens and a weight above 0, such as web=10T:3 (got %q)", text)
		}
		flag := "--source " + name
		if o.tokens != "" {
			flag = "--tokens"
		}
		n, err := quantity(flag, tokens, counts, 1, maxTokens, "15T")
		if err != nil {
			return nil, err
		}
		if n/shard > maxShards {
			return nil, fmt.Errorf("--shard-tokens: %s tokens make %.0f objects of %s; set it to %s or more", tokens, n/shard, o.shardTokens, short(n/maxShards))
		}
		list = append(list, size{name, int64(n), int64(shard), w})
	}
	return list, nil
}

const (
	maxTokens = 1e17
	maxShards = 1e6
)

// array is the size as files of a split that need not exist. They are about equal.
func (s size) array(split *config.Split) (*cache.Array, error) {
	var m cache.Manifest
	n := (s.tokens + s.shard - 1) / s.shard
	for i := range n {
		count := s.tokens / n
		if i < s.tokens%n {
			count++
		}
		m.Files = append(m.Files, cache.File{
			Path:     fmt.Appendf(nil, "%s_%06d.bin", s.name, i),
			Identity: localfile.Identity{Size: count * int64(split.TokenDType.Size())},
			Format:   format.Format{DType: split.TokenDType, Count: count},
		})
	}
	return cache.Reopen(m, cache.Options{Join: split.Join})
}

// open is the corpus of the flags: of a split of the configuration, by its path, or of sizes.
func (o *options) open(path string) (*corpus, error) {
	sizes, err := o.sizes()
	if err != nil {
		return nil, err
	}
	flags := o.config
	if len(sizes) > 0 {
		flags.Sets = append(slices.Clone(flags.Sets), "splits.plan.tokens=s3://plan/tokens.bin") // never opened
	}
	from, err := flags.Load()
	if err != nil {
		return nil, err
	}
	c := &corpus{hosts: o.hosts, ranks: o.gpus, blocks: blocks.Options{
		Limit: from.Store.CacheBytes, BlockBytes: from.Store.BlockBytes, Memory: from.Memory.BlocksPortion(),
	}}
	if len(sizes) > 0 {
		err = c.synthesize(from, sizes)
	} else {
		err = c.find(from, path)
	}
	if err != nil {
		return nil, err
	}
	for i := range c.sources {
		c.sources[i].windows = c.sequence.WindowsOf(i)
	}
	return c, nil
}

// ofRanks are the settings, as in a path, of rank 0 among all ranks that read a split.
func (c *corpus) ofRanks(split *config.Split) string {
	path := fmt.Sprintf("rank=0,world=%d", c.hosts*c.ranks)
	if split.ShuffleBlock > 0 {
		path += fmt.Sprintf(",local_world=%d", c.ranks)
	}
	return path
}

// onlyWindows returns an error for rows that are made of documents: where those begin, only an index says.
func onlyWindows(s *config.Split) error {
	if s.Rows != "" && s.Rows != sampler.Windows {
		return fmt.Errorf("%s: plan knows rows = \"windows\" only (got %q); leave rows out, to see about what the others need", s.MessagePrefix("rows"), s.Rows)
	}
	return nil
}

func (c *corpus) find(from *config.Config, path string) error {
	opener := dataset.NewOpener(from)
	d, err := opener.OpenPath(path)
	if err == nil {
		err = onlyWindows(d.Split)
	}
	if err == nil {
		d, err = d.With(c.ofRanks(d.Split))
	}
	if err != nil {
		return err
	}
	if from.Store.CacheDir == "" {
		c.blocks.Limit = 0
	}
	c.sequence, c.opened = d.Sequence, int(opener.Remote.Store.Counts.Requests.Load())
	for i, arrays := range d.Arrays() {
		name := d.Split.Name
		if len(d.Split.Sources) > 0 {
			name = strings.Join(d.Split.Sources[i].Tokens, " ")
		}
		c.sources = append(c.sources, source{name: name, arrays: arrays})
	}
	return nil
}

// synthesize makes the sequence of sources whose sizes alone are known, under the settings of
// [batch].
func (c *corpus) synthesize(from *config.Config, sizes []size) error {
	split, err := from.Named("plan")
	if err == nil {
		err = onlyWindows(split)
	}
	if err == nil {
		split, err = split.With(c.ofRanks(split))
	}
	if err != nil {
		return err
	}
	settings := split.Settings
	// No array says where documents end, and no block depends on it.
	settings.Documents, settings.MaskTargets, settings.Ends = false, false, sampler.EndsUnknown
	var sources []sampler.Source
	for _, s := range sizes {
		array, err := s.array(split)
		if err != nil {
			return err
		}
		settings.Weights = append(settings.Weights, s.weight)
		sources = append(sources, sampler.Source{Main: array})
		c.sources = append(c.sources, source{name: s.name, arrays: []*cache.Array{array}})
	}
	c.sequence, err = sampler.New(sources, settings)
	return err
}
