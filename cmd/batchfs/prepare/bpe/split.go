package bpe

import "unicode/utf8"

// classAt returns the class of the character at i, and its length. It is just small enough to be inlined.
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

// run returns the end of the characters from i on that are of these classes.
func run(text []byte, i int, these class) int {
	for {
		for i < len(text) && text[i] < utf8.RuneSelf && classes[text[i]].in(these) { // most are ASCII
			i++
		}
		if i == len(text) || text[i] < utf8.RuneSelf {
			return i
		}
		c, n := classOfRune(text, i)
		if !c.in(these) {
			return i
		}
		i += n
	}
}

// An expression says how to split text. A piece begins at text[i], and next returns its end. It looks only at what follows,
// and it always moves on.
type expression struct {
	next  func(text []byte, i int) int
	says  []string                                 // in tokenizer.json
	split func(text []byte, i int, ends []int) int // the same for many pieces, and faster, or nil
}

// many puts into ends where the pieces from text[i] on end, and returns how many those are: all of the text, or as many as ends holds.
func (x expression) many(text []byte, i int, ends []int) int {
	if x.split != nil {
		return x.split(text, i, ends)
	}
	n := 0
	for ; n < len(ends) && i < len(text); n++ {
		i = x.next(text, i)
		ends[n] = i
	}
	return n
}

var (
	gpt2 = expression{next: nextGPT2, split: splitGPT2, says: []string{
		`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`,
		`'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s`,
	}}
	// tiktoken's cl100k leaves the white space that ends a text in one piece.
	cl100k = expression{next: func(text []byte, i int) int { return nextWord(text, i, 3, true) }, says: []string{
		`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s`,
	}}
	// Llama 3 has what cl100k was before it was made faster: there, such white space ends a piece at its last newline.
	llama3 = expression{next: func(text []byte, i int) int { return nextWord(text, i, 3, false) }, says: []string{
		`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	}}
	qwen2 = expression{next: func(text []byte, i int) int { return nextWord(text, i, 1, false) }, says: []string{
		`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	}}
	o200k = expression{next: func(text []byte, i int) int { return nextCased(text, i, 3, true) }, says: []string{
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
			`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
			`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	}}
	// Mistral's, since NeMo.
	tekken = expression{next: func(text []byte, i int) int { return nextCased(text, i, 1, false) }, says: []string{
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|` +
			`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|` +
			`\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	}}
)

var expressions = []expression{gpt2, cl100k, llama3, qwen2, o200k, tekken}

// nextGPT2 splits as `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
func nextGPT2(text []byte, i int) int {
	if n := contraction(text, i, false); n > 0 {
		return i + n
	}
	c, n := classAt(text, i)
	from := i
	if text[i] == ' ' && i+1 < len(text) {
		from++
		c, n = classAt(text, from)
	}
	switch {
	case c.in(letters):
		return run(text, from+n, letters)
	case c == number:
		return run(text, from+n, number)
	case c.in(others):
		return run(text, from+n, others)
	}
	end, last, _ := whiteSpace(text, i)
	if end < len(text) && last > i {
		return last
	}
	return end
}

// nextWord splits as `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
// with `\s+$|` before `\s*` if trailing.
func nextWord(text []byte, i, digits int, trailing bool) int {
	if n := contraction(text, i, true); n > 0 {
		return i + n
	}
	c, n := classAt(text, i)
	switch {
	case c.in(letters):
		return run(text, i+n, letters)
	case c == number:
		return numbers(text, i+n, digits-1)
	}
	if c != newline && i+n < len(text) {
		if after, m := classAt(text, i+n); after.in(letters) {
			return run(text, i+n+m, letters)
		}
	}
	if end := symbols(text, i, c, n); end > i {
		return newlines(text, end, '\n')
	}
	return spacePiece(text, i, trailing)
}

// nextCased splits as o200k does: a word ends before a capital that follows a small letter, and if contractions, a word has its own
// with it.
func nextCased(text []byte, i, digits int, contractions bool) int {
	c, n := classAt(text, i)
	if c == number {
		return numbers(text, i+n, digits-1)
	}
	if c != newline {
		if end := casedWord(text, i, c, n); end > i {
			if contractions {
				end += contraction(text, end, true)
			}
			return end
		}
	}
	if end := symbols(text, i, c, n); end > i {
		return newlines(text, end, '/')
	}
	return spacePiece(text, i, false)
}

// casedWord matches `[^\r\n\p{L}\p{N}]?[UPPER]*[LOWER]+|[^\r\n\p{L}\p{N}]?[UPPER]+[LOWER]*`, as an expression does: with the
// character before the word if it can, else without, and the second half only if both fail for the first. It returns i if
// nothing matches.
func casedWord(text []byte, i int, c class, n int) int {
	before := c.in(spaces | others) // the first character can be the one before the word
	if before {
		if end := lowerWord(text, i+n); end > i+n {
			return end
		}
	}
	if end := lowerWord(text, i); end > i { // a mark can be the word's own too
		return end
	}
	// There is no lower letter, so upper ones are all that is left.
	if before {
		if end := run(text, i+n, uppers); end > i+n {
			return end
		}
	}
	return run(text, i, uppers)
}

// lowerWord matches `[UPPER]*[LOWER]+`, or returns i.
func lowerWord(text []byte, i int) int {
	at := run(text, i, uppers)
	if end := run(text, at, lowers); end > at {
		return end
	}
	for at > i { // [UPPER]* leaves its last character that is both to [LOWER]+
		last, n := utf8.DecodeLastRune(text[:at])
		if classes[last].in(lowers) {
			break
		}
		at -= n
	}
	return at
}

// contraction returns the length of `'s|'t|'re|'ve|'m|'ll|'d` at i, or 0. Without regard to case, ſ is an s.
func contraction(text []byte, i int, anyCase bool) int {
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

// numbers returns the end of `\p{N}{0,most}`.
func numbers(text []byte, i, most int) int {
	for ; i < len(text) && most > 0; most-- {
		c, n := classAt(text, i)
		if c != number {
			break
		}
		i += n
	}
	return i
}

// symbols matches ` ?[^\s\p{L}\p{N}]+`, whose first character is of class c and n bytes, or returns i.
func symbols(text []byte, i int, c class, n int) int {
	if c.in(others) {
		return run(text, i+n, others)
	}
	if text[i] == ' ' && i+1 < len(text) {
		if end := run(text, i+1, others); end > i+1 {
			return end
		}
	}
	return i
}

// newlines returns the end of a run of \r, \n and one more character.
func newlines(text []byte, i int, more byte) int {
	for i < len(text) && (text[i] == '\r' || text[i] == '\n' || text[i] == more) {
		i++
	}
	return i
}

// whiteSpace returns the end of `\s+`, where its last character begins, and the end of the last newline in it, or 0.
func whiteSpace(text []byte, i int) (end, last, line int) {
	for i < len(text) {
		c, n := classAt(text, i)
		if !c.in(spaces) {
			break
		}
		last = i
		if i += n; c == newline {
			line = i
		}
	}
	return i, last, line
}

// spacePiece matches `\s*[\r\n]+|\s+(?!\S)|\s+`, with `\s+$|` before it if trailing: white space up to its last newline, or all but
// the last character, which belongs to what follows.
func spacePiece(text []byte, i int, trailing bool) int {
	switch end, last, line := whiteSpace(text, i); {
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
