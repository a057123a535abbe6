package test

import (
	"os"
	"testing"
)

// The tests of the Python package, which mount for themselves.
func TestPythonPackage(t *testing.T) {
	needFUSE(t)
	cmd := command(t, python, "-m", "unittest", "-v", "tests.test_batchfs")
	cmd.Dir, cmd.Env = "../python", append(os.Environ(), "BATCHFS_PROGRAM="+plainBatchfs, "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
