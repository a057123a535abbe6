package commands

import (
	"os"
	"testing"

	"batchfs/test/e2e"
)

// The tests of the Python package, which mount for themselves.
func TestPythonPackage(t *testing.T) { pythonTests(t, "tests.test_batchfs") }

// The wheel is the same when it is built again, and can be installed and used.
func TestPythonWheel(t *testing.T) {
	e2e.Long(t)
	pythonTests(t, "tests.test_wheel")
}

func pythonTests(t *testing.T, module string) {
	t.Helper()
	e2e.NeedFUSE(t)
	cmd := e2e.Command(t, e2e.Python, "-m", "unittest", "-v", module)
	cmd.Dir, cmd.Env = "../python", append(os.Environ(), "BATCHFS_PROGRAM="+e2e.PlainBatchfs, "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
