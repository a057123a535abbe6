package bpe

import (
	"bytes"
	"math"
	"slices"
	"unicode"
	"unicode/utf8"
)

// A span is a part of a text.
type span struct{ start, end int }

// A finder returns the first match of an expression in text[i:], or an empty span at its end.
type finder func(text []byte, i int) span

// runs finds up to most characters of a set in a row, and white space before them if afterSpace is
// true: `\s?[SET]{1,MOST}`.
func runs(set func(r rune) bool, most int, afterSpace bool) finder {
	return func(text []byte, i int) span {
		start := bytes.IndexFunc(text[i:], set)
		if start < 0 {
			return span{len(text), len(text)}
		}
		start += i
		end := start
		for range most {
			r, n := utf8.DecodeRune(text[end:])
			if !set(r) {
				break
			}
			end += n
		}
		if r, n := utf8.DecodeLastRune(text[i:start]); afterSpace && isSpace(r) {
			start -= n
		}
		return span{start, end}
	}
}

func isNumber(r rune) bool { return classes[r] == number }

// isDigit reports whether Digits isolates a character. Unlike expressions, it knows Unicode 17.
func isDigit(r rune) bool {
	return isNumber(r) || 0x11de0 <= r && r <= 0x11de9 || 0x16ff4 <= r && r <= 0x16ff6
}

func isNewline(r rune) bool { return classes[r] == newline }
func isSpace(r rune) bool   { return classes[r].isAnyOf(spaces) }

// characters returns the set that the expression [ranges] matches. The ranges are in order.
func characters(ranges string) func(r rune) bool {
	var bounds []rune // the first character of each range, and the one after its last
	for all := []rune(ranges); len(all) > 0; {
		n := 1
		if len(all) > 1 && all[1] == '-' {
			n = 3
		}
		bounds = append(bounds, all[0], all[n-1]+1)
		all = all[n:]
	}
	return func(r rune) bool {
		i, _ := slices.BinarySearch(bounds, r+1)
		return i%2 == 1
	}
}

// deepSeekLetters has the letters of scripts with upper and lower case.
const deepSeekLetters = "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ" +
	"ὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿ" +
	"ⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"

var (
	// deepSeekV2 has three sets that overlap, so it splits "naïve" into "na", "ï" and "ve".
	deepSeekV2 = expression{
		finders: []finder{
			runs(isNewline, 1, false),
			runs(characters(deepSeekLetters), math.MaxInt, true),
			runs(characters("!-/:-~‘-‟\u3000-。！-／：-～"), math.MaxInt, true),
			func(text []byte, i int) span {
				return span{i + len(bytes.TrimRightFunc(text[i:], isSpace)), len(text)}
			},
			runs(characters("ࠀ-龥가-\ud7ff"), math.MaxInt, false),
			runs(isDigit, 1, false),
		},
		next: func(text []byte, i int) int { return len(text) },
		patterns: []string{"[\r\n]" + then + `\s?[` + deepSeekLetters + "]+" + then + "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+" + then +
			`\s+$` + then + "[一-龥ࠀ-一가-\ud7ff]+" + then + `\p{N}`},
		joinsWords: true,
	}
	deepSeekV3 = expression{
		finders: []finder{runs(isNumber, 3, false), runs(characters("\u3040-ヿ一-龥"), math.MaxInt, false)},
		next:    nextDeepSeekV3,
		patterns: []string{`\p{N}{1,3}` + then + "[一-龥\u3040-ゟ゠-ヿ]+" + then +
			"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"},
	}
)

// nextDeepSeekV3 implements the last expression of DeepSeek V3:
//
//	[!-/:-@[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|
//	\s*[\r\n]+|\s+(?!\S)|\s+
//
// Characters that it does not match, such as control characters, form pieces of their own.
func nextDeepSeekV3(text []byte, i int) int {
	const words = letters | mark
	c, n := classAt(text, i)
	if c.isAnyOf(words) {
		return skip(text, i+n, words)
	}
	if '!' <= text[i] && text[i] <= '~' {
		end := i + 1
		for end < len(text) && 'a' <= text[end]|0x20 && text[end]|0x20 <= 'z' {
			end++
		}
		if end > i+1 {
			return end
		}
	}
	start := i
	if text[i] == ' ' {
		start++
	}
	if end := skipSymbols(text, start); end > start {
		return skipNewlines(text, end, '\n')
	}
	if end := skip(text, i+n, words); end > i+n && c != newline {
		return end
	}
	if c.isAnyOf(spaces) {
		return spacePieceEnd(text, i, false)
	}
	for i += n; i < len(text); i += n {
		c, n = classAt(text, i)
		if c.isAnyOf(spaces|words) || skipSymbols(text, i) > i || skip(text, i+n, words) > i+n {
			break
		}
	}
	return i
}

// skipSymbols returns the end of the run of `[\p{P}\p{S}]` at i.
func skipSymbols(text []byte, i int) int {
	for i < len(text) {
		r, n := utf8.DecodeRune(text[i:])
		if classes[r] != other || !unicode.IsPunct(r) && !unicode.IsSymbol(r) && !symbolsSinceUnicode15(r) {
			break
		}
		i += n
	}
	return i
}

// symbolsSinceUnicode15 has the characters of \p{P} and \p{S} that tiktoken and tokenizers know but
// package unicode does not.
var symbolsSinceUnicode15 = characters("\u1b4e-\u1b4f\u1b7f\u2427-\u2429\u2ffc-\u2fff\u31e4-\u31e5\u31ef\U00010d6e" +
	"\U00010d8e-\U00010d8f\U000113d4-\U000113d5\U000113d7-\U000113d8\U00011be1" +
	"\U00016d6d-\U00016d6f\U0001cc00-\U0001ccef\U0001cd00-\U0001ceb3\U0001e5ff" +
	"\U0001f8b2-\U0001f8bb\U0001f8c0-\U0001f8c1\U0001fa89\U0001fa8f\U0001fabe\U0001fac6\U0001fadc" +
	"\U0001fadf\U0001fae9\U0001fbcb-\U0001fbef")
