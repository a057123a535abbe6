package integrations

import (
	"os"
	"testing"

	"batchfs/test/e2e"
)

// With the loader in examples, any number of torchtitan's ranks sees the same rows in each step,
// also after a resume.
func TestTorchtitan(t *testing.T) {
	e2e.NeedFUSE(t)
	e2e.NeedPython(t, "torch")
	cmd := e2e.Command(t, e2e.Python, "clients/torchtitan_train.py", t.TempDir())
	cmd.Env = append(os.Environ(), "PYTHONPATH=../python", "BATCHFS_PROGRAM="+e2e.PlainBatchfs, "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
