package mount

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"batchfs/fs/state"
	"batchfs/internal/printable"
	"batchfs/internal/process"
)

// OpenHandedOver returns the connection of a mount that another process made and handed over as
// descriptor fd. The error says how to fix the problem.
func OpenHandedOver(fd int) (*os.File, error) {
	var st unix.Stat_t
	switch err := unix.Fstat(fd, &st); {
	case err != nil || fd <= 2:
		return nil, fmt.Errorf("descriptor %d is not handed over: the process that starts batchfs must leave /dev/fuse open as 3 or higher", fd)
	case !isDevice(&st):
		target, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		return nil, fmt.Errorf("descriptor %d is %s; it must be /dev/fuse, as passed to mount(2)", fd, printable.Name(target))
	}
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, false); err != nil { // workers block in read(2)
		return nil, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	// INIT, the kernel's first request, is available once mount(2) has returned.
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	switch n, err := unix.Poll(poll, 0); {
	case err != nil:
		return nil, fmt.Errorf("descriptor %d: %w", fd, err)
	case n > 0 && poll[0].Revents&unix.POLLERR != 0:
		return nil, fmt.Errorf("nothing is mounted with descriptor %d: the process that hands it over must first call mount(2) with fd=%[1]d, "+
			"and must not have unmounted since", fd)
	case n == 0:
		return nil, fmt.Errorf("descriptor %d: %w", fd, ErrServed)
	}
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// ErrServed means that a connection's first request was already read.
var ErrServed = errors.New("a process serves this mount already, or did: unmount it, mount again, and hand over the new descriptor")

// Adopt records in shared that this process is the supervisor of a mount that was handed over.
// mountpoint is the path that readers use, which need not exist here.
func Adopt(mountpoint string, shared *state.Shared) (*Mounted, error) {
	source, err := selfSource()
	if err != nil {
		return nil, err
	}
	shared.HandedOver.Set([]byte(source + " " + mountpoint))
	m := newHandedOver(source, mountpoint)
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(mountpoint))
	if err != nil {
		return nil, fmt.Errorf("cannot list mounts: %w", err)
	}
	for _, i := range mounts {
		if i.FSType == "fuse" || strings.HasPrefix(i.FSType, "fuse.") {
			m.Device = fmt.Sprintf("%d:%d", i.Major, i.Minor)
		}
	}
	return m, nil
}

func newHandedOver(source, mountpoint string) *Mounted {
	m := &Mounted{Mountpoint: mountpoint, HandedOver: true, Root: "/", Owner: os.Geteuid()}
	m.setSource(source)
	return m
}

// FindHandedOver returns the mount that contains path, if it was handed over to a supervisor of
// this user, or else nil. It touches no mount.
func FindHandedOver(path string) (found *Mounted) {
	for _, m := range handedOverMounts() {
		isIn := path == m.Mountpoint || strings.HasPrefix(path, strings.TrimSuffix(m.Mountpoint, "/")+"/")
		if isIn && (found == nil || m.began > found.began) {
			found = m
		}
	}
	return found
}

// handedOverMounts returns the mounts handed over to running supervisors of this user.
func handedOverMounts() (all []*Mounted) {
	for _, pid := range process.All() {
		if info, err := os.Stat(process.Dir(pid)); err != nil || int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
			continue
		}
		source, mountpoint, _ := strings.Cut(adoptionRecord(pid), " ")
		if m := newHandedOver(source, mountpoint); mountpoint != "" && m.CheckAlive() == nil {
			all = append(all, m)
		}
	}
	return all
}

// adoptionRecord returns what Adopt recorded in the memory of a process of this user, or "".
func adoptionRecord(pid int) string {
	shared, err := (&Mounted{Supervisor: pid, Owner: os.Geteuid()}).mapState()
	if err != nil {
		return ""
	}
	defer shared.Close()
	return shared.HandedOver.String()
}
