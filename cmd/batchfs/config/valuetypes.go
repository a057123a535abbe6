package config

import (
	"encoding/hex"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"batchfs/cache/array"
)

// A valueType is the type of a key's value, bound to the field that stores it.
type valueType struct {
	rule string // text after "must be" in messages and config.toml
	// set sets the field of c, a pointer to a struct. It returns false if value breaks the rule.
	set func(c, value any) (ok bool)
	get func(c any) any
}

// newValueType returns a valueType for a field of a struct C. parse converts a decoded TOML value.
func newValueType[C, F any](field func(*C) *F, rule string, parse func(value any) (F, bool)) valueType {
	return valueType{
		rule: rule,
		set: func(c, value any) bool {
			v, ok := parse(value)
			*field(c.(*C)) = v
			return ok
		},
		get: func(c any) any { return *field(c.(*C)) },
	}
}

// listOf returns the valueType of a list of tables, which decodeTables sets.
func listOf[C, F any](get func(*C) F) valueType {
	return valueType{get: func(c any) any { return get(c.(*C)) }}
}

func wholeNumber[C any, N int | int64 | uint64](field func(*C) *N, least, most int64) valueType {
	return newValueType(field, fmt.Sprintf("a whole number from %d to %d", least, most), func(value any) (N, bool) {
		n, ok := value.(int64)
		return N(n), ok && n >= least && n <= most
	})
}

// because adds the reason for a limit, or its unit, to the rule.
func (t valueType) because(reason string) valueType {
	t.rule += ", " + reason
	return t
}

func boolean[C any](field func(*C) *bool) valueType {
	return newValueType(field, "true or false", func(value any) (b, ok bool) {
		b, ok = value.(bool)
		return b, ok
	})
}

func nonEmpty[C any](field func(*C) *string, rule string) valueType {
	return newValueType(field, rule, func(value any) (string, bool) {
		s, ok := value.(string)
		return s, ok && s != ""
	})
}

func address[C any](field func(*C) *netip.AddrPort) valueType {
	return newValueType(field, `an IP address and a port, as in "127.0.0.1:9137"`, func(value any) (netip.AddrPort, bool) {
		s, ok := value.(string)
		a, err := netip.ParseAddrPort(s)
		return a, ok && err == nil
	})
}

func oneOf[C any, S ~string](field func(*C) *S, words ...S) valueType {
	rule := string(words[0])
	for _, s := range words[1 : len(words)-1] {
		rule += ", " + string(s)
	}
	return newValueType(field, rule+" or "+string(words[len(words)-1]), func(value any) (S, bool) {
		s, ok := value.(string)
		return S(s), ok && slices.Contains(words, S(s))
	})
}

func integerDTypes() []array.DType {
	return slices.DeleteFunc(array.DTypes(), func(d array.DType) bool { return !d.IsInteger() })
}

func duration[C any](field func(*C) *time.Duration, least, most time.Duration) valueType {
	rule := fmt.Sprintf(`a duration from %v to %s, as in "90s"`, least, strings.TrimSuffix(most.String(), "0m0s"))
	return newValueType(field, rule, func(value any) (time.Duration, bool) {
		s, ok := value.(string)
		d, err := time.ParseDuration(s)
		return d, ok && err == nil && d >= least && d <= most
	})
}

func paths[C any](field func(*C) *[]string) valueType {
	return newValueType(field, "a path, a glob, or a list of them", func(value any) (list []string, ok bool) {
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
	})
}

func shape[C any](field func(*C) *[]int) valueType {
	const maxNumbers = 1 << 31
	return newValueType(field, fmt.Sprint("a list of positive whole numbers with a product of at most ", maxNumbers), func(value any) (shape []int, ok bool) {
		values, ok := value.([]any)
		numbers := int64(1)
		for _, v := range values {
			axis, isInt := v.(int64)
			if !isInt || axis < 1 || axis > maxNumbers/numbers {
				return nil, false
			}
			numbers *= axis
			shape = append(shape, int(axis))
		}
		return shape, ok
	})
}

// A sizeText is the shortest text for a number of bytes, such as 64MiB, for use in paths.
type sizeText string

// size returns a valueType for a number of bytes, which may be 0. Its get returns a sizeText.
func size[C any](field func(*C) *int64, least, most int64) valueType {
	rule := fmt.Sprintf(`0, or a size from %s to %s, as in "64MiB", or a number of bytes`, formatSize(least), formatSize(most))
	t := newValueType(field, rule, func(value any) (int64, bool) {
		n, ok := value.(int64)
		if s, isText := value.(string); isText {
			n, ok = parseSize(s)
		}
		return n, ok && (n == 0 || n >= least && n <= most)
	})
	t.get = func(c any) any { return sizeText(formatSize(*field(c.(*C)))) }
	return t
}

var sizeUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

func parseSize(text string) (n int64, ok bool) {
	for _, unit := range sizeUnits {
		if number, has := strings.CutSuffix(text, unit.name); has {
			n, err := strconv.ParseUint(number, 10, 31)
			return int64(n) * unit.bytes, err == nil
		}
	}
	return 0, false
}

func formatSize(n int64) string {
	for _, unit := range sizeUnits {
		if n > 0 && n%unit.bytes == 0 {
			return fmt.Sprint(n/unit.bytes, unit.name)
		}
	}
	return fmt.Sprint(n)
}

var documents = valueType{
	rule: `true, false or "files"`,
	set: func(c, value any) bool {
		s := c.(*Split)
		documents, isBool := value.(bool)
		s.FilesAreDocuments = value == "files"
		s.Documents = documents || s.FilesAreDocuments
		return isBool || s.FilesAreDocuments
	},
	get: func(c any) any { return c.(*Split).DocumentsSetting() },
}

var maskTargets = valueType{
	rule: "true, false or the name of an array",
	set: func(c, value any) bool {
		s := c.(*Split)
		masked, isBool := value.(bool)
		s.MaskArray, _ = value.(string)
		s.MaskTargets = masked || s.MaskArray != ""
		return isBool || s.MaskArray != ""
	},
	get: func(c any) any { return c.(*Split).MaskTargetsSetting() },
}

var mode = valueType{
	rule: `octal digits that permit only reading, as in "0440"`,
	set: func(c, value any) bool {
		s, ok := value.(string)
		mode, err := strconv.ParseUint(s, 8, 32)
		c.(*Mount).Mode = uint32(mode)
		return ok && err == nil && mode > 0 && mode&^0o444 == 0
	},
	get: func(c any) any { return fmt.Sprintf("%04o", c.(*Mount).Mode) },
}

var fingerprint = newValueType(func(c *Split) *string { return &c.Expect }, "32 lower-case hexadecimal digits", func(value any) (string, bool) {
	s, ok := value.(string)
	_, err := hex.DecodeString(s)
	return s, ok && err == nil && len(s) == 32 && strings.ToLower(s) == s
})

func number(value any) (n float64, ok bool) {
	if i, isInt := value.(int64); isInt {
		return float64(i), true
	}
	n, ok = value.(float64)
	return n, ok && !math.IsInf(n, 0)
}

var weight = newValueType(func(c *Source) *float64 { return &c.Weight }, "a number, 0 or above", func(value any) (float64, bool) {
	w, ok := number(value)
	return w, ok && w >= 0
})

func positive[C any](field func(*C) *float64) valueType {
	return newValueType(field, "a number above 0", func(value any) (float64, bool) {
		n, ok := number(value)
		return n, ok && n > 0
	})
}

// An inlineTable is an example in config.toml.
type inlineTable string

var weights = newValueType(func(c *Stage) *map[string]float64 { return &c.Weights },
	"a table of sources and numbers, 0 or above and not all 0, as in {web = 9, math = 1}", func(value any) (all map[string]float64, ok bool) {
		table, _ := value.(map[string]any)
		all, sum := map[string]float64{}, 0.
		for name, v := range table {
			w, ok := number(v)
			if !ok || !(w >= 0) {
				return nil, false
			}
			all[name], sum = w, sum+w
		}
		return all, sum > 0
	})

var tokens = newValueType(func(c *Stage) *uint64 { return &c.FromTokens },
	`a whole number of tokens above 0, as in "250B" (k, M, B or G, T)`, func(value any) (uint64, bool) {
		text := fmt.Sprint(value)
		if n, isFloat := value.(float64); isFloat {
			text = strconv.FormatFloat(n, 'f', -1, 64)
		}
		digits := strings.TrimRight(text, "kMBGT")
		scale, known := map[string]int64{"": 1, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}[text[len(digits):]]
		n, ok := new(big.Rat).SetString(digits)
		if !known || !ok || strings.Trim(digits, "0123456789.") != "" || !n.Mul(n, new(big.Rat).SetInt64(scale)).IsInt() || !n.Num().IsInt64() {
			return 0, false
		}
		return n.Num().Uint64(), n.Sign() > 0
	})

// reserved lists the names of a batch's own arrays, and the one key in a safetensors header that
// does not name a tensor.
var reserved = []string{"x", "y", "tokens", "rows", "cu_seqlens", "positions", "document_numbers", "lengths", "source", "__metadata__"}

var arrayName = newValueType(func(c *AlignedArray) *string { return &c.Name },
	"1 to 32 letters a to z, digits and _, and none of "+strings.Join(reserved, ", "), func(value any) (string, bool) {
		s, ok := value.(string)
		return s, ok && isShortName(s, letters+"_") && !slices.Contains(reserved, s)
	})

func sourceName[C any](field func(*C) *string) valueType {
	return newValueType(field, "1 to 32 letters a to z, digits, _ and -", func(value any) (string, bool) {
		s, ok := value.(string)
		return s, ok && isShortName(s, letters+"_-")
	})
}

const letters = "abcdefghijklmnopqrstuvwxyz0123456789"

func isShortName(s, chars string) bool {
	return len(s) >= 1 && len(s) <= 32 && strings.Trim(s, chars) == ""
}
