package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A group is a cgroup for a mount.
type group string

// Where the files of cgroup2 are called otherwise.
var inVersion1 = map[string]string{
	"memory.max": "memory.limit_in_bytes", "memory.swap.max": "memory.memsw.limit_in_bytes", "cpu.max": "cpu.cfs_quota_us",
}

// newGroup makes a cgroup that has a limit, named as in cgroup2. It is empty at the end of the test, or the test fails.
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
				awaitNone(t, dir, func() []string { return strings.Fields(run(t, "cat", dir+"/cgroup.procs")) })
				await(t, "the end of a cgroup", func() bool { return os.Remove(dir) == nil })
			})
			return group(dir)
		}
		os.Remove(dir)
	}
	lack(t, "no cgroup with %s can be made here", limit)
	return ""
}

// limit sets a limit, by its name in cgroup2.
func (g group) limit(t *testing.T, file, value string) {
	t.Helper()
	path := g.file(file)
	if filepath.Base(path) != file {
		value, _, _ = strings.Cut(value, " ") // of cpu.max, without the period
	}
	noError(t, os.WriteFile(path, []byte(value), 0))
}

// file is the path of a limit's file.
func (g group) file(limit string) string {
	path := filepath.Join(string(g), limit)
	if _, err := os.Stat(path); err != nil && inVersion1[limit] != "" {
		return filepath.Join(string(g), inVersion1[limit])
	}
	return path
}

// command is a command that runs in the group.
func (g group) command(args ...string) *exec.Cmd {
	return exec.Command("sh", append([]string{"-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, string(g)}, args...)...)
}

// While no process can be started, and while each is killed, reads wait. The mount lives, and says once what is wrong.
func TestNoProcesses(t *testing.T) {
	long(t)
	t.Parallel()
	g := newGroup(t, "pids.max")
	config, _ := stormConfig(t, "")
	m := mountProgram(t, g.command(plainBatchfs), "-c", config)
	readers := startStorms(t, m)
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", m.cmd.Process.Pid))
	noError(t, err)
	const says = "the machine starts none or kills it"
	for i, most := range []int{1, len(threads) + 3} { // none, and some that have too few threads
		workers := m.awaitStandby(t)
		g.limit(t, "pids.max", strconv.Itoa(most))
		for _, worker := range workers {
			kill(t, m, worker)
		}
		await(t, "what is wrong, in the log", func() bool { return m.ended() || strings.Count(m.out.String(), says) > i })
		if m.ended() {
			t.Fatalf("with at most %d threads, the mount ended:\n%s", most, m.out)
		}
		g.limit(t, "pids.max", "max")
		before := m.cursor(t, "train")
		await(t, "batches", func() bool { return m.cursor(t, "train") != before })
	}
	got := endStorms(t, readers)
	cursor, err := strconv.Atoi(m.cursor(t, "train"))
	noError(t, err)
	missing, failed := got.missing(t, cursor), got.failed["EIO"]
	t.Logf("%d reads, failed %v, %d numbers missing, slowest %.1f s, replaced within %v", got.reads, got.failed, missing, got.slowest, longest(t, m.out.String()))
	if len(got.failed) > 1 || failed > 1 || missing > failed {
		t.Errorf("reads failed: %v, %d numbers are missing", got.failed, missing)
	}
	if n := strings.Count(m.out.String(), says); n != 2 {
		t.Errorf("the log says %d times what is wrong:\n%s", n, m.out)
	}
}

// A worker that gets a hundredth of a processor is not late.
func TestNoProcessor(t *testing.T) {
	long(t)
	t.Parallel()
	g := newGroup(t, "cpu.max")
	config, want := small(t, 4)
	m := mountProgram(t, g.command(plainBatchfs), "-c", config)
	read(t, "looks", m.path("train"), "0", "2000", "4")
	m.awaitStandby(t)
	g.limit(t, "cpu.max", "1000 100000")
	for k := range 3 {
		worker := m.worker(t)
		stopAndKill(t, m, worker) // one that is only killed, and waits for a processor, may still take the request, which then fails
		if got := take(t, m, "train/next"); got != want[k] {
			t.Errorf("batch %d is %s, want %s", k, got, want[k])
		}
		if m.worker(t) == worker {
			t.Error("the killed process serves")
		}
	}
	g.limit(t, "cpu.max", "100000 100000")
	if got := take(t, m, "train/next"); got != want[3] {
		t.Errorf("batch 3 is %s, want %s", got, want[3])
	}
	if text := m.out.String(); strings.Contains(text, "did not") {
		t.Errorf("a process was late:\n%s", text)
	}
}

// When memory runs out, the kernel chooses the worker first, then the standby, and the supervisor last, also after a takeover and a
// restart.
func TestWhoDiesFirst(t *testing.T) {
	t.Parallel()
	config, _ := small(t, 1)
	m := mountProgram(t, exec.Command(plainBatchfs), "-c", config)
	score := func(pid int) int {
		text := make([]byte, 100) // read at once: it may change between two reads
		file, err := os.Open(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		noError(t, err)
		defer file.Close()
		size, err := file.Read(text)
		noError(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(string(text[:size])))
		noError(t, err)
		return n
	}
	own := score(os.Getpid())
	for what, do := range map[string]func(worker int){
		"a mount":   func(int) {},
		"a death":   func(worker int) { kill(t, m, worker) },
		"a restart": func(int) { run(t, plainBatchfs, "restart", m.dir) },
	} {
		worker := m.worker(t)
		do(worker)
		await(t, "the next worker", func() bool { return what == "a mount" || m.worker(t) != worker })
		scores := func() [3]int {
			workers := m.awaitStandby(t)
			return [3]int{score(m.cmd.Process.Pid), score(workers[1]), score(workers[0])}
		}
		await(t, what+": the scores", func() bool { return scores() == [3]int{own, min(own+250, 1000), min(own+500, 1000)} })
	}
}

// When memory runs out, the kernel kills workers, again and again, then what eats the memory, and not the supervisor. When there is
// memory, batches go on, and no number is lost or comes twice.
func TestNoMemory(t *testing.T) {
	long(t)
	t.Parallel()
	const MiB = 1 << 20
	g := newGroup(t, "memory.max")
	config, _ := stormConfig(t, "")
	g.limit(t, "memory.max", fmt.Sprint(128*MiB))
	if swap := g.file("memory.swap.max"); strings.HasSuffix(swap, "swap.max") {
		write(t, swap, []byte("0"))
	}
	m := mountProgram(t, g.command(plainBatchfs), "-c", config)
	readers := startStorms(t, m)
	deaths := func() int { return strings.Count(m.out.String(), "killed by signal 9") }
	for end := time.Now().Add(lasting(0, time.Minute)); deaths() == 0 || time.Now().Before(end); {
		m.awaitStandby(t)
		// Together they want more than there is, and each of them less than a worker counts for.
		var eaters [7]*exec.Cmd
		for i := range eaters {
			eaters[i] = g.command(python, "-c", fmt.Sprintf("import time\na = b'x' * %d\ntime.sleep(6)", 22*MiB))
			noError(t, eaters[i].Start())
		}
		for _, eater := range eaters {
			stop := answersSoon(t, eater)
			eater.Wait() // an error is that it was killed
			stop()
		}
		if m.ended() {
			t.Fatalf("the mount ended:\n%s", m.out)
		}
	}
	m.awaitStandby(t)
	before := m.cursor(t, "train")
	await(t, "batches", func() bool { return m.cursor(t, "train") != before })
	got := endStorms(t, readers)
	cursor, err := strconv.Atoi(m.cursor(t, "train"))
	noError(t, err)
	missing, failed := got.missing(t, cursor), got.failed["EIO"]
	t.Logf("%d deaths, %d reads, failed %v, %d numbers missing, slowest %.1f s, replaced within %v", deaths(), got.reads, got.failed, missing,
		got.slowest, longest(t, m.out.String()))
	if len(got.failed) > 1 || missing > failed {
		t.Errorf("reads failed: %v, %d numbers are missing", got.failed, missing)
	}
}
