package soak

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// earlierCommit is a commit whose mounts and states this version must continue. Once there is a
// release, the last one takes its place.
const earlierCommit = "7723a8bb56eb7470094f3fe8cdf05f1c7a8015b4"

// earlierSource returns a directory with the source of an earlier version. A tarball or a shallow
// clone lacks the history of this one.
func earlierSource(t *testing.T) string {
	t.Helper()
	commit := earlierCommit
	if tag, _, err := e2e.Try(t, "git", "describe", "--tags", "--match", "v[0-9]*", "--abbrev=0", "HEAD^"); err == nil {
		commit = strings.TrimSpace(tag)
	}
	if _, why, err := e2e.Try(t, "git", "rev-parse", "--verify", commit+"^{commit}"); err != nil {
		e2e.SkipOrFail(t, "the git history has no commit %s, the earlier version: %s", commit, why)
	}
	// If the test fails, it prints the files called log* in t.TempDir. The source has some, too.
	dir := e2e.Must(os.MkdirTemp("", "batchfs-earlier"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	e2e.RunJob(t, "sh", "-c", `git -C .. archive "$0" | tar -x -C "$1"`, commit, dir)
	return dir
}

// replaceProgram installs a program, as an upgrade does.
func replaceProgram(t *testing.T, program, by string) {
	t.Helper()
	e2e.WriteScript(t, program+".new", e2e.Content(t, by))
	e2e.NoError(t, os.Rename(program+".new", program))
}

// A mount of an earlier version is restarted into this one and back, again and again, while workers
// are killed. Its readers get the right bytes, and every number of next goes to one read. A state
// that the earlier version saved continues with the next row.
func TestVersions(t *testing.T) {
	e2e.SkipUnlessSoak(t)
	e2e.NeedFUSE(t)
	source := earlierSource(t)
	earlier, program := filepath.Join(source, "earlier"), filepath.Join(t.TempDir(), "batchfs")
	build := e2e.Job(t, "go", "build", "-o", earlier, "./cmd/batchfs")
	build.Dir, build.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	replaceProgram(t, program, earlier)
	config, _ := e2e.StormConfig(t, "")
	m := e2e.MountProgram(t, exec.Command(program), "-c", config)
	m.AwaitStandby(t)
	readers := e2e.StartStorms(t, m)
	for i, version := range slices.Repeat([]string{e2e.PlainBatchfs, earlier}, e2e.Repeats(1)) {
		replaceProgram(t, program, version)
		e2e.Run(t, program, "restart", m.Dir)
		for range 3 {
			time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
			m.KillServing(t, syscall.SIGKILL)
			before := m.NextNumber(t, "train")
			e2e.Await(t, "another number", func() (any, bool) {
				now := m.NextNumber(t, "train")
				return now, now > before
			})
		}
		e2e.Equal(t, fmt.Sprintf("the program of restart %d", i), e2e.Digest(e2e.Content(t, fmt.Sprintf("/proc/%d/exe", m.AwaitWorker(t)))), e2e.Digest(e2e.Content(t, version)))
	}
	got := e2e.EndStorms(t, m, readers)
	t.Log(got)
	if len(got.Failed) > 0 || got.Missing > 0 {
		t.Errorf("%s; want no failed read and no missing number", got)
	}

	const script = `
import batchfs, json, sys
steps = batchfs.split(sys.argv[1]).steps()
if len(sys.argv) > 2:
    steps.load_state_dict(json.loads(sys.argv[2]))
print([int(next(steps)[1].x[0, 0]) for _ in range(5)])
print(json.dumps(steps.state_dict()))
`
	run := func(python, program string, args ...string) (first, state string) {
		t.Helper()
		out := e2e.RunJob(t, append([]string{"env", "PYTHONPATH=" + python, "BATCHFS_PROGRAM=" + program, "PYTHONDONTWRITEBYTECODE=1",
			e2e.Python, "-c", script, m.Path("train")}, args...)...)
		first, state, _ = strings.Cut(strings.TrimSpace(out), "\n")
		return first, state
	}
	_, state := run(filepath.Join(source, "python"), earlier)
	first, _ := run("../python", e2e.PlainBatchfs, state)
	const batch = e2e.StormB * e2e.StormT
	e2e.Equal(t, "the first tokens of the batches after a state", first, fmt.Sprintf("[%d, %d, %d, %d, %d]", 5*batch, 6*batch, 7*batch, 8*batch, 9*batch))
	m.Stop(t)
}
