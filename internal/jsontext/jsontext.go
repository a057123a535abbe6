// Package jsontext writes as JSON what need not be UTF-8.
package jsontext

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// A String is a text that may hold the path of a file. As JSON it has \udcXX for each byte XX that is not UTF-8, as Python's
// surrogateescape does: os.fsencode of what Python's json reads is the path.
type String string

func (t String) MarshalJSON() ([]byte, error) { return Quote(string(t)), nil }

// Quote returns text as a JSON string.
func Quote(text string) []byte {
	b := []byte{'"'}
	for len(text) > 0 {
		n := 0 // bytes of UTF-8 at the beginning
		for n < len(text) {
			r, size := utf8.DecodeRuneInString(text[n:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			n += size
		}
		part, err := json.Marshal(text[:n])
		if err != nil {
			panic(err) // not of a string
		}
		b = append(b, part[1:len(part)-1]...)
		if text = text[n:]; len(text) > 0 {
			b = fmt.Appendf(b, `\udc%02x`, text[0])
			text = text[1:]
		}
	}
	return append(b, '"')
}
