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

// HandedOver returns the connection of a mount that another process made and handed over. The error says what helps.
func HandedOver(fd int) (*os.File, error) {
	var st unix.Stat_t
	switch err := unix.Fstat(fd, &st); {
	case err != nil || fd <= 2:
		return nil, fmt.Errorf("descriptor %d is not handed over: whoever starts batchfs must leave /dev/fuse open as 3 or higher", fd)
	case st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(10, 229):
		what, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		return nil, fmt.Errorf("descriptor %d is %s; it must be /dev/fuse, as it was used in mount(2)", fd, printable.Name(what))
	}
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, false); err != nil { // workers wait in read(2)
		return nil, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	// The kernel's first request is there when mount(2) returns.
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	switch n, err := unix.Poll(poll, 0); {
	case err != nil:
		return nil, fmt.Errorf("descriptor %d: %w", fd, err)
	case n > 0 && poll[0].Revents&unix.POLLERR != 0:
		return nil, fmt.Errorf("nothing is mounted with descriptor %d: whoever hands it over must call mount(2) with fd=%[1]d first, "+
			"and must not have unmounted since", fd)
	case n == 0:
		return nil, fmt.Errorf("descriptor %d: %w", fd, ErrServed)
	}
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// ErrServed says that a connection cannot be served from its beginning.
var ErrServed = errors.New("a process serves this mount already, or did: unmount it, mount again, and hand over the new descriptor")

// Adopt notes that this process is the supervisor of a mount that was handed over. The mountpoint is the path that readers see, and need
// not exist here.
func Adopt(mountpoint string, shared *state.Shared) (*Mounted, error) {
	source, err := self()
	if err != nil {
		return nil, err
	}
	shared.HandedOver.Set([]byte(source + " " + mountpoint))
	m := handedOver(source, mountpoint)
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

func handedOver(source, mountpoint string) *Mounted {
	m := &Mounted{Mountpoint: mountpoint, HandedOver: true, Root: "/", Owner: os.Geteuid()}
	m.setSource(source)
	return m
}

// FindHandedOver returns the mount that a path lies in, if it was handed over to a supervisor of this user, or nil. It touches no mount.
func FindHandedOver(path string) (found *Mounted) {
	for _, m := range handedOverMounts() {
		isIn := path == m.Mountpoint || strings.HasPrefix(path, strings.TrimSuffix(m.Mountpoint, "/")+"/")
		if isIn && (found == nil || m.began > found.began) {
			found = m
		}
	}
	return found
}

// handedOverMounts are those that were handed over to supervisors of this user that live.
func handedOverMounts() (all []*Mounted) {
	for _, pid := range process.All() {
		if info, err := os.Stat(process.Dir(pid)); err != nil || int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
			continue
		}
		source, mountpoint, _ := strings.Cut(handedOverTo(pid), " ")
		if m := handedOver(source, mountpoint); mountpoint != "" && m.CheckAlive() == nil {
			all = append(all, m)
		}
	}
	return all
}

// handedOverTo returns what Adopt noted in the state that a process of this user holds, or "".
func handedOverTo(pid int) string {
	shared, err := (&Mounted{Supervisor: pid, Owner: os.Geteuid()}).state()
	if err != nil {
		return ""
	}
	defer shared.Close()
	return shared.HandedOver.String()
}
