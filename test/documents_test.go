package test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// Batches of rows that are made of documents, and what says where documents end, are those of a reference that shares no code with the
// program: of random settings, files, indexes and arrays beside the tokens.
func TestDocumentsAgreeWithReference(t *testing.T) {
	long(t)
	for seed := range 3 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			dir := t.TempDir()
			run(t, python, "clients/documents.py", "--make", dir, fmt.Sprint(seed))
			m := mount(t, "-c", filepath.Join(dir, "config.toml"))
			if out := run(t, python, "clients/documents.py", "--check", dir, m.dir); !strings.HasPrefix(out, "compared ") {
				t.Error(out)
			}
		})
	}
}
