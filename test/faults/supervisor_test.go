package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"batchfs/internal/failure"
	"batchfs/test/e2e"
)

// If a supervisor is killed, its workers end too. Afterwards, unmount removes the dead mount, and
// so does a new mount on the same directory.
func TestKilledSupervisor(t *testing.T) {
	t.Parallel()
	config, want := e2e.SmallConfig(t, 1)
	for name, worker := range map[string]func(pid int){
		"":                  func(int) {},
		" of a stopped one": func(pid int) { syscall.Kill(pid, syscall.SIGSTOP) },
	} {
		m := e2e.Mount(t, "-c", config)
		workers := m.AwaitStandby(t)
		reader := exec.Command("sleep", "infinity")
		reader.Dir = m.Dir // keeps the dead mount busy
		e2e.Begin(t, reader)
		worker(workers[0])
		m.Cmd.Process.Kill()
		m.AwaitEnd(t)
		e2e.AwaitEnded(t, workers...)
		e2e.AwaitDead(t, m.Dir)
		if name == "" {
			e2e.Run(t, e2e.Batchfs, "unmount", m.Dir)
			e2e.NotMounted(t, m.Dir)
		}
		e2e.Run(t, e2e.Batchfs, "mount", "-d", "-c", config, "--log", filepath.Join(t.TempDir(), "log"), m.Dir)
		e2e.Equal(t, "batch 0", e2e.Read(t, "read", filepath.Join(m.Dir, "train/next"))[0], want[0])
		e2e.Run(t, e2e.Batchfs, "unmount", "--force", m.Dir)
	}
}

// A supervisor that has ended is dead for every user, even if nobody waits for it, as in a
// container whose first process does not.
func TestSupervisorNotWaitedFor(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	e2e.NeedRoot(t, "other users see the mount of root")
	config, _ := e2e.SmallConfig(t, 1)
	dir := e2e.PublicDir(t)
	mountpoint := filepath.Join(dir, "mnt")
	e2e.NoError(t, os.Mkdir(mountpoint, 0o755))
	t.Cleanup(func() { syscall.Unmount(mountpoint, syscall.MNT_DETACH) })
	e2e.Begin(t, exec.Command("sh", "-c", `"$@" & exec sleep infinity`, "sh", e2e.Batchfs, "mount", "-c", config, mountpoint))
	e2e.AwaitRun(t, "cat", filepath.Join(mountpoint, "README"))
	var supervisor int
	_, err := fmt.Sscanf(e2e.MountsBelow(t, dir)[0].Source, "batchfs:%d:", &supervisor)
	e2e.NoError(t, err)
	asOther := func() string {
		out, _ := e2e.RunAs(t, e2e.Nobody, e2e.Nobody, e2e.Batchfs, "doctor", mountpoint)
		return out
	}
	e2e.Contains(t, "the doctor of another user", asOther(), "is mounted, but only user 0")
	e2e.NoError(t, syscall.Kill(supervisor, syscall.SIGKILL))
	e2e.AwaitEnded(t, supervisor)
	e2e.AwaitDead(t, mountpoint)
	e2e.Contains(t, "the doctor of another user", asOther(), "is dead: its supervisor")
	for _, args := range [][]string{{"restart", mountpoint}, {"cat", filepath.Join(mountpoint, "train")}} {
		e2e.CheckFails(t, mountpoint+": the mount is dead: its supervisor process is gone; batchfs unmount ends it", append([]string{e2e.Batchfs}, args...)...)
	}
	e2e.CheckOutput(t, "is unmounted", e2e.Batchfs, "unmount", mountpoint)
}

// A restart applies a new program and a new configuration. A configuration that cannot replace the
// mounted one is rejected.
func TestRestart(t *testing.T) {
	t.Parallel()
	config, want := e2e.SmallConfig(t, 4)
	text := e2e.Content(t, config)
	// An upgrade puts another file at the path of the program.
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
	if out := e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir); out != fmt.Sprintf("process %d now serves %s\n", m.Worker(t), m.Dir) || m.Worker(t) == first {
		t.Errorf("restart printed %q, and worker %d serves, want another one than %d, and its number printed", out, m.Worker(t), first)
	}
	e2e.Run(t, "cmp", program, fmt.Sprintf("/proc/%d/exe", m.Worker(t)))
	e2e.Contains(t, "the log", m.Out.String(), "level=DEBUG")
	next(1)

	for change, message := range map[string]string{
		"\n[batch]\nseed = 8\n":               "splits.train.seed is 1337 in the mount, and the configuration has 8",
		"\n[splits.more]\ntokens=\"x.bin\"\n": "the mount has no split more",
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
		if _, stderr, err := e2e.Try(t, e2e.PlainBatchfs, "restart", m.Dir); !e2e.HasStatus(err, failure.Config) || !strings.Contains(stderr, message) {
			t.Errorf("restart: error %v, standard error %q, want exit status %d and %q", err, stderr, failure.Config.Status, message)
		}
		e2e.Equal(t, "the worker after a restart that was rejected", m.Worker(t), serving)
	}
	e2e.NoError(t, os.Chmod(program, 0o644))
	e2e.CheckFails(t, program+": permission denied", e2e.PlainBatchfs, "restart", m.Dir)
	e2e.NoError(t, os.Chmod(program, 0o755))
	next(2)

	// If a worker dies, its successor serves what was mounted, whatever became of the configuration
	// and the program's file.
	e2e.NoError(t, os.Remove(config))
	e2e.NoError(t, os.Remove(program))
	second := fmt.Sprintf("/proc/%d/exe", m.Worker(t))
	running := e2e.Must(os.Stat(second))(t)
	e2e.NoError(t, syscall.Kill(m.AwaitWorker(t), syscall.SIGKILL))
	next(3)
	if file, err := os.Stat(fmt.Sprintf("/proc/%d/exe", m.Worker(t))); err != nil || !os.SameFile(running, file) {
		t.Errorf("the successor runs another program than the worker that died (error %v)", err)
	}
	m.Cmd.Process.Signal(syscall.SIGHUP)
	e2e.AwaitText(t, m.Out, "restart rejected")
}

// A restart accepts a changed token file only if the split follows changes. The cursor stays.
func TestRestartAcceptsChange(t *testing.T) {
	t.Parallel()
	config, want := e2e.SmallConfig(t, 2)
	text := string(e2e.Content(t, config))
	m := e2e.Mount(t, "-c", config)
	e2e.Equal(t, "batch 0", e2e.Read(t, "read", m.Path("train/next"))[0], want[0])
	touched := time.Now().Add(-time.Hour)
	e2e.NoError(t, os.Chtimes(filepath.Join(filepath.Dir(config), "train.bin"), touched, touched))
	e2e.CheckFails(t, "train cannot be read: ", e2e.PlainBatchfs, "restart", m.Dir)
	e2e.Write(t, config, strings.ReplaceAll(text, "tokens =", "on_change = \"follow\"\ntokens ="))
	e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir)
	e2e.Equal(t, "the next batch", e2e.Read(t, "read", m.Path("train/next"))[0], want[1])
	e2e.Run(t, "head", "-c1", m.Path("val/next"))
	e2e.Write(t, config, text)
	e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir)
	e2e.Equal(t, "batch 0 after the last restart", e2e.Read(t, "read", m.Path("train/batch/0"))[0], want[0])
}

// A read that crashes every worker that handles it fails.
func TestPoisonousRead(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	cmd := exec.Command(e2e.FaultyBatchfs)
	cmd.Env = append(os.Environ(), "BATCHFS_FAULTS=read:abort:1")
	m := e2e.MountProgram(t, cmd, "-c", config)
	for _, file := range []string{"train/batch/3", "train/next"} {
		e2e.CheckFails(t, "Input/output error", "head", "-c1", m.Path(file))
		e2e.CheckOutput(t, "6 workers crashed before they could answer it", "cat", m.Path("status.json"))
	}
	e2e.Equal(t, "the cursor after a read that failed", e2e.Run(t, "cat", m.Path("train/cursor")), "0\n")
}

// After SIGTERM, open files can be read for the grace period, and no other files can be opened.
// After that period, reads fail.
func TestGrace(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	for _, test := range []struct {
		name  string
		grace string
		again bool // whether to send a second signal
		least time.Duration
		most  time.Duration
		says  string
	}{
		{"grace", "1s", false, time.Second, 3 * time.Second, "files were still open at the end of the grace period"},
		{"second signal", "1h", true, 0, 2 * time.Second, "second stop signal"},
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
			e2e.AwaitText(t, m.Out, "still open")
			if test.again { // a short grace period may be over by now
				e2e.Equal(t, "an open after SIGTERM", h.Do("open train/next"), "errno ESHUTDOWN")
				e2e.Contains(t, "a read after SIGTERM", h.Do("read 1 0 100"), "100 ")
				m.Cmd.Process.Signal(syscall.SIGTERM)
			}
			m.AwaitEnd(t)
			took := time.Since(began)
			e2e.CheckDuration(t, "the end of the mount", took, test.most)
			if took < test.least || !strings.Contains(m.Out.String(), test.says) {
				t.Errorf("the mount ended after %v, want at least %v and %q in the log:\n%s", took, test.least, test.says, m.Out)
			}
			e2e.NotMounted(t, m.Dir)
			e2e.Equal(t, "a read after the end", h.Do("read 2 0 100"), "errno ENOTCONN")
		})
	}
}

// unmount works in a directory of the mount if nothing else uses it.
func TestUnmountFromWithin(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	e2e.Run(t, "env", "-C", m.Path("train"), e2e.Batchfs, "unmount", "..")
	m.AwaitExitStatus(t, 0)
}

// unmount names the processes that use a mount. unmount --force does not wait for them.
func TestUnmountSaysWho(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	reader := e2e.StartClient(t, exec.Command(e2e.Python, "-c", `
import mmap, os, sys
os.chdir(sys.argv[1])
f = open("train/batch/3", "rb")
g = open("val/batches.bin", "rb")
m = mmap.mmap(g.fileno(), 0, prot=mmap.PROT_READ)
g.close()
print("ready", flush=True)
sys.stdin.read()`, m.Dir))
	reader.AwaitReady(t)
	name := fmt.Sprintf("process %d (", reader.Cmd.Process.Pid)
	wanted := []string{name, "has open " + m.Path("train/batch/3"), "has mapped " + m.Path("val/batches.bin"), "works in " + m.Dir, "--force"}
	if os.Geteuid() == 0 {
		e2e.NoError(t, syscall.Mount("tmpfs", m.Path("val/batch"), "tmpfs", 0, ""))
		wanted = append(wanted, "something is mounted on "+m.Path("val/batch"))
	}
	_, stderr, err := e2e.Try(t, e2e.Batchfs, "unmount", m.Dir)
	for _, want := range wanted {
		if err == nil || !strings.Contains(stderr, want) {
			t.Errorf("unmount: error %v, want %q in\n%s", err, want, stderr)
		}
	}
	e2e.Equal(t, "the mount is still there", e2e.IsMounted(t, m.Dir), true)
	e2e.Run(t, e2e.Batchfs, "unmount", "--force", m.Dir)
	m.AwaitExitStatus(t, 0)
}
