package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"batchfs/cache"
	"batchfs/fs"
	"batchfs/sampler"
)

// source is where the flags of a command say that settings come from.
type source struct {
	config string
	data   string
	sets   []string
}

func (s *source) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&s.config, "config", "c", "", "configuration `file` (default config.toml, where there is one)")
	cmd.Flags().StringVar(&s.data, "data", "", "serve train*.bin and val*.bin of this `directory`; needs no configuration file")
	cmd.Flags().StringArrayVar(&s.sets, "set", nil, "set one key over the file, `key=value`, any number of times")
	cmd.MarkFlagsMutuallyExclusive("config", "data")
	cmd.MarkFlagDirname("data")
	cmd.MarkFlagFilename("config", "toml")
}

func (s *source) load() (*config, error) {
	sets := s.sets
	switch {
	case s.data != "":
		data, err := dataDir(s.data)
		if err != nil {
			return nil, err
		}
		sets = append(data, sets...)
	case s.config == "":
		if _, err := os.Stat("config.toml"); err != nil {
			return nil, errors.New("what is to be served? there is no config.toml here: name one with -c, or a directory of train.bin and val.bin with --data")
		}
		s.config = "config.toml"
	}
	c, err := loadConfig(s.config, sets)
	if err == nil && len(c.Splits) == 0 {
		err = fmt.Errorf("%s: no splits; at least one is needed, e.g.\n[splits.train]\ntokens = \"data/train.bin\"", s.config)
	}
	return c, err
}

// dataDir are the settings that make splits of the token files in a directory.
func dataDir(dir string) (sets []string, err error) {
	for _, name := range []string{"train", "val"} {
		pattern := filepath.Join(escapeGlob(dir), name+"*.bin")
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		if len(files) > 0 {
			sets = append(sets, fmt.Sprintf("splits.%s.tokens=%s", name, pattern))
		}
	}
	if len(sets) == 0 {
		if _, err := os.ReadDir(dir); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%s has neither train*.bin nor val*.bin; batchfs prepare TEXT --out %s makes them", dir, dir)
	}
	return sets, nil
}

// escapeGlob makes a pattern that matches just path.
func escapeGlob(path string) string {
	var b []byte
	for _, c := range []byte(path) {
		if slices.Contains([]byte(`*?[\`), c) {
			b = append(b, '\\')
		}
		b = append(b, c)
	}
	return string(b)
}

// opened is a split with its files open and checked.
type opened struct {
	split    *split
	sequence *sampler.Sequence
	tokens   *cache.Tokens
	steps    uint64
}

// openSplit opens one split of the configuration.
func (s *source) openSplit(name string) (opened, error) {
	c, err := s.load()
	if err != nil {
		return opened{}, err
	}
	var names []string
	for _, split := range c.Splits {
		if split.Split == name {
			return split.open(c.Memory)
		}
		names = append(names, split.Split)
	}
	return opened{}, fmt.Errorf("no split %q; there are %q", name, names)
}

// open opens and checks every file of the splits.
func (c *config) open() ([]opened, error) {
	var all []opened
	for _, s := range c.Splits {
		o, err := s.open(c.Memory)
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

func (s *split) open(m memory) (o opened, err error) {
	files, err := s.files()
	if err != nil {
		return o, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("splits.%s: %w", s.Split, err)
		}
	}()
	o = opened{split: s, steps: s.Steps}
	o.tokens, err = cache.Open([][]string{files}, cache.Options{
		Width:         s.TokenDType.Size(),
		Join:          s.Join,
		Access:        m.Access,
		DropPageCache: m.PageCache == "drop",
	})
	if err != nil {
		return o, err
	}
	o.sequence, err = sampler.New(o.tokens, s.Settings)
	if err != nil {
		return o, err
	}
	if o.steps == 0 {
		o.steps = uint64(o.sequence.BatchesPerEpoch())
	}
	// The last byte of a file must have an offset, and there is a header before the first.
	if size := o.sequence.BatchBytes(); o.steps > math.MaxInt64/2/uint64(size) {
		return o, fmt.Errorf("%d batches of %d bytes are more than a file can hold; set steps to fewer", o.steps, size)
	}
	return o, nil
}

// info is what info.json says: all that decides the bytes of a batch.
func (o opened) info() []byte {
	s := o.sequence
	text, err := json.MarshalIndent(struct {
		Split           string         `json:"split"`
		Tokens          int64          `json:"tokens"`
		Files           []string       `json:"files"`
		Join            bool           `json:"join"`
		TokenDType      sampler.DType  `json:"token_dtype"`
		BatchSize       int            `json:"batch_size"`
		BlockSize       int            `json:"block_size"`
		DType           sampler.DType  `json:"dtype"`
		Layout          sampler.Layout `json:"layout"`
		Shape           []int          `json:"shape"`
		BatchBytes      int64          `json:"batch_bytes"`
		Order           sampler.Order  `json:"order"`
		Seed            uint64         `json:"seed"`
		Rank            int            `json:"rank"`
		World           int            `json:"world"`
		Start           uint64         `json:"start"`
		Steps           uint64         `json:"steps"`
		RowsPerEpoch    int64          `json:"rows_per_epoch"`
		BatchesPerEpoch int64          `json:"batches_per_epoch"`
	}{
		s.Split, o.tokens.Len(), o.tokens.Files()[0], o.split.Join, o.split.TokenDType, s.BatchSize, s.BlockSize, s.DType, s.Layout,
		s.Shape(), s.BatchBytes(), s.Order, s.Seed, s.Rank, s.World, o.split.Start, o.steps, s.RowsPerEpoch(), s.BatchesPerEpoch(),
	}, "", "  ")
	if err != nil {
		panic(err) // only of types that JSON does not have
	}
	return append(text, '\n')
}

// directory is the split as the tree shows it.
func (o opened) directory() *fs.Sequence {
	return &fs.Sequence{
		Name:       o.split.Split,
		DType:      string(o.sequence.DType),
		Shape:      o.sequence.Shape(),
		BatchBytes: o.sequence.BatchBytes(),
		Steps:      o.steps,
		Start:      o.split.Start,
		Info:       o.info(),
		Read:       o.sequence.Read,
	}
}
