// Package jsonbytes writes text as JSON even if it is not valid UTF-8.
package jsonbytes

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// A String is a text that is not necessarily valid UTF-8, such as the path of a file. In JSON, each
// invalid byte XX becomes \udcXX, as in Python's surrogateescape, so Python recovers the bytes with
// json and os.fsencode.
type String string

func (s String) MarshalJSON() ([]byte, error) { return Quote(string(s)), nil }

// Quote returns text as a JSON string.
func Quote(text string) []byte {
	b := []byte{'"'}
	for len(text) > 0 {
		n := 0 // bytes of valid UTF-8 at the beginning
		for n < len(text) {
			r, size := utf8.DecodeRuneInString(text[n:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			n += size
		}
		part, err := json.Marshal(text[:n])
		if err != nil {
			panic(err) // strings never fail
		}
		b = append(b, part[1:len(part)-1]...)
		if text = text[n:]; len(text) > 0 {
			b = fmt.Appendf(b, `\udc%02x`, text[0])
			text = text[1:]
		}
	}
	return append(b, '"')
}
