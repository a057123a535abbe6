package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"batchfs/internal/printable"
)

// CheckHelper returns an error if fusermount3 may be unable to mount on a directory, or to unmount
// it again. mountpoint is an absolute path without symbolic links. etc is /etc, except in tests.
func CheckHelper(mountpoint, etc string) error {
	if p := readAppArmor(etc); !p.allows(mountpoint) {
		return fmt.Errorf("%s: %w", mountpoint, p.error())
	}
	dirs, err := dirsTo(mountpoint)
	if err != nil {
		return err
	}
	groups, err := os.Getgroups()
	if err != nil {
		return err
	}
	mayPass := hasBounding(unix.CAP_DAC_OVERRIDE) || hasBounding(unix.CAP_DAC_READ_SEARCH)
	if closed := closedToRoot(dirs, append(groups, os.Getegid()), mayPass); closed != nil {
		return fmt.Errorf("%s: fusermount3 runs as root, which may be unable to enter %s (mode %04o, on %s), so it could not mount or unmount: "+
			"choose a local directory that others may enter, such as /tmp/batchfs-%d", mountpoint, closed.path, closed.mode&07777, closed.fsType, os.Getuid())
	}
	if err := unix.Access(mountpoint, unix.W_OK); err != nil {
		return fmt.Errorf("%s: fusermount3 mounts only on directories that the user may write to; choose another, or as root, run: chown %d %s",
			mountpoint, os.Getuid(), printable.ShellArg(mountpoint))
	}
	return nil
}

// hasBounding reports whether setuid-root programs get a capability if this process runs them. They
// do if the capability is in the bounding set of the process.
func hasBounding(capability int) bool {
	has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(capability), 0, 0, 0)
	return err != nil || has == 1
}

// A pathDir is a directory on the way to a mountpoint, or the mountpoint.
type pathDir struct {
	path           string
	uid, gid, mode uint32
	fsType         string
	ownerOnly      bool // whether only the user who mounted this FUSE file system may enter it
}

// dirsTo returns the directories from / to a mountpoint. It includes the mountpoint, because
// fusermount3 changes to that directory before it mounts there.
func dirsTo(mountpoint string) (dirs []pathDir, err error) {
	for path := mountpoint; ; path = filepath.Dir(path) {
		dirs = append(dirs, pathDir{path: path})
		if path == "/" {
			break
		}
	}
	slices.Reverse(dirs)
	isAbove := func(i *mountinfo.Info) (skip, stop bool) {
		return !slices.ContainsFunc(dirs, func(d pathDir) bool { return d.path == i.Mountpoint }), false
	}
	mounts, err := mountinfo.GetMounts(isAbove)
	if err != nil {
		return nil, fmt.Errorf("cannot list mounts: %w", err)
	}
	for i := range dirs {
		d := &dirs[i]
		if i > 0 {
			d.fsType, d.ownerOnly = dirs[i-1].fsType, dirs[i-1].ownerOnly
		}
		for _, m := range mounts { // later mounts on the same directory hide earlier ones
			if m.Mountpoint == d.path {
				options := strings.Split(m.VFSOptions, ",")
				d.fsType = m.FSType
				d.ownerOnly = isFUSE(m.FSType) && !slices.Contains(options, "user_id=0") && !slices.Contains(options, "allow_other")
			}
		}
		var st syscall.Stat_t
		if err := syscall.Stat(d.path, &st); err != nil {
			return nil, &os.PathError{Op: "stat", Path: d.path, Err: err}
		}
		d.uid, d.gid, d.mode = st.Uid, st.Gid, st.Mode
	}
	return dirs, nil
}

func isFUSE(fsType string) bool { return fsType == "fuse" || strings.HasPrefix(fsType, "fuse.") }

// serverDecides matches the types of file systems whose permissions are checked by a server. The
// server may give root the permissions of user nobody, like NFS with root_squash.
var serverDecides = regexp.MustCompile(`^(nfs4?|cifs|smb3?|ceph|lustre|gpfs|beegfs.*|afs|9p|glusterfs|panfs|wekafs|orangefs|pvfs2|fuse(\..*)?)$`)

// closedToRoot returns the first directory that a setuid-root program may be unable to enter, or
// nil if there is none. groups are the groups of the user who runs the program, because the program
// keeps them. If mayPass is true, the program has capabilities that override permissions, except on
// file systems where a server checks them.
func closedToRoot(dirs []pathDir, groups []int, mayPass bool) *pathDir {
	for i := range dirs {
		d := &dirs[i]
		isRemote := serverDecides.MatchString(d.fsType)
		bit := uint32(unix.S_IXOTH)
		switch {
		case d.uid == 0 && !isRemote:
			bit = unix.S_IXUSR
		case slices.Contains(groups, int(d.gid)):
			bit = unix.S_IXGRP
		}
		if d.ownerOnly || d.mode&bit == 0 && (isRemote || !mayPass) {
			return d
		}
	}
	return nil
}

// An appArmor describes the AppArmor profile that confines fusermount3 since Ubuntu 24.10.
type appArmor struct {
	file    string   // path of the profile; empty if there is none
	targets []string // patterns of directories where mounts are allowed
}

var mountRule = regexp.MustCompile(`(?m)^\s*mount\b.*->\s*"?([^",]+(?:\{[^}]*\}[^",]*)*)"?,\s*$`)

// readAppArmor reads the profile of fusermount3, and the file with local additions to it.
func readAppArmor(etc string) (p appArmor) {
	for _, name := range []string{"fusermount3", "local/fusermount3"} {
		file := filepath.Join(etc, "apparmor.d", name)
		text, err := os.ReadFile(file)
		if err != nil {
			if p.file == "" {
				return p
			}
			continue
		}
		if p.file == "" {
			p.file = file
		}
		for _, rule := range mountRule.FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(p.targets, rule[1]) {
				p.targets = append(p.targets, rule[1])
			}
		}
	}
	return p
}

// allows reports whether the profile may allow a mount. It compares only the part of each pattern
// before the first wildcard or unknown variable.
func (p appArmor) allows(mountpoint string) bool {
	if len(p.targets) == 0 {
		return true
	}
	home, _ := os.UserHomeDir()
	variables := strings.NewReplacer("@{HOME}", home, "@{run}", "/run", "@{uid}", fmt.Sprint(os.Getuid()))
	return slices.ContainsFunc(p.targets, func(target string) bool {
		prefix := variables.Replace(target)
		if i := strings.IndexAny(prefix, "*?[{@"); i >= 0 {
			prefix = prefix[:i]
		}
		return strings.HasPrefix(mountpoint+"/", prefix)
	})
}

// error returns an error that says where the profile allows mounts, and how to allow more.
func (p appArmor) error() error {
	return fmt.Errorf("AppArmor lets fusermount3 mount only on %s: choose such a directory; or allow another one with lines "+
		"such as those of %s in %s/local/fusermount3, and as root, run: apparmor_parser -r %[2]s",
		strings.Join(p.targets, " "), p.file, filepath.Dir(p.file))
}
