package readers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// Only the user who mounts can read, unless mount.allow_other is set. In that case, mount.mode,
// mount.uid and mount.gid decide.
func TestOtherUsers(t *testing.T) {
	t.Parallel()
	e2e.NeedRoot(t, "only root can be several users")
	config, _ := e2e.SmallConfig(t, 1)
	const owner, group = 1234, 4321
	ours := []string{"--set", "mount.allow_other=true", "--set", fmt.Sprint("mount.uid=", owner), "--set", fmt.Sprint("mount.gid=", group)}
	for _, test := range []struct {
		name               string
		args               []string
		stat               string
		owner, group, rest bool // who may read
	}{
		{"not allowed", nil, "444 0 0\n555 0 0\n", false, false, false},
		{"owner without allow_other", ours[2:], "444 1234 4321\n555 1234 4321\n", false, false, false},
		{"allow_other", ours[:2], "444 0 0\n555 0 0\n", true, true, true},
		{"0440", append(ours, "--set", "mount.mode=0440"), "440 1234 4321\n550 1234 4321\n", true, true, false},
		{"0400", append(ours, "--set", "mount.mode=0400"), "400 1234 4321\n500 1234 4321\n", true, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := e2e.Mount(t, append(test.args, "-c", config)...)
			// Other users must be able to enter the parent directory.
			if err := os.Chmod(filepath.Dir(m.Dir), 0o755); err != nil {
				t.Fatal(err)
			}
			e2e.Equal(t, "stat", e2e.Run(t, "stat", "-c", "%a %u %g", m.Path("train/next"), m.Path("train")), test.stat)
			for _, reader := range []struct {
				name     string
				uid, gid uint32
				may      bool
			}{
				{"the owner", owner, e2e.Nobody, test.owner},
				{"the group", e2e.Nobody, group, test.group},
				{"another", e2e.Nobody, e2e.Nobody, test.rest},
			} {
				for _, command := range [][]string{{"head", "-c1", m.Path("train/next")}, {"cat", m.Path("status.json")}, {"ls", m.Dir}} {
					out, err := e2e.RunAs(t, reader.uid, reader.gid, command...)
					if (err == nil) != reader.may || !reader.may && !strings.Contains(out, "Permission denied") {
						t.Errorf("%s runs %s: error %v, output %q, want success: %v", reader.name, command, err, out, reader.may)
					}
				}
				out, err := e2e.RunAs(t, reader.uid, reader.gid, e2e.Batchfs, "why", m.Path("train/next"))
				if (err == nil) != reader.may || !reader.may && !strings.Contains(out, "mount.allow_other") && !strings.Contains(out, "mount.mode") {
					t.Errorf("%s asks why: error %v, output %q, want success: %v", reader.name, err, out, reader.may)
				}
			}
		})
	}
}

// why explains that a user has too many settings directories.
func TestSettingsPerUser(t *testing.T) {
	t.Parallel()
	e2e.NeedRoot(t, "only root can be several users")
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config, "--set", "mount.allow_other=true", "--set", "mount.settings_per_user=0")
	e2e.NoError(t, os.Chmod(filepath.Dir(m.Dir), 0o755))
	out, err := e2e.RunAs(t, e2e.Nobody, e2e.Nobody, e2e.Batchfs, "why", m.Path("train/seed=7/next"))
	if err == nil || !strings.Contains(out, "mount.settings_per_user") {
		t.Errorf("error %v, output %q, want mount.settings_per_user", err, out)
	}
}

// No file in the mount can be written, created, moved or removed.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config, "--set", "mount.allow_other=true")
	for _, command := range []string{
		`echo x >train/next`, `echo x >>batch/0`, `: >new`, `mkdir d`, `rm train/next`, `mv README r`, `chmod 777 README`,
		`touch README`, `truncate -s 0 train/batches.bin`, `ln -s README l`, `rmdir val`,
	} {
		_, stderr, err := e2e.Try(t, "sh", "-c", "cd "+m.Dir+" && "+command)
		if err == nil || !strings.Contains(stderr, "Read-only file system") && !strings.Contains(stderr, "cannot create batch/0") {
			t.Errorf("%s: error %v, standard error %q, want a read-only file system", command, err, stderr)
		}
	}
	tried := e2e.Read(t, "writes", m.Dir)
	for _, got := range tried {
		// Mapping a file for writing fails with EACCES, because it is not open for writing.
		if attempt, errno, _ := strings.Cut(got, ": "); errno != "errno EROFS" && (attempt != "map" || errno != "errno EACCES") {
			t.Errorf("%s, want errno EROFS", got)
		}
	}
	if len(tried) < 20 {
		t.Errorf("clients/readers.py tried only %d ways to write, want at least 20: %s", len(tried), tried)
	}
	const options = " fuse.batchfs ro,nosuid,nodev,noexec,"
	if line := e2e.Run(t, "grep", "-F", " "+m.Dir+" ", "/proc/mounts"); !strings.Contains(line, options) ||
		!strings.Contains(line, ",default_permissions,allow_other") {
		t.Errorf("/proc/mounts has %q, want options %q and default_permissions,allow_other", line, options)
	}
}
