package commands

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"batchfs/internal/failure"
	"batchfs/test/e2e"
)

// The doctor prints one line for each check, and exits with 1 if something must be fixed. It
// changes nothing.
func TestDoctor(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	dir := t.TempDir()
	e2e.WriteTokens(t, filepath.Join(dir, "data/train.bin"), 60_000, 2)
	e2e.Write(t, filepath.Join(dir, "config.toml"), []byte("mountpoint = 'mnt'\nsplits.a.tokens = 'data/train.bin'\nsplits.b.tokens = 'none.bin'\n"))
	e2e.Write(t, filepath.Join(dir, "typo.toml"), []byte("mountpont = \"mnt\"\n"))
	data, empty, full := filepath.Join(dir, "data"), t.TempDir(), t.TempDir()
	e2e.Write(t, filepath.Join(full, "precious"), "")
	for _, test := range []struct {
		args []string
		fix  []string // subjects of the lines that begin with FIX
		want string
	}{
		{nil, nil, "ok   configuration: none"},
		{[]string{"--data", data}, nil, "ok   splits.train: 60000 tokens in 1 file: "},
		{[]string{"--data", data, empty}, nil, "ok   mountpoint: " + empty},
		{[]string{"--data", data, full}, []string{"mountpoint"}, "is not empty (it holds precious)"},
		{[]string{"-c", filepath.Join(dir, "config.toml")}, []string{"mountpoint", "splits.b"}, "mkdir -p " + filepath.Join(dir, "mnt")},
		{[]string{"-c", filepath.Join(dir, "config.toml"), empty}, []string{"splits.b"}, "none.bin: no such file"},
		{[]string{"-c", filepath.Join(dir, "typo.toml")}, []string{"configuration"}, "typo.toml:1: mountpont: unknown key"},
		{[]string{"--data", empty}, []string{"configuration"}, "batchfs prepare TEXT --out"},
	} {
		cmd := e2e.Command(t, e2e.Batchfs, append([]string{"doctor"}, test.args...)...)
		cmd.Dir = empty // a directory without config.toml
		out, err := cmd.Output()
		var fix []string
		for line := range strings.Lines(string(out)) {
			if name, ok := strings.CutPrefix(line, "FIX  "); ok {
				name, _, _ = strings.Cut(name, ": ")
				fix = append(fix, name)
			} else if !strings.HasPrefix(line, "ok   ") {
				t.Errorf("%s: the line %q begins with neither ok nor FIX", test.args, line)
			}
		}
		if code := cmd.ProcessState.ExitCode(); code != min(len(test.fix), 1) || !strings.Contains(string(out), test.want) || !slices.Equal(fix, test.fix) {
			t.Errorf("%s: error %v, FIX lines for %q, want %q and %q in the output\n%s", test.args, err, fix, test.fix, test.want, out)
		}
	}
	cache := t.TempDir()
	e2e.Write(t, filepath.Join(cache, "new-block"), "") // left by a killed process
	before := e2e.Run(t, "ls", "-al", "--full-time", cache)
	e2e.CheckOutput(t, "ok   block cache: ", e2e.PlainBatchfs, "doctor", "--data", data, "--set", "store.cache_dir="+cache)
	e2e.Equal(t, "the block cache after the doctor", e2e.Run(t, "ls", "-al", "--full-time", cache), before)
}

// The doctor distinguishes mounts that serve, are stuck or are dead, and its advice works.
func TestDoctorOfMounts(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	keeper := m.Cmd.Process.Pid
	healthy := fmt.Sprintf("ok   mountpoint: %s is mounted, served by process ", m.Dir)
	log := fmt.Sprintf("ok   log: standard error of process %d\n", keeper)
	e2e.AwaitDoctor(t, m.Dir, healthy, log)
	e2e.NoError(t, syscall.Kill(keeper, syscall.SIGSTOP))
	e2e.AwaitDoctor(t, m.Dir, log, fmt.Sprintf("stuck: its supervisor, process %d, is stopped; continue it with: kill -CONT %[1]d", keeper))
	e2e.NoError(t, syscall.Kill(keeper, syscall.SIGCONT))
	e2e.AwaitDoctor(t, m.Dir, healthy)

	probe := func(path string) error {
		_, _, err := e2e.Try(t, e2e.PlainBatchfs, "doctor", "--mounted", path)
		return err
	}
	e2e.AwaitRun(t, e2e.PlainBatchfs, "doctor", "--mounted", m.Dir)
	e2e.Equal(t, "doctor --mounted succeeds on a directory where nothing is mounted", probe(t.TempDir()) == nil, false)
	e2e.CheckFails(t, "--mounted takes a MOUNTPOINT", e2e.PlainBatchfs, "doctor", "--mounted")

	e2e.NoError(t, syscall.Kill(keeper, syscall.SIGKILL))
	m.AwaitEnd(t)
	e2e.Equal(t, "doctor --mounted succeeds on a dead mount", probe(m.Dir) == nil, false)
	e2e.AwaitDoctor(t, m.Dir, "dead: its supervisor, process "+fmt.Sprint(keeper)+", is gone; unmount it with: batchfs unmount "+m.Dir, "ok   log: unknown: ")
	e2e.Run(t, e2e.PlainBatchfs, "unmount", m.Dir)
}

// If a token file has changed or cannot be read, even because its disk hangs, the doctor and a
// restart name the problem and the remedy, whatever the name of a split is. This takes more than
// ten seconds, because both wait five seconds for a disk that hangs.
func TestDoctorOfTokens(t *testing.T) {
	t.Parallel()
	d := e2e.NewFaultyFile(t, e2e.TokensOfVersion(0, 50_000))
	well := e2e.WriteTokens(t, filepath.Join(t.TempDir(), "well.bin"), 60_000, 2)
	m := e2e.Mount(t, "-c", "/dev/null", "--set", "splits.train.tokens="+d.Path, "--set", "splits.-well.tokens="+well)
	split := m.Path("train/rank=1,world=2")
	e2e.AwaitDoctor(t, split, "ok   mountpoint: "+m.Dir+" is mounted", "ok   mounted train: 50000 tokens in 1 file: "+d.Path,
		"ok   mounted -well: 60000 tokens in 1 file: "+well)
	for _, test := range []struct {
		mode e2e.Mode
		want string
	}{
		{e2e.Shorter, d.Path + " has changed since it was opened: 50000 bytes, was 100000; unmount and mount again"},
		{e2e.Gone, d.Path + ": no such file or directory; put the file back, or unmount and mount again"},
		{e2e.Denied, d.Path + ": permission denied; as its owner, chmod a+r " + d.Path},
		{e2e.Failing, d.Path + ": input/output error"},
		{e2e.Hang, "no answer in 5s: the disk or file server seems to be stuck"},
	} {
		d.Set(t, test.mode)
		if out, stderr, err := e2e.Try(t, e2e.PlainBatchfs, "restart", m.Dir); !e2e.HasStatus(err, failure.Data) || !strings.Contains(out, "now serves "+m.Dir) ||
			!strings.Contains(stderr, m.Path("train")+" cannot be read: ") || !strings.Contains(stderr, test.want) || strings.Contains(stderr, "well") {
			t.Errorf("restart: error %v, output %q, standard error %q, want %q", err, out, stderr, test.want)
		}
		e2e.AwaitDoctor(t, split, "FIX  mounted train: ", test.want, "ok   mounted -well: ")
	}
	d.Set(t, e2e.Healthy)
	e2e.AwaitDoctor(t, split, "ok   mounted train: ")
	e2e.AwaitRun(t, e2e.PlainBatchfs, "restart", m.Dir)
}

// The doctor tells an ordinary user what root would have to do.
func TestDoctorOfAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	e2e.NeedRoot(t, "only root can be another user")
	out, err := e2e.RunAs(t, e2e.Nobody, e2e.Nobody, "env", "PATH=/none", e2e.Batchfs, "doctor")
	if err == nil || !strings.Contains(out, "FIX  permission to mount: ") || !strings.Contains(out, "apt-get install fuse3") {
		t.Errorf("the doctor without fusermount3: error %v, output %s\nwant FIX and how to install fuse3", err, out)
	}
	if _, err := exec.LookPath("fusermount3"); err == nil {
		out, err := e2e.RunAs(t, 54321, e2e.Nobody, e2e.Batchfs, "doctor")
		if err == nil || !strings.Contains(out, "fusermount3 needs a name for user id 54321, and /etc/passwd has none: as root, echo 'trainer:x:54321:65534::/:/bin/sh' >>/etc/passwd") {
			t.Errorf("the doctor for a user without a name: error %v, output %s\nwant how to add a name", err, out)
		}
	}
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	out, err = e2e.RunAs(t, e2e.Nobody, e2e.Nobody, e2e.Batchfs, "doctor", m.Dir)
	if err == nil || !strings.Contains(out, m.Dir+" is mounted, but only user 0, who mounted it, may access it; to let others in, mount with mount.allow_other") {
		t.Errorf("the doctor in the mount of another user: error %v, output %s\nwant who may enter it", err, out)
	}
	m = e2e.Mount(t, "-c", config, "--set", "mount.allow_other=true")
	e2e.NoError(t, os.Chmod(filepath.Dir(m.Dir), 0o755))
	// The doctor may fail because of /dev/fuse.
	out, _ = e2e.RunAs(t, e2e.Nobody, e2e.Nobody, e2e.Batchfs, "doctor", m.Dir)
	if !strings.Contains(out, "ok   mountpoint: "+m.Dir+" is mounted; only user 0, who mounted it, and root can see more") ||
		strings.Contains(out, "mounted splits") {
		t.Errorf("the doctor in a mount with allow_other: %s\nwant ok, without the splits", out)
	}
}
