package soak

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// From files that pyarrow, pandas, polars, duckdb and datasets write, prepare makes the tokens of
// what these libraries read from them, or refuses them with a remedy. Outside a soak, these are a
// tenth of about 200 files.
func TestFilesOfLibraries(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	python, stderr, err := e2e.TryJob(t, "../.ci/files")
	if err != nil {
		e2e.SkipOrFail(t, ".ci/files: %v: %s", err, stderr)
	}
	dir := t.TempDir()
	e2e.RunJob(t, strings.TrimSpace(python), "-W", "ignore", "clients/files.py", dir, fmt.Sprint(e2e.NormalOrSoak(10, 1)))
	var cases []struct {
		File    string
		Args    []string
		Refused string // part of the error
	}
	e2e.NoError(t, json.Unmarshal(e2e.Content(t, filepath.Join(dir, "cases.json")), &cases))
	for _, c := range cases {
		t.Run(c.File, func(t *testing.T) {
			out := t.TempDir()
			args := append([]string{e2e.PlainBatchfs, "prepare", filepath.Join(dir, c.File), "--val", "0", "--out", out}, c.Args...)
			if c.Refused != "" {
				e2e.CheckFails(t, c.Refused, args...)
				return
			}
			e2e.Run(t, args...)
			got, want := e2e.Content(t, filepath.Join(out, "train.bin")), e2e.Content(t, filepath.Join(dir, c.File+".tokens"))
			if !bytes.Equal(got, want) {
				t.Errorf("%d tokens, want %d, and others", len(got)/2, len(want)/2)
			}
		})
	}
	if len(cases) < e2e.NormalOrSoak(20, 200) {
		t.Errorf("only %d files", len(cases))
	}
}
