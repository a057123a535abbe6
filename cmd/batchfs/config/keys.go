package config

import (
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cache/format"
	"batchfs/sampler"
)

// A key is one key of a table that is decoded to a C.
type key[C any] struct {
	rule string                          // what its value must be, for messages
	set  func(c *C, value any) (ok bool) // sets the field of c; not ok for a value that breaks the rule
	get  func(c *C) any                  // nil if nobody needs it
}

var memoryKeys = map[string]key[Memory]{
	"access":      enumKey(func(c *Memory) *blob.Access { return &c.Access }, blob.Remap, blob.Advise, blob.Pread, blob.Map),
	"page_cache":  enumKey(func(c *Memory) *string { return &c.PageCache }, "keep", "drop"),
	"ahead":       intKey(func(c *Memory) *int { return &c.Ahead }, 0, 1024),
	"ahead_bytes": intKey(func(c *Memory) *int64 { return &c.AheadBytes }, 0, 1<<40),
	"budget":      intKey(func(c *Memory) *int64 { return &c.Budget }, 16<<20, 1<<40),
}

var mountKeys = map[string]key[Mount]{
	"allow_other": boolKey(func(c *Mount) *bool { return &c.AllowOther }),
	"mode": {rule: `octal digits of reading only, as in "0440"`, set: func(c *Mount, value any) bool {
		s, ok := value.(string)
		mode, err := strconv.ParseUint(s, 8, 32)
		c.Mode = uint32(mode)
		return ok && err == nil && mode > 0 && mode&^0o444 == 0
	}, get: func(c *Mount) any { return fmt.Sprintf("%04o", c.Mode) }},
	"uid":               intKey(func(c *Mount) *int64 { return &c.UID }, 0, math.MaxUint32-1), // the last number means no user
	"gid":               intKey(func(c *Mount) *int64 { return &c.GID }, 0, math.MaxUint32-1),
	"timeout":           durationKey(func(c *Mount) *time.Duration { return &c.Timeout }, 100*time.Millisecond, 24*time.Hour),
	"settings_per_user": intKey(func(c *Mount) *int { return &c.SettingsPerUser }, 0, 65535),
	"grace":             durationKey(func(c *Mount) *time.Duration { return &c.Grace }, 0, 24*time.Hour),
}

var storeKeys = map[string]key[Store]{
	"endpoint":   textKey(func(c *Store) *string { return &c.Endpoint }, "the URL of a host"),
	"region":     textKey(func(c *Store) *string { return &c.Region }, "the name of a region"),
	"path_style": boolKey(func(c *Store) *bool { return &c.PathStyle }),
	"anonymous":  boolKey(func(c *Store) *bool { return &c.Anonymous }),
	"cache_dir": {rule: "a path", set: func(c *Store, value any) (ok bool) {
		c.CacheDir, ok = value.(string)
		return ok && c.CacheDir != ""
	}},
	"cache_shared": boolKey(func(c *Store) *bool { return &c.CacheShared }),
	"cache_bytes":  intKey(func(c *Store) *int64 { return &c.CacheBytes }, 0, 1<<50),
	"block_bytes":  intKey(func(c *Store) *int64 { return &c.BlockBytes }, 64<<10, 1<<30),
}

var logKeys = map[string]key[Log]{
	"level":  enumKey(func(c *Log) *string { return &c.Level }, "debug", "info", "warn", "error"),
	"format": enumKey(func(c *Log) *string { return &c.Format }, "text", "json"),
}

// sequenceKeys are the keys of [batch] and [splits.X] that make a sequence of a split. They may also stand in a path, as in
// train/rank=3,world=8.
var sequenceKeys = map[string]key[Split]{
	"batch_size": intKey(func(c *Split) *int { return &c.BatchSize }, 1, sampler.MaxRows),
	"block_size": intKey(func(c *Split) *int { return &c.BlockSize }, 1, sampler.MaxBlockSize),
	"dtype":      enumKey(func(c *Split) *array.DType { return &c.DType }, append(integers(), sampler.Native)...),
	"layout":     enumKey(func(c *Split) *sampler.Layout { return &c.Layout }, sampler.XY, sampler.WholeRows, sampler.Elements),
	"order": enumKey(func(c *Split) *sampler.Order { return &c.Order },
		sampler.Random, sampler.Shuffle, sampler.Sequential, sampler.Torch, sampler.Torch26),
	"seed":  intKey(func(c *Split) *uint64 { return &c.Seed }, 0, math.MaxInt64),
	"rank":  intKey(func(c *Split) *int { return &c.Rank }, 0, sampler.MaxRows-1),
	"world": intKey(func(c *Split) *int { return &c.World }, 1, sampler.MaxRows),
	"start": intKey(func(c *Split) *uint64 { return &c.Start }, 0, sampler.MaxBatches-1),
	"steps": intKey(func(c *Split) *uint64 { return &c.Steps }, 1, sampler.MaxBatches),

	"shuffle_block": sizeKey(func(c *Split) *int64 { return &c.ShuffleBlock }, 64<<10, 1<<40),
	"local_world":   intKey(func(c *Split) *int { return &c.LocalWorld }, 1, sampler.MaxRows),
}

// batchKeys are the other keys that both [batch] and [splits.X] may have.
var batchKeys = map[string]key[Split]{
	"token_dtype": enumKey(func(c *Split) *array.DType { return &c.TokenDType }, array.DTypes()...),
	"shape":       shapeKey(func(c *Split) *[]int { return &c.Shape }),
	"format":      enumKey(func(c *Split) *string { return &c.Format }, format.Names()...),
	"tensor":      textKey(func(c *Split) *string { return &c.Tensor }, "the name of a tensor"),
	"documents": {rule: `true, false or "files"`, set: func(c *Split, value any) (ok bool) {
		word, isText := value.(string)
		c.Documents, ok = value.(bool)
		c.FilesAreDocuments = isText && word == "files"
		c.Documents = c.Documents || c.FilesAreDocuments
		return ok || c.FilesAreDocuments
	}},
	"eot":          intKey(func(c *Split) *int64 { return &c.EndOfText }, 0, math.MaxInt64),
	"mask_targets": boolKey(func(c *Split) *bool { return &c.MaskTargets }),
	"rows": enumKey(func(c *Split) *sampler.Rows { return &c.Rows },
		sampler.Windows, sampler.OfDocument, sampler.DocumentFirst, sampler.Packed),
	"vocab_size": intKey(func(c *Split) *int64 { return &c.VocabSize }, 0, 1<<32),
	"torch_state": {rule: "a path", set: func(c *Split, value any) (ok bool) {
		c.StateFile, ok = value.(string)
		return ok && c.StateFile != ""
	}},
}

// splitKeys are the keys that only [splits.X] may have.
var splitKeys = map[string]key[Split]{
	"tokens": {rule: "a path, a glob, or a list of them", set: func(c *Split, value any) (ok bool) {
		c.Tokens, ok = paths(value)
		return ok
	}},
	"join":      boolKey(func(c *Split) *bool { return &c.Join }),
	"on_change": enumKey(func(c *Split) *string { return &c.OnChange }, "error", "follow"),
	"expect_fingerprint": {rule: "32 lower-case hexadecimal digits", set: func(c *Split, value any) (ok bool) {
		c.Expect, ok = value.(string)
		_, err := hex.DecodeString(c.Expect)
		return ok && err == nil && len(c.Expect) == 32 && strings.ToLower(c.Expect) == c.Expect
	}},
}

// sourceKeys are the keys of [[splits.X.sources]], which must have all of them but vocab_size.
var sourceKeys = map[string]key[Source]{
	"tokens": {rule: splitKeys["tokens"].rule, set: func(c *Source, value any) (ok bool) {
		c.Tokens, ok = paths(value)
		return ok
	}},
	"weight": {rule: "a number above 0", set: func(c *Source, value any) (ok bool) {
		c.Weight, ok = value.(float64)
		if n, isInt := value.(int64); isInt {
			c.Weight, ok = float64(n), true
		}
		return ok && c.Weight > 0 && !math.IsInf(c.Weight, 0)
	}},
	"vocab_size": intKey(func(c *Source) *int64 { return &c.VocabSize }, 0, 1<<32),
}

// arrayKeys are the keys of [[splits.X.arrays]], which must have name and files.
var arrayKeys = map[string]key[Beside]{
	"name": {rule: "1 to 32 letters a to z, digits and _, and none of " + strings.Join(reserved, ", "), set: func(c *Beside, value any) (ok bool) {
		c.Name, ok = value.(string)
		const letters = "abcdefghijklmnopqrstuvwxyz0123456789_"
		return ok && len(c.Name) >= 1 && len(c.Name) <= 32 && strings.Trim(c.Name, letters) == "" && !slices.Contains(reserved, c.Name)
	}},
	"files": {rule: splitKeys["tokens"].rule, set: func(c *Beside, value any) (ok bool) {
		c.Files, ok = paths(value)
		return ok
	}},
	"at":     enumKey(func(c *Beside) *sampler.At { return &c.At }, sampler.AtX, sampler.AtY),
	"dtype":  enumKey(func(c *Beside) *array.DType { return &c.DType }, array.DTypes()...),
	"shape":  shapeKey(func(c *Beside) *[]int { return &c.Shape }),
	"format": enumKey(func(c *Beside) *string { return &c.Format }, format.Names()...),
	"tensor": textKey(func(c *Beside) *string { return &c.Tensor }, "the name of a tensor"),
}

// NewBeside returns an array at the targets, of headerless files. It is not ok if no configuration could have such a name or dtype.
func NewBeside(name, dtype string) (b Beside, ok bool) {
	b = Beside{At: sampler.AtY, Format: format.Auto}
	return b, arrayKeys["name"].set(&b, name) && arrayKeys["dtype"].set(&b, dtype)
}

// reserved are the names of arrays that a batch has by itself, and that of what is no tensor in a safetensors header.
var reserved = []string{"x", "y", "tokens", "rows", "cu_seqlens", "positions", "lengths", "source", "__metadata__"}

// paths returns the paths of a value that is one path or a list of them.
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

func intKey[C any, N int | int64 | uint64](field func(*C) *N, least, most int64) key[C] {
	rule := fmt.Sprintf("a whole number from %d to %d", least, most)
	return key[C]{rule, func(c *C, value any) bool {
		n, ok := value.(int64)
		*field(c) = N(n)
		return ok && n >= least && n <= most
	}, func(c *C) any { return *field(c) }}
}

// sizeKey is a number of bytes, or 0.
func sizeKey[C any](field func(*C) *int64, least, most int64) key[C] {
	rule := fmt.Sprintf(`0, or a size from %s to %s, as in "64MiB", or that in bytes`, sizeText(least), sizeText(most))
	return key[C]{rule, func(c *C, value any) bool {
		n, ok := value.(int64)
		if s, isText := value.(string); isText {
			n, ok = sizeOf(s)
		}
		*field(c) = n
		return ok && (n == 0 || n >= least && n <= most)
	}, func(c *C) any { return sizeText(*field(c)) }}
}

var sizeUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

func sizeOf(text string) (n int64, ok bool) {
	for _, unit := range sizeUnits {
		if number, has := strings.CutSuffix(text, unit.name); has {
			n, err := strconv.ParseUint(number, 10, 31)
			return int64(n) * unit.bytes, err == nil
		}
	}
	return 0, false
}

// sizeText is the shortest text that sizeKey takes for a number of bytes.
func sizeText(n int64) string {
	for _, unit := range sizeUnits {
		if n > 0 && n%unit.bytes == 0 {
			return fmt.Sprint(n/unit.bytes, unit.name)
		}
	}
	return fmt.Sprint(n)
}

func enumKey[C any, S ~string](field func(*C) *S, words ...S) key[C] {
	names := make([]string, len(words))
	for i, s := range words {
		names[i] = string(s)
	}
	last := len(names) - 1
	rule := strings.Join(names[:last], ", ") + " or " + names[last]
	return key[C]{rule, func(c *C, value any) bool {
		s, ok := value.(string)
		*field(c) = S(s)
		return ok && slices.Contains(words, S(s))
	}, func(c *C) any { return *field(c) }}
}

// integers are the dtypes that numbers can be converted to.
func integers() []array.DType {
	return slices.DeleteFunc(array.DTypes(), func(d array.DType) bool { return !d.IsInteger() })
}

func textKey[C any](field func(*C) *string, rule string) key[C] {
	return key[C]{rule, func(c *C, value any) bool {
		s, ok := value.(string)
		*field(c) = s
		return ok && s != ""
	}, func(c *C) any { return *field(c) }}
}

// shapeKey is the shape of an element of an array.
func shapeKey[C any](field func(*C) *[]int) key[C] {
	return key[C]{"a list of whole numbers from 1 on, with a product of " + fmt.Sprint(maxNumbers) + " at most", func(c *C, value any) bool {
		values, ok := value.([]any)
		var shape []int
		numbers := int64(1)
		for _, v := range values {
			axis, isInt := v.(int64)
			if !isInt || axis < 1 || axis > maxNumbers/numbers {
				return false
			}
			numbers *= axis
			shape = append(shape, int(axis))
		}
		*field(c) = shape
		return ok
	}, func(c *C) any { return *field(c) }}
}

// maxNumbers bounds the numbers of an element.
const maxNumbers = 1 << 31

func boolKey[C any](field func(*C) *bool) key[C] {
	return key[C]{"true or false", func(c *C, value any) (ok bool) {
		*field(c), ok = value.(bool)
		return ok
	}, func(c *C) any { return *field(c) }}
}

func durationKey[C any](field func(*C) *time.Duration, least, most time.Duration) key[C] {
	rule := fmt.Sprintf(`a duration from %v to %s, as in "90s"`, least, strings.TrimSuffix(most.String(), "0m0s"))
	return key[C]{rule, func(c *C, value any) bool {
		s, ok := value.(string)
		d, err := time.ParseDuration(s)
		*field(c) = d
		return ok && err == nil && d >= least && d <= most
	}, func(c *C) any { return *field(c) }}
}
