package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const nobody = 65534

// asUser runs a command as another user, of one group, and returns all that it printed.
func asUser(t testing.TB, uid, gid uint32, args ...string) (string, error) {
	cmd := command(t, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Nobody but the user that mounts reads, unless others are allowed, and then as far as mode, uid and gid let them.
func TestOtherUsers(t *testing.T) {
	needFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can be several users")
	}
	config, _ := small(t, 1)
	const owner, group = 1234, 4321
	ours := []string{"--set", "mount.allow_other=true", "--set", fmt.Sprint("mount.uid=", owner), "--set", fmt.Sprint("mount.gid=", group)}
	for _, test := range []struct {
		name               string
		args               []string
		stat               string
		owner, group, rest bool // who reads
	}{
		{"not allowed", nil, "444 0 0\n555 0 0\n", false, false, false},
		{"owner without allow_other", ours[2:], "444 1234 4321\n555 1234 4321\n", false, false, false},
		{"allow_other", ours[:2], "444 0 0\n555 0 0\n", true, true, true},
		{"0440", append(ours, "--set", "mount.mode=0440"), "440 1234 4321\n550 1234 4321\n", true, true, false},
		{"0400", append(ours, "--set", "mount.mode=0400"), "400 1234 4321\n500 1234 4321\n", true, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := mount(t, append(test.args, "-c", config)...)
			if err := os.Chmod(filepath.Dir(m.dir), 0o755); err != nil { // of TempDir's directories, the one that is private
				t.Fatal(err)
			}
			if got := run(t, "stat", "-c", "%a %u %g", m.path("train/next"), m.path("train")); got != test.stat {
				t.Errorf("stat says\n%swant\n%s", got, test.stat)
			}
			for _, reader := range []struct {
				name     string
				uid, gid uint32
				may      bool
			}{
				{"the owner", owner, nobody, test.owner},
				{"the group", nobody, group, test.group},
				{"another", nobody, nobody, test.rest},
			} {
				for _, command := range [][]string{{"head", "-c1", m.path("train/next")}, {"cat", m.path("status.json")}, {"ls", m.dir}} {
					out, err := asUser(t, reader.uid, reader.gid, command...)
					if (err == nil) != reader.may || !reader.may && !strings.Contains(out, "Permission denied") {
						t.Errorf("%s: %s: %v %q", reader.name, command, err, out)
					}
				}
			}
		})
	}
}

// Nothing in the mount can be written, made, moved or removed.
func TestReadOnly(t *testing.T) {
	config, _ := small(t, 1)
	m := mount(t, "-c", config, "--set", "mount.allow_other=true")
	for _, command := range []string{
		`echo x >train/next`, `echo x >>batch/0`, `: >new`, `mkdir d`, `rm train/next`, `mv README r`, `chmod 777 README`,
		`touch README`, `truncate -s 0 train/batches.bin`, `ln -s README l`, `rmdir val`,
	} {
		_, stderr, err := try(t, "sh", "-c", "cd "+m.dir+" && "+command)
		if err == nil || !strings.Contains(stderr, "Read-only file system") && !strings.Contains(stderr, "cannot create batch/0") {
			t.Errorf("%s: %v %s", command, err, stderr)
		}
	}
	tried := read(t, "writes", m.dir)
	for _, got := range tried {
		// Who maps a file to write it must have opened it for that.
		if what, errno, _ := strings.Cut(got, ": "); errno != "errno EROFS" && (what != "map" || errno != "errno EACCES") {
			t.Error(got)
		}
	}
	if len(tried) < 20 {
		t.Errorf("only %d ways were tried: %s", len(tried), tried)
	}
	const options = " fuse.batchfs ro,nosuid,nodev,noexec,"
	if line := run(t, "grep", m.dir, "/proc/mounts"); !strings.Contains(line, options) ||
		!strings.Contains(line, ",default_permissions,allow_other") {
		t.Error(line)
	}
}

// One user cannot take the room that other users' settings need, and a larger quota takes a restart.
func TestQuotaOfSettings(t *testing.T) {
	needFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can be several users")
	}
	const quota = 20
	config, _ := small(t, 1)
	m := mount(t, "-c", config, "--set", "mount.allow_other=true", "--set", fmt.Sprint("mount.settings_per_user=", quota))
	noError(t, os.Chmod(filepath.Dir(m.dir), 0o755))
	const take = `for seed in $(seq $1 $2); do head -c 1 "$0/seed=$seed/next" >/dev/null || echo $seed; done`
	for _, greedy := range []struct {
		user, first, last int
		refused           string
	}{
		{nobody, 1, quota + 1, "train/seed=21/next"},
		{nobody - 1, 100, 100, ""},
		{0, 200, 200 + quota, ""},
	} {
		out, _ := asUser(t, uint32(greedy.user), nobody, "sh", "-c", take, m.path("train"), fmt.Sprint(greedy.first), fmt.Sprint(greedy.last))
		if greedy.refused == "" && out != "" || greedy.refused != "" && (strings.Count(out, "quota exceeded") != 1 || !strings.Contains(out, greedy.refused)) {
			t.Errorf("user %d: %q", greedy.user, out)
		}
	}
	if said := "uid=65534 settings_per_user=20"; !strings.Contains(m.out.String(), said) {
		t.Errorf("the log does not say %q:\n%s", said, m.out)
	}
}
