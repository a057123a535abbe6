package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"batchfs/cache"
	"batchfs/sampler"
)

// configFlags say where the settings of a command come from.
type configFlags struct {
	config string
	data   string
	sets   []string
}

func (f *configFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "configuration `file` (default config.toml, where there is one)")
	cmd.Flags().StringVar(&f.data, "data", "", "serve train*.bin and val*.bin of this `directory`; needs no configuration file")
	cmd.Flags().StringArrayVar(&f.sets, "set", nil, "set one key over the file, `key=value`, any number of times")
	cmd.MarkFlagsMutuallyExclusive("config", "data")
	cmd.MarkFlagDirname("data")
	cmd.MarkFlagFilename("config", "toml")
}

var errNothingNamed = errors.New("what is to be served? there is no config.toml here: name one with -c, or a directory of " +
	"train.bin and val.bin with --data")

func (f *configFlags) load() (*config, error) {
	w, err := f.read()
	if err != nil {
		return nil, err
	}
	return w.decodeSplits()
}

// read finds what is written where the flags say.
func (f *configFlags) read() (w written, err error) {
	sets := f.sets
	switch {
	case f.data != "":
		data, err := dataDir(f.data)
		if err != nil {
			return w, err
		}
		sets = append(data, sets...)
	case f.config == "":
		if _, err := os.Stat("config.toml"); err == nil {
			f.config = "config.toml"
		} else if !slices.ContainsFunc(sets, func(set string) bool { return strings.HasPrefix(set, "splits.") }) {
			return w, errNothingNamed
		}
	}
	return readWritten(f.config, sets)
}

// decodeSplits is decode of what must have a split.
func (w written) decodeSplits() (*config, error) {
	c, err := w.decode()
	if err == nil && len(c.Splits) == 0 {
		err = fmt.Errorf("%s: no splits; at least one is needed, e.g.\n[splits.train]\ntokens = \"data/train.bin\"", w.File)
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

// files are the paths of each source, globs in alphabetical order.
func (s *split) files() ([][]string, error) {
	if len(s.Sources) == 0 {
		files, err := s.glob("tokens", s.Tokens)
		return [][]string{files}, err
	}
	var all [][]string
	for _, source := range s.Sources {
		files, err := s.glob("sources", source.Tokens)
		if err != nil {
			return nil, err
		}
		all = append(all, files)
	}
	return all, nil
}

// glob are the absolute paths of the files that patterns, the value of a key, name.
func (s *split) glob(key string, patterns []string) (files []string, err error) {
	for _, pattern := range patterns {
		path, glob := pattern, pattern
		if !filepath.IsAbs(pattern) {
			path, glob = filepath.Join(s.dir, pattern), filepath.Join(escapeGlob(s.dir), pattern)
		}
		// A file may have the characters of a glob in its name.
		if _, err := os.Lstat(path); err == nil || !strings.ContainsAny(pattern, `*?[`) {
			files = append(files, path)
			continue
		}
		matches, err := filepath.Glob(glob)
		if err != nil {
			return nil, fmt.Errorf("%s: must be a path or a glob: %w (got %q)", s.where(key), err, pattern)
		}
		if len(matches) == 0 {
			return nil, fmt.Errorf("%s: must name files that exist (got %q, which matches none)", s.where(key), path)
		}
		files = append(files, matches...)
	}
	for i, file := range files {
		if files[i], err = filepath.Abs(file); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// opened is a split with its files open and checked.
type opened struct {
	split    *split
	tokens   *cache.Tokens
	sequence *sampler.Sequence
	steps    uint64
	changes  uint64 // how often the files were opened anew because they had changed
}

// openSplit opens one split of the configuration, or it under settings: "train", "train/rank=3,world=8".
func (f *configFlags) openSplit(path string) (opened, error) {
	c, err := f.load()
	if err != nil {
		return opened{}, err
	}
	name, settings, _ := strings.Cut(path, "/")
	i := slices.IndexFunc(c.Splits, func(s *split) bool { return s.Split == name })
	if i < 0 {
		var names []string
		for _, s := range c.Splits {
			names = append(names, s.Split)
		}
		return opened{}, fmt.Errorf("no split %q; there are %q", name, names)
	}
	o, err := c.Splits[i].open(c.Memory, nil)
	for part := range strings.FieldsFuncSeq(settings, func(r rune) bool { return r == '/' }) {
		if err == nil {
			o, err = o.with(part)
		}
	}
	return o, err
}

// open opens and checks every file of the splits.
func (c *config) open() ([]opened, error) {
	var all []opened
	for _, s := range c.Splits {
		o, err := s.open(c.Memory, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

// open opens and checks the files of the split, which are those of was, if not nil, changed.
func (s *split) open(m memory, was *cache.Tokens) (o opened, err error) {
	files, err := s.files()
	if err != nil {
		return o, err
	}
	options := s.options(m)
	options.Was = was
	tokens, err := cache.Open(files, options)
	if err == nil {
		o, err = s.over(tokens)
	}
	if err != nil {
		err = fmt.Errorf("splits.%s: %w", s.Split, err)
	}
	return o, err
}

// options are those of the split's tokens.
func (s *split) options(m memory) cache.Options {
	return cache.Options{Width: s.TokenDType.Size(), Join: s.Join, Access: m.Access, DropPageCache: m.PageCache == "drop"}
}

// over is the split over tokens, which are those of its files.
func (s *split) over(tokens *cache.Tokens) (o opened, err error) {
	o.split, o.tokens = s, tokens
	if now := tokens.Fingerprint(); s.Expect != "" && now != s.Expect {
		return o, fmt.Errorf("expect_fingerprint is %s, but that of the files is %s: they are other data, or have other names", s.Expect, now)
	}
	// Read once: a trainer may go on writing to it, and that is not to change the batches of a mount.
	if s.StateFile != "" && s.TorchState == nil {
		if s.TorchState, err = readState(s.StateFile); err != nil {
			return o, fmt.Errorf("torch_state: %w", err)
		}
	}
	settings := s.Settings
	for _, source := range s.Sources {
		settings.Weights = append(settings.Weights, source.Weight)
	}
	if o.sequence, err = sampler.New(tokens, settings); err != nil {
		return o, err
	}
	return o, o.measure()
}

// readState reads a file of the size that torch.get_rng_state() gives, or a little more, for the error to tell.
func readState(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 1<<16))
}

// measure sets steps.
func (o *opened) measure() error {
	if o.steps = o.split.Steps; o.steps == 0 {
		o.steps = uint64(o.sequence.BatchesPerEpoch())
	}
	// The last byte of a file must have an offset, and there is a header before the first.
	if size := o.sequence.BatchBytes(); o.steps > math.MaxInt64/2/uint64(size) {
		return fmt.Errorf("%d batches of %d bytes are more than a file can hold; set steps to fewer", o.steps, size)
	}
	return nil
}

// with is the split of the same files under the settings of a path.
func (o opened) with(settings string) (opened, error) {
	s, err := o.split.with(settings)
	if err != nil {
		return o, err
	}
	return o.under(s)
}

// under is the same files under the settings of s, a split that with made.
func (o opened) under(s *split) (_ opened, err error) {
	o.split = s
	if o.sequence, err = o.sequence.With(s.Settings); err == nil {
		err = o.measure()
	}
	if err != nil {
		return o, fmt.Errorf("%s: %w", s.where(), err)
	}
	return o, nil
}

// identity are the keys that decide the bytes of a batch, besides those of the tokens.
func (o opened) identity() map[string]any {
	all := o.split.values()
	delete(all, "start")
	delete(all, "steps")
	all["dtype"] = o.sequence.DType // also where it is native
	if o.sequence.TorchState != nil {
		all["torch_state"] = fmt.Sprintf("sha256:%x", sha256.Sum256(o.sequence.TorchState))
	}
	return all
}

// label names the sequence: the split and its settings, as a path in the mount.
func (o opened) label() string {
	all := o.identity()
	delete(all, "torch_state")
	return o.split.Split + "/" + joinSettings(all)
}

// info is what info.json says: all that decides the bytes of a batch.
func (o opened) info() []byte {
	s := o.sequence
	type source struct {
		Files  []string `json:"files"`
		Weight float64  `json:"weight"`
		Rows   int      `json:"rows"` // of
		Of     int      `json:"of"`   // rows
	}
	var sources []source
	for i, from := range o.split.Sources {
		rows, of := s.Share(i)
		sources = append(sources, source{o.tokens.Files()[i], from.Weight, rows, of})
	}
	return indented(struct {
		Split           string         `json:"split"`
		Sequence        string         `json:"sequence"`
		Tokens          int64          `json:"tokens"`
		Fingerprint     string         `json:"fingerprint"`
		Files           []string       `json:"files"`
		Sources         []source       `json:"sources,omitempty"`
		OnChange        string         `json:"on_change"`
		Changes         uint64         `json:"changes"`
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
		TorchState      any            `json:"torch_state,omitempty"`
		Rank            int            `json:"rank"`
		World           int            `json:"world"`
		Start           uint64         `json:"start"`
		Steps           uint64         `json:"steps"`
		RowsPerEpoch    int64          `json:"rows_per_epoch"`
		BatchesPerEpoch int64          `json:"batches_per_epoch"`
	}{
		s.Split, o.label(), o.tokens.Len(), o.tokens.Fingerprint(), slices.Concat(o.tokens.Files()...), sources, o.split.OnChange, o.changes,
		o.split.Join, o.split.TokenDType, s.BatchSize, s.BlockSize, s.DType, s.Layout, s.Shape(), s.BatchBytes(), s.Order, s.Seed,
		o.identity()["torch_state"], s.Rank, s.World, o.split.Start, o.steps, s.RowsPerEpoch(), s.BatchesPerEpoch(),
	})
}

func indented(v any) []byte {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err) // only of types that JSON does not have
	}
	return append(text, '\n')
}
