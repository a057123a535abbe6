package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A Status is what status.json says.
type Status struct {
	PID     int
	Waiting int
	Splits  map[string]struct {
		Errors    int
		LastError string `json:"last_error"`
	}
}

// StatusOf reads status.json.
func StatusOf(t testing.TB, m *Mounted) Status {
	t.Helper()
	return JSON[Status](t, "cat", m.Path("status.json"))
}

// InProc is a number of /proc/PID/status, such as VmRSS in KiB, or 0 if there is no such process.
func InProc(pid int, name string) (n int) {
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
	Await(t, fmt.Sprintf("the end of the processes %v", pids), func() bool {
		return !slices.ContainsFunc(pids, func(pid int) bool { return !Ended(pid) })
	})
}

// Kill kills a worker.
func Kill(t testing.TB, _ *Mounted, worker int) {
	if worker <= 0 { // which would be every process of this test's group
		t.Fatal("there is no worker to kill")
	}
	syscall.Kill(worker, syscall.SIGKILL)
}

// StopAndKill kills a process the way its keeper does: stopped first, so that the kernel is not copying one of its requests.
func StopAndKill(t testing.TB, m *Mounted, worker int) {
	if worker <= 0 { // which would be every process of this test's group
		t.Fatal("there is no worker to kill")
	}
	syscall.Kill(worker, syscall.SIGSTOP)
	Await(t, "a process that is stopped", func() bool { return stopped(worker) })
	Kill(t, m, worker)
}

// stopped reports whether every thread of a process is stopped or has ended.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, thread := range threads {
		stat, _ := os.ReadFile(thread)
		if _, state, ok := strings.Cut(string(stat), ") "); ok && !strings.Contains("TZX", state[:1]) {
			return false
		}
	}
	return true
}

// Worker is the process that serves, or 0 while there is none.
func (m *Mounted) Worker(t testing.TB) int {
	t.Helper()
	if all := m.Workers(t); len(all) > 0 {
		return all[0]
	}
	return 0
}

// AwaitWorker waits until a process serves, and returns it.
func (m *Mounted) AwaitWorker(t testing.TB) (worker int) {
	t.Helper()
	Await(t, "a worker", func() bool {
		worker = m.Worker(t)
		return worker > 0
	})
	return worker
}

// Workers are the processes that the keeper has: the one that serves, and then the one that stands by.
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

// AwaitStandby waits until there is a process that serves and one that stands by, and returns them.
func (m *Mounted) AwaitStandby(t testing.TB) (workers []int) {
	t.Helper()
	Await(t, "a process that stands by", func() bool {
		workers = m.Workers(t)
		return len(workers) == 2
	})
	return workers
}

// FDs are what a process has open.
func FDs(t testing.TB, pid int) (links []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	for _, fd := range Must(os.ReadDir(dir))(t) {
		link, _ := os.Readlink(dir + fd.Name())
		links = append(links, link)
	}
	return links
}

// Processes are the commands of the processes with a text in them.
func Processes(text string) (commands []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, process := range all {
		if command, _ := os.ReadFile(process); strings.Contains(string(command), text) {
			commands = append(commands, string(command))
		}
	}
	return commands
}

// LeavesNothing fails the test if there are mounts or files in a directory, or processes with a text in their commands.
func LeavesNothing(t testing.TB, dir, text string) {
	t.Helper()
	AwaitNone(t, "processes", func() []string { return Processes(text) })
	Equal(t, "mounts that are left", len(MountsBelow(t, dir)), 0)
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("left: %v %v", files, err)
	}
}

// AwaitDoctor waits until the doctor says each of these texts of a path in a mount. It has something to fix if one of them says FIX, stuck or dead.
func AwaitDoctor(t testing.TB, path string, wants ...string) {
	t.Helper()
	all := strings.Join(wants, "; ")
	fix := strings.Contains(all, "FIX") || strings.Contains(all, "stuck") || strings.Contains(all, "dead")
	Await(t, "the doctor to say "+all, func() bool {
		began := time.Now()
		out, _, err := Try(t, PlainBatchfs, "doctor", path)
		InTime(t, "the doctor", time.Since(began), 8*time.Second)
		return fix == (err != nil) && !slices.ContainsFunc(wants, func(want string) bool { return !strings.Contains(out, want) })
	})
}

// LogAndStatusSay fails unless the log and status.json have each of these texts.
func LogAndStatusSay(t testing.TB, m *Mounted, wants ...string) {
	t.Helper()
	for where, text := range map[string]string{"the log": m.Out.String(), "status.json": Run(t, "cat", m.Path("status.json"))} {
		for _, want := range wants {
			Contains(t, where, text, want)
		}
	}
}
