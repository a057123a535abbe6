package bpe

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/internal/testwait"
)

var createdTokenizers = map[string]*Tokenizer{}

// cachedTokenizer creates each tokenizer only once, because that is slow.
func cachedTokenizer(t testing.TB, name string) *Tokenizer {
	t.Helper()
	if createdTokenizers[name] == nil {
		tokenizer, err := Named(name)
		testfiles.NoError(t, err)
		createdTokenizers[name] = tokenizer
	}
	return createdTokenizers[name]
}

func decode(t *Tokenizer, tokens []uint32) []byte {
	var text []byte
	for _, token := range tokens {
		text = append(text, t.Bytes(token)...)
	}
	return text
}

// Unlike the comparisons with tiktoken in test/soak, this test needs no Python.
func TestGolden(t *testing.T) {
	const text = "Hello, world! it'll don'T\r\n\n  CamelCase 12345 naïve 中文 👍🏽 <|endoftext|> \n "
	for name, want := range map[string][]uint32{
		"gpt2":   {15496, 11, 995, 0, 340, 1183, 836, 6, 51, 201, 628, 220, 43281, 20448, 17031, 2231, 41492, 220, 40792, 23877, 229, 50169, 235, 8582, 237, 121, 1279, 91, 437, 1659, 5239, 91, 29, 220, 198, 220},
		"cl100k": {9906, 11, 1917, 0, 433, 3358, 1541, 17773, 81923, 220, 69254, 4301, 220, 4513, 1774, 95980, 588, 73958, 17161, 62904, 235, 9468, 237, 121, 83739, 8862, 728, 428, 91, 29, 720, 220},
		"o200k":  {13225, 11, 2375, 0, 74060, 1700, 51532, 46865, 220, 112127, 6187, 220, 7633, 2548, 153475, 737, 83711, 160433, 52622, 121, 464, 91, 419, 1440, 919, 91, 29, 793, 220},
	} {
		if got := cachedTokenizer(t, name).NewEncoder(NewCache()).Append(nil, []byte(text)); !slices.Equal(got, want) {
			t.Errorf("%s: %d", name, got)
		}
	}
}

// The vocabularies are exactly the published ones.
func TestNamed(t *testing.T) {
	for name, want := range map[string]struct {
		size int64
		end  uint32
		hash string // expected_hash in tiktoken_ext/openai_public.py
	}{
		"gpt2":   {50257, 50256, "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"},
		"cl100k": {100277, 100257, "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"},
		"o200k":  {200019, 199999, "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"},
	} {
		tokenizer := cachedTokenizer(t, name)
		if end, ok := tokenizer.EndOfText(); tokenizer.Name() != name || tokenizer.Size() != want.size || !ok || end != want.end {
			t.Errorf("%s: %q, size %d, end %d %v", name, tokenizer.Name(), tokenizer.Size(), end, ok)
		}
		if got := tokenizer.Bytes(uint32(want.size)); got != nil {
			t.Errorf("%s: token %d is %q, want none", name, want.size, got)
		}
		hash := sha256.New() // hash of the vocabulary in tiktoken's format
		var w merger
		for token, text := range tokenizer.tokens { // no token may need wholePieces
			if _, special := tokenizer.special[text]; text == "" || special {
				continue
			}
			fmt.Fprintf(hash, "%s %d\n", base64.StdEncoding.EncodeToString([]byte(text)), token)
			if got := w.append(nil, tokenizer, []byte(text)); !slices.Equal(got, []uint32{uint32(token)}) {
				t.Errorf("%s: %q merges to %d, want %d", name, text, got, token)
			}
		}
		if hash := fmt.Sprintf("%x", hash.Sum(nil)); hash != want.hash {
			t.Errorf("%s: SHA-256 %s, want %s", name, hash, want.hash)
		}
	}
	if _, err := Named("gpt5"); err == nil || !strings.Contains(err.Error(), "gpt5") || !strings.Contains(err.Error(), "o200k") {
		t.Errorf("gpt5: %v", err)
	}
}

// encodeByDefinition repeatedly merges the pair that comes first in the list of merges.
func encodeByDefinition(t *Tokenizer, piece []byte) []uint32 {
	if token, ok := t.wholePieces[string(piece)]; ok {
		return []uint32{token}
	}
	var tokens []uint32
	for _, b := range piece {
		tokens = append(tokens, t.byteTokens[b])
	}
	for {
		at, first := 0, noMerge
		for i := range len(tokens) - 1 {
			if merge := t.merges.find(tokens[i], tokens[i+1]); merge < first {
				at, first = i, merge
			}
		}
		if first == noMerge {
			return tokens
		}
		tokens = slices.Replace(tokens, at, at+2, uint32(first))
	}
}

// Both implementations give pieces of any length the tokens of the definition.
func TestMerge(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	tokenizer := cachedTokenizer(t, "o200k")
	for range 2000 {
		piece := make([]byte, 1+random.IntN(200))
		letters := "abcdefghijklmnopqrstuvwxyz    \n\n--=="[random.IntN(20):][:1+random.IntN(16)]
		for i := range piece {
			piece[i] = letters[random.IntN(len(letters))]
		}
		want := encodeByDefinition(tokenizer, piece)
		var w merger
		if got := w.append(nil, tokenizer, piece); !slices.Equal(got, want) {
			t.Fatalf("%q: %d, want %d", piece, got, want)
		}
		if _, whole := tokenizer.wholePieces[string(piece)]; !whole {
			if got := appendLong(nil, tokenizer, piece); !slices.Equal(got, want) {
				t.Fatalf("%q: from the queue %d, want %d", piece, got, want)
			}
		}
	}
}

// Encoders that share a cache give texts the tokens that each would alone, even when they add the
// same pieces at the same time, and when a table is full and then replaced.
func TestSharedCache(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	tokenizer, cache := cachedTokenizer(t, "cl100k"), NewCache()
	for set := range cache.table.Load().sets[:1<<setBits/2] {
		cache.table.Load().sets[set][0].keyHigh, cache.table.Load().sets[set][1].keyHigh = incomplete, incomplete
	}
	cache.table.Load().refused.Store(maxRefused - 500)
	var text []byte
	for range 20_000 {
		text = fmt.Appendf(text, " %x%s", random.IntN(1<<random.IntN(30)), strings.Repeat("-", random.IntN(30)))
	}
	want := tokenizer.NewEncoder(NewCache()).Append(nil, text)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 3 {
				if !slices.Equal(tokenizer.NewEncoder(cache).Append(nil, text), want) {
					t.Error("tokens differ")
				}
			}
		})
	}
	testwait.End(t, "the goroutines", group.Wait)
	if cache.table.Load().refused.Load() >= maxRefused-500 {
		t.Error("the full table was not replaced")
	}
}

// pieceEnds finds the same pieces as next, wherever words, contractions and other characters lie
// within 64 bytes.
func TestSplit(t *testing.T) {
	fillClasses()
	random := rand.New(rand.NewPCG(1, 2))
	parts := []string{"a", "word", "Longest", "7", "2026", " ", " ", "  ", "\n", "\t", "\r\n", "\v", "!", "->", "'", "'s", "'ll", "'S", "\x00", "\x7f", "\x1c", "é", "\u3000", "\xff",
		strings.Repeat(" ", 61), strings.Repeat("=", 70), strings.Repeat("x", 130)}
	for range 20_000 {
		var text []byte
		few := parts[random.IntN(len(parts)):]
		for range random.IntN(100) {
			text = append(text, few[random.IntN(len(few))]...)
		}
		ends := make([]int, 1+random.IntN(40))
		for i := 0; i < len(text); {
			n := gpt2.pieceEnds(text, i, ends, nil)
			for _, end := range ends[:n] {
				if want := gpt2.next(text, i); end != want {
					t.Fatalf("%q: the piece at %d ends at %d, want %d", text, i, end, want)
				}
				i = end
			}
			if n < len(ends) && i < len(text) {
				t.Fatalf("%q: no piece at %d", text, i)
			}
		}
	}
}

// splitPieces returns the ends of pieces, found at most n at a time.
func splitPieces(e expression, text []byte, n int) (ends []int) {
	var found [maxFinders]span
	for i := 0; i < len(text); i = ends[len(ends)-1] {
		some := make([]int, n)
		ends = append(ends, some[:e.pieceEnds(text, i, some, &found)]...)
	}
	return ends
}

// The comparisons with tokenizers in test/soak cover much more.
func TestExpressions(t *testing.T) {
	fillClasses()
	for _, test := range []struct {
		name   string
		e      expression
		text   string
		pieces []string
	}{
		// Unlike GPT-4's expression, nanochat's has numbers of at most two digits, and splits white
		// space at the end of a text after its last newline.
		{"nanochat", nanochat, "I'LL 12345 ab12 \r\n  c!\n\n ... \n \n  ",
			[]string{"I", "'LL", " ", "12", "34", "5", " ab", "12", " \r\n", " ", " c", "!\n\n", " ...", " \n \n", "  "}},
		{"qwen35", qwen35, "e\u0301t \u0301a 12 '\u0301", []string{"e\u0301t", " \u0301a", " ", "1", "2", " '", "\u0301"}},
		{"starCoder", starCoder, "it's  12 x", []string{"it", "'s", "  ", "1", "2", " x"}},
		{"deepSeekV2", deepSeekV2, "naïve Ünï  12!  中文 “a\n م م  ", []string{"na", "ï", "ve", " Ü", "n", "ï", "  ", "1", "2", "!", "  ", "中文", " ", "“", "a", "\n", " م م", "  "}},
		{"deepSeekV3", deepSeekV3, "#a1 1234  中ア・イ \x00\x01\x01b \u200d !\n\n", []string{"#a", "1", " ", "123", "4", "  ", "中ア", "・", "イ", " ", "\x00\x01", "\x01b", " ", "\u200d", " !\n\n"}},
	} {
		var pieces []string
		i := 0
		for _, end := range splitPieces(test.e, []byte(test.text), 3) {
			pieces, i = append(pieces, test.text[i:end]), end
		}
		if !slices.Equal(pieces, test.pieces) {
			t.Errorf("%s: pieces %q, want %q", test.name, pieces, test.pieces)
		}
	}
}

// The tokens of any bytes decode to these bytes, and each piece has the tokens of the definition.
func FuzzEncode(f *testing.F) {
	for _, text := range []string{"", "a\xff\xfe b", "don't I'LL 'ſ", " \n \r\n  x", "HTTPServer'S e\u0301\u0301A", "1234٣Ⅷ //\n/", "\u3000\u00a0\u0085 ",
		"<|endoftext|>", "👨‍👩‍👧 中文ไทย", strings.Repeat(" \n", 200), "\xf0\x9f", "ǅǅaʰA",
		"It's 'south of 1984's\n\n  Eton,\tisn't it?  We'll  see ''s ... and\r\n", strings.Repeat("1", 63) + " x'" + strings.Repeat("-", 63) + "é" + strings.Repeat("0123456789abcdef", 9)} {
		f.Add([]byte(text))
	}
	var encoders []*Encoder
	for _, name := range []string{"gpt2", "cl100k", "o200k"} {
		encoders = append(encoders, cachedTokenizer(f, name).NewEncoder(NewCache()))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		text = text[:min(len(text), 1000)] // encodeByDefinition is slow
		for _, encoder := range encoders {
			tokenizer, name := encoder.tokenizer, encoder.tokenizer.name
			var want []uint32
			i := 0
			for _, end := range splitPieces(tokenizer.expression, text, 1) {
				want = append(want, encodeByDefinition(tokenizer, text[i:end])...)
				i = end
			}
			for range 2 { // the second time, most pieces are cached
				if got := encoder.Append(nil, text); !slices.Equal(got, want) {
					t.Fatalf("%s: %q: %d, want %d", name, text, got, want)
				}
			}
			if got := decode(tokenizer, want); !bytes.Equal(got, text) {
				t.Fatalf("%s: %q: decoded %q", name, text, got)
			}
		}
		for _, e := range expressions {
			ends := splitPieces(e, text, 1)
			if !slices.IsSorted(ends) || len(slices.Compact(ends)) != len(ends) || !slices.Equal(splitPieces(e, text, 100), ends) {
				t.Fatalf("%q: %q: pieces end at %d", e.patterns[0], text, ends)
			}
		}
	})
}
