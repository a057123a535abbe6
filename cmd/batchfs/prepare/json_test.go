package prepare

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// One pass finds what encoding/json finds, and takes nothing that it refuses.
func FuzzTextOf(f *testing.F) {
	for _, line := range []string{
		`{"text": "a"}`, ` { "text" : "a\n\"\\\/\b\f\r\tb" , "n" : -0.5e+10 } `, `{"text": "a", "text": "b"}`, `{"Text": "a"}`, `{"te\u0078t": "a"}`,
		`{"text": {"text": "a"}}`, `{"text": {"text": "a"}, "text": {}}`, `{"text": {}, "text": {"text": "b"}}`, `{"text": {"text": "a"}, "text": null}`,
		`{"text": null}`, `{"text": nul}`, `{"text": "\ud83d\ude80 \ud83d \ude80 \ud83dx \ud83d\u0041 \ud83d\ud83d\ude80 \uFFFD\u00e9"}`, `{"text": "\u00g0"}`, `{"text": "\u+123"}`,
		`{"text": "a" "b": 1}`, `{"text": "a",}`, `{"text": "a"} x`, `{"text": "a"`, `{"text": "a`, `{"text": "a\`, `{"text": "a\u12`, `{"text": "a\x"}`, "{\"text\": \"a\n\"}",
		`{"text": "a", "n": [1, {"text": "b"}, [], {}, "c", true, false, null]}`, `{"text": "a", "n": [1,]}`, `{"text": "a", "n": 01}`, `{"text": "a", "n": 1.}`,
		`{"text": "a", "n": .5}`, `{"text": "a", "n": +1}`, `{"text": "a", "n": 1e}`, `{"text": "a", "n": -}`, `{"text": "a", "n": 0e-0}`, `{"text": "a", "n": tru}`,
		`{}`, `[]`, `"text"`, `null`, ``, `{`, `{"text"`, `{"text":`, `{"text":}`, `{:1}`, `{"": "a"}`, "\ufeff{}", "{\"text\":\v\"a\"}", `{"text": ["a"]}`,
	} {
		for _, path := range []string{"text", "text.text", ""} {
			f.Add([]byte(line), path)
		}
	}
	f.Fuzz(func(t *testing.T, line []byte, dotted string) {
		if !utf8.Valid(line) || bytes.Count(line, []byte("{"))+bytes.Count(line, []byte("[")) > maxDepth {
			return
		}
		path := strings.Split(dotted, ".")
		text, ok := scanText(line, path)
		want, err := decodeText(line, path)
		if ok != (err == nil) || ok && !bytes.Equal(text, want) {
			t.Errorf("%s of %s: %v %q, and encoding/json %q (%v)", dotted, line, ok, text, want, err)
		}
	})
}
