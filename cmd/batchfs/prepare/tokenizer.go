package prepare

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"batchfs/cmd/batchfs/prepare/bpe"
	"batchfs/cmd/batchfs/vocabulary"
)

// A tokenizer makes tokens of text, and text of tokens.
type tokenizer interface {
	Name() string
	Size() int64               // exclusive upper bound of tokens
	EndOfText() (uint32, bool) // the token that separates documents, if there is one
	Bytes(token uint32) []byte // the text of a token
	Cut(text []byte) int       // length of a prefix that has the same tokens whatever follows, or 0
	NewEncoder() encoder
}

// An encoder appends the tokens of a text. Each goroutine needs its own.
type encoder interface {
	Append(tokens []uint32, text []byte) []uint32
}

// tokenizers are those that --by names. The tokenizer of char counts: the texts decide which characters there are.
var tokenizers = map[string]func() (tokenizer, error){
	vocabulary.Char: func() (tokenizer, error) { return new(counter), nil },
	vocabulary.Byte: func() (tokenizer, error) { return byteTokenizer{}, nil },
	"gpt2":          func() (tokenizer, error) { return bytePairs(bpe.Named("gpt2")) },
	"cl100k":        func() (tokenizer, error) { return bytePairs(bpe.Named("cl100k")) },
	"o200k":         func() (tokenizer, error) { return bytePairs(bpe.Named("o200k")) },
}

// tokenizer returns what --by, --special and --eot-token name.
func (s *settings) tokenizer() (tokenizer, error) {
	open, ok := tokenizers[s.By]
	if !ok && !strings.HasSuffix(s.By, ".json") {
		return nil, fmt.Errorf("--by: must be char, byte, gpt2, cl100k, o200k or the path of a tokenizer.json (got %q)", s.By)
	}
	if !ok {
		open = func() (tokenizer, error) { return bytePairs(bpe.ReadHuggingFace(s.By)) }
	}
	t, err := open()
	if err != nil || !s.Special && s.EOTToken == "" {
		return t, err
	}
	pairs, ok := t.(bpeTokenizer)
	if !ok {
		return nil, fmt.Errorf("--special, --eot-token: %s has no special tokens: give a tokenizer that has some with --by", s.By)
	}
	if _, ok := pairs.Special()[s.EOTToken]; !ok && s.EOTToken != "" {
		return nil, fmt.Errorf("--eot-token: %s has no special token %q: name one of %q", s.By, s.EOTToken, someNames(pairs.Special()))
	}
	pairs.end = s.EOTToken
	if s.Special {
		pairs.Tokenizer = pairs.WithSpecial()
	}
	return pairs, nil
}

// someNames are the names of a few special tokens.
func someNames(special map[string]uint32) []string {
	names := slices.SortedFunc(maps.Keys(special), func(a, b string) int { return cmp.Compare(special[a], special[b]) })
	return names[:min(8, len(names))]
}

func bytePairs(t *bpe.Tokenizer, err error) (tokenizer, error) {
	if err != nil {
		return nil, fmt.Errorf("--by: %w", err)
	}
	return bpeTokenizer{Tokenizer: t}, nil
}

type bpeTokenizer struct {
	*bpe.Tokenizer
	end string // of documents, unless it is the tokenizer's own
}

func (t bpeTokenizer) NewEncoder() encoder { return t.Tokenizer.NewEncoder() }

func (t bpeTokenizer) Cut(text []byte) int { return wordEnd(text, t.Joins) }

func (t bpeTokenizer) EndOfText() (uint32, bool) {
	if t.end == "" {
		return t.Tokenizer.EndOfText()
	}
	return t.Special()[t.end], true
}

type byteTokenizer struct{}

func (byteTokenizer) Name() string              { return vocabulary.Byte }
func (byteTokenizer) Size() int64               { return 256 }
func (byteTokenizer) EndOfText() (uint32, bool) { return 0, false }
func (byteTokenizer) Bytes(token uint32) []byte { return []byte{byte(token)} }
func (byteTokenizer) Cut(text []byte) int       { return len(text) }
func (byteTokenizer) NewEncoder() encoder       { return byteTokenizer{} }

func (byteTokenizer) Append(tokens []uint32, text []byte) []uint32 {
	tokens = slices.Grow(tokens, len(text))
	for _, b := range text {
		tokens = append(tokens, uint32(b))
	}
	return tokens
}

// characters numbers a sorted set of characters, from 0.
type characters struct {
	ids   [utf8.MaxRune + 1]uint32 // math.MaxUint32 of those that are not in the set
	runes []rune                   // sorted
}

func (*characters) Name() string                { return vocabulary.Char }
func (c *characters) Size() int64               { return int64(len(c.runes)) }
func (*characters) EndOfText() (uint32, bool)   { return 0, false }
func (c *characters) Bytes(token uint32) []byte { return []byte(string(c.runes[token])) }
func (*characters) Cut(text []byte) int         { return runeEnd(text) }
func (c *characters) NewEncoder() encoder       { return c }

func (c *characters) Append(tokens []uint32, text []byte) []uint32 {
	for _, r := range string(text) {
		tokens = append(tokens, c.ids[r])
	}
	return tokens
}

// counter makes a token 0 of each character, and notes which there are.
type counter struct{ seen [utf8.MaxRune + 1]atomic.Bool }

func (*counter) Name() string              { return vocabulary.Char }
func (*counter) Size() int64               { return 1 }
func (*counter) EndOfText() (uint32, bool) { return 0, false }
func (*counter) Bytes(uint32) []byte       { return nil }
func (*counter) Cut(text []byte) int       { return runeEnd(text) }
func (c *counter) NewEncoder() encoder     { return c }

func (c *counter) Append(tokens []uint32, text []byte) []uint32 {
	for _, r := range string(text) {
		if !c.seen[r].Load() {
			c.seen[r].Store(true)
		}
		tokens = append(tokens, 0)
	}
	return tokens
}

// characters are those that were seen.
func (c *counter) characters() *characters {
	found := new(characters)
	for r := range c.seen {
		found.ids[r] = math.MaxUint32
		if c.seen[r].Load() {
			found.ids[r] = uint32(len(found.runes))
			found.runes = append(found.runes, rune(r))
		}
	}
	return found
}
