package readers

import (
	"path/filepath"
	"testing"

	"batchfs/test/e2e"
)

// The example of fine-tuning learns where its mask says, and nowhere else.
func TestFinetuneExample(t *testing.T) {
	e2e.Long(t)
	dir := t.TempDir()
	example := "../examples/finetune_numpy.py"
	e2e.Run(t, e2e.Python, example, "--write", dir)
	m := e2e.Mount(t, "-c", filepath.Join(dir, "config.toml"))
	t.Log(e2e.Run(t, e2e.Python, example, m.Dir))
}
