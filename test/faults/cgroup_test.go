package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// A group is the path of a cgroup.
type group string

// version1Names maps the names of files in cgroup v2 to those in v1, if they differ.
var version1Names = map[string]string{
	"memory.max": "memory.limit_in_bytes", "memory.swap.max": "memory.memsw.limit_in_bytes", "cpu.max": "cpu.cfs_quota_us",
}

// newGroup makes a cgroup that supports a limit, named as in cgroup v2. Its processes must end with
// the test.
func newGroup(t *testing.T, limit string) group {
	t.Helper()
	const root = "/sys/fs/cgroup"
	controller, _, _ := strings.Cut(limit, ".")
	for _, parent := range []string{root, filepath.Join(root, controller)} {
		os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+"+controller), 0)
		dir, err := os.MkdirTemp(parent, "batchfs-test-")
		if err != nil {
			continue
		}
		if _, err := os.Stat(group(dir).file(limit)); err == nil {
			t.Cleanup(func() {
				e2e.AwaitSuccess(t, "the end of all processes of a cgroup", func() error { return os.Remove(dir) })
			})
			return group(dir)
		}
		os.Remove(dir)
	}
	e2e.SkipOrFail(t, "no cgroup with %s can be made here", limit)
	return ""
}

func (g group) setLimit(t *testing.T, file, value string) {
	t.Helper()
	path := g.file(file)
	if filepath.Base(path) != file {
		value, _, _ = strings.Cut(value, " ") // v1 has the period of cpu.max in another file
	}
	e2e.NoError(t, os.WriteFile(path, []byte(value), 0))
}

func (g group) file(limit string) string {
	path := filepath.Join(string(g), limit)
	if _, err := os.Stat(path); err != nil && version1Names[limit] != "" {
		return filepath.Join(string(g), version1Names[limit])
	}
	return path
}

func (g group) command(args ...string) *exec.Cmd {
	return exec.Command("sh", append([]string{"-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, string(g)}, args...)...)
}

// A worker that gets a hundredth of a processor does not count as unresponsive.
func TestNoProcessor(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	g := newGroup(t, "cpu.max")
	config, want := e2e.SmallConfig(t, 4)
	m := e2e.MountProgram(t, g.command(e2e.PlainBatchfs), "-c", config)
	e2e.Read(t, "looks", m.Path("train"), "0", "2000", "4")
	m.AwaitStandby(t)
	g.setLimit(t, "cpu.max", "1000 100000")
	for k := range 3 {
		worker := m.Worker(t)
		// A process that is killed without being stopped may take the request before it dies.
		e2e.StopAndKill(t, m, worker)
		e2e.Equal(t, fmt.Sprintf("batch %d", k), e2e.FileDigest(t, m, "train/next"), want[k])
		e2e.Equal(t, "the killed process still serves", m.Worker(t) == worker, false)
	}
	g.setLimit(t, "cpu.max", "100000 100000")
	e2e.Equal(t, "batch 3", e2e.FileDigest(t, m, "train/next"), want[3])
	if text := m.Out.String(); strings.Contains(text, "did not") {
		t.Errorf("the log says that a process did not respond in time:\n%s", text)
	}
}

// When memory runs out, the kernel kills workers, then the processes that take the memory, but not
// the supervisor. Afterwards, batches are served, and no number is used twice or missing without an
// error.
func TestNoMemory(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	const MiB = 1 << 20
	g := newGroup(t, "memory.max")
	config, _ := e2e.StormConfig(t, "")
	g.setLimit(t, "memory.max", fmt.Sprint(128*MiB))
	if swap := g.file("memory.swap.max"); strings.HasSuffix(swap, "swap.max") {
		e2e.Write(t, swap, []byte("0"))
	}
	m := e2e.MountProgram(t, g.command(e2e.PlainBatchfs), "-c", config)
	readers := e2e.StartStorms(t, m)
	deaths := func() int { return strings.Count(m.Out.String(), "killed by signal 9") }
	for end := time.Now().Add(e2e.NormalOrSoak(0, time.Minute)); deaths() == 0 || time.Now().Before(end); {
		m.AwaitStandby(t)
		// Together, the eaters need more memory than the group may use. The OOM killer ranks each
		// of them above the supervisor, but below a worker, whose oom_score_adj is raised.
		var eaters [5]*exec.Cmd
		var ended [len(eaters)]<-chan struct{}
		for i := range eaters {
			eaters[i] = g.command(e2e.Python, "-c", fmt.Sprintf("import time\na = b'x' * %d\ntime.sleep(6)", 32*MiB))
			ended[i] = e2e.Begin(t, eaters[i])
		}
		for i, eater := range eaters {
			e2e.AwaitExit(t, eater, ended[i]) // it may have been killed
		}
		if m.Ended() {
			t.Fatalf("the mount ended:\n%s", m.Out)
		}
	}
	m.AwaitStandby(t)
	before := m.Cursor(t, "train")
	e2e.Await(t, "batches of next once there is memory", func() (any, bool) {
		now := m.Cursor(t, "train")
		return now, now != before
	})
	got := e2e.EndStorms(t, m, readers)
	t.Logf("%d deaths, %s", deaths(), got)
	if len(got.Failed) > 1 || got.Missing > got.Failed["EIO"] {
		t.Errorf("%s, want failed reads with EIO alone, and only their numbers missing", got)
	}
}
