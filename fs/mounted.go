package fs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// A process is one by its id and when it began, in clock ticks since the host did: ids come round again. It is the source of
// a mount in the kernel's table, batchfs:ID:BEGAN, so that the keeper is found without touching the mount.
type process struct {
	id    int
	began uint64
}

func (p process) String() string { return fmt.Sprintf("batchfs:%d:%d", p.id, p.began) }

func self() (process, error) {
	began, err := beganAt(os.Getpid())
	return process{os.Getpid(), began}, err
}

// beganAt is when a process began.
func beganAt(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may have spaces
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, stat)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// Mounted is a batchfs in the kernel's table of mounts, which is asked instead of the mount: that never hangs, whatever state
// the mount is in.
type Mounted struct {
	Mountpoint string
	Device     string // MAJOR:MINOR
	Keeper     int    // id of the process that keeps it, or kept it
	began      uint64 // when that began
	id         int    // of the mount
}

// Find returns what is mounted at an absolute path, or nil if that is no batchfs.
func Find(mountpoint string) (*Mounted, error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != mountpoint, false })
	if err != nil {
		return nil, fmt.Errorf("cannot list mounts: %w", err)
	}
	if len(mounts) == 0 {
		return nil, nil
	}
	top := mounts[len(mounts)-1] // a later one hides an earlier one
	if top.FSType != "fuse.batchfs" {
		return nil, nil
	}
	m := &Mounted{Mountpoint: mountpoint, Device: fmt.Sprintf("%d:%d", top.Major, top.Minor), id: top.ID}
	fmt.Sscanf(top.Source, "batchfs:%d:%d", &m.Keeper, &m.began)
	return m, nil
}

// mountedAt names the batchfs that a path leads to, or is empty.
func mountedAt(mountpoint string) (device string, err error) {
	m, err := Find(mountpoint)
	if m == nil {
		return "", err
	}
	return m.Device, nil
}

// ErrDead is of a mount whose process is gone.
var ErrDead = errors.New("the mount is dead: the process that kept it is gone")

// Alive returns ErrDead if the mount has no keeper.
func (m *Mounted) Alive() error {
	if began, err := beganAt(m.Keeper); err != nil || began != m.began {
		return ErrDead
	}
	return nil
}

// Stopped says whether the keeper was stopped by a signal.
func (m *Mounted) Stopped() bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.Keeper))
	_, state, ok := strings.Cut(string(stat), ") ")
	return ok && strings.HasPrefix(state, "T")
}

// Signal sends the keeper a signal.
func (m *Mounted) Signal(sig syscall.Signal) error {
	fd, err := m.Pidfd()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.PidfdSendSignal(fd, sig, nil, 0)
}

// Pidfd is a descriptor of the keeper.
func (m *Mounted) Pidfd() (int, error) {
	fd, err := unix.PidfdOpen(m.Keeper, 0)
	if err != nil {
		return -1, ErrDead
	}
	if err := m.Alive(); err != nil { // asked after: now the id stays that of this process
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Dead says whether nobody will ever serve the mount again.
func (m *Mounted) Dead() bool {
	asked := make(chan error, 1)
	go func() {
		var st unix.Statfs_t // which the kernel does not remember
		asked <- unix.Statfs(m.Mountpoint, &st)
	}()
	select {
	case err := <-asked:
		return err == unix.ENOTCONN || err == unix.ECONNABORTED
	case <-time.After(time.Second):
		// A worker that was killed can leave a thread behind that waits for an answer to another request, and holds the
		// connection. But if there is a keeper, there will be another worker.
		return m.Alive() != nil
	}
}

// Users tells in words which processes have something of the mount open, of those that this user may look at.
func (m *Mounted) Users() (users []string) {
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range processes {
		comm, err := os.ReadFile(dir + "/comm")
		if err != nil {
			continue
		}
		for _, use := range m.uses(dir) {
			users = append(users, fmt.Sprintf("process %s (%s) %s", filepath.Base(dir), strings.TrimSpace(string(comm)), use))
		}
	}
	if len(users) == 0 {
		users = append(users, "a process that this user may not look at")
	}
	return users
}

// uses are how a process uses files of the mount, and which. None of them is touched.
func (m *Mounted) uses(proc string) (all []string) {
	for link, how := range map[string]string{"cwd": "works in ", "root": "is rooted in "} {
		path, err := os.Readlink(proc + "/" + link)
		if err == nil && (path == m.Mountpoint || strings.HasPrefix(path, m.Mountpoint+"/")) {
			all = append(all, how+path)
		}
	}
	fds, _ := os.ReadDir(proc + "/fd")
	for _, fd := range fds {
		info, _ := os.ReadFile(proc + "/fdinfo/" + fd.Name())
		if strings.Contains(string(info), fmt.Sprintf("mnt_id:\t%d\n", m.id)) {
			path, _ := os.Readlink(proc + "/fd/" + fd.Name())
			all = append(all, "has open "+path)
		}
	}
	var major, minor uint32
	fmt.Sscanf(m.Device, "%d:%d", &major, &minor)
	maps, _ := os.ReadFile(proc + "/maps")
	for line := range strings.Lines(string(maps)) {
		if at := strings.Index(line, m.Mountpoint+"/"); at > 0 && strings.Contains(line[:at], fmt.Sprintf(" %02x:%02x ", major, minor)) {
			all = append(all, "has mapped "+strings.TrimSpace(line[at:]))
		}
	}
	return slices.Compact(all)
}

// Shared is what the keeper and the worker of a mount share, to be looked at.
type Shared struct{ *block }

// Block maps what the keeper holds. It takes the user that mounted, or root.
func (m *Mounted) Block() (Shared, error) {
	if err := m.Alive(); err != nil {
		return Shared{}, err
	}
	dir := fmt.Sprintf("/proc/%d/fd", m.Keeper)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return Shared{}, fmt.Errorf("only the user that mounted, and root, can look into a mount: %w", err)
	}
	for _, fd := range fds {
		if link, _ := os.Readlink(dir + "/" + fd.Name()); !strings.HasPrefix(link, "/memfd:batchfs ") {
			continue
		}
		file, err := os.Open(dir + "/" + fd.Name())
		if err != nil {
			return Shared{}, err
		}
		defer file.Close()
		b, err := mapBlock(file, unix.PROT_READ)
		return Shared{b}, err
	}
	return Shared{}, fmt.Errorf("process %d keeps no mount", m.Keeper)
}

// Close lets go of it.
func (s Shared) Close() { s.unmap() }

// Restarts counts those that were asked for and are over.
func (s Shared) Restarts() uint64 { return s.restart.Load() }

// Outcome is why the last restart was refused, or empty.
func (s Shared) Outcome() string { return string(s.outcome.get()) }

// Worker is the id of the process that serves.
func (s Shared) Worker() int { return int(s.worker.Load()) }

// Silent is how long ago the worker last answered its keeper, who asks every second.
func (s Shared) Silent() time.Duration { return time.Duration(monotonic() - s.beat.Load()) }

// Waiting is of each sequence whose token files have not answered for more than a second how long its longest read waits.
func (s Shared) Waiting() map[string]time.Duration {
	waiting := map[string]time.Duration{}
	for n := range s.usedStates.Load() {
		state := &s.states[n+1]
		if since := state.waiting.Load(); since != 0 && state.used.Load() != 0 {
			waiting[getText(state.name[:])] = time.Duration(monotonic() - since)
		}
	}
	return waiting
}
