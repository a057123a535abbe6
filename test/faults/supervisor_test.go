package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// A keeper that is killed takes its worker with it. The mount is dead then, which mounting anew and unmounting both recognise.
func TestKilledKeeper(t *testing.T) {
	t.Parallel()
	config, want := e2e.Small(t, 1)
	for name, worker := range map[string]func(pid int){
		"":                  func(int) {},
		" of a stopped one": func(pid int) { syscall.Kill(pid, syscall.SIGSTOP) },
	} {
		m := e2e.Mount(t, "-c", config)
		workers := m.AwaitStandby(t)
		reader := exec.Command("sleep", "infinity")
		reader.Dir = m.Dir // which keeps the dead mount busy
		e2e.Begin(t, reader)
		worker(workers[0])
		m.Cmd.Process.Kill()
		m.AwaitEnd(t)
		e2e.AwaitEnded(t, workers...)
		e2e.Await(t, "a dead mount"+name, func() bool {
			_, stderr, err := e2e.Try(t, "ls", m.Dir)
			return err != nil && strings.Contains(stderr, "not connected")
		})
		if name == "" {
			e2e.Run(t, e2e.Batchfs, "unmount", m.Dir)
			e2e.NotMounted(t, m.Dir)
		}
		e2e.Run(t, e2e.Batchfs, "mount", "-d", "-c", config, "--log", filepath.Join(t.TempDir(), "log"), m.Dir)
		e2e.Equal(t, "batch 0", e2e.Read(t, "read", filepath.Join(m.Dir, "train/next"))[0], want[0])
		e2e.Run(t, e2e.Batchfs, "unmount", "--force", m.Dir)
	}
}

// A process stands by that takes the place of one that ends, and then another does.
func TestStandby(t *testing.T) {
	t.Parallel()
	config, want := e2e.Small(t, 4)
	m := e2e.MountProgram(t, e2e.OneThread(e2e.Batchfs), "-c", config)
	for k, kills := range [][2]bool{{true, false}, {false, true}, {true, true}, {true, false}} {
		before := m.AwaitStandby(t)
		var killed []int
		for i, pid := range before {
			if kills[i] {
				e2e.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				killed = append(killed, pid)
			}
		}
		e2e.Equal(t, fmt.Sprintf("batch %d", k), e2e.Read(t, "read", m.Path("train/next"))[0], want[k])
		e2e.AwaitEnded(t, killed...)
		now := m.AwaitStandby(t)
		if kills == [2]bool{true, false} && now[0] != before[1] || kills == [2]bool{false, true} && now[0] != before[0] {
			t.Errorf("%v: of %v, now %v", kills, before, now)
		}
	}
}

// A worker that hangs is replaced.
func TestHangingWorker(t *testing.T) {
	t.Parallel()
	config, want := e2e.Small(t, 1)
	m := e2e.Mount(t, "-c", config)
	first := m.Worker(t)
	syscall.Kill(first, syscall.SIGSTOP)
	began := time.Now()
	e2e.Equal(t, "batch 0", e2e.Read(t, "read", m.Path("train/next"))[0], want[0])
	e2e.InTime(t, "the first batch", time.Since(began), 8*time.Second)
	e2e.AwaitEnded(t, first)
}

// A restart takes another program and another configuration, unless readers would see other batches.
func TestRestart(t *testing.T) {
	config, want := e2e.Small(t, 4)
	text := e2e.Content(t, config)
	// As an upgrade does: another file at the path of the program.
	program := filepath.Join(t.TempDir(), "batchfs")
	e2e.Run(t, "cp", e2e.Batchfs, program)
	m := e2e.MountProgram(t, e2e.OneThread(program), "-c", config)
	next := func(k int) {
		t.Helper()
		e2e.Equal(t, fmt.Sprintf("batch %d", k), e2e.Read(t, "read", m.Path("train/next"))[0], want[k])
	}
	next(0)
	first := m.Worker(t)
	e2e.Run(t, "cp", e2e.FaultyBatchfs, program+".new")
	e2e.NoError(t, os.Rename(program+".new", program))
	e2e.Write(t, config, append(text, "\n[log]\nlevel = \"debug\"\n[memory]\naccess = \"pread\"\n"...))
	if out := e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir); !strings.Contains(out, fmt.Sprint(m.Worker(t))) || m.Worker(t) == first {
		t.Errorf("%q, and worker %d serves after %d", out, m.Worker(t), first)
	}
	if a, b := sameFile(t, program, fmt.Sprintf("/proc/%d/exe", m.Worker(t))), sameFile(t, e2e.Batchfs, program); !a || b {
		t.Errorf("the worker runs the new program: %v", a)
	}
	e2e.Contains(t, "the log", m.Out.String(), "level=DEBUG")
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
		e2e.Write(t, config, []byte(changed))
		serving := m.Worker(t)
		e2e.Fails(t, says, e2e.PlainBatchfs, "restart", m.Dir)
		e2e.Equal(t, "the worker after a restart that was refused", m.Worker(t), serving)
	}
	next(2)

	// The successor of a worker that dies serves what was mounted, whatever the configuration says now and wherever its files are.
	e2e.NoError(t, os.Remove(config))
	e2e.NoError(t, os.Remove(program))
	second := fmt.Sprintf("/proc/%d/exe", m.Worker(t))
	running := e2e.Must(os.Stat(second))(t)
	e2e.NoError(t, syscall.Kill(m.AwaitWorker(t), syscall.SIGKILL))
	next(3)
	if now, err := os.Stat(fmt.Sprintf("/proc/%d/exe", m.Worker(t))); err != nil || !os.SameFile(running, now) {
		t.Errorf("%v: it runs another program than the one that died", err)
	}
	m.Cmd.Process.Signal(syscall.SIGHUP)
	e2e.Await(t, "a restart without a configuration", func() bool { return strings.Contains(m.Out.String(), "restart refused") })
}

func sameFile(t *testing.T, a, b string) bool {
	t.Helper()
	x := e2e.Must(os.Stat(a))(t)
	y := e2e.Must(os.Stat(b))(t)
	return os.SameFile(x, y)
}

// A worker that fails by itself is tried again for a while. Then the mount goes, and the log says why.
func TestGivingUp(t *testing.T) {
	e2e.Long(t)
	t.Parallel()
	config, _ := e2e.Small(t, 1)
	cmd := exec.Command(e2e.FaultyBatchfs)
	cmd.Env = append(os.Environ(), "BATCHFS_FAULTS=succeed:panic:1")
	m := e2e.MountProgram(t, cmd, "-c", config)
	first := m.Worker(t)
	e2e.NoError(t, syscall.Kill(first, syscall.SIGSTOP))
	reader := e2e.Command(t, "head", "-c1", m.Path("train/batch/0"))
	var says strings.Builder
	reader.Stderr = &says
	e2e.NoError(t, reader.Start())
	syscall.Kill(first, syscall.SIGKILL)
	m.AwaitEnd(t)
	if err := reader.Wait(); err == nil || !strings.Contains(says.String(), "not connected") && !strings.Contains(says.String(), "connection abort") {
		t.Errorf("its reader: %v %s", err, &says)
	}
	m.EndsWith(t, 1)
	for _, want := range []string{"10 processes in a row ended before they had answered a request", "panic: BATCHFS_FAULTS: succeed"} {
		e2e.Contains(t, "the log", m.Out.String(), want)
	}
}

// A read that panics, and one that ends every process that tries to answer it, gets an error.
func TestPoisonousRead(t *testing.T) {
	config, _ := e2e.Small(t, 1)
	for how, says := range map[string]string{"panic": "", "abort": "5 processes ended by themselves while this had no answer"} {
		t.Run(how, func(t *testing.T) {
			cmd := exec.Command(e2e.FaultyBatchfs)
			cmd.Env = append(os.Environ(), "BATCHFS_FAULTS=read:"+how+":1")
			m := e2e.MountProgram(t, cmd, "-c", config)
			e2e.Fails(t, "Input/output error", "head", "-c1", m.Path("train/batch/3"))
			e2e.Says(t, says, "cat", m.Path("status.json"))
		})
	}
}

// SIGTERM lets files that are in use be read on for a while and opens no more; then whoever has them gets an error.
func TestGrace(t *testing.T) {
	t.Parallel()
	config, _ := e2e.Small(t, 1)
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
			m := e2e.Mount(t, "-c", config, "--set", "mount.grace="+test.grace)
			h := e2e.StartHandles(t, m.Dir)
			for range 3 {
				h.Do("open train/next")
			}
			h.Do("read 0 0 100")
			began := time.Now()
			m.Cmd.Process.Signal(syscall.SIGTERM)
			e2e.Await(t, "the first warning", func() bool { return strings.Contains(m.Out.String(), "still open") })
			if test.again { // in the other case the grace period may be over by now
				e2e.Equal(t, "an open after SIGTERM", h.Do("open train/next"), "errno ESHUTDOWN")
				e2e.Contains(t, "a read after SIGTERM", h.Do("read 1 0 100"), "100 ")
				m.Cmd.Process.Signal(syscall.SIGTERM)
			}
			m.AwaitEnd(t)
			took := time.Since(began)
			e2e.InTime(t, "the end", took, test.most)
			if took < test.least || !strings.Contains(m.Out.String(), test.says) {
				t.Errorf("after %v it ended:\n%s", took, m.Out)
			}
			e2e.NotMounted(t, m.Dir)
			e2e.Equal(t, "a read of who slept", h.Do("read 2 0 100"), "errno ENOTCONN")
		})
	}
}

// unmount says who is in the way, and --force unmounts under them.
func TestUnmountSaysWho(t *testing.T) {
	config, _ := e2e.Small(t, 1)
	m := e2e.Mount(t, "-c", config)
	reader := e2e.StartClient(t, e2e.Command(t, e2e.Python, "-c", `
import mmap, os, sys
os.chdir(sys.argv[1])
f = open("train/batch/3", "rb")
g = open("val/batches.bin", "rb")
m = mmap.mmap(g.fileno(), 0, prot=mmap.PROT_READ)
g.close()
print("ready", flush=True)
sys.stdin.read()`, m.Dir))
	reader.Ready(t)
	_, stderr, err := e2e.Try(t, e2e.Batchfs, "unmount", m.Dir)
	who := "process " + strconv.Itoa(reader.Cmd.Process.Pid)
	for _, want := range []string{who, "has open " + m.Path("train/batch/3"), "has mapped " + m.Path("val/batches.bin"), "works in " + m.Dir, "--force"} {
		if err == nil || !strings.Contains(stderr, want) {
			t.Errorf("%v: %q is not in\n%s", err, want, stderr)
		}
	}
	e2e.Equal(t, "mounted under a reader", e2e.IsMounted(t, m.Dir), true)
	e2e.Run(t, e2e.Batchfs, "unmount", "--force", m.Dir)
	m.EndsWith(t, 0)
}
