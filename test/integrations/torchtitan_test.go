package integrations

import (
	"testing"

	"batchfs/test/e2e"
)

// With the loader in examples, any number of torchtitan's ranks sees the same rows in each step,
// also after a resume.
func TestTorchtitan(t *testing.T) {
	e2e.NeedFUSE(t)
	e2e.NeedPython(t, "torch")
	e2e.RunJob(t, "env", "PYTHONPATH=../python", "BATCHFS_PROGRAM="+e2e.PlainBatchfs, "PYTHONDONTWRITEBYTECODE=1",
		e2e.Python, "clients/torchtitan_train.py", t.TempDir())
}
