package input

import (
	"io"
	"os"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// Wherever JSON lines are divided, each line is in exactly one part, and whole.
func TestLinesAreDividedAtEveryBorder(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.jsonl": "one\n\nthree\r\n\n\n" + strings.Repeat("x", 40) + "\n1\nlast", "b.jsonl": "\n", "c.jsonl": "no newline"})
	for _, path := range []string{"a.jsonl", "b.jsonl", "c.jsonl"} {
		info, err := os.Stat(path)
		testfiles.NoError(t, err)
		whole, err := os.ReadFile(path)
		testfiles.NoError(t, err)
		read := func(begin, end int64) string {
			in := &File{Path: path, Format: JSONL, Info: info, Part: &Part{Begin: begin, End: end, Bytes: end - begin}}
			counted := 0
			s, err := in.Open(0, func(n int) { counted += n })
			testfiles.NoError(t, err)
			defer s.Close()
			text, err := io.ReadAll(s)
			testfiles.NoError(t, err)
			if text := string(text); !strings.HasSuffix("\n"+text, "\n") && !strings.HasSuffix(string(whole), text) {
				t.Errorf("%s from %d to %d ends within a line: %q", path, begin, end, text)
			}
			return string(text)
		}
		for first := range info.Size() + 1 {
			for second := first; second <= info.Size(); second++ {
				if got := read(0, first) + read(first, second) + read(second, info.Size()); got != string(whole) {
					t.Errorf("%s is divided at %d and %d: %q, want %q", path, first, second, got, whole)
				}
			}
		}
	}
}
