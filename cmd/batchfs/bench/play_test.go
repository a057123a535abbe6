package bench

import (
	"bytes"
	"testing"

	"batchfs/cmd/batchfs/terminal"
)

// Where a bar cannot be shown, a line says what takes so long.
func TestProgressWithoutATerminal(t *testing.T) {
	var out bytes.Buffer
	progress := (&bench{stderr: &out}).progress("making a file", 100, terminal.Bytes)
	progress.Add(100)
	progress.Finish()
	if out.String() != "making a file\n" {
		t.Errorf("%q", out.String())
	}
}
