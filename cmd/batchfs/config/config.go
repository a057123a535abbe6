// Package config reads what a user writes: config.toml, --set arguments, and settings in paths such as train/rank=3,world=8.
// It knows every key, what its value must be, and where it was written, so that each error names the line to mend. It opens
// no token file.
package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cache/localfile"
	"batchfs/sampler"
)

// Config is a decoded configuration. Keys that were not written have their defaults.
type Config struct {
	Mountpoint string // empty if none was written
	Memory     Memory
	Mount      Mount
	Store      Store
	Log        Log
	Splits     []*Split // in the order in which they are first named
}

// Memory is the table [memory]: how tokens are fetched.
type Memory struct {
	Access          localfile.Access
	PageCache       string // "keep" or "drop"
	PrefetchBatches int    // batches made ready for each reader
	PrefetchBytes   int64  // memory for all of those, as written
	Budget          int64  // bytes, for all Portions
}

// Portions says how many bytes of memory each part of a process that serves may take.
type Portions struct {
	Prefetch int64 // batches made ready
	Blocks   int64 // of objects
	Texts    int64 // that open files show
	Tables   int64 // where the windows of each block size lie
	Replies  int64 // being made
}

// BlocksPortion is the memory for blocks of objects, where there are objects: half of what batches made ready may take.
func (m Memory) BlocksPortion() int64 { return min(m.PrefetchBytes, m.Budget/2) / 2 }

// DivideBudget divides the budget.
func (c *Config) DivideBudget() Portions {
	m := c.Memory
	s := Portions{Prefetch: min(m.PrefetchBytes, m.Budget/2), Texts: m.Budget / 8, Tables: m.Budget / 8}
	s.Replies = m.Budget - s.Prefetch - s.Texts - s.Tables
	if slices.ContainsFunc(c.Splits, (*Split).IsRemote) {
		s.Blocks = m.BlocksPortion()
		s.Prefetch -= s.Blocks
	}
	return s
}

// Store is the table [store].
type Store struct {
	Endpoint, Region     string
	PathStyle, Anonymous bool
	CacheDir             string // empty: none
	CacheShared          bool   // a group may use it
	CacheBytes           int64
	BlockBytes           int64
}

// Mount is the table [mount]. No field is a text: it could add options to the kernel's list, which commas separate.
type Mount struct {
	AllowOther bool
	Mode       uint32 // permission bits of files
	UID, GID   int64
	Timeout    time.Duration // how long a read may wait for token files
	Grace      time.Duration // how long open files may be read on after a signal to stop

	SettingsPerUser int
	MetricsListen   netip.AddrPort // not valid: none
}

// Log is the table [log].
type Log struct {
	Level  string // "debug", "info", "warn" or "error"
	Format string // "text" or "json"
}

// Split is a table [splits.X] over [batch], or such a split under the settings of a path. After decoding, only MakeAbsolute changes it.
type Split struct {
	sampler.Settings                 // Weights and TorchState are empty: they are of the opened split
	Tokens            []string       // paths and globs, as written
	Sources           []Source       // instead of Tokens
	Aligned           []AlignedArray // arrays beside Tokens; each of Sources has its own
	Join              bool
	Format            string      // of the files, one of format.Names
	Tensor            string      // of a format with several
	TokenDType        array.DType // of headerless files, as is Shape
	Shape             []int       // of an element
	EndOfText         int64       // the token that ends a document; -1: none
	FilesAreDocuments bool        // each file is one
	VocabSize         int64       // as written: of all sources that have none of their own; 0: none
	StateFile         string      // torch_state: a path, or empty
	Start             uint64
	Steps             uint64 // 0: one epoch
	OnChange          string // "error" or "follow"
	Expect            string // the fingerprint that the files must have, or empty

	fetched    int64             // bytes fetched at a time: store.block_bytes
	dir        string            // what Tokens and Sources are relative to
	alignedDir string            // and Aligned
	named      keyRef            // where the split was first named
	keyRefs    map[string]keyRef // of each key that was written

	base *Split // of a split under the settings of a path: the split itself; else nil
	path string // and that path, from the split's name on
}

// Source is one table [[splits.X.sources]].
type Source struct {
	Tokens    []string // paths and globs, as written
	Weight    float64
	VocabSize int64 // 0: the split's
	Aligned   []AlignedArray
}

// An AlignedArray is one table [[splits.X.arrays]]: an array beside the tokens.
type AlignedArray struct {
	Name   string
	Files  []string // paths and globs, as written
	At     sampler.At
	DType  array.DType // of headerless files, as is Shape; empty: not written
	Shape  []int       // of an element
	Format string
	Tensor string
}

// Default returns the configuration of an empty file.
func Default() *Config {
	c := &Config{Mount: Mount{UID: int64(os.Getuid()), GID: int64(os.Getgid())}}
	memoryTable.setInitial(&c.Memory)
	mountTable.setInitial(&c.Mount)
	storeTable.setInitial(&c.Store)
	logTable.setInitial(&c.Log)
	return c
}

func defaultSplit() *Split {
	s := &Split{TokenDType: array.Uint16, EndOfText: -1, keyRefs: map[string]keyRef{}}
	batchTable.setInitial(s)
	splitTable.setInitial(s)
	return s
}

// Named returns the split with a name.
func (c *Config) Named(name string) (*Split, error) {
	var names []string
	for _, s := range c.Splits {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return nil, fmt.Errorf("no split %q; there are %q", name, names)
}

// MakeAbsolute makes paths that are relative to the working directory relative to dir.
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

// IsRemote says whether some files of the split are objects in a store.
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

// SourceFiles are the absolute paths of the files of a source.
type SourceFiles struct {
	Main    []string
	Aligned [][]string // of each array beside the main one
}

// sources are Sources, or Tokens as one source.
func (s *Split) sources() []Source {
	if len(s.Sources) > 0 {
		return s.Sources
	}
	return []Source{{Tokens: s.Tokens, VocabSize: s.VocabSize, Aligned: s.Aligned}}
}

// Files returns the files of each source, without arrays that WithFound added; Tokens are one
// source. The matches of a glob are sorted, and there must be one; from lists those in a store. A
// file that is named without a glob need not exist. The error names the key.
func (s *Split) Files(from *blob.Remote) (all []SourceFiles, err error) {
	key, besideKey, besides := "tokens", "arrays", s.alignedDir
	if len(s.Sources) > 0 {
		key, besideKey, besides = "sources", "sources", s.dir
	}
	resolve := func(dir, key string, patterns []string) (files []string) {
		if err == nil {
			if files, err = blob.Resolve(dir, patterns, from); err != nil {
				err = fmt.Errorf("%s: %w", s.MessagePrefix(key), err)
			}
		}
		return files
	}
	for _, source := range s.sources() {
		files := SourceFiles{Main: resolve(s.dir, key, source.Tokens)}
		for _, b := range source.Aligned {
			if s.ArraysAreSet() {
				files.Aligned = append(files.Aligned, resolve(besides, besideKey, b.Files))
			}
		}
		all = append(all, files)
	}
	return all, err
}

// AlignedOf returns the arrays beside the tokens of a source.
func (s *Split) AlignedOf(source int) []AlignedArray { return s.sources()[source].Aligned }

// DocumentsSetting is the value of the key documents: a bool, or "files".
func (s *Split) DocumentsSetting() any {
	if s.FilesAreDocuments {
		return "files"
	}
	return s.Documents
}

// IsSet says whether the configuration has a key for the split, in its own table or in [batch].
func (s *Split) IsSet(key string) bool {
	_, ok := s.keyRefs[key]
	return ok
}

// ArraysAreSet says whether the configuration names arrays beside the tokens, or says that there are none.
func (s *Split) ArraysAreSet() bool { return s.IsSet("arrays") || s.IsSet("sources.arrays") }

// VocabSizes returns the vocab_size of each source, or 0 for a source without one. Tokens count as
// one source.
func (s *Split) VocabSizes() (sizes []int64) {
	for i := range s.sources() {
		sizes = append(sizes, s.VocabSizeOf(i))
	}
	return sizes
}

// VocabSizeOf returns the vocab_size of one source, or 0 if it has none.
func (s *Split) VocabSizeOf(source int) int64 {
	return cmp.Or(s.sources()[source].VocabSize, s.VocabSize)
}

// MessagePrefix begins a message: it says where the first of keys that was written stands, or else where the split was first named. For
// a split under the settings of a path it is that path and the first of keys.
func (s *Split) MessagePrefix(keys ...string) string {
	if s.base != nil {
		return strings.Join(append([]string{s.path}, keys[:min(1, len(keys))]...), ": ")
	}
	for _, k := range keys {
		if o, ok := s.keyRefs[k]; ok {
			return o.String()
		}
	}
	return s.named.String()
}

// check returns an error for keys that are wrong only together.
func (s *Split) check() error {
	switch {
	case len(s.Tokens) == 0 && len(s.Sources) == 0:
		return fmt.Errorf("%s: split %s must have tokens, e.g. tokens = \"data/%s.bin\" (got none)", s.MessagePrefix(), s.Name, s.Name)
	case len(s.Tokens) > 0 && len(s.Sources) > 0:
		return fmt.Errorf("%s: split %s must have tokens or sources, not both", s.MessagePrefix("tokens", "sources"), s.Name)
	case len(s.Aligned) > 0 && len(s.Sources) > 0:
		return fmt.Errorf("%s: split %s has sources: name the arrays beside the tokens of each, in [[splits.%s.sources.arrays]]", s.MessagePrefix("arrays"), s.Name, s.Name)
	case s.Rank >= s.World:
		return fmt.Errorf("%s: must be below world, which is %d in splits.%s (got %d)", s.MessagePrefix("rank", "world"), s.World, s.Path(), s.Rank)
	case s.BatchSize*s.World > sampler.MaxRows:
		return fmt.Errorf("%s: batch_size times world must be at most %d (got %d times %d in splits.%s)",
			s.MessagePrefix("batch_size", "world"), sampler.MaxRows, s.BatchSize, s.World, s.Path())
	}
	if err := s.CheckAligned(); err != nil {
		return err
	}
	if err := s.checkHostShares(); err != nil {
		return err
	}
	if s.Documents && s.Layout == sampler.Elements {
		return fmt.Errorf("%s: layout rows has no documents; leave documents out", s.MessagePrefix("documents", "layout"))
	}
	if s.IsSet("token_dtype") {
		return s.CheckVocabSize(slices.Max(s.VocabSizes()), s.TokenDType, s.Shape)
	}
	return nil
}

func (s *Split) checkHostShares() error {
	switch {
	case s.ShuffleBlock == 0 && s.LocalWorld > 1:
		return fmt.Errorf("%s: is for shuffle_block, with which each host has a share of the tokens (got %d without it in splits.%s); set both, or neither",
			s.MessagePrefix("local_world"), s.LocalWorld, s.Path())
	case s.ShuffleBlock == 0:
		return nil
	case s.Order != sampler.Shuffle:
		return fmt.Errorf("%s: needs order = \"shuffle\" (got %q in splits.%s); set that, or shuffle_block = 0", s.MessagePrefix("shuffle_block", "order"), s.Order, s.Path())
	case s.Rows != sampler.Windows:
		return fmt.Errorf("%s: needs rows = \"windows\" (got %q in splits.%s); set shuffle_block = 0: rows of documents are drawn from a few places at a time anyway",
			s.MessagePrefix("shuffle_block", "rows"), s.Rows, s.Path())
	case s.World%s.LocalWorld != 0:
		return fmt.Errorf("%s: must divide world, which is %d in splits.%s (got %d)", s.MessagePrefix("local_world", "world"), s.World, s.Path(), s.LocalWorld)
	case s.World/s.LocalWorld > sampler.MaxHosts:
		return fmt.Errorf("%s: world / local_world is the number of hosts, at most %d (got %d / %d in splits.%s)",
			s.MessagePrefix("world", "local_world"), sampler.MaxHosts, s.World, s.LocalWorld, s.Path())
	case s.IsRemote() && s.ShuffleBlock%s.fetched != 0:
		return fmt.Errorf("%s: must be a multiple of store.block_bytes, which is %d (got %d in splits.%s), or two hosts fetch one block",
			s.MessagePrefix("shuffle_block"), s.fetched, s.ShuffleBlock, s.Path())
	}
	return nil
}

// CheckVocabSize returns an error if a dtype cannot hold the tokens of a vocabulary of this size,
// the largest of VocabSizes. Elements with axes are not tokens, so they are not checked.
func (s *Split) CheckVocabSize(size int64, dtype array.DType, axes []int) error {
	if len(axes) == 0 && dtype.IsInteger() && size > dtype.Values() {
		return fmt.Errorf("%s: %s cannot hold the tokens of a vocabulary of %d in splits.%s; is it token_dtype = \"uint32\"?",
			s.MessagePrefix("vocab_size", "sources"), dtype, size, s.Path())
	}
	return nil
}

// CheckAligned returns an error unless all sources have the same arrays beside their tokens, with different names.
func (s *Split) CheckAligned() error {
	first := ""
	for i, source := range s.sources() {
		if len(source.Aligned) > maxAligned {
			return fmt.Errorf("%s: at most %d arrays beside the tokens (got %d)", s.MessagePrefix("arrays", "sources"), maxAligned, len(source.Aligned))
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
			return fmt.Errorf("%s: source %d has the arrays %s, source 0 has %s: all sources must have the same in the same order",
				s.MessagePrefix("sources"), i, names, first)
		}
	}
	return nil
}

// maxAligned leaves room for the other arrays of a batch.
const maxAligned = array.Most - 6
