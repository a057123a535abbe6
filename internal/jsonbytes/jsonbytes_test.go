package jsonbytes

import "testing"

// Python's json and os.fsencode can read back the bytes of any path.
func TestQuote(t *testing.T) {
	const path, want = "b\xff\xc3\u00e9\x1b<\".bin", `"b\udcff\udcc3` + "\u00e9" + `\u001b\u003c\".bin"`
	if got := string(Quote(path)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
