package field

import (
	"encoding/json"
	"strings"
	"testing"
)

// prepare finds the same text in a field as encoding/json, and rejects a line exactly if
// encoding/json does.
func FuzzTextOf(f *testing.F) {
	for _, line := range []string{
		`{"text": "a"}`, ` { "text" : "a\n\"\\\/\b\f\r\tb" , "n" : -0.5e+10 } `, `{"text": "a", "text": "b"}`, `{"Text": "a"}`, `{"te\u0078t": "a"}`,
		`{"text": {"text": "a"}}`, `{"text": {"text": "a"}, "text": {}}`, `{"text": {}, "text": {"text": "b"}}`, `{"text": {"text": "a"}, "text": null}`,
		`{"text": null}`, `{"text": nul}`, `{"text": "\ud83d\ude80 \ud83d \ude80 \ud83dx \ud83d\u0041 \ud83d\ud83d\ude80 \uFFFD\u00e9"}`, `{"text": "\u00g0"}`,
		`{"text": "a" "b": 1}`, `{"text": "a",}`, `{"text": "a"} x`, `{"text": "a"} {}`, `{"text": "a"`, `{"text": "a`, `{"text": "a\u12`, `{"text": "a\x"}`, "{\"text\": \"a\n\"}",
		`{"text": "a", "n": [1, {"text": "b"}, [], {}, "c", true, false, null]}`, `{"text": "a", "n": [1,]}`, `{"text": "a", "n": 01}`,
		`{}`, `[]`, `"text"`, `null`, ``, `{"": "a"}`, "\ufeff{}", `{"text": ["a"]}`, "{\"text\": \"\xffé\xe6\x97b\xed\xa0\x80\", \"\xff\": 1}",
		`{"text": "a", "n": ` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`, `{"text": "a", "n": ` + strings.Repeat("[", 11000) + strings.Repeat("]", 11000) + `}`,
	} {
		for _, path := range []string{"text", "text.text", ""} {
			f.Add([]byte(line), path)
		}
	}
	f.Fuzz(func(t *testing.T, line []byte, dotted string) {
		if strings.ContainsAny(dotted, "*[") {
			t.Skip("leads into a list")
		}
		path := strings.Split(dotted, ".")
		d := NewFinder([]Field{New(dotted, 0)}, false)
		texts, err := d.fieldTexts(line, false)
		var text, want string
		if err == nil {
			text = string(texts[0].Bytes)
		}
		raw, ok := json.RawMessage(line), true
		for _, name := range path {
			var object map[string]json.RawMessage
			ok = ok && json.Unmarshal(raw, &object) == nil && object[name] != nil
			raw = object[name]
		}
		ok = ok && json.Unmarshal(raw, &want) == nil
		if ok != (err == nil) || ok && text != want {
			t.Errorf("%s of %s: %q (%v), and encoding/json %q (%v)", dotted, line, text, err, want, ok)
		}
	})
}

// A line that is a list ends with it.
func TestListLine(t *testing.T) {
	for line, want := range map[string]bool{`["a", "b"] `: true, `["a"] x`: false, `["a"]["b"]`: false, `["a"`: false, `["a",]`: false} {
		texts, _, err := NewFinder([]Field{New("*", 0)}, false).Texts([]byte(line))
		if (err == nil) != want {
			t.Errorf("%s: %q, error %v", line, texts, err)
		}
	}
}
