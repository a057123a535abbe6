package main

import (
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"batchfs/cache"
	"batchfs/sampler"
)

type memory struct {
	Access     cache.Access
	PageCache  string
	Ahead      int
	AheadBytes int64
}

// mountOptions have numbers and truth values only: what becomes part of the kernel's own list of options, which commas divide,
// is never a text of somebody's.
type mountOptions struct {
	AllowOther bool
	Mode       uint32 // permission bits of files
	UID, GID   int64
	Timeout    time.Duration // how long a read may wait for token files
	Grace      time.Duration // how long open files may be read on after a signal to stop
}

type logOptions struct{ Level, Format string }

// split is one [splits.X], with the keys of [batch] where it has none of its own.
type split struct {
	sampler.Settings
	Tokens     []string // paths and globs, as written
	Sources    []source // instead of Tokens
	dir        string   // what paths of both are relative to
	Join       bool
	TokenDType sampler.DType
	StateFile  string // torch_state
	Start      uint64
	Steps      uint64 // 0: one epoch
	OnChange   string
	Expect     string // the fingerprint that the files must have, if not empty

	named place            // where the split was first named
	set   map[string]place // where each key was set

	base *split // of a split under the settings of a path: the split itself
	path string // and that path
}

// source is one [[splits.X.sources]].
type source struct {
	Tokens []string
	Weight float64
}

func defaults() (*config, *split) {
	c := &config{
		Memory: memory{Access: cache.Remap, PageCache: "keep", Ahead: 2, AheadBytes: 64 << 20},
		Mount: mountOptions{
			Mode: 0o444, UID: int64(os.Getuid()), GID: int64(os.Getgid()), Timeout: 30 * time.Second, Grace: 10 * time.Second,
		},
		Log: logOptions{"info", "text"},
	}
	return c, &split{
		Settings: sampler.Settings{
			BatchSize: 12, BlockSize: 1024, DType: sampler.Uint16, Layout: sampler.XY,
			Order: sampler.Random, Seed: 1337, Rank: 0, World: 1,
		},
		TokenDType: sampler.Uint16,
		OnChange:   "error",
		set:        map[string]place{},
	}
}

// A key is one key of a table that is decoded to a C.
type key[C any] struct {
	must string // what its value must be
	set  func(c *C, value any) bool
	get  func(c *C) any
}

var memoryKeys = map[string]key[memory]{
	"access":      choice(func(c *memory) *cache.Access { return &c.Access }, cache.Remap, cache.Advise, cache.Pread, cache.Map),
	"page_cache":  choice(func(c *memory) *string { return &c.PageCache }, "keep", "drop"),
	"ahead":       whole(func(c *memory) *int { return &c.Ahead }, 0, 1024),
	"ahead_bytes": whole(func(c *memory) *int64 { return &c.AheadBytes }, 0, 1<<40),
}

var mountKeys = map[string]key[mountOptions]{
	"allow_other": truth(func(c *mountOptions) *bool { return &c.AllowOther }),
	"mode": {must: `octal digits of reading only, as in "0440"`, set: func(c *mountOptions, value any) bool {
		s, ok := value.(string)
		mode, err := strconv.ParseUint(s, 8, 32)
		c.Mode = uint32(mode)
		return ok && err == nil && mode > 0 && mode&^0o444 == 0
	}, get: func(c *mountOptions) any { return fmt.Sprintf("%04o", c.Mode) }},
	"uid":     whole(func(c *mountOptions) *int64 { return &c.UID }, 0, math.MaxUint32-1), // the last means none
	"gid":     whole(func(c *mountOptions) *int64 { return &c.GID }, 0, math.MaxUint32-1),
	"timeout": duration(func(c *mountOptions) *time.Duration { return &c.Timeout }, 100*time.Millisecond, 24*time.Hour),
	"grace":   duration(func(c *mountOptions) *time.Duration { return &c.Grace }, 0, 24*time.Hour),
}

var logKeys = map[string]key[logOptions]{
	"level":  choice(func(c *logOptions) *string { return &c.Level }, "debug", "info", "warn", "error"),
	"format": choice(func(c *logOptions) *string { return &c.Format }, "text", "json"),
}

// sequenceKeys make a sequence of a split. They may also stand in a path, as in train/rank=3,world=8.
var sequenceKeys = map[string]key[split]{
	"batch_size": whole(func(c *split) *int { return &c.BatchSize }, 1, sampler.MaxRows),
	"block_size": whole(func(c *split) *int { return &c.BlockSize }, 1, sampler.MaxBlockSize),
	"dtype": choice(func(c *split) *sampler.DType { return &c.DType },
		sampler.Uint16, sampler.Uint32, sampler.Int32, sampler.Int64, sampler.Native),
	"layout": choice(func(c *split) *sampler.Layout { return &c.Layout }, sampler.XY, sampler.WholeRows),
	"order": choice(func(c *split) *sampler.Order { return &c.Order },
		sampler.Random, sampler.Shuffle, sampler.Sequential, sampler.Torch, sampler.Torch26),
	"seed":  whole(func(c *split) *uint64 { return &c.Seed }, 0, math.MaxInt64),
	"rank":  whole(func(c *split) *int { return &c.Rank }, 0, sampler.MaxRows-1),
	"world": whole(func(c *split) *int { return &c.World }, 1, sampler.MaxRows),
	"start": whole(func(c *split) *uint64 { return &c.Start }, 0, sampler.MaxBatches-1),
	"steps": whole(func(c *split) *uint64 { return &c.Steps }, 1, sampler.MaxBatches),
}

// batchKeys are the others that [batch] and a split may have.
var batchKeys = map[string]key[split]{
	"token_dtype": choice(func(c *split) *sampler.DType { return &c.TokenDType }, sampler.Uint16, sampler.Uint32),
	"torch_state": {must: "a path", set: func(c *split, value any) (ok bool) {
		c.StateFile, ok = value.(string)
		return ok && c.StateFile != ""
	}},
}

// splitKeys are those that only a split has.
var splitKeys = map[string]key[split]{
	"tokens": {must: "a path, a glob, or a list of them", set: func(c *split, value any) (ok bool) {
		c.Tokens, ok = paths(value)
		return ok
	}},
	"join":      truth(func(c *split) *bool { return &c.Join }),
	"on_change": choice(func(c *split) *string { return &c.OnChange }, "error", "follow"),
	"expect_fingerprint": {must: "32 lower-case hexadecimal digits", set: func(c *split, value any) (ok bool) {
		c.Expect, ok = value.(string)
		_, err := hex.DecodeString(c.Expect)
		return ok && err == nil && len(c.Expect) == 32 && strings.ToLower(c.Expect) == c.Expect
	}},
}

// sourceKeys are those of a [[splits.X.sources]], all of which it must have.
var sourceKeys = map[string]key[source]{
	"tokens": {must: splitKeys["tokens"].must, set: func(c *source, value any) (ok bool) {
		c.Tokens, ok = paths(value)
		return ok
	}},
	"weight": {must: "a number above 0", set: func(c *source, value any) (ok bool) {
		c.Weight, ok = value.(float64)
		if whole, isWhole := value.(int64); isWhole {
			c.Weight, ok = float64(whole), true
		}
		return ok && c.Weight > 0 && !math.IsInf(c.Weight, 0)
	}},
}

// paths are those of a value that is a path or a list of them.
func paths(value any) (list []string, ok bool) {
	values, isList := value.([]any)
	if !isList {
		values = []any{value}
	}
	for _, v := range values {
		s, ok := v.(string)
		if !ok || s == "" {
			return nil, false
		}
		list = append(list, s)
	}
	return list, len(list) > 0
}

// tables are those of a value that is a list of tables, and nil for another.
func tables(value any) (list []map[string]any) {
	if list, ok := value.([]map[string]any); ok {
		return list
	}
	values, _ := value.([]any) // as [{...}, {...}] is decoded
	for _, v := range values {
		table, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		list = append(list, table)
	}
	return list
}

func whole[C any, N int | int64 | uint64](field func(*C) *N, least, most int64) key[C] {
	must := fmt.Sprintf("a whole number from %d to %d", least, most)
	return key[C]{must, func(c *C, value any) bool {
		n, ok := value.(int64)
		*field(c) = N(n)
		return ok && n >= least && n <= most
	}, func(c *C) any { return *field(c) }}
}

func choice[C any, S ~string](field func(*C) *S, of ...S) key[C] {
	words := make([]string, len(of))
	for i, s := range of {
		words[i] = string(s)
	}
	last := len(words) - 1
	must := strings.Join(words[:last], ", ") + " or " + words[last]
	return key[C]{must, func(c *C, value any) bool {
		s, ok := value.(string)
		*field(c) = S(s)
		return ok && slices.Contains(of, S(s))
	}, func(c *C) any { return *field(c) }}
}

func truth[C any](field func(*C) *bool) key[C] {
	return key[C]{"true or false", func(c *C, value any) (ok bool) {
		*field(c), ok = value.(bool)
		return ok
	}, func(c *C) any { return *field(c) }}
}

func duration[C any](field func(*C) *time.Duration, least, most time.Duration) key[C] {
	must := fmt.Sprintf(`a duration from %v to %s, as in "90s"`, least, strings.TrimSuffix(most.String(), "0m0s"))
	return key[C]{must, func(c *C, value any) bool {
		s, ok := value.(string)
		d, err := time.ParseDuration(s)
		*field(c) = d
		return ok && err == nil && d >= least && d <= most
	}, func(c *C) any { return *field(c) }}
}

// check finds what only several keys together make wrong.
func (s *split) check() error {
	switch {
	case len(s.Tokens) == 0 && len(s.Sources) == 0:
		return fmt.Errorf("%s: split %s must have tokens, e.g. tokens = \"data/%s.bin\" (got none)", s.where(), s.Split, s.Split)
	case len(s.Tokens) > 0 && len(s.Sources) > 0:
		return fmt.Errorf("%s: split %s must have tokens or sources, not both", s.where("tokens", "sources"), s.Split)
	case s.Rank >= s.World:
		return fmt.Errorf("%s: must be below world, which is %d %s (got %d)", s.where("rank", "world"), s.World, s.here(), s.Rank)
	case s.BatchSize*s.World > sampler.MaxRows:
		return fmt.Errorf("%s: batch_size times world must be at most %d (got %d times %d %s)",
			s.where("batch_size", "world"), sampler.MaxRows, s.BatchSize, s.World, s.here())
	}
	return nil
}

// where is the place of the first of keys that was set, or of the split.
func (s *split) where(keys ...string) string {
	if s.base != nil {
		return strings.Join(append([]string{s.path}, keys[:min(1, len(keys))]...), ": ")
	}
	at := s.named
	for _, k := range slices.Backward(keys) {
		if set, ok := s.set[k]; ok {
			at = set
		}
	}
	return at.d.at(at.k)
}

// here says where the values of keys hold.
func (s *split) here() string {
	if s.base != nil {
		return "here"
	}
	return "in splits." + s.Split
}
