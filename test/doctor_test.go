package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestDoctor(t *testing.T) {
	needFUSE(t)
	dir := t.TempDir()
	tokens(t, filepath.Join(dir, "data/train.bin"), 60_000, 2)
	write(t, filepath.Join(dir, "config.toml"), []byte("mountpoint = 'mnt'\nsplits.a.tokens = 'data/train.bin'\nsplits.b.tokens = 'none.bin'\n"))
	write(t, filepath.Join(dir, "typo.toml"), []byte("mountpont = \"mnt\"\n"))
	data, empty, full := filepath.Join(dir, "data"), t.TempDir(), t.TempDir()
	write(t, filepath.Join(full, "precious"), nil)
	for _, test := range []struct {
		args []string
		fix  []string // of its lines, those to be fixed
		want string
	}{
		{nil, nil, "ok   configuration: none"},
		{[]string{"--data", data}, nil, "ok   splits.train: 60000 tokens in 1 file(s)"},
		{[]string{"--data", data, empty}, nil, "ok   mountpoint: " + empty},
		{[]string{"--data", data, full}, []string{"mountpoint"}, "is not empty (it holds precious)"},
		{[]string{"-c", filepath.Join(dir, "config.toml")}, []string{"mountpoint", "splits.b"}, "mkdir -p " + filepath.Join(dir, "mnt")},
		{[]string{"-c", filepath.Join(dir, "config.toml"), empty}, []string{"splits.b"}, "none.bin: no such file"},
		{[]string{"-c", filepath.Join(dir, "typo.toml")}, []string{"configuration"}, "typo.toml:1: mountpont: unknown key"},
		{[]string{"--data", empty}, []string{"configuration"}, "batchfs prepare TEXT --out"},
		{[]string{"--data", data, "--set", "memory.ahead_bytes=1099511627776"}, []string{"memory"}, "--set memory.ahead_bytes="},
	} {
		cmd := exec.Command(batchfs, append([]string{"doctor"}, test.args...)...)
		cmd.Dir = empty // where no configuration file is
		out, err := cmd.Output()
		var fix []string
		for line := range strings.Lines(string(out)) {
			if what, ok := strings.CutPrefix(line, "FIX  "); ok {
				fix = append(fix, what)
			} else if !strings.HasPrefix(line, "ok   ") {
				t.Errorf("%s: the line %q", test.args, line)
			}
		}
		if code := cmd.ProcessState.ExitCode(); code != min(len(test.fix), 1) || !strings.Contains(string(out), test.want) {
			t.Errorf("%s: %v\n%s", test.args, err, out)
		}
		for i := range max(len(fix), len(test.fix)) {
			if i >= min(len(fix), len(test.fix)) || !strings.HasPrefix(fix[i], test.fix[i]+": ") {
				t.Errorf("%s: to fix are %q, want %q", test.args, fix, test.fix)
				break
			}
		}
	}

}

// The doctor tells a mount that is healthy from one that is stuck or dead, at once, and what helps does.
func TestDoctorOfMounts(t *testing.T) {
	long(t)
	t.Parallel()
	config, _ := small(t, 1)
	m := mount(t, "-c", config)
	keeper := m.cmd.Process.Pid
	says := func(want string) {
		t.Helper()
		began := time.Now()
		out, _, err := try(t, plainBatchfs, "doctor", "-c", config, m.dir)
		if !strings.Contains(out, want) || (err == nil) != strings.HasPrefix(want, "ok") {
			t.Errorf("%v: %q is not in\n%s", err, want, out)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
	}
	healthy := fmt.Sprintf("ok   mountpoint: %s is mounted and healthy, served by process ", m.dir)
	says(healthy)

	noError(t, syscall.Kill(keeper, syscall.SIGSTOP))
	says(fmt.Sprintf("stuck: process %d, which keeps the mount, is stopped; have it go on with: kill -CONT %[1]d", keeper))
	noError(t, syscall.Kill(keeper, syscall.SIGCONT))
	says(healthy)

	worker := m.worker(t)
	noError(t, syscall.Kill(worker, syscall.SIGSTOP))
	time.Sleep(3200 * time.Millisecond) // by then it should have answered, and another has not taken its place yet
	says(fmt.Sprintf("stuck: process %d, which serves, has not answered for 3s; another takes its place, or else: batchfs restart %s", worker, m.dir))
	run(t, plainBatchfs, "restart", m.dir)
	says(healthy)

	noError(t, syscall.Kill(keeper, syscall.SIGKILL))
	<-m.done
	says("dead: process " + fmt.Sprint(keeper) + ", which kept the mount, is gone; free it with: batchfs unmount " + m.dir)
	run(t, plainBatchfs, "unmount", m.dir)
}

// An ordinary user hears what root would have to do.
func TestDoctorOfAnOrdinaryUser(t *testing.T) {
	needFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	out, err := asUser(nobody, nobody, "env", "PATH=/none", batchfs, "doctor")
	if err == nil || !strings.Contains(out, "FIX  right to mount: ") || !strings.Contains(out, "apt-get install fuse3") {
		t.Errorf("%v %s", err, out)
	}
}
