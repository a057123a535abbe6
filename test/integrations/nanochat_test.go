package integrations

import (
	"testing"

	"batchfs/test/e2e"
)

// The loaders of examples/nanochat work in trainers that call them the way nanochat's scripts do.
func TestNanochat(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	e2e.NeedPython(t, "torch")
	e2e.RunJob(t, "env", "BATCHFS_PROGRAM="+e2e.PlainBatchfs, "PYTHONDONTWRITEBYTECODE=1", e2e.Python, "clients/nanochat.py", "-v")
}
