package mount

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fusermount3 may enter a directory if root or one of the user's groups has permission. Otherwise
// it needs capabilities, and a file system that respects them.
func TestClosedToRoot(t *testing.T) {
	const user = 1000
	groups := []int{1000, 50}
	root := pathDir{path: "/", mode: 0o755, fsType: "ext4"}
	for _, test := range []struct {
		dir                 pathDir
		passes, withoutCaps bool // whether fusermount3 may enter, with its capabilities and without
	}{
		{pathDir{uid: user, gid: user, mode: 0o700, fsType: "ext4"}, true, false},
		{pathDir{uid: user, gid: user, mode: 0o711, fsType: "ext4"}, true, true},
		{pathDir{uid: user, gid: 50, mode: 0o750, fsType: "ext4"}, true, true},
		{pathDir{uid: user, gid: 51, mode: 0o750, fsType: "ext4"}, true, false},
		{pathDir{uid: 0, gid: 0, mode: 0o700, fsType: "tmpfs"}, true, true},
		{pathDir{uid: user, gid: user, mode: 0o700, fsType: "nfs"}, false, false},
		{pathDir{uid: user, gid: user, mode: 0o700, fsType: "nfs4"}, false, false},
		{pathDir{uid: user, gid: user, mode: 0o700, fsType: "lustre"}, false, false},
		{pathDir{uid: 0, gid: 0, mode: 0o700, fsType: "nfs4"}, false, false},
		{pathDir{uid: user, gid: user, mode: 0o711, fsType: "nfs4"}, true, true},
		{pathDir{uid: user, gid: 50, mode: 0o710, fsType: "nfs4"}, true, true},
		{pathDir{uid: user, gid: user, mode: 0o755, fsType: "fuse.sshfs", ownerOnly: true}, false, false},
		{pathDir{uid: user, gid: user, mode: 0o755, fsType: "fuse.sshfs"}, true, true},
		{pathDir{uid: user, gid: user, mode: 0o700, fsType: "fuse.sshfs"}, false, false},
	} {
		for _, mayPass := range []bool{true, false} {
			closed := closedToRoot([]pathDir{root, test.dir}, groups, mayPass)
			if want := map[bool]bool{true: test.passes, false: test.withoutCaps}[mayPass]; (closed == nil) != want {
				t.Errorf("%+v with capabilities %v: closed %v, want %v", test.dir, mayPass, closed != nil, !want)
			}
		}
	}
}

// dirsTo finds the type of the file system of each directory.
func TestDirsTo(t *testing.T) {
	dirs, err := dirsTo("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, d := range dirs {
		found = append(found, d.path)
	}
	if want := []string{"/", "/proc", "/proc/self", "/proc/self/task"}; !slices.Equal(found, want) || dirs[1].fsType != "proc" || dirs[3].fsType != "proc" || dirs[0].fsType == "proc" {
		t.Errorf("directories %+v, want %v with the type proc from the second on", dirs, want)
	}
}

// AppArmor allows mounts that the profile or the local additions allow.
func TestAppArmor(t *testing.T) {
	const rule = "mount fstype=@{fuse_types} options=(nosuid,nodev) options in (ro,rw,noexec) -> "
	etc := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(etc, "apparmor.d", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want map[string]bool) {
		t.Helper()
		for dir, allowed := range want {
			if p := readAppArmor(etc); p.allows(dir) != allowed {
				t.Errorf("%s is allowed: %v, want %v; %+v", dir, !allowed, allowed, p)
			}
		}
	}
	t.Setenv("HOME", "/home/ann")
	write("local/fusermount3", rule+"/data/**/,\n") // has no effect without a profile
	check(map[string]bool{"/anywhere": true})
	os.RemoveAll(etc + "/apparmor.d/local")
	write("fusermount3", "profile fusermount3 /usr/bin/fusermount3 {\n  capability sys_admin,\n  "+rule+"@{HOME}/**/,\n  "+rule+"/mnt/{,**/},\n  "+
		rule+"\"/tmp/**/\",\n  umount /opt/**/,\n  # "+rule+"/srv/**/,\n  include if exists <local/fusermount3>\n}\n")
	check(map[string]bool{"/home/ann/mnt": true, "/home/bob/mnt": false, "/mnt": true, "/mnt/b": true, "/mnthing": false, "/tmp/x": true,
		"/opt/x": false, "/srv/x": false, "/data/x": false})
	err := CheckHelper("/data/x", etc)
	if err == nil || !strings.HasPrefix(err.Error(), "/data/x: AppArmor lets fusermount3 mount only on @{HOME}/**/ /mnt/{,**/} /tmp/**/: ") ||
		!strings.Contains(err.Error(), etc+"/apparmor.d/local/fusermount3") {
		t.Errorf("error %v, want one that names the profile and the directories", err)
	}
	write("local/fusermount3", rule+"/data/**/,\n")
	check(map[string]bool{"/data/x": true, "/srv/x": false})
	write("local/fusermount3", rule+"@{somewhere}/**/,\n")
	check(map[string]bool{"/data/x": true})
}
