package terminal

import (
	"bytes"
	"testing"
)

func TestProgressIsNotShownElsewhere(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out, "working", 100, Bytes)
	p.Add(30)
	p.Set(60, 200)
	p.Finish()
	if out.Len() > 0 || Is(&out) {
		t.Errorf("%q, terminal %v", out.String(), Is(&out))
	}
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"a\tb\né":              "a\tb\né",
		"\x1b[2Jx\r\x00\u0085": `\x1b[2Jx\r\x00\u0085`,
		"a\xff\xe9\ufffd":      `a\xff\xe9` + "\ufffd",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}
