package commands

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"batchfs/test/e2e"
)

// The unit tests of the Python package pass. deploy/release/packages tests the wheel.
func TestPythonPackage(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	cmd := e2e.Job(t, e2e.Python, "-m", "tests")
	cmd.Dir, cmd.Env = "../python", append(os.Environ(), "BATCHFS_PROGRAM="+e2e.PlainBatchfs, "BATCHFS_SOAK="+e2e.NormalOrSoak("0", "1"), "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Commands work on a mount that the Python package made. Its log is a memfd, like its shared
// memory.
func TestCommandsOnAMountOfPython(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	config, _ := e2e.SmallConfig(t, 1)
	dir := t.TempDir()
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	cmd := exec.Command(e2e.Python, "-c", `
import batchfs, sys
with batchfs.mount(config=sys.argv[1], mountpoint=sys.argv[2]):
    print("ready", flush=True)
    sys.stdin.read()`, config, dir)
	cmd.Env = append(os.Environ(), "BATCHFS_PROGRAM="+e2e.Batchfs, "PYTHONPATH=../python", "PYTHONDONTWRITEBYTECODE=1")
	trainer := e2e.StartClient(t, cmd)
	trainer.AwaitReady(t)
	m := &e2e.Mounted{Dir: dir}
	awaitListed(t, dir, "serving")
	e2e.Equal(t, "the state that top shows", startTop(t, dir)().State, "serving")
	e2e.CheckOutput(t, "can be read", e2e.Batchfs, "why", m.Path("train/batch/7"))
	m.Seek(t, "train", 7, 0)
	e2e.CheckOutput(t, "now serves "+dir, e2e.Batchfs, "restart", dir)
	e2e.AwaitDoctor(t, dir, "ok   mountpoint: "+dir+" is mounted, served by process ", "ok   mounted train: ")
	trainer.End(t)
	e2e.NotMounted(t, dir)
}

// The package passes pyright's strict checks.
func TestPythonTypes(t *testing.T) {
	e2e.SkipIfShort(t)
	if _, err := exec.LookPath("npx"); err != nil {
		e2e.SkipOrFail(t, "no pyright: %v", err)
	}
	e2e.NeedPython(t, "torch")
	cmd := e2e.Job(t, "npx", "--yes", "pyright@1.1.414", "--pythonpath", e2e.Python)
	cmd.Dir = "../python"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
