package bpe

import "unicode/utf8"

// classAt returns the class and length of the character at i. It is just small enough to be
// inlined.
func classAt(text []byte, i int) (c class, n int) {
	if c, n = classes[text[i]], 1; text[i] >= utf8.RuneSelf {
		c, n = classOfRune(text, i)
	}
	return
}

func classOfRune(text []byte, i int) (class, int) {
	r, n := utf8.DecodeRune(text[i:])
	return classes[r], n
}

// skip returns the end of the run of characters of these classes at i.
func skip(text []byte, i int, these class) int {
	for {
		for i < len(text) && text[i] < utf8.RuneSelf && classes[text[i]].isAnyOf(these) {
			i++
		}
		if i == len(text) || text[i] < utf8.RuneSelf {
			return i
		}
		c, n := classOfRune(text, i)
		if !c.isAnyOf(these) {
			return i
		}
		i += n
	}
}

// An expression splits text into pieces. It first splits off what each of the finders finds in the
// pieces left by those before it. Then next returns the end of the piece at text[i]. It always
// advances, and does not look at what precedes i.
type expression struct {
	finders []finder // at most maxFinders
	next    func(text []byte, i int) int
	// patterns are regular expressions in tokenizer.json that split the same way. Expressions that
	// are applied one after another are joined by then.
	patterns []string
	fastEnds func(text []byte, i int, ends []int) int // faster pieceEnds, or nil
	// joinsWords is true if a piece may have a space between two letters that are not ASCII.
	joinsWords bool
}

const (
	maxFinders = 6
	then       = "\x00"
)

// pieceEnds fills ends with the ends of the first pieces of text[i:], and returns their number.
// found has what each finder found last; the first call for a text gets zeros.
func (e *expression) pieceEnds(text []byte, i int, ends []int, found *[maxFinders]span) int {
	if e.fastEnds != nil {
		return e.fastEnds(text, i, ends)
	}
	if e.finders != nil {
		return e.sequenceEnds(text, i, ends, found)
	}
	n := 0
	for ; n < len(ends) && i < len(text); n++ {
		i = e.next(text, i)
		ends[n] = i
	}
	return n
}

func (e *expression) sequenceEnds(text []byte, i int, ends []int, found *[maxFinders]span) int {
	n := 0
	for ; n < len(ends) && i < len(text); n++ {
		whole := text
		for j, find := range e.finders {
			if found[j].end <= i {
				found[j] = find(whole, i)
			}
			if whole = whole[:found[j].end]; i < found[j].start {
				whole = whole[:found[j].start]
			}
		}
		i = e.next(whole, i)
		ends[n] = i
	}
	return n
}

var (
	gpt2 = expression{next: nextGPT2, fastEnds: splitGPT2, patterns: []string{
		`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`,
		`'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s`,
	}}
	// In tiktoken's cl100k, white space at the end of a text is one piece.
	cl100k = expression{next: func(text []byte, i int) int { return nextCL100K(text, i, 3, letters, true) }, patterns: []string{
		`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s`,
		`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s`,
	}}
	// Llama 3 uses an older cl100k, which splits such white space after its last newline.
	llama3 = expression{next: func(text []byte, i int) int { return nextCL100K(text, i, 3, letters, false) }, patterns: []string{
		`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	}}
	nanochat = expression{next: func(text []byte, i int) int { return nextCL100K(text, i, 2, letters, false) }, patterns: []string{
		`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`,
	}}
	qwen2 = expression{next: func(text []byte, i int) int { return nextCL100K(text, i, 1, letters, false) }, patterns: []string{
		`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	}}
	// qwen35 has marks in words.
	qwen35 = expression{next: func(text []byte, i int) int { return nextCL100K(text, i, 1, letters|mark, false) }, patterns: []string{
		`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	}}
	o200k = expression{next: func(text []byte, i int) int { return nextO200K(text, i, 3, true) }, patterns: []string{
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
			`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
			`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	}}
	// tekken is the expression of Mistral's tokenizers since NeMo.
	tekken = expression{next: func(text []byte, i int) int { return nextO200K(text, i, 1, false) }, patterns: []string{
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|` +
			`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|` +
			`\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	}}
	bloom     = expression{next: nextBLOOM, patterns: []string{` ?[^(\s|[.,!?…。，、।۔،])]+`}}
	starCoder = expression{finders: []finder{runs(isDigit, 1, false)}, next: nextGPT2, patterns: []string{`\p{N}` + then + gpt2.patterns[0]}}
)

var expressions = []expression{
	gpt2, cl100k, llama3, nanochat, qwen2, qwen35, o200k, tekken, starCoder, bloom, deepSeekV2, deepSeekV3,
}

// nextGPT2 implements `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
func nextGPT2(text []byte, i int) int {
	if n := contractionLen(text, i, false); n > 0 {
		return i + n
	}
	c, n := classAt(text, i)
	from := i
	if text[i] == ' ' && i+1 < len(text) {
		from++
		c, n = classAt(text, from)
	}
	switch {
	case c.isAnyOf(letters):
		return skip(text, from+n, letters)
	case c == number:
		return skip(text, from+n, number)
	case c.isAnyOf(others):
		return skip(text, from+n, others)
	}
	end, last, _ := matchSpaces(text, i)
	if end < len(text) && last > i {
		return last
	}
	return end
}

// nextBLOOM implements ` ?[^(\s|[.,!?…。，、।۔،])]+`. Text between matches is a piece.
func nextBLOOM(text []byte, i int) int {
	if end := matchBLOOM(text, i); end > i {
		return end
	}
	for {
		_, n := utf8.DecodeRune(text[i:])
		if i += n; i == len(text) || matchBLOOM(text, i) > i {
			return i
		}
	}
}

// matchBLOOM returns the end of the match of ` ?[^(\s|[.,!?…。，、।۔،])]+` at i, or i.
func matchBLOOM(text []byte, i int) int {
	start := i
	if text[i] == ' ' {
		start++
	}
	end := start
	for end < len(text) {
		r, n := utf8.DecodeRune(text[end:])
		if isSpace(r) || isOutsideBLOOM(r) {
			break
		}
		end += n
	}
	if end == start {
		return i
	}
	return end
}

func isOutsideBLOOM(r rune) bool {
	switch r {
	case '(', ')', '|', '.', ',', '!', '?', '…', '。', '，', '、', '।', '۔', '،':
		return true
	}
	return false
}

// nextCL100K implements the following expression, with `\s+$|` before `\s*` if trailing is true:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?WORDS+|\p{N}{1,DIGITS}| ?[^\s\p{N}WORDS]+[\r\n]*|
//	\s*[\r\n]+|\s+(?!\S)|\s+
func nextCL100K(text []byte, i, digits int, words class, trailing bool) int {
	if n := contractionLen(text, i, true); n > 0 {
		return i + n
	}
	c, n := classAt(text, i)
	switch {
	case c.isAnyOf(words):
		return skip(text, i+n, words)
	case c == number:
		return matchNumbers(text, i+n, digits-1)
	}
	if c != newline && i+n < len(text) {
		if after, m := classAt(text, i+n); after.isAnyOf(words) {
			return skip(text, i+n+m, words)
		}
	}
	if end := matchSymbols(text, i, c, n, others&^words); end > i {
		return skipNewlines(text, end, '\n')
	}
	return spacePieceEnd(text, i, trailing)
}

// nextO200K implements the expression of o200k, in which a word ends before a capital letter that
// follows a small one. If contractions is true, a word includes the contraction after it.
func nextO200K(text []byte, i, digits int, contractions bool) int {
	c, n := classAt(text, i)
	if c == number {
		return matchNumbers(text, i+n, digits-1)
	}
	if c != newline {
		if end := matchCasedWord(text, i, c, n); end > i {
			if contractions {
				end += contractionLen(text, end, true)
			}
			return end
		}
	}
	if end := matchSymbols(text, i, c, n, others); end > i {
		return skipNewlines(text, end, '/')
	}
	return spacePieceEnd(text, i, false)
}

// matchCasedWord matches `[^\r\n\p{L}\p{N}]?[UPPER]*[LOWER]+|[^\r\n\p{L}\p{N}]?[UPPER]+[LOWER]*`,
// or returns i. Like a regular expression, it includes the character before the word if it can, and
// tries the second alternative only if the first does not match.
func matchCasedWord(text []byte, i int, c class, n int) int {
	before := c.isAnyOf(spaces | others) // the first character may precede the word
	if before {
		if end := matchLowerWord(text, i+n); end > i+n {
			return end
		}
	}
	if end := matchLowerWord(text, i); end > i { // a mark at the beginning is part of the word
		return end
	}
	// There is no [LOWER], so only [UPPER]+ can match.
	if before {
		if end := skip(text, i+n, uppers); end > i+n {
			return end
		}
	}
	return skip(text, i, uppers)
}

// matchLowerWord returns the end of the match of `[UPPER]*[LOWER]+` at i, or i if there is none.
func matchLowerWord(text []byte, i int) int {
	start := skip(text, i, uppers)
	if end := skip(text, start, lowers); end > start {
		return end
	}
	// Backtrack to the last character that both [UPPER] and [LOWER] match.
	for start > i {
		last, n := utf8.DecodeLastRune(text[:start])
		if classes[last].isAnyOf(lowers) {
			break
		}
		start -= n
	}
	return start
}

// contractionLen returns the length of a match of `'s|'t|'re|'ve|'m|'ll|'d` at i, or 0. If anyCase
// is true, case is ignored, and ſ counts as an s.
func contractionLen(text []byte, i int, anyCase bool) int {
	if i+1 >= len(text) || text[i] != '\'' {
		return 0
	}
	var b [2]byte
	copy(b[:], text[i+1:])
	if anyCase {
		if string(b[:]) == "ſ" {
			return 3
		}
		for j := range b {
			if 'A' <= b[j] && b[j] <= 'Z' {
				b[j] += 'a' - 'A'
			}
		}
	}
	switch b[0] {
	case 's', 't', 'm', 'd':
		return 2
	}
	switch string(b[:]) {
	case "re", "ve", "ll":
		return 3
	}
	return 0
}

// matchNumbers returns the end of a match of `\p{N}{0,most}`.
func matchNumbers(text []byte, i, most int) int {
	for ; i < len(text) && most > 0; most-- {
		c, n := classAt(text, i)
		if c != number {
			break
		}
		i += n
	}
	return i
}

// matchSymbols matches ` ?[symbols]+`, or returns i. c and n are the class and length of the first
// character.
func matchSymbols(text []byte, i int, c class, n int, symbols class) int {
	if c.isAnyOf(symbols) {
		return skip(text, i+n, symbols)
	}
	if text[i] == ' ' && i+1 < len(text) {
		if end := skip(text, i+1, symbols); end > i+1 {
			return end
		}
	}
	return i
}

// skipNewlines returns the end of the run of \r, \n and the byte more that begins at i.
func skipNewlines(text []byte, i int, more byte) int {
	for i < len(text) && (text[i] == '\r' || text[i] == '\n' || text[i] == more) {
		i++
	}
	return i
}

// matchSpaces matches `\s+`. It returns the end of the match, the beginning of its last character,
// and the end of its last newline, or 0 if there is none.
func matchSpaces(text []byte, i int) (end, last, line int) {
	for i < len(text) {
		c, n := classAt(text, i)
		if !c.isAnyOf(spaces) {
			break
		}
		last = i
		if i += n; c == newline {
			line = i
		}
	}
	return i, last, line
}

// spacePieceEnd matches `\s*[\r\n]+|\s+(?!\S)|\s+`, preceded by `\s+$|` if trailing is true: white
// space up to its last newline, or all but its last character, which belongs to what follows.
func spacePieceEnd(text []byte, i int, trailing bool) int {
	switch end, last, line := matchSpaces(text, i); {
	case trailing && end == len(text):
		return end
	case line > 0:
		return line
	case end < len(text) && last > i:
		return last
	default:
		return end
	}
}
