package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A Status holds the fields of status.json that tests use.
type Status struct {
	PID       int
	Waiting   int
	Sequences map[string]struct {
		Errors    int
		LastError string `json:"last_error"`
	}
}

// StatusOf reads status.json.
func StatusOf(t testing.TB, m *Mounted) Status {
	t.Helper()
	return JSON[Status](t, "cat", m.Path("status.json"))
}

// ProcNumber returns a number in /proc/PID/status, such as VmRSS in KiB, or 0 if the process is
// gone.
func ProcNumber(pid int, name string) (n int) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if _, rest, ok := strings.Cut(string(status), "\n"+name+":"); ok {
		fmt.Sscan(rest, &n)
	}
	return n
}

// Ended reports whether a process has ended.
func Ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// AwaitEnded waits until processes have ended. A killed process ends only once it gets a processor.
func AwaitEnded(t testing.TB, pids ...int) {
	t.Helper()
	Await(t, fmt.Sprintf("the end of the processes %v", pids), func() (any, bool) {
		return describe(pids...), !slices.ContainsFunc(pids, func(pid int) bool { return !Ended(pid) })
	})
}

// describe returns the names and states of processes, such as [12 (batchfs) S].
func describe(pids ...int) (states []string) {
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		end := strings.LastIndex(string(stat), ") ")
		if err != nil || end < 0 {
			states = append(states, fmt.Sprint(pid, " has ended"))
		} else {
			states = append(states, string(stat[:end+3]))
		}
	}
	return states
}

// Kill kills a worker. Its parameters are those of KillOrRestart.
func Kill(t testing.TB, _ *Mounted, worker int) { send(t, worker, syscall.SIGKILL) }

// KillServing sends a signal that ends the serving worker, once there is a standby, and waits for
// its end. Otherwise, it could still count as one of two workers. It returns the id of the worker.
func (m *Mounted) KillServing(t testing.TB, sig syscall.Signal) (worker int) {
	t.Helper()
	worker = m.AwaitStandby(t)[0]
	send(t, worker, sig)
	AwaitEnded(t, worker)
	return worker
}

// StopAndKill kills a worker as its supervisor does: after stopping it, so that it does not die
// while the kernel copies a request to it.
func StopAndKill(t testing.TB, m *Mounted, worker int) {
	send(t, worker, syscall.SIGSTOP)
	Await(t, "a process to stop", func() (any, bool) { return describe(worker), isStopped(worker) })
	Kill(t, m, worker)
}

func send(t testing.TB, pid int, sig syscall.Signal) {
	t.Helper()
	if pid <= 0 { // pid 0 would signal this test's process group
		t.Fatal("there is no worker to kill")
	}
	syscall.Kill(pid, sig)
}

// KillOrRestart kills a worker, stops and kills it, or restarts the mount, at random.
func KillOrRestart(t testing.TB, m *Mounted, worker int) {
	switch rand.IntN(3) {
	case 0:
		Kill(t, m, worker)
	case 1:
		StopAndKill(t, m, worker)
	case 2:
		Run(t, PlainBatchfs, "restart", m.Dir)
	}
}

// isStopped reports whether every thread of a process is stopped or has ended.
func isStopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, thread := range threads {
		stat, _ := os.ReadFile(thread)
		if _, state, ok := strings.Cut(string(stat), ") "); ok && !strings.Contains("TZX", state[:1]) {
			return false
		}
	}
	return true
}

// Worker returns the id of the process that serves the mount, or 0 if there is none.
func (m *Mounted) Worker(t testing.TB) int {
	t.Helper()
	if pids := m.Workers(t); len(pids) > 0 {
		return pids[0]
	}
	return 0
}

// AwaitWorker waits until a process serves the mount, and returns its id.
func (m *Mounted) AwaitWorker(t testing.TB) (worker int) {
	t.Helper()
	Await(t, "a worker", func() (any, bool) {
		worker = m.Worker(t)
		return describe(m.Cmd.Process.Pid), worker > 0
	})
	return worker
}

// Workers returns the ids of the children of the supervisor: the serving worker, then the standby.
func (m *Mounted) Workers(t testing.TB) (pids []int) {
	t.Helper()
	threads := Must(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", m.Cmd.Process.Pid)))(t)
	for _, children := range threads {
		text, _ := os.ReadFile(children)
		for _, field := range strings.Fields(string(text)) {
			if pid, _ := strconv.Atoi(field); !Ended(pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// AwaitStandby waits for a worker and a standby, and returns their ids in this order.
func (m *Mounted) AwaitStandby(t testing.TB) (workers []int) {
	t.Helper()
	Await(t, "a worker and a standby", func() (any, bool) {
		workers = m.Workers(t)
		return describe(append(workers, m.Cmd.Process.Pid)...), len(workers) == 2
	})
	return workers
}

// OpenFiles returns the targets of the descriptors that a process has open.
func OpenFiles(t testing.TB, pid int) (links []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	for _, fd := range Must(os.ReadDir(dir))(t) {
		link, _ := os.Readlink(dir + fd.Name())
		links = append(links, link)
	}
	return links
}

// processesWith returns the processes that have a text in their command line or environment.
func processesWith(text string) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		command, _ := os.ReadFile(dir + "/cmdline")
		environment, _ := os.ReadFile(dir + "/environ")
		if strings.Contains(string(command)+string(environment), text) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}

// CheckNothingLeft checks that there are no mounts or files in a directory, and no processes of a
// command that has the directory in its arguments or environment.
func CheckNothingLeft(t testing.TB, dir string) {
	t.Helper()
	Await(t, "the end of all processes with "+dir, func() (any, bool) {
		left := processesWith(dir)
		return describe(left...), len(left) == 0
	})
	Equal(t, "mounts that are left", len(MountsBelow(t, dir)), 0)
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("files left in %s: %v (error %v), want none", dir, files, err)
	}
}

// AwaitDoctor waits until the doctor prints all of these texts for a path. The doctor must fail
// exactly if one of them contains FIX, stuck or dead.
func AwaitDoctor(t testing.TB, path string, wants ...string) {
	t.Helper()
	joined := strings.Join(wants, "; ")
	fix := strings.Contains(joined, "FIX") || strings.Contains(joined, "stuck") || strings.Contains(joined, "dead")
	Await(t, "the doctor to print "+joined, func() (any, bool) {
		began := time.Now()
		out, _, err := Try(t, PlainBatchfs, "doctor", path)
		CheckDuration(t, "the doctor", time.Since(began), 8*time.Second)
		return fmt.Sprintf("error %v, and\n%s", err, out), fix == (err != nil) &&
			!slices.ContainsFunc(wants, func(want string) bool { return !strings.Contains(out, want) })
	})
}

// CheckLogAndStatus checks that both the log and status.json contain all of these texts.
func CheckLogAndStatus(t testing.TB, m *Mounted, wants ...string) {
	t.Helper()
	for where, text := range map[string]string{"the log": m.Out.String(), "status.json": Run(t, "cat", m.Path("status.json"))} {
		for _, want := range wants {
			Contains(t, where, text, want)
		}
	}
}
