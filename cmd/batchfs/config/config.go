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

// SourceCount returns the number of sources. A split that is not a mixture has one.
func (s *Split) SourceCount() int { return len(s.sources()) }

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
