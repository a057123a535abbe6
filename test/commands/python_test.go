package commands

import (
	"os"
	"os/exec"
	"testing"

	"batchfs/test/e2e"
)

// The tests of the Python package, which mount for themselves. Those of the wheel are run by deploy/release/packages.
func TestPythonPackage(t *testing.T) {
	e2e.NeedFUSE(t)
	cmd := e2e.Command(t, e2e.Python, "-m", "unittest", "-v", "tests.test_batchfs")
	cmd.Dir, cmd.Env = "../python", append(os.Environ(), "BATCHFS_PROGRAM="+e2e.PlainBatchfs, "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// The package passes the strictest checks of its types.
func TestPythonTypes(t *testing.T) {
	e2e.Long(t)
	if _, err := exec.LookPath("npx"); err != nil {
		e2e.Lack(t, "no pyright: %v", err)
	}
	e2e.NeedPython(t, "torch")
	cmd := e2e.Command(t, "npx", "--yes", "pyright@1.1.414", "--pythonpath", e2e.Python)
	cmd.Dir = "../python"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
