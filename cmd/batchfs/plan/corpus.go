package plan

import (
	"fmt"
	"math"
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

// A corpus is the sources that a run reads, under the settings of its ranks.
type corpus struct {
	sequence     *sampler.Sequence // sequence of rank 0
	sources      []corpusSource
	steps        uint64         // length of the run
	blockOptions blocks.Options // options of each host; Limit is 0 without a cache directory
	hosts        int
	ranksPerHost int
	openRequests int  // store requests that opening the files took
	local        bool // whether the files exist, and none is in a store
}

type corpusSource struct {
	name    string
	arrays  []*cache.Array
	windows int64 // windows in an epoch
}

// An assumedSource is a source that need not exist, described by its size.
type assumedSource struct {
	name                string
	tokens, shardTokens int64
	weight              float64
}

// assumedSources returns the sources that --tokens or --source describe, if any.
func (o *options) assumedSources() (list []assumedSource, err error) {
	shard, err := parseQuantity("--shard-tokens", o.shardTokens, counts, 1, maxTokens, "1G")
	if err != nil {
		return nil, err
	}
	sources := o.sources
	if o.tokens != "" {
		sources = []string{"tokens=" + o.tokens + ":1"}
	}
	for _, text := range sources {
		name, rest, named := strings.Cut(text, "=")
		colon := max(strings.LastIndexByte(rest, ':'), 0) // --tokens may have another one
		tokens, weight := rest[:colon], strings.TrimPrefix(rest[colon:], ":")
		w, err := strconv.ParseFloat(weight, 64)
		if !named || tokens == "" || name == "" || err != nil || !(w > 0 && w <= math.MaxFloat64) {
			return nil, fmt.Errorf("--source: must be a name, tokens and a weight above 0, such as web=10T:3 (got %q)", text)
		}
		flag := "--source " + name
		if o.tokens != "" {
			flag = "--tokens"
		}
		n, err := parseQuantity(flag, tokens, counts, 1, maxTokens, "15T")
		if err != nil {
			return nil, err
		}
		if n/shard > maxShards {
			return nil, fmt.Errorf("--shard-tokens: %s tokens make %.0f objects of %s; set it to %s or more", tokens, n/shard,
				o.shardTokens, formatCount(n/maxShards))
		}
		list = append(list, assumedSource{name, int64(n), int64(shard), w})
	}
	return list, nil
}

const (
	maxTokens = 1e17
	maxShards = 1e6
)

// array returns an array of this size, divided into files of about equal length, which need not
// exist.
func (s assumedSource) array(split *config.Split) (*cache.Array, error) {
	var m cache.Manifest
	n := (s.tokens + s.shardTokens - 1) / s.shardTokens
	for i := range n {
		count := s.tokens / n
		if i < s.tokens%n {
			count++
		}
		m.Files = append(m.Files, cache.File{
			Path:     fmt.Appendf(nil, "%s_%06d.bin", s.name, i),
			Identity: localfile.Stamp{Size: count * int64(split.TokenDType.Size())},
			Format:   format.Format{DType: split.TokenDType, Count: count},
		})
	}
	return cache.Reopen(m, cache.Options{Join: split.Join})
}

// openCorpus returns the corpus that --tokens or --source describe, or the split at path.
func (o *options) openCorpus(path string) (*corpus, error) {
	sizes, err := o.assumedSources()
	if err != nil {
		return nil, err
	}
	flags := o.config
	var from *config.Config
	if len(sizes) > 0 {
		// The file of this split is never opened. The other splits are left out, because the
		// settings in --set batch.* need not suit them.
		flags.Sets = append(slices.Clone(flags.Sets), "splits.plan.tokens=s3://plan/tokens.bin")
		from, err = flags.LoadSplit("plan")
	} else {
		from, err = flags.Load()
	}
	if err != nil {
		return nil, err
	}
	c := &corpus{hosts: o.hosts, ranksPerHost: o.gpus, blockOptions: blocks.Options{
		Limit: from.Store.CacheBytes, BlockBytes: from.Store.BlockBytes, Memory: from.Memory.BlocksPortion(),
	}}
	if len(sizes) > 0 {
		err = c.synthesize(from, sizes)
	} else {
		err = c.openSplit(from, path)
	}
	if err != nil {
		return nil, err
	}
	for i := range c.sources {
		c.sources[i].windows = c.sequence.WindowsOf(i)
	}
	return c, nil
}

// rankSettings returns the settings of rank 0 of the whole run, as in a path of the mount.
func (c *corpus) rankSettings(split *config.Split) string {
	path := fmt.Sprintf("rank=0,world=%d", c.hosts*c.ranksPerHost)
	if split.ShuffleBlock > 0 {
		path += fmt.Sprintf(",local_world=%d", c.ranksPerHost)
	}
	return path
}

// requireWindows returns an error if rows are made of documents, which plan cannot place without an
// index.
func requireWindows(s *config.Split) error {
	if s.Rows != "" && s.Rows != sampler.Windows {
		return fmt.Errorf("%s: plan supports only rows = \"windows\" (got %q); leave rows, bos and too_long out to get an approximation",
			s.MessagePrefix("rows"), s.Rows)
	}
	return nil
}

func (c *corpus) openSplit(from *config.Config, path string) error {
	opener := dataset.NewOpener(from)
	d, err := opener.OpenPath(path)
	if err == nil {
		err = requireWindows(d.Split)
	}
	if err == nil {
		d, err = d.With(c.rankSettings(d.Split))
	}
	if err != nil {
		return err
	}
	if from.Store.CacheDir == "" {
		c.blockOptions.Limit = 0
	}
	c.sequence, c.openRequests, c.local = d.Sequence, int(opener.Remote.Store.Counts.Requests.Load()), !d.Split.IsRemote()
	for i, arrays := range d.Arrays() {
		name := d.Split.Name
		if len(d.Split.Sources) > 0 {
			name = d.Split.Sources[i].Name
		}
		c.sources = append(c.sources, corpusSource{name: name, arrays: arrays})
	}
	return nil
}

// synthesize sets up sources of the given sizes, under the settings of [batch].
func (c *corpus) synthesize(from *config.Config, sizes []assumedSource) error {
	split, err := from.Named("plan")
	if err == nil {
		err = requireWindows(split)
	}
	if err == nil {
		split, err = split.With(c.rankSettings(split))
	}
	if err != nil {
		return err
	}
	settings := split.Settings
	// Where documents end is unknown, and does not affect which blocks are read.
	settings.Documents, settings.DocumentNumbers, settings.MaskTargets, settings.MaskArray = false, false, false, ""
	var sources []sampler.Source
	for _, s := range sizes {
		array, err := s.array(split)
		if err != nil {
			return err
		}
		settings.Weights = append(settings.Weights, s.weight)
		sources = append(sources, sampler.Source{Main: array})
		c.sources = append(c.sources, corpusSource{name: s.name, arrays: []*cache.Array{array}})
	}
	c.sequence, err = sampler.New(sources, settings)
	return err
}
