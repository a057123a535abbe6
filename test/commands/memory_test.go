package commands

import (
	"path/filepath"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// The measurement of memory says in one line why it cannot use a file.
func TestMemoryRejects(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ name, tokens, svg, want string }{
		{"missing", "none.bin", "a.svg", "none.bin: No such file"},
		{"small", e2e.Write(t, filepath.Join(dir, "small.bin"), strings.Repeat("x", 5000)), "a.svg", "64 or more"},
		{"odd", e2e.Write(t, filepath.Join(dir, "odd.bin"), strings.Repeat("x", 5001)), "a.svg", "odd number of bytes"},
		{"picture", "", "none/a.svg", "--svg"},
	} {
		_, stderr, err := e2e.Try(t, e2e.Python, "../examples/memory.py", "--tokens", c.tokens, "--svg", filepath.Join(dir, c.svg))
		if err == nil || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: error %v: %s", c.name, err, stderr)
		}
	}
}
