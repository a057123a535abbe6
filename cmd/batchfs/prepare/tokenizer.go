package prepare

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"batchfs/cmd/batchfs/prepare/bpe"
	"batchfs/cmd/batchfs/vocabulary"
)

// A tokenizer turns text into tokens and back. It is safe for concurrent use.
type tokenizer interface {
	Name() string
	Size() int64               // vocabulary size; all tokens are below it
	EndOfText() (uint32, bool) // token that separates documents, if there is one
	Bytes(token uint32) []byte
	Cut(text []byte) int // length of a prefix whose tokens do not depend on the rest, or 0
	NewEncoder() encoder
}

// An encoder appends the tokens of a text to a slice. It belongs to one goroutine.
type encoder interface {
	Append(tokens []uint32, text []byte) []uint32
}

// A restEncoder is an encoder for which the beginning of a text differs from the rest, after a cut.
type restEncoder interface {
	AppendRest(tokens []uint32, text []byte) []uint32
}

// appendRest appends the tokens of the rest of a text to a slice.
func appendRest(e encoder, tokens []uint32, text []byte) []uint32 {
	if e, ok := e.(restEncoder); ok {
		return e.AppendRest(tokens, text)
	}
	return e.Append(tokens, text)
}

// tokenizers has the names that --by accepts. The tokenizer for char only collects the characters.
var tokenizers = map[string]func() (tokenizer, error){
	vocabulary.Char: func() (tokenizer, error) { return new(charCollector), nil },
	vocabulary.Byte: func() (tokenizer, error) { return byteTokenizer{}, nil },
	"gpt2":          func() (tokenizer, error) { return newBPETokenizer(bpe.Named("gpt2")) },
	"cl100k":        func() (tokenizer, error) { return newBPETokenizer(bpe.Named("cl100k")) },
	"o200k":         func() (tokenizer, error) { return newBPETokenizer(bpe.Named("o200k")) },
}

// openTokenizer opens the tokenizer that --by names. If content is not nil, it is that of the file.
func (s *settings) openTokenizer(content []byte) (tokenizer, error) {
	if s.VocabSize > 0 {
		return idTokenizer(s.VocabSize), nil
	}
	open, ok := tokenizers[s.By]
	if !ok {
		open = func() (tokenizer, error) { return newBPETokenizer(bpe.Open(s.By)) }
	}
	if content != nil {
		open = func() (tokenizer, error) { return newBPETokenizer(bpe.Parse(s.By, content)) }
	}
	t, err := open()
	if !ok && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--by: must be char, byte, gpt2, cl100k, o200k or the path of a tokenizer.json or tekken.json (got %q): there is no such file; "+
			"hf download MODEL tokenizer.json prints the path of that of a model of the Hugging Face Hub", s.By)
	}
	if err != nil || !s.Special && s.EOTToken == "" {
		return t, err
	}
	pairs, ok := t.(bpeTokenizer)
	if !ok {
		return nil, fmt.Errorf("--special, --eot-token: %s has no special tokens: choose a tokenizer with special tokens with --by", s.By)
	}
	if _, ok := pairs.Special()[s.EOTToken]; !ok && s.EOTToken != "" {
		special := pairs.Special()
		names := slices.SortedFunc(maps.Keys(special), func(a, b string) int { return cmp.Compare(special[a], special[b]) })
		return nil, fmt.Errorf("--eot-token: %s has no special token %q: choose one of %q", s.By, s.EOTToken, names[:min(8, len(names))])
	}
	pairs.eot = s.EOTToken
	if s.Special {
		pairs.Tokenizer = pairs.WithSpecial()
	}
	return pairs, nil
}

func newBPETokenizer(t *bpe.Tokenizer, err error) (tokenizer, error) {
	if err != nil {
		return nil, fmt.Errorf("--by: %w", err)
	}
	return bpeTokenizer{Tokenizer: t, cache: bpe.NewCache()}, nil
}

type bpeTokenizer struct {
	*bpe.Tokenizer
	cache *bpe.Cache
	eot   string // name of the end-of-text token, if it is not the tokenizer's own
}

func (t bpeTokenizer) NewEncoder() encoder { return t.Tokenizer.NewEncoder(t.cache) }

func (t bpeTokenizer) Cut(text []byte) int {
	if n, ok := t.Tokenizer.Cut(text); ok {
		return n
	}
	if n := wordEnd(text, t.Joins); n > 0 {
		return n
	}
	return t.LastPieceEnd(text)
}

func (t bpeTokenizer) EndOfText() (uint32, bool) {
	if t.eot == "" {
		return t.Tokenizer.EndOfText()
	}
	return t.Special()[t.eot], true
}

// wordEnd returns how many bytes of text can be encoded without the rest, or 0. They end before a
// space between two letters, or after a newline that precedes a letter and does not follow white
// space. All tokenizers split a text there before they merge anything, unless joins reports that an
// added token may contain the bytes on both sides.
func wordEnd(text []byte, joins func(before, after byte) bool) int {
	for i := len(text) - 1; i > 0; i-- {
		if text[i] != ' ' && text[i] != '\n' {
			continue
		}
		before, _ := utf8.DecodeLastRune(text[:i])
		after, _ := utf8.DecodeRune(text[i+1:])
		switch {
		case !unicode.IsLetter(after):
		case text[i] == ' ' && unicode.IsLetter(before) && !joins(text[i-1], ' '):
			return i
		case text[i] == '\n' && !unicode.IsSpace(before) && !joins('\n', text[i+1]):
			return i + 1
		}
	}
	return 0
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

// A charTokenizer numbers a sorted set of characters from 0.
type charTokenizer struct {
	ids   [utf8.MaxRune + 1]uint32 // math.MaxUint32 if a character is not in the set
	runes []rune                   // sorted
}

func (*charTokenizer) Name() string                { return vocabulary.Char }
func (c *charTokenizer) Size() int64               { return int64(len(c.runes)) }
func (*charTokenizer) EndOfText() (uint32, bool)   { return 0, false }
func (c *charTokenizer) Bytes(token uint32) []byte { return []byte(string(c.runes[token])) }
func (*charTokenizer) Cut(text []byte) int         { return runeEnd(text) }
func (c *charTokenizer) NewEncoder() encoder       { return c }

func (c *charTokenizer) Append(tokens []uint32, text []byte) []uint32 {
	for _, r := range string(text) {
		tokens = append(tokens, c.ids[r])
	}
	return tokens
}

// A charCollector encodes each character as token 0 and records which ones occur.
type charCollector struct{ seen [utf8.MaxRune + 1]atomic.Bool }

func (*charCollector) Name() string              { return vocabulary.Char }
func (*charCollector) Size() int64               { return 1 }
func (*charCollector) EndOfText() (uint32, bool) { return 0, false }
func (*charCollector) Bytes(uint32) []byte       { return nil }
func (*charCollector) Cut(text []byte) int       { return runeEnd(text) }
func (c *charCollector) NewEncoder() encoder     { return c }

func (c *charCollector) Append(tokens []uint32, text []byte) []uint32 {
	for _, r := range string(text) {
		if !c.seen[r].Load() {
			c.seen[r].Store(true)
		}
		tokens = append(tokens, 0)
	}
	return tokens
}

func (c *charCollector) sorted() *charTokenizer {
	found := new(charTokenizer)
	for r := range c.seen {
		found.ids[r] = math.MaxUint32
		if c.seen[r].Load() {
			found.ids[r] = uint32(len(found.runes))
			found.runes = append(found.runes, rune(r))
		}
	}
	return found
}

// newCharTokenizer returns the tokenizer of a vocabulary of characters.
func newCharTokenizer(characters []string) *charTokenizer {
	t := new(charTokenizer)
	for i := range t.ids {
		t.ids[i] = math.MaxUint32
	}
	for token, text := range characters {
		r, _ := utf8.DecodeRuneInString(text)
		t.ids[r] = uint32(token)
		t.runes = append(t.runes, r)
	}
	return t
}

// An idTokenizer has the ids below a number as its tokens. It encodes no text.
type idTokenizer int64

func (idTokenizer) Name() string                                 { return "" }
func (t idTokenizer) Size() int64                                { return int64(t) }
func (idTokenizer) EndOfText() (uint32, bool)                    { return 0, false }
func (idTokenizer) Bytes(uint32) []byte                          { return nil }
func (idTokenizer) Cut([]byte) int                               { return 0 }
func (t idTokenizer) NewEncoder() encoder                        { return t }
func (idTokenizer) Append(tokens []uint32, text []byte) []uint32 { return tokens }
