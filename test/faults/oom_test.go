package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"batchfs/test/e2e"
)

const neverKill = -1000

func oomScore(t *testing.T, pid int) (score int) {
	t.Helper()
	fmt.Sscan(string(e2e.Must(os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid)))(t)), &score)
	return score
}

// If memory runs out and the kernel ends all processes of a cgroup that it may end, as on
// Kubernetes, no reader notices.
func TestOutOfMemoryInAGroup(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	e2e.NeedRoot(t, "only root may protect a process")
	ours := oomScore(t, os.Getpid())
	if ours == neverKill || !hasSysResource(t) {
		t.Skip("without CAP_SYS_RESOURCE, a supervisor cannot protect itself")
	}
	config, want := e2e.SmallConfig(t, 3)
	g := newGroup(t, "memory.max")
	m := e2e.MountProgram(t, g.command(e2e.Batchfs), "-c", config)
	workers := m.AwaitStandby(t)
	e2e.Equal(t, "oom_score_adj of the supervisor", oomScore(t, m.Cmd.Process.Pid), neverKill)
	for i, worker := range workers { // the serving one first
		e2e.Await(t, "the oom_score_adj of a worker", func() (any, bool) {
			score := oomScore(t, worker)
			return score, score == min(ours+500-250*i, 1000)
		})
	}
	h := e2e.StartHandles(t, m.Dir)
	h.Do("open train/next")
	e2e.Contains(t, "the first half of batch 0", h.Do("read 0 0 128"), "128 ")
	if os.WriteFile(filepath.Join(string(g), "memory.oom.group"), []byte("1"), 0) == nil {
		g.setLimit(t, "memory.max", "200M")
		e2e.Begin(t, g.command(e2e.Python, "-c", "hog = b'x' * (1 << 30)"))
	} else { // cgroups of version 1 have no memory.oom.group
		for pid := range strings.FieldsSeq(string(e2e.Must(os.ReadFile(filepath.Join(string(g), "cgroup.procs")))(t))) {
			var id int
			fmt.Sscan(pid, &id)
			if oomScore(t, id) != neverKill {
				e2e.NoError(t, syscall.Kill(id, syscall.SIGKILL))
			}
		}
	}
	e2e.AwaitEnded(t, workers...)
	e2e.Contains(t, "the other half", h.Do("read 0 128 128"), "128 ")
	for k := 1; k < 3; k++ {
		e2e.Equal(t, fmt.Sprintf("batch %d", k), e2e.Read(t, "read", m.Path("train/next"))[0], want[k])
	}
}

func hasSysResource(t *testing.T) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	e2e.NoError(t, unix.Capget(&header, &data[0]))
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}
