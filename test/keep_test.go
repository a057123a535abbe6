package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// awaitEnded waits until processes have ended. A killed process ends only once it gets a processor.
func awaitEnded(t testing.TB, pids ...int) {
	t.Helper()
	await(t, fmt.Sprintf("the end of the processes %v", pids), func() bool {
		return !slices.ContainsFunc(pids, func(pid int) bool { return !ended(pid) })
	})
}

// A keeper that is killed takes its worker with it. The mount is dead then, which mounting anew and unmounting both recognise.
func TestKilledKeeper(t *testing.T) {
	t.Parallel()
	config, want := small(t, 1)
	for name, worker := range map[string]func(pid int){
		"":                  func(int) {},
		" of a stopped one": func(pid int) { syscall.Kill(pid, syscall.SIGSTOP) },
	} {
		m := mount(t, "-c", config)
		workers := m.awaitStandby(t)
		reader := exec.Command("sleep", "infinity")
		reader.Dir = m.dir // which keeps the dead mount busy
		noError(t, reader.Start())
		t.Cleanup(func() { reader.Process.Kill(); reader.Wait() })
		worker(workers[0])
		m.cmd.Process.Kill()
		m.awaitEnd(t)
		awaitEnded(t, workers...)
		await(t, "a dead mount"+name, func() bool {
			_, stderr, err := try(t, "ls", m.dir)
			return err != nil && strings.Contains(stderr, "not connected")
		})
		if name == "" {
			run(t, batchfs, "unmount", m.dir)
			if isMounted(t, m.dir) {
				t.Error("still mounted")
			}
		}
		run(t, batchfs, "mount", "-d", "-c", config, "--log", filepath.Join(t.TempDir(), "log"), m.dir)
		if got := read(t, "read", filepath.Join(m.dir, "train/next"))[0]; got != want[0] {
			t.Errorf("batch 0 is %s, want %s", got, want[0])
		}
		run(t, batchfs, "unmount", "--force", m.dir)
	}
}

// A process stands by that takes the place of one that ends, and then another does.
func TestStandby(t *testing.T) {
	t.Parallel()
	config, want := small(t, 4)
	m := mount(t, "-c", config)
	for k, kills := range [][2]bool{{true, false}, {false, true}, {true, true}, {true, false}} {
		before := m.awaitStandby(t)
		var killed []int
		for i, pid := range before {
			if kills[i] {
				noError(t, syscall.Kill(pid, syscall.SIGKILL))
				killed = append(killed, pid)
			}
		}
		if got := read(t, "read", m.path("train/next"))[0]; got != want[k] {
			t.Errorf("batch %d is %s, want %s", k, got, want[k])
		}
		awaitEnded(t, killed...)
		now := m.awaitStandby(t)
		if kills == [2]bool{true, false} && now[0] != before[1] || kills == [2]bool{false, true} && now[0] != before[0] {
			t.Errorf("%v: of %v, now %v", kills, before, now)
		}
	}
}

// A worker that hangs is replaced.
func TestHangingWorker(t *testing.T) {
	t.Parallel()
	config, want := small(t, 1)
	m := mount(t, "-c", config)
	first := m.worker(t)
	syscall.Kill(first, syscall.SIGSTOP)
	began := time.Now()
	if got := read(t, "read", m.path("train/next"))[0]; got != want[0] {
		t.Errorf("batch 0 is %s, want %s", got, want[0])
	}
	inTime(t, "the first batch", time.Since(began), 8*time.Second)
	awaitEnded(t, first)
}

// A keeper and a worker that are stopped for a while go on as if nothing had been.
func TestBothStopped(t *testing.T) {
	long(t)
	t.Parallel()
	config, _ := stormConfig(t, "")
	m := mount(t, "-c", config)
	readers := startStorms(t, m)
	worker := m.worker(t)
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		time.Sleep(time.Second)
		noError(t, syscall.Kill(worker, sig))
		noError(t, m.cmd.Process.Signal(sig))
		time.Sleep(4 * time.Second) // longer than three pings, one a second: a worker that misses them counts as hung
	}
	got := endStorms(t, readers)
	cursor, err := strconv.Atoi(m.cursor(t, "train"))
	noError(t, err)
	if missing := got.missing(t, cursor); missing > 0 || len(got.failed) > 0 {
		t.Errorf("%d numbers are missing, and reads failed: %v", missing, got.failed)
	}
	if m.worker(t) != worker {
		t.Errorf("process %d serves, and %d did", m.worker(t), worker)
	}
}

// A restart takes another program and another configuration, unless readers would see other batches.
func TestRestart(t *testing.T) {
	config, want := small(t, 4)
	text, err := os.ReadFile(config)
	noError(t, err)
	// As an upgrade does: another file at the path of the program.
	program := filepath.Join(t.TempDir(), "batchfs")
	run(t, "cp", batchfs, program)
	m := mountProgram(t, exec.Command(program), "-c", config)
	next := func(k int) {
		t.Helper()
		if got := read(t, "read", m.path("train/next"))[0]; got != want[k] {
			t.Errorf("batch %d is %s, want %s", k, got, want[k])
		}
	}
	next(0)
	first := m.worker(t)
	run(t, "cp", faultyBatchfs, program+".new")
	noError(t, os.Rename(program+".new", program))
	write(t, config, append(text, "\n[log]\nlevel = \"debug\"\n[memory]\naccess = \"pread\"\n"...))
	if out := run(t, plainBatchfs, "restart", m.dir); !strings.Contains(out, fmt.Sprint(m.worker(t))) || m.worker(t) == first {
		t.Errorf("%q, and worker %d serves after %d", out, m.worker(t), first)
	}
	if a, b := sameFile(t, program, fmt.Sprintf("/proc/%d/exe", m.worker(t))), sameFile(t, batchfs, program); !a || b {
		t.Errorf("the worker runs the new program: %v", a)
	}
	if text := m.out.String(); !strings.Contains(text, "level=DEBUG") {
		t.Errorf("nothing is logged of the new level:\n%s", text)
	}
	next(1)

	for change, says := range map[string]string{
		"\n[batch]\nseed = 8\n":               "splits.train.seed is 1337 in the mount, and the configuration has 8",
		"\n[splits.more]\ntokens=\"x.bin\"\n": "splits that the mount has not",
		"\n[mount]\nallow_other = true\n":     "mount.allow_other is false",
		"\nnonsense = 1\n":                    "unknown key",
	} {
		changed := string(text)
		if strings.HasPrefix(change, "\n[batch]") {
			changed = strings.Replace(changed, "[batch]", strings.TrimSpace(change), 1)
		} else {
			changed += change
		}
		write(t, config, []byte(changed))
		serving := m.worker(t)
		if _, stderr, err := try(t, plainBatchfs, "restart", m.dir); err == nil || !strings.Contains(stderr, says) {
			t.Errorf("restart with %q: %v %s", change, err, stderr)
		}
		if m.worker(t) != serving {
			t.Errorf("another process serves after a restart with %q was refused", change)
		}
	}
	next(2)

	// One that dies goes on as it was mounted, whatever is written and wherever its files are now.
	noError(t, os.Remove(config))
	noError(t, os.Remove(program))
	second := fmt.Sprintf("/proc/%d/exe", m.worker(t))
	running, err := os.Stat(second)
	noError(t, err)
	noError(t, syscall.Kill(m.awaitWorker(t), syscall.SIGKILL))
	next(3)
	if now, err := os.Stat(fmt.Sprintf("/proc/%d/exe", m.worker(t))); err != nil || !os.SameFile(running, now) {
		t.Errorf("%v: it runs another program than the one that died", err)
	}
	m.cmd.Process.Signal(syscall.SIGHUP)
	await(t, "a restart without a configuration", func() bool { return strings.Contains(m.out.String(), "restart refused") })
}

func sameFile(t *testing.T, a, b string) bool {
	t.Helper()
	x, err := os.Stat(a)
	noError(t, err)
	y, err := os.Stat(b)
	noError(t, err)
	return os.SameFile(x, y)
}

// A worker that fails by itself is tried again for a while. Then the mount goes, and the log says why.
func TestGivingUp(t *testing.T) {
	long(t)
	t.Parallel()
	config, _ := small(t, 1)
	cmd := exec.Command(faultyBatchfs)
	cmd.Env = append(os.Environ(), "BATCHFS_FAULTS=succeed:panic:1")
	m := mountProgram(t, cmd, "-c", config)
	first := m.worker(t)
	noError(t, syscall.Kill(first, syscall.SIGSTOP))
	reader := command(t, "head", "-c1", m.path("train/batch/0"))
	var says strings.Builder
	reader.Stderr = &says
	noError(t, reader.Start())
	began := time.Now()
	syscall.Kill(first, syscall.SIGKILL)
	m.awaitEnd(t)
	if took := time.Since(began); took < time.Second {
		t.Errorf("gave up after %v", took)
	}
	if err := reader.Wait(); err == nil || !strings.Contains(says.String(), "not connected") && !strings.Contains(says.String(), "connection abort") {
		t.Errorf("its reader: %v %s", err, &says)
	}
	if isMounted(t, m.dir) || m.cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("mounted: %v, exit status %d", isMounted(t, m.dir), m.cmd.ProcessState.ExitCode())
	}
	for _, want := range []string{"10 processes in a row ended before they had answered a request", "panic: BATCHFS_FAULTS: succeed"} {
		if !strings.Contains(m.out.String(), want) {
			t.Errorf("%q is not in the log:\n%s", want, m.out)
		}
	}
}

// A read that panics, and one that ends every process that is to answer it, gets an error.
func TestPoisonousRead(t *testing.T) {
	config, _ := small(t, 1)
	for how, says := range map[string]string{"panic": "", "abort": "5 processes ended by themselves while this had no answer"} {
		t.Run(how, func(t *testing.T) {
			cmd := exec.Command(faultyBatchfs)
			cmd.Env = append(os.Environ(), "BATCHFS_FAULTS=read:"+how+":1")
			m := mountProgram(t, cmd, "-c", config)
			if _, stderr, err := try(t, "head", "-c1", m.path("train/batch/3")); err == nil || !strings.Contains(stderr, "Input/output error") {
				t.Errorf("%v %s", err, stderr)
			}
			if text := run(t, "cat", m.path("status.json")); !strings.Contains(text, says) {
				t.Error(text)
			}
		})
	}
}

// SIGTERM lets files that are in use be read on for a while and opens no more; then whoever has them gets an error.
func TestGrace(t *testing.T) {
	t.Parallel()
	config, _ := small(t, 1)
	for _, test := range []struct {
		name  string
		grace string
		again bool // a second signal
		least time.Duration
		most  time.Duration
		says  string
	}{
		{"grace", "2s", false, 2 * time.Second, 4 * time.Second, "files were still open at the end of the grace period"},
		{"second signal", "1h", true, 0, 2 * time.Second, "told to stop again"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := mount(t, "-c", config, "--set", "mount.grace="+test.grace)
			reader := startStorm(t, command(t, python, "-c", `
import errno, os, sys
fds = [os.open(sys.argv[1], os.O_RDONLY) for _ in range(20)]
directory = os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY)
print("ready", flush=True)
for line in sys.stdin:
    try:
        if line == "open\n":
            os.open("next", os.O_RDONLY, dir_fd=directory)
        else:
            os.pread(fds[int(line)], 100, 0)
        print("ok", flush=True)
    except OSError as e:
        print(errno.errorcode[e.errno], flush=True)
`, m.path("train/next")))
			reader.ready(t)
			ask := func(what string) string {
				fmt.Fprintln(reader.in, what)
				line, err := reader.out.ReadString('\n')
				noError(t, err)
				return strings.TrimSpace(line)
			}
			if got := ask("0"); got != "ok" {
				t.Error(got)
			}
			began := time.Now()
			m.cmd.Process.Signal(syscall.SIGTERM)
			await(t, "the first warning", func() bool { return strings.Contains(m.out.String(), "still open") })
			if test.again { // in the other case the grace period may be over by now
				if got := ask("open"); got != "ESHUTDOWN" {
					t.Errorf("an open after SIGTERM: %s", got)
				}
				if got := ask("1"); got != "ok" {
					t.Errorf("a read after SIGTERM: %s", got)
				}
				m.cmd.Process.Signal(syscall.SIGTERM)
			}
			m.awaitEnd(t)
			took := time.Since(began)
			inTime(t, "the end", took, test.most)
			if took < test.least || !strings.Contains(m.out.String(), test.says) {
				t.Errorf("after %v it ended:\n%s", took, m.out)
			}
			if isMounted(t, m.dir) {
				t.Error("still mounted")
			}
			if got := ask("19"); got != "ENOTCONN" {
				t.Errorf("a read of who slept: %s", got)
			}
		})
	}
}

// unmount says who is in the way, and --force unmounts under them.
func TestUnmountSaysWho(t *testing.T) {
	config, _ := small(t, 1)
	m := mount(t, "-c", config)
	reader := startStorm(t, command(t, python, "-c", `
import mmap, os, sys
os.chdir(sys.argv[1])
f = open("train/batch/3", "rb")
g = open("val/batches.bin", "rb")
m = mmap.mmap(g.fileno(), 0, prot=mmap.PROT_READ)
g.close()
print("ready", flush=True)
sys.stdin.read()`, m.dir))
	reader.ready(t)
	_, stderr, err := try(t, batchfs, "unmount", m.dir)
	who := "process " + strconv.Itoa(reader.cmd.Process.Pid)
	for _, want := range []string{who, "has open " + m.path("train/batch/3"), "has mapped " + m.path("val/batches.bin"), "works in " + m.dir, "--force"} {
		if err == nil || !strings.Contains(stderr, want) {
			t.Errorf("%v: %q is not in\n%s", err, want, stderr)
		}
	}
	if !isMounted(t, m.dir) {
		t.Error("unmounted under a reader")
	}
	run(t, batchfs, "unmount", "--force", m.dir)
	m.awaitEnd(t)
	if code := m.cmd.ProcessState.ExitCode(); code != 0 || isMounted(t, m.dir) {
		t.Errorf("exit status %d, mounted: %v", code, isMounted(t, m.dir))
	}
}
