package commands

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
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

// From nothing to the first training steps, in a Debian that has Python alone.
func TestPythonInBareDebian(t *testing.T) {
	e2e.Long(t)
	e2e.NeedFUSE(t)
	e2e.NeedRoot(t, "chroot is root's")
	if _, err := exec.LookPath("debootstrap"); err != nil {
		e2e.Lack(t, "no bare Debian: %v", err)
	}
	wheel := e2e.Run(t, e2e.Python, "../python/wheel.py", "--arch", runtime.GOARCH, "--out", t.TempDir())
	t.Log(e2e.Run(t, "../python/tests/bare_debian", strings.TrimSpace(wheel)))
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

func pythonTests(t *testing.T, module string) {
	t.Helper()
	e2e.NeedFUSE(t)
	cmd := e2e.Command(t, e2e.Python, "-m", "unittest", "-v", module)
	cmd.Dir, cmd.Env = "../python", append(os.Environ(), "BATCHFS_PROGRAM="+e2e.PlainBatchfs, "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
