// Package config reads what a user writes: config.toml, --set arguments, and settings in paths such as train/rank=3,world=8.
// It knows every key, what its value must be, and where it was written, so that each error names the line to mend. It opens
// no token file.
package config

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cache/blocks"
	"batchfs/cache/store"
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
	Tables     *sampler.Tables

	remote *blob.Remote // made by setRemote
}

// Memory is the table [memory]: how tokens are fetched.
type Memory struct {
	Access     blob.Access
	PageCache  string // "keep" or "drop"
	Ahead      int    // batches made ready for each reader
	AheadBytes int64  // memory for all of those, as written
	Budget     int64  // bytes, for all of Shares
}

// A Shares says how many bytes of memory each part of a process that serves may take.
type Shares struct {
	Ahead   int64 // batches made ready
	Blocks  int64 // of objects
	Texts   int64 // that open files show
	Tables  int64 // where the windows of each block size lie
	Replies int64 // being made
}

// ahead is the memory for batches made ready, and for blocks.
func (m Memory) ahead() int64 { return min(m.AheadBytes, m.Budget/2) }

// BlocksShare is the memory for blocks of objects, where there are objects.
func (m Memory) BlocksShare() int64 { return m.ahead() / 2 }

// Shares divides the budget. Blocks of objects take half of what batches made ready may take.
func (c *Config) Shares() Shares {
	m := c.Memory
	s := Shares{Ahead: m.ahead(), Texts: m.Budget / 8, Tables: m.Budget / 8}
	s.Replies = m.Budget - s.Ahead - s.Texts - s.Tables
	if slices.ContainsFunc(c.Splits, (*Split).isRemote) {
		s.Blocks = m.BlocksShare()
		s.Ahead -= s.Blocks
	}
	return s
}

// Store is the table [store]: where objects are read from, and where their blocks are kept.
type Store struct {
	Endpoint, Region     string
	PathStyle, Anonymous bool
	CacheDir             string // empty: none
	CacheShared          bool   // a group may use it
	CacheBytes           int64
	BlockBytes           int64
}

// Remote is where objects are read from: one for all splits.
func (c *Config) Remote() *blob.Remote {
	if c.remote == nil {
		c.setRemote()
	}
	return c.remote
}

// Mount is the table [mount]. Its fields are numbers and booleans only: some of them become part of the kernel's list of mount
// options, which commas separate, so a text could add options of its own.
type Mount struct {
	AllowOther bool
	Mode       uint32 // permission bits of files
	UID, GID   int64
	Timeout    time.Duration // how long a read may wait for token files
	Grace      time.Duration // how long open files may be read on after a signal to stop

	SettingsPerUser int // directories of settings that each user may have, except root and UID
}

// Log is the table [log].
type Log struct {
	Level  string // "debug", "info", "warn" or "error"
	Format string // "text" or "json"
}

// Split is a table [splits.X], with the keys of [batch] where it has none of its own; or such a split under the settings of a
// path, see With. After decoding, only MakeAbsolute changes a Split.
type Split struct {
	sampler.Settings           // Weights and TorchState are empty: they are of the opened split
	Tokens            []string // paths and globs, as written
	Sources           []Source // instead of Tokens
	Beside            []Beside // arrays beside Tokens; each of Sources has its own
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
	Remote            *blob.Remote
	Tables            *sampler.Tables // of all splits of the configuration

	dir     string            // what Tokens and Sources are relative to
	besides string            // and Beside
	named   origin            // where the split was first named
	origins map[string]origin // of each key that was written

	base *Split // of a split under the settings of a path: the split itself; else nil
	path string // and that path, from the split's name on
}

// Source is one table [[splits.X.sources]].
type Source struct {
	Tokens    []string // paths and globs, as written
	Weight    float64
	VocabSize int64 // 0: the split's
	Beside    []Beside
}

// Beside is one table [[splits.X.arrays]]: an array beside the tokens.
type Beside struct {
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

// defaultSplit returns what an empty [batch] says.
func defaultSplit() *Split {
	s := &Split{TokenDType: array.Uint16, EndOfText: -1, origins: map[string]origin{}}
	batchTable.setInitial(s)
	splitTable.setInitial(s)
	return s
}

// Named returns the split with a name.
func (c *Config) Named(name string) (*Split, error) {
	var names []string
	for _, s := range c.Splits {
		if s.Split == name {
			return s, nil
		}
		names = append(names, s.Split)
	}
	return nil, fmt.Errorf("no split %q; there are %q", name, names)
}

// MakeAbsolute makes the tokens of all splits, and cache_dir, relative to dir where they are relative to the working directory.
func (c *Config) MakeAbsolute(dir string) {
	if c.Store.CacheDir != "" && !filepath.IsAbs(c.Store.CacheDir) {
		c.Store.CacheDir = filepath.Join(dir, c.Store.CacheDir)
	}
	c.setRemote()
	for _, s := range c.Splits {
		for _, relative := range []*string{&s.dir, &s.besides} {
			if !filepath.IsAbs(*relative) {
				*relative = filepath.Join(dir, *relative)
			}
		}
	}
}

// setRemote makes Remote anew, as the configuration is now.
func (c *Config) setRemote() {
	s := c.Store
	c.remote = &blob.Remote{
		Store:  store.Options{Endpoint: s.Endpoint, Region: s.Region, PathStyle: s.PathStyle, Anonymous: s.Anonymous, Timeout: c.Mount.Timeout},
		Blocks: blocks.Options{Dir: s.CacheDir, Shared: s.CacheShared, Limit: s.CacheBytes, BlockBytes: s.BlockBytes, Memory: c.Shares().Blocks, Ahead: c.Mount.Timeout / 5},
	}
	for _, s := range c.Splits {
		s.Remote = c.remote
	}
}

// isRemote reports whether some of the split's files are objects.
func (s *Split) isRemote() bool {
	patterns := slices.Clone(s.Tokens)
	for _, source := range append(slices.Clone(s.Sources), Source{Beside: s.Beside}) {
		patterns = append(patterns, source.Tokens...)
		for _, b := range source.Beside {
			patterns = append(patterns, b.Files...)
		}
	}
	return slices.ContainsFunc(patterns, blob.IsRemote)
}

// SourceFiles are the absolute paths of the files of a source.
type SourceFiles struct {
	Main   []string
	Beside [][]string // of each array beside the main one
}

// AllFiles are the files of all sources.
func AllFiles(sources []SourceFiles) (paths []string) {
	for _, s := range sources {
		paths = append(paths, s.Main...)
		paths = append(paths, slices.Concat(s.Beside...)...)
	}
	return paths
}

// Files returns the files of each source, without arrays that WithFound added; Tokens are one source. The files of a glob are
// in alphabetical order. The error names the key, and says that a glob is malformed or matches no file. Files that are named
// without a glob need not exist.
func (s *Split) Files() (all []SourceFiles, err error) {
	key, besideKey, besides, sources := "tokens", "arrays", s.besides, []Source{{Tokens: s.Tokens, Beside: s.Beside}}
	if len(s.Sources) > 0 {
		key, besideKey, besides, sources = "sources", "sources", s.dir, s.Sources
	}
	resolve := func(dir, key string, patterns []string) (files []string) {
		if err == nil {
			if files, err = blob.Resolve(dir, patterns, s.Remote); err != nil {
				err = fmt.Errorf("%s: %w", s.Origin(key), err)
			}
		}
		return files
	}
	for _, source := range sources {
		files := SourceFiles{Main: resolve(s.dir, key, source.Tokens)}
		for _, b := range source.Beside {
			if s.WroteArrays() {
				files.Beside = append(files.Beside, resolve(besides, besideKey, b.Files))
			}
		}
		all = append(all, files)
	}
	return all, err
}

// BesideOf are the arrays beside the tokens of a source.
func (s *Split) BesideOf(source int) []Beside {
	if len(s.Sources) == 0 {
		return s.Beside
	}
	return s.Sources[source].Beside
}

// DocumentsSetting is the value of the key documents.
func (s *Split) DocumentsSetting() any {
	if s.FilesAreDocuments {
		return "files"
	}
	return s.Documents
}

// Wrote says whether the configuration has a key for the split, in its own table or in [batch].
func (s *Split) Wrote(key string) bool {
	_, ok := s.origins[key]
	return ok
}

// WroteArrays says whether the configuration names arrays beside the tokens, or says that there are none.
func (s *Split) WroteArrays() bool { return s.Wrote("arrays") || s.Wrote("sources.arrays") }

// VocabSizes returns the vocab_size of each source; Tokens are one source. It is 0 where none was written.
func (s *Split) VocabSizes() []int64 {
	if len(s.Sources) == 0 {
		return []int64{s.VocabSize}
	}
	var sizes []int64
	for _, source := range s.Sources {
		sizes = append(sizes, cmp.Or(source.VocabSize, s.VocabSize))
	}
	return sizes
}

// Origin says where the first of keys that was written stands, or else where the split was first named, as the beginning of a
// message. For a split under the settings of a path it is that path and the first of keys.
func (s *Split) Origin(keys ...string) string {
	if s.base != nil {
		return strings.Join(append([]string{s.path}, keys[:min(1, len(keys))]...), ": ")
	}
	for _, k := range keys {
		if o, ok := s.origins[k]; ok {
			return o.String()
		}
	}
	return s.named.String()
}

// scope says in a message which values hold: the path's or the split's.
func (s *Split) scope() string {
	if s.base != nil {
		return "here"
	}
	return "in splits." + s.Split
}

// check returns an error for keys that are wrong only together.
func (s *Split) check() error {
	switch {
	case len(s.Tokens) == 0 && len(s.Sources) == 0:
		return fmt.Errorf("%s: split %s must have tokens, e.g. tokens = \"data/%s.bin\" (got none)", s.Origin(), s.Split, s.Split)
	case len(s.Tokens) > 0 && len(s.Sources) > 0:
		return fmt.Errorf("%s: split %s must have tokens or sources, not both", s.Origin("tokens", "sources"), s.Split)
	case len(s.Beside) > 0 && len(s.Sources) > 0:
		return fmt.Errorf("%s: split %s has sources: name the arrays beside the tokens of each, in [[splits.%s.sources.arrays]]", s.Origin("arrays"), s.Split, s.Split)
	case s.Rank >= s.World:
		return fmt.Errorf("%s: must be below world, which is %d %s (got %d)", s.Origin("rank", "world"), s.World, s.scope(), s.Rank)
	case s.BatchSize*s.World > sampler.MaxRows:
		return fmt.Errorf("%s: batch_size times world must be at most %d (got %d times %d %s)",
			s.Origin("batch_size", "world"), sampler.MaxRows, s.BatchSize, s.World, s.scope())
	}
	if err := s.CheckBeside(); err != nil {
		return err
	}
	if err := s.checkShares(); err != nil {
		return err
	}
	if s.Documents && s.Layout == sampler.Elements {
		return fmt.Errorf("%s: layout rows has no documents; leave documents out", s.Origin("documents", "layout"))
	}
	if s.Wrote("token_dtype") {
		return s.CheckVocabSize(s.TokenDType, s.Shape)
	}
	return nil
}

// checkShares returns an error unless shuffle_block and local_world suit the other keys.
func (s *Split) checkShares() error {
	fetched := s.Remote.Blocks.BlockBytes
	switch {
	case s.ShuffleBlock == 0 && s.LocalWorld > 1:
		return fmt.Errorf("%s: is for shuffle_block, with which each host has a share of the tokens (got %d without it %s); set both, or neither",
			s.Origin("local_world"), s.LocalWorld, s.scope())
	case s.ShuffleBlock == 0:
		return nil
	case s.Order != sampler.Shuffle:
		return fmt.Errorf("%s: needs order = \"shuffle\" (got %q %s); set that, or shuffle_block = 0", s.Origin("shuffle_block", "order"), s.Order, s.scope())
	case s.Rows != sampler.Windows:
		return fmt.Errorf("%s: needs rows = \"windows\" (got %q %s); set shuffle_block = 0: rows of documents are drawn from a few places at a time anyway",
			s.Origin("shuffle_block", "rows"), s.Rows, s.scope())
	case s.World%s.LocalWorld != 0:
		return fmt.Errorf("%s: must divide world, which is %d %s (got %d)", s.Origin("local_world", "world"), s.World, s.scope(), s.LocalWorld)
	case s.World/s.LocalWorld > sampler.MaxHosts:
		return fmt.Errorf("%s: world / local_world is the number of hosts, at most %d (got %d / %d %s)",
			s.Origin("world", "local_world"), sampler.MaxHosts, s.World, s.LocalWorld, s.scope())
	case s.isRemote() && s.ShuffleBlock%fetched != 0:
		return fmt.Errorf("%s: must be a multiple of store.block_bytes, which is %d (got %d %s), or two hosts fetch one block",
			s.Origin("shuffle_block"), fetched, s.ShuffleBlock, s.scope())
	}
	return nil
}

// CheckVocabSize returns an error if a vocab_size that was written is of more tokens than a dtype can hold. Elements with axes are no
// tokens.
func (s *Split) CheckVocabSize(dtype array.DType, axes []int) error {
	if size := slices.Max(s.VocabSizes()); len(axes) == 0 && dtype.IsInteger() && size > dtype.Values() {
		return fmt.Errorf("%s: %s cannot hold the tokens of a vocabulary of %d %s; is it token_dtype = \"uint32\"?",
			s.Origin("vocab_size", "sources"), dtype, size, s.scope())
	}
	return nil
}

// CheckBeside returns an error unless all sources have the same arrays beside their tokens, with different names.
func (s *Split) CheckBeside() error {
	first := s.BesideOf(0)
	for i := range max(len(s.Sources), 1) {
		list := s.BesideOf(i)
		if len(list) > maxBeside {
			return fmt.Errorf("%s: at most %d arrays beside the tokens (got %d)", s.Origin("arrays", "sources"), maxBeside, len(list))
		}
		seen := map[string]bool{}
		for n, b := range list {
			if seen[b.Name] {
				return fmt.Errorf("%s: two arrays have the name %q", s.Origin("arrays", "sources"), b.Name)
			}
			seen[b.Name] = true
			if len(list) == len(first) && (b.Name != first[n].Name || b.At != first[n].At) {
				return fmt.Errorf("%s: source %d has array %q at %s where source 0 has %q at %s: all sources must have the same arrays in the same order",
					s.Origin("sources"), i, b.Name, b.At, first[n].Name, first[n].At)
			}
		}
		if len(list) != len(first) {
			return fmt.Errorf("%s: source %d has %d arrays, source 0 has %d: all sources must have the same arrays in the same order",
				s.Origin("sources"), i, len(list), len(first))
		}
	}
	return nil
}

// maxBeside leaves room for the arrays that a batch has by itself.
const maxBeside = array.Most - 6
