// Package config reads the configuration that a user writes: config.toml, --set arguments, and
// settings in paths such as train/rank=3,world=8. It does not open token files.
//
// [Flags] reads the configuration as written, a [RawConfig], and decodes it to a [Config] with one
// [Split] per split. The tables in keys.go describe every key: its default, its type and its help,
// from which config.toml is generated. A decoded configuration records where each key was written,
// so that each error names the file, the line and the key.
package config

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cache/localfile"
	"batchfs/cache/store"
	"batchfs/internal/failure"
	"batchfs/sampler"
)

// A Config is a decoded configuration. Keys that are not set have their defaults. It is safe for
// concurrent use as long as nobody changes it.
type Config struct {
	Mountpoint string // empty if not set
	Memory     Memory
	Mount      Mount
	Store      Store
	Log        Log
	Splits     []*Split // ordered by first mention
}

// Memory is the table [memory].
type Memory struct {
	Access          localfile.Access
	PageCache       string // "keep" or "drop"
	PrefetchBatches int    // batches to prefetch for each reader
	PrefetchBytes   int64  // memory for all prefetched batches, in bytes, as configured
	Budget          int64  // memory for all Portions together, in bytes
}

// Portions divides the memory budget of a worker. All fields are in bytes.
type Portions struct {
	Prefetch  int64
	Blocks    int64 // cache blocks of objects
	OpenTexts int64 // contents of open text files, such as status.json
	Tables    int64 // see sampler.Tables
	Replies   int64 // replies that are being computed
}

// BlocksPortion returns the memory for cache blocks, in bytes, if a split reads from a store: half
// of what prefetched batches get otherwise.
func (m Memory) BlocksPortion() int64 { return min(m.PrefetchBytes, m.Budget/2) / 2 }

// DivideBudget divides the budget into portions.
func (c *Config) DivideBudget() Portions {
	m := c.Memory
	p := Portions{Prefetch: min(m.PrefetchBytes, m.Budget/2), OpenTexts: m.Budget / 8, Tables: m.Budget / 8}
	p.Replies = m.Budget - p.Prefetch - p.OpenTexts - p.Tables
	if slices.ContainsFunc(c.Splits, (*Split).IsRemote) {
		p.Blocks = m.BlocksPortion()
		p.Prefetch -= p.Blocks
	}
	return p
}

// Store is the table [store].
type Store struct {
	Endpoint, Region     string
	PathStyle, Anonymous bool
	CacheDir             string // empty if there is none
	CacheShared          bool   // whether the group of CacheDir may use it too
	CacheBytes           int64
	BlockBytes           int64
}

// Options returns how to access a store for readers with this timeout.
func (s Store) Options(timeout time.Duration) store.Options {
	return store.Options{Endpoint: s.Endpoint, Region: s.Region, PathStyle: s.PathStyle, Anonymous: s.Anonymous, Timeout: timeout}
}

// Mount is the table [mount]. No field is a string, because a string with a comma could add options
// to the list that the kernel receives.
type Mount struct {
	AllowOther bool
	Mode       uint32 // permission bits of files
	UID, GID   int64
	Timeout    time.Duration // longest time that a read waits for token files
	Grace      time.Duration // how long open files stay readable after a signal to stop

	SettingsPerUser int            // limit for each user except root and UID
	MetricsListen   netip.AddrPort // invalid if metrics are not served over HTTP
}

// Log is the table [log].
type Log struct {
	Level  string // "debug", "info", "warn" or "error"
	Format string // "text" or "json"
}

// A Split is a table [splits.X] combined with [batch], or such a split under the settings of a
// path. After decoding, only MakeAbsolute changes it, so it is safe for concurrent use.
type Split struct {
	sampler.Settings                 // TorchState is set only when the split is opened
	Tokens            []string       // paths and globs, as configured
	Sources           []Source       // set instead of Tokens for a mixture
	StageTables       []Stage        // nil unless the mixture changes
	Source            string         // name of the only source to read; empty to read all
	Aligned           []AlignedArray // arrays aligned with Tokens; each source has its own
	Join              bool
	Format            string      // format of the token files, one of format.Names
	Tensor            string      // name of the tensor, for files with several
	TokenDType        array.DType // dtype of headerless files
	Shape             []int       // shape of an element of headerless files
	EndOfText         int64       // token that ends a document; -1 if there is none
	BeginOfText       int64       // first token of every segment of a document; -1 if not set
	FilesAreDocuments bool        // whether each file is one document
	VocabSize         int64       // default for sources; 0 if not set
	StateFile         string      // path from torch_state; empty if not set
	Start             uint64
	Steps             uint64 // 0 means one epoch
	OnChange          string // "error" or "follow"
	Expect            string // fingerprint that the files must have; empty to accept any

	storeBlock   int64  // store.block_bytes
	dir          string // directory to which Tokens and Sources are relative
	alignedDir   string // directory to which Aligned is relative
	firstMention keyRef
	keyRefs      map[string]keyRef // location of each key that is set

	base *Split // split without the settings of a path; nil if there are none
	path string // path as written, such as train/rank=3; empty without base
}

// A Source is one table [[splits.X.sources]].
type Source struct {
	Name      string   // the number of the source, unless configured
	Tokens    []string // paths and globs, as configured
	Weight    float64
	MaxEpochs float64 // 0 means no limit
	VocabSize int64   // 0 means the split's
	Aligned   []AlignedArray
}

// A Stage is one table [[splits.X.stages]].
type Stage struct {
	Weights    map[string]float64 // by name of the source
	FromTokens uint64             // 0 if not set
	FromRow    uint64             // 0 if not set
}

// An AlignedArray is one table [[splits.X.arrays]]: an array with one element per token.
type AlignedArray struct {
	Name   string
	Files  []string // paths and globs, as configured
	At     sampler.At
	DType  array.DType // dtype of headerless files; empty if not set
	Shape  []int       // shape of an element of headerless files
	Format string
	Tensor string
}

// Default returns the configuration of an empty file, which has no splits.
func Default() *Config {
	c := &Config{Mount: Mount{UID: int64(os.Getuid()), GID: int64(os.Getgid())}}
	memoryTable.setDefaults(&c.Memory)
	mountTable.setDefaults(&c.Mount)
	storeTable.setDefaults(&c.Store)
	logTable.setDefaults(&c.Log)
	return c
}

func defaultSplit() *Split {
	s := &Split{TokenDType: array.Uint16, EndOfText: -1, BeginOfText: -1, keyRefs: map[string]keyRef{}}
	batchTable.setDefaults(s)
	splitTable.setDefaults(s)
	return s
}

// Named returns the split with this name. The error lists the names that exist.
func (c *Config) Named(name string) (*Split, error) {
	var names []string
	for _, s := range c.Splits {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return nil, failure.Config.Wrap(fmt.Errorf("no split %q; there are %q", name, names))
}

// MakeAbsolute resolves relative paths of token files and of the block cache against dir, the
// working directory of the process that decoded c.
func (c *Config) MakeAbsolute(dir string) {
	if c.Store.CacheDir != "" && !filepath.IsAbs(c.Store.CacheDir) {
		c.Store.CacheDir = filepath.Join(dir, c.Store.CacheDir)
	}
	for _, s := range c.Splits {
		for _, relative := range []*string{&s.dir, &s.alignedDir} {
			if !filepath.IsAbs(*relative) {
				*relative = filepath.Join(dir, *relative)
			}
		}
	}
}

// IsRemote reports whether the split reads any objects from a store.
func (s *Split) IsRemote() bool {
	var patterns []string
	for _, source := range s.sources() {
		patterns = append(patterns, source.Tokens...)
		for _, b := range source.Aligned {
			patterns = append(patterns, b.Files...)
		}
	}
	return slices.ContainsFunc(patterns, blob.IsRemote)
}

// SourceFiles lists the absolute paths or URLs of the files of a source.
type SourceFiles struct {
	Main    []string
	Aligned [][]string // files of each aligned array

	// Matched maps each file that only globs match to its size in bytes.
	Matched map[string]int64
}

// sources returns Sources, or a single source for Tokens.
func (s *Split) sources() []Source {
	if len(s.Sources) > 0 {
		return s.Sources
	}
	return []Source{{Tokens: s.Tokens, VocabSize: s.VocabSize, Aligned: s.Aligned}}
}

// Files returns the files of each source; Tokens count as one source. It leaves out arrays that
// WithFoundSettings added. The matches of a glob are sorted, and there must be at least one. A file
// named without a glob need not exist. from lists the objects of a store. The error names the key.
func (s *Split) Files(from *blob.Remote) (all []SourceFiles, err error) {
	key, alignedKey, alignedDir := "tokens", "arrays", s.alignedDir
	if len(s.Sources) > 0 {
		key, alignedKey, alignedDir = "sources", "sources", s.dir
	}
	for _, source := range s.sources() {
		files := SourceFiles{Matched: map[string]int64{}}
		resolve := func(dir, key string, patterns []string) (paths []string) {
			if err != nil {
				return nil
			}
			var matched map[string]int64
			if paths, matched, err = blob.Resolve(dir, patterns, from); err != nil {
				err = fmt.Errorf("%s: %w", s.MessagePrefix(key), err)
			}
			maps.Copy(files.Matched, matched)
			return paths
		}
		files.Main = resolve(s.dir, key, source.Tokens)
		for _, b := range source.Aligned {
			if s.ArraysAreSet() {
				files.Aligned = append(files.Aligned, resolve(alignedDir, alignedKey, b.Files))
			}
		}
		all = append(all, files)
	}
	return all, err
}

// AlignedOf returns the arrays that are aligned with the tokens of a source.
func (s *Split) AlignedOf(source int) []AlignedArray { return s.sources()[source].Aligned }

// DocumentsSetting returns the value of the key documents: a bool, or "files".
func (s *Split) DocumentsSetting() any {
	if s.FilesAreDocuments {
		return "files"
	}
	return s.Documents
}

// MaskTargetsSetting returns the value of the key mask_targets: a bool, or the name of an array.
func (s *Split) MaskTargetsSetting() any {
	if s.MaskArray != "" {
		return s.MaskArray
	}
	return s.MaskTargets
}

// IsSet reports whether the configuration sets a key for the split, in its own table or in [batch].
func (s *Split) IsSet(key string) bool {
	_, ok := s.keyRefs[key]
	return ok
}

// ArraysAreSet reports whether the configuration lists the aligned arrays. The list may be empty.
func (s *Split) ArraysAreSet() bool { return s.IsSet("arrays") || s.IsSet("sources.arrays") }

// VocabSizes returns the vocab_size of each source, or 0 for a source without one. A split that is
// not a mixture has one source.
func (s *Split) VocabSizes() (sizes []int64) {
	for i := range s.sources() {
		sizes = append(sizes, s.VocabSizeOf(i))
	}
	return sizes
}

// VocabSizeOf returns the vocab_size of one source or else of the split, or 0 if neither has one.
func (s *Split) VocabSizeOf(source int) int64 {
	return cmp.Or(s.sources()[source].VocabSize, s.VocabSize)
}

// MessagePrefix returns the beginning of a message about some keys: the location of the first of
// them that is set, or else of the first mention of the split. For a split under the settings of a
// path, it names that path and the first key.
func (s *Split) MessagePrefix(keys ...string) string {
	if s.base != nil {
		return strings.Join(append([]string{s.path}, keys[:min(1, len(keys))]...), ": ")
	}
	for _, k := range keys {
		if ref, ok := s.keyRefs[k]; ok {
			return ref.String()
		}
	}
	return s.firstMention.String()
}

// check returns an error for values that are wrong only in combination, whatever the token files
// are. The sampler relies on it.
func (s *Split) check() error {
	switch {
	case len(s.Tokens) == 0 && len(s.Sources) == 0:
		return fmt.Errorf("%s: split %s must have tokens, e.g. tokens = \"data/%s.bin\" (got none)", s.MessagePrefix(), s.Name, s.Name)
	case len(s.Tokens) > 0 && len(s.Sources) > 0:
		return fmt.Errorf("%s: split %s must have tokens or sources, not both", s.MessagePrefix("tokens", "sources"), s.Name)
	case len(s.Aligned) > 0 && len(s.Sources) > 0:
		return fmt.Errorf("%s: split %s has sources; list the arrays of each source in [[splits.%s.sources.arrays]]",
			s.MessagePrefix("arrays"), s.Name, s.Name)
	case s.Rank >= s.World:
		return fmt.Errorf("%s: must be below world, which is %d in splits.%s (got %d)", s.MessagePrefix("rank", "world"), s.World, s.Path(), s.Rank)
	case s.BatchSize*s.World > sampler.MaxRows:
		return fmt.Errorf("%s: batch_size times world must be at most %d, %s (got %d times %d in splits.%s)",
			s.MessagePrefix("batch_size", "world"), sampler.MaxRows, maxRowsReason, s.BatchSize, s.World, s.Path())
	}
	for _, check := range []func() error{s.checkSources, s.CheckAligned, s.checkHostShares, s.checkRows, s.checkTorch} {
		if err := check(); err != nil {
			return err
		}
	}
	if s.IsSet("token_dtype") {
		return s.CheckVocabSize(slices.Max(s.VocabSizes()), s.TokenDType, s.Shape)
	}
	return nil
}

func (s *Split) checkSources() error {
	sum, seen := 0., map[string]int{}
	for i, source := range s.Sources {
		if j, ok := seen[source.Name]; ok {
			return fmt.Errorf("%s: sources %d and %d of split %s have the name %q; give each its own", s.MessagePrefix("sources"), j, i, s.Name, source.Name)
		}
		seen[source.Name] = i
		sum += source.Weight
	}
	weight, isSet := s.keyRefs["sources.weight"]
	missing, isMissing := s.keyRefs["sources.noweight"]
	switch {
	case len(s.StageTables) > 0 && len(s.Sources) == 0:
		return fmt.Errorf("%s: split %s has no sources; list its files as [[splits.%[2]s.sources]]", s.MessagePrefix("stages"), s.Name)
	case len(s.StageTables) > 0 && isSet:
		return fmt.Errorf("%s: split %s has stages, which have the weights of its sources; leave out weight, or stages", weight, s.Name)
	case len(s.StageTables) == 0 && isMissing:
		return fmt.Errorf("%s: must have weight, %s (got none)", missing, sourceTable.find("weight").rule)
	case s.Source != "" && len(s.Sources) == 0:
		return fmt.Errorf("%s: split %s has no sources; leave source out", s.MessagePrefix("source"), s.Name)
	case s.Source != "" && s.Only == 0:
		return fmt.Errorf("%s: %w", s.MessagePrefix("source"), s.unknownSource(s.Source))
	case len(s.Sources) > 0 && len(s.StageTables) == 0 && sum == 0:
		return fmt.Errorf("%s: all sources of split %s have weight 0; raise that of one", s.MessagePrefix("sources"), s.Name)
	}
	return s.checkStages()
}

func (s *Split) checkStages() error {
	last := uint64(0)
	for i, stage := range s.StageTables {
		for _, name := range slices.Sorted(maps.Keys(stage.Weights)) {
			if s.sourceIndex(name) < 0 {
				return fmt.Errorf("%s: %w", s.StagePrefix(i, "weights", name), s.unknownSource(name))
			}
		}
		row := s.Stages[i].BeginsAt(s.BlockSize)
		switch set := min(stage.FromTokens, 1) + min(stage.FromRow, 1); {
		case i == 0 && set > 0:
			return fmt.Errorf("%s: the first stage begins at row 0; leave out from_tokens and from_row", s.StagePrefix(i))
		case i > 0 && set != 1:
			return fmt.Errorf("%s: must have either from_tokens or from_row (got %s)", s.StagePrefix(i), []string{"none", "", "both"}[set])
		case stage.FromTokens > 0 && s.Layout == sampler.Rows:
			return fmt.Errorf("%s: layout rows has no tokens; replace from_tokens with from_row", s.StagePrefix(i))
		case i > 0 && row <= last:
			return fmt.Errorf("%s: must begin after row %d, where the stage before it begins (got row %d)", s.StagePrefix(i), last, row)
		}
		last = row
	}
	return nil
}

// StagePrefix returns the beginning of a message about a stage, or about a key in it.
func (s *Split) StagePrefix(i int, key ...string) string {
	if s.base != nil {
		return fmt.Sprintf("%s: stages.%d", s.path, i)
	}
	return s.keyRefs["stages"].child(append([]string{strconv.Itoa(i)}, key...)...).String()
}

// Scheduled reports whether what is drawn from the sources changes during a run.
func (s *Split) Scheduled() bool { return s.Stages != nil || s.MaxEpochs != nil }

// sourceIndex returns the index of the first source with this name, or -1.
func (s *Split) sourceIndex(name string) int {
	return slices.IndexFunc(s.Sources, func(source Source) bool { return source.Name == name })
}

// SourceNames returns the names of the sources of a mixture.
func (s *Split) SourceNames() (names []string) {
	for _, source := range s.Sources {
		names = append(names, source.Name)
	}
	return names
}

func (s *Split) unknownSource(name string) error {
	return fmt.Errorf("split %s has no source %q; its sources are %s", s.Name, name, strings.Join(s.SourceNames(), ", "))
}

// checkRows checks what rows and targets consist of.
func (s *Split) checkRows() error {
	switch ofDocuments := s.Rows != sampler.Windows; {
	case s.Layout == sampler.Rows && s.DocumentNumbers:
		return fmt.Errorf("%s: layout rows has no documents; leave out document_numbers", s.MessagePrefix("document_numbers", "layout"))
	case s.Layout == sampler.Rows && (s.Documents || ofDocuments):
		return fmt.Errorf("%s: layout rows has no documents; leave out documents and rows (got rows = %q in splits.%s)",
			s.MessagePrefix("documents", "rows", "layout"), s.Rows, s.Path())
	case s.MaskTargets && s.Layout != sampler.XY:
		return fmt.Errorf("%s: mask_targets is for y, which layout %s does not have; set layout = \"xy\", or leave mask_targets out",
			s.MessagePrefix("mask_targets", "layout"), s.Layout)
	case s.Rows == sampler.Packed && s.BlockSize > sampler.MaxPacked:
		return fmt.Errorf("%s: packed rows need a block_size of at most %d (got %d in splits.%s)",
			s.MessagePrefix("block_size", "rows"), sampler.MaxPacked, s.BlockSize, s.Path())
	case (s.Documents || s.DocumentNumbers || ofDocuments) && s.BlockSize > math.MaxInt32:
		return fmt.Errorf("%s: documents need a block_size of at most %d (got %d in splits.%s)",
			s.MessagePrefix("block_size", "documents", "document_numbers", "rows"), math.MaxInt32, s.BlockSize, s.Path())
	case s.BeginOfText >= 0 && !ofDocuments:
		return fmt.Errorf("%s: bos begins segments of documents; set rows = \"packed\" or \"document\", or leave bos out (got rows = %q)",
			s.MessagePrefix("bos", "rows"), s.Rows)
	case s.TooLong != sampler.Cut && !ofDocuments:
		return fmt.Errorf("%s: windows hold tokens of any document, however long; set rows = \"packed\", \"document\" or \"document-first\", or leave too_long out (got rows = %q)",
			s.MessagePrefix("too_long", "rows"), s.Rows)
	}
	return nil
}

// checkTorch checks that the torch orders can draw the rows.
func (s *Split) checkTorch() error {
	hasCap := slices.ContainsFunc(s.Sources, func(source Source) bool { return source.MaxEpochs > 0 })
	switch {
	case s.Order != sampler.Torch && s.Order != sampler.Torch26:
		return nil
	case s.Rows != sampler.Windows:
		return fmt.Errorf("%s: order %s draws windows; choose another order, or rows = \"windows\" (got rows = %q)",
			s.MessagePrefix("order", "rows"), s.Order, s.Rows)
	case len(s.Sources) > 1 || len(s.StageTables) > 0:
		return fmt.Errorf("%s: order %s draws from one array of tokens and cannot mix sources; choose another order", s.MessagePrefix("order", "sources"), s.Order)
	case s.Source != "" || hasCap:
		return fmt.Errorf("%s: order %s draws without end from one array of tokens; choose another order, or leave out max_epochs and source",
			s.MessagePrefix("order", "source", "sources"), s.Order)
	case s.StateFile != "" && (s.Rank != 0 || s.World != 1):
		return fmt.Errorf("%s: torch_state is that of one rank: set rank = 0 and world = 1, or leave it out (got rank %d of %d)",
			s.MessagePrefix("torch_state", "rank", "world"), s.Rank, s.World)
	}
	return nil
}

func (s *Split) checkHostShares() error {
	switch {
	case s.ShuffleBlock == 0 && s.LocalWorld > 1:
		return fmt.Errorf("%s: needs shuffle_block, which gives each host a share of the tokens (got %d without it in splits.%s); set both or neither",
			s.MessagePrefix("local_world"), s.LocalWorld, s.Path())
	case s.ShuffleBlock == 0:
		return nil
	case s.Order != sampler.Shuffle:
		return fmt.Errorf("%s: needs order = \"shuffle\" (got %q in splits.%s); set that, or shuffle_block = 0",
			s.MessagePrefix("shuffle_block", "order"), s.Order, s.Path())
	case s.Rows != sampler.Windows:
		return fmt.Errorf("%s: needs rows = \"windows\" (got %q in splits.%s); set shuffle_block = 0, because rows of documents are read from a few places at a time anyway",
			s.MessagePrefix("shuffle_block", "rows"), s.Rows, s.Path())
	case s.World%s.LocalWorld != 0:
		return fmt.Errorf("%s: must divide world, which is %d in splits.%s (got %d)", s.MessagePrefix("local_world", "world"), s.World, s.Path(), s.LocalWorld)
	case s.World/s.LocalWorld > sampler.MaxHosts:
		return fmt.Errorf("%s: world / local_world, the number of hosts, must be at most %d (got %d / %d in splits.%s)",
			s.MessagePrefix("world", "local_world"), sampler.MaxHosts, s.World, s.LocalWorld, s.Path())
	case s.IsRemote() && s.ShuffleBlock%s.storeBlock != 0:
		return fmt.Errorf("%s: must be a multiple of store.block_bytes, which is %d (got %d in splits.%s), or else two hosts would fetch the same block",
			s.MessagePrefix("shuffle_block"), s.storeBlock, s.ShuffleBlock, s.Path())
	}
	return nil
}

// CheckVocabSize returns an error if dtype cannot hold the tokens of a vocabulary of this size, the
// largest of VocabSizes. It accepts elements with axes, because they are not tokens.
func (s *Split) CheckVocabSize(size int64, dtype array.DType, axes []int) error {
	if len(axes) == 0 && dtype.IsInteger() && size > dtype.Values() {
		return fmt.Errorf("%s: %s cannot hold the tokens of a vocabulary of %d in splits.%s; did you mean token_dtype = \"uint32\"?",
			s.MessagePrefix("vocab_size", "sources"), dtype, size, s.Path())
	}
	return nil
}

// CheckAligned returns an error unless all sources have the same aligned arrays, at most
// maxAligned, with different names.
func (s *Split) CheckAligned() error {
	first := ""
	for i, source := range s.sources() {
		most := maxAligned
		if s.DocumentNumbers {
			most--
		}
		if len(source.Aligned) > most {
			return fmt.Errorf("%s: must be at most %d arrays (got %d)", s.MessagePrefix("arrays", "sources"), most, len(source.Aligned))
		}
		var names []string
		seen := map[string]bool{}
		for _, b := range source.Aligned {
			if seen[b.Name] {
				return fmt.Errorf("%s: two arrays have the name %q", s.MessagePrefix("arrays", "sources"), b.Name)
			}
			seen[b.Name] = true
			names = append(names, b.Name+" at "+string(b.At))
		}
		if first = cmp.Or(first, fmt.Sprint(names)); fmt.Sprint(names) != first {
			return fmt.Errorf("%s: source %d has the arrays %s, source 0 has %s; all sources must have the same arrays in the same order",
				s.MessagePrefix("sources"), i, names, first)
		}
	}
	return nil
}

// maxAligned leaves room for the other arrays of a batch, at most six without document_numbers.
const maxAligned = array.MaxArrays - 6
