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
		{[]string{"--data", data}, nil, "ok   splits.train: 60000 tokens in 1 file: "},
		{[]string{"--data", data, empty}, nil, "ok   mountpoint: " + empty},
		{[]string{"--data", data, full}, []string{"mountpoint"}, "is not empty (it holds precious)"},
		{[]string{"-c", filepath.Join(dir, "config.toml")}, []string{"mountpoint", "splits.b"}, "mkdir -p " + filepath.Join(dir, "mnt")},
		{[]string{"-c", filepath.Join(dir, "config.toml"), empty}, []string{"splits.b"}, "none.bin: no such file"},
		{[]string{"-c", filepath.Join(dir, "typo.toml")}, []string{"configuration"}, "typo.toml:1: mountpont: unknown key"},
		{[]string{"--data", empty}, []string{"configuration"}, "batchfs prepare TEXT --out"},
		{[]string{"--data", data, "--set", "memory.budget=1099511627776"}, []string{"memory"}, "--set memory.budget="},
	} {
		cmd := command(t, batchfs, append([]string{"doctor"}, test.args...)...)
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

// The doctor tells a mount that serves from one that is stuck or dead, at once, and what helps does.
func TestDoctorOfMounts(t *testing.T) {
	t.Parallel()
	config, _ := small(t, 1)
	m := mount(t, "-c", config)
	keeper := m.cmd.Process.Pid
	var out string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("at last the doctor said\n%s", out)
		}
	})
	says := func(want string) bool {
		t.Helper()
		began := time.Now()
		var err error
		out, _, err = try(t, plainBatchfs, "doctor", "-c", config, m.dir)
		inTime(t, "the doctor", time.Since(began), 5*time.Second)
		return strings.Contains(out, want) && (err == nil) == strings.HasPrefix(want, "ok")
	}
	awaitSays := func(want string) {
		t.Helper()
		await(t, want, func() bool { return says(want) })
	}
	healthy := fmt.Sprintf("ok   mountpoint: %s is mounted, served by process ", m.dir)
	awaitSays(healthy)

	noError(t, syscall.Kill(keeper, syscall.SIGSTOP))
	awaitSays(fmt.Sprintf("stuck: process %d, which keeps the mount, is stopped; continue it with: kill -CONT %[1]d", keeper))
	noError(t, syscall.Kill(keeper, syscall.SIGCONT))
	awaitSays(healthy)

	if !testing.Short() {
		// The doctor reports a worker that has not answered for 3 s, and after 4 s the keeper replaces it. To leave more time than
		// that for the question, the keeper is stopped for the first 3 s too.
		await(t, "the doctor to see a process that hangs", func() bool {
			worker := m.awaitStandby(t)[0]
			noError(t, syscall.Kill(worker, syscall.SIGSTOP))
			noError(t, syscall.Kill(keeper, syscall.SIGSTOP))
			time.Sleep(3200 * time.Millisecond)
			noError(t, syscall.Kill(keeper, syscall.SIGCONT))
			return says(fmt.Sprintf("stuck: process %d, which serves, has not answered for ", worker)) &&
				strings.Contains(out, "; another takes its place, or else: batchfs restart "+m.dir)
		})
		await(t, "a restart", func() bool { // it is refused if the keeper replaces the worker meanwhile
			_, _, err := try(t, plainBatchfs, "restart", m.dir)
			return err == nil
		})
		awaitSays(healthy)
	}

	probe := func(path string) error {
		_, _, err := try(t, plainBatchfs, "doctor", "--mounted", path)
		return err
	}
	await(t, "a probe to succeed", func() bool { return probe(m.dir) == nil })
	if probe(t.TempDir()) == nil {
		t.Error("a probe succeeds where nothing is mounted")
	}
	if _, stderr, err := try(t, plainBatchfs, "doctor", "--mounted"); err == nil || !strings.Contains(stderr, "--mounted takes a MOUNTPOINT") {
		t.Errorf("--mounted without a mountpoint: %v %s", err, stderr)
	}

	noError(t, syscall.Kill(keeper, syscall.SIGKILL))
	m.awaitEnd(t)
	if probe(m.dir) == nil {
		t.Error("a probe of a dead mount succeeds")
	}
	if !says("dead: process " + fmt.Sprint(keeper) + ", which kept the mount, is gone; free it with: batchfs unmount " + m.dir) {
		t.Error("the doctor does not see that the mount is dead")
	}
	run(t, plainBatchfs, "unmount", m.dir)
}

// The doctor, and a restart, say of a mount whose tokens changed or cannot be read which file that is, and what helps. A disk that
// hangs does not keep them.
func TestDoctorOfTokens(t *testing.T) {
	t.Parallel()
	d := newDouble(t, versionOf(0, 50_000))
	well := tokens(t, filepath.Join(t.TempDir(), "well.bin"), 60_000, 2)
	m := mount(t, "-c", "/dev/null", "--set", "splits.train.tokens="+d.path, "--set", "splits.well.tokens="+well)
	// says returns whether the doctor has something to fix, and says so.
	says := func(wants ...string) bool {
		t.Helper()
		out, _, err := try(t, plainBatchfs, "doctor", m.path("train/rank=1,world=2"))
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Logf("%q is not in\n%s", want, out)
				return false
			}
		}
		return (err == nil) == !strings.Contains(strings.Join(wants, ""), "FIX ")
	}
	await(t, "a doctor who is content", func() bool {
		return says("ok   mountpoint: "+m.dir+" is mounted", "ok   mounted train: 50000 tokens in 1 file: "+d.path, "ok   mounted well: 60000 tokens in 1 file: "+well)
	})
	for _, test := range []struct {
		mode mode
		want string
	}{
		{shorter, d.path + " has changed since it was opened: 50000 bytes, was 100000; put the old file back, or mount again"},
		{gone, d.path + ": no such file or directory; put the file back, or unmount, and mount again"},
		{denied, d.path + ": permission denied; as its owner, chmod a+r " + d.path},
		{failing, d.path + ": byte 3174: the mapped file cannot be read there"},
		{hang, "no answer in 5s, the disk or the server behind it seems to be stuck"},
	} {
		d.set(t, test.mode)
		if out, stderr, err := try(t, plainBatchfs, "restart", m.dir); err == nil || !strings.Contains(out, "serves "+m.dir+" now") ||
			!strings.Contains(stderr, m.path("train")+" cannot be read: ") || !strings.Contains(stderr, test.want) || strings.Contains(stderr, "well") {
			t.Errorf("restart: %v %q %q, want %q", err, out, stderr, test.want)
		}
		await(t, "a doctor who sees it", func() bool { return says("FIX  mounted train: ", test.want, "ok   mounted well: ") })
	}
	d.set(t, healthy)
	await(t, "a doctor who is content again", func() bool { return says("ok   mounted train: ") })
	await(t, "a restart", func() bool {
		_, _, err := try(t, plainBatchfs, "restart", m.dir)
		return err == nil
	})
}

// A split that follows its files is well while those that are there now can be served.
func TestDoctorOfFollowed(t *testing.T) {
	m, file, _ := mountFollowing(t, versionOf(0, 50_000))
	for _, test := range []struct {
		data []byte
		want string
	}{
		{versionOf(1, 60_000), "ok   mounted train: 60000 tokens"},
		{nil, "FIX  mounted train: the token files changed, and what is there now cannot be served: splits.train: "},
		{versionOf(2, 70_000), "ok   mounted train: 70000 tokens"},
	} {
		replaceFile(t, file, test.data)
		await(t, test.want, func() bool {
			out, _, err := try(t, plainBatchfs, "doctor", m.dir)
			return strings.Contains(out, test.want) && (err == nil) == strings.HasPrefix(test.want, "ok")
		})
	}
}

// An ordinary user hears what root would have to do.
func TestDoctorOfAnOrdinaryUser(t *testing.T) {
	needFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	out, err := asUser(t, nobody, nobody, "env", "PATH=/none", batchfs, "doctor")
	if err == nil || !strings.Contains(out, "FIX  right to mount: ") || !strings.Contains(out, "apt-get install fuse3") {
		t.Errorf("%v %s", err, out)
	}
	if _, err := exec.LookPath("fusermount3"); err == nil {
		out, err := asUser(t, 54321, nobody, batchfs, "doctor")
		if err == nil || !strings.Contains(out, "fusermount3 needs a name for user id 54321, and /etc/passwd has none: as root, echo 'trainer:x:54321:65534::/:/bin/sh' >>/etc/passwd") {
			t.Errorf("a user without a name: %v %s", err, out)
		}
	}
	config, _ := small(t, 1)
	m := mount(t, "-c", config)
	out, err = asUser(t, nobody, nobody, batchfs, "doctor", m.dir)
	if err == nil || !strings.Contains(out, m.dir+" is mounted, and only user 0, who mounted it, may enter; to let others, that user mounts it with mount.allow_other") {
		t.Errorf("in the mount of another user: %v %s", err, out)
	}
	m = mount(t, "-c", config, "--set", "mount.allow_other=true")
	out, _ = asUser(t, nobody, nobody, batchfs, "doctor", m.dir) // whose error may be of /dev/fuse
	if !strings.Contains(out, "ok   mountpoint: "+m.dir+" is mounted; only user 0, who mounted it, and root can look closer") ||
		strings.Contains(out, "mounted splits") {
		t.Errorf("in a mount for others: %s", out)
	}
}
