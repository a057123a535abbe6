package mount

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"batchfs/fs/state"
	"batchfs/internal/printable"
	"batchfs/internal/process"
)

// self is the source, in the kernel's table, of a mount that this process keeps, batchfs:PID:BEGAN:NAMESPACE: its id, when it began, in
// clock ticks since the host did, because ids are used again, and the inode number of its PID namespace.
func self() (source string, err error) {
	if foreignProc() {
		return "", errors.New("/proc is that of another PID namespace than this process is in, and batchfs needs one that shows " +
			"its own processes: mount -t proc proc /proc, or unshare --mount-proc")
	}
	stat, err := process.ReadStat("/proc/self")
	return fmt.Sprintf("batchfs:%d:%d:%d", os.Getpid(), stat.Began, pidNamespace()), err
}

// foreignProc says whether processes have other ids in /proc than for this process.
func foreignProc() bool {
	pid, _ := os.Readlink("/proc/self")
	return pid != strconv.Itoa(os.Getpid())
}

// pidNamespace is an inode number, or 0 where the kernel does not say.
func pidNamespace() uint64 {
	var st unix.Stat_t
	unix.Stat("/proc/self/ns/pid", &st)
	return st.Ino
}

// Mounted is a batchfs as the kernel's table of mounts has it. Reading the table never hangs, whatever state the mount is in.
type Mounted struct {
	Mountpoint string // absolute
	Root       string // the path in the batchfs of what is mounted: "/", or another where only that is, as with mount --bind
	Device     string // MAJOR:MINOR
	Supervisor int    // id of the process that keeps the mount, or kept it
	Owner      int    // id of the user that mounted
	AllowOther bool   // other users may enter
	HandedOver bool   // another process mounted: the supervisor cannot unmount
	began      uint64 // when that process began
	namespace  uint64 // the PID namespace of that id, or 0 if it is not known
	source     string // in the kernel's table
	id         int    // of the mount
}

// Find returns what is mounted at an absolute path, or nil if that is no batchfs.
func Find(mountpoint string) (*Mounted, error) {
	mounts, err := find(func(i *mountinfo.Info) bool { return i.Mountpoint == mountpoint })
	if len(mounts) == 0 {
		return nil, err
	}
	return mounts[len(mounts)-1], nil // a later one hides an earlier one, or is nil
}

// All are the mounts of this machine, those that were handed over to supervisors of this user too. Of several at one path, only the last is seen.
func All() (all []*Mounted, err error) {
	found, err := find(func(i *mountinfo.Info) bool { return i.FSType == fsType && i.Root == "/" })
	if err != nil {
		return nil, err
	}
	for _, m := range append(found, handedOverMounts()...) {
		isSame := func(other *Mounted) bool { return other.Mountpoint == m.Mountpoint }
		if m != nil {
			all = append(slices.DeleteFunc(all, isSame), m)
		}
	}
	return all, nil
}

// Refresh returns the mount as it is now: its directory may have been moved. It is nil if the mount is gone.
func (m *Mounted) Refresh() (*Mounted, error) {
	mounts, err := find(func(i *mountinfo.Info) bool { return i.FSType == fsType && i.ID == m.id && i.Source == m.source })
	if len(mounts) == 0 {
		return nil, err
	}
	return mounts[0], nil
}

func (m *Mounted) setSource(source string) {
	m.source = source
	fmt.Sscanf(source, "batchfs:%d:%d:%d", &m.Supervisor, &m.began, &m.namespace)
}

// find returns some of the kernel's table of mounts, with nil in the place of what is no batchfs.
func find(wanted func(*mountinfo.Info) bool) (all []*Mounted, err error) {
	mounts, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) { return !wanted(i), false })
	if err != nil {
		return nil, fmt.Errorf("cannot list mounts: %w", err)
	}
	for _, i := range mounts {
		if i.FSType != fsType || !strings.HasPrefix(i.Source, "batchfs:") { // another's choice for what it hands over
			all = append(all, nil)
			continue
		}
		m := &Mounted{Mountpoint: i.Mountpoint, Root: i.Root, Device: fmt.Sprintf("%d:%d", i.Major, i.Minor), id: i.ID}
		m.setSource(i.Source)
		for option := range strings.SplitSeq(i.VFSOptions, ",") {
			fmt.Sscanf(option, "user_id=%d", &m.Owner)
			m.AllowOther = m.AllowOther || option == "allow_other"
		}
		all = append(all, m)
	}
	return all, nil
}

// ErrDead says that the supervisor of a mount is gone.
var ErrDead = errors.New("the mount is dead: the process that kept it is gone")

// ErrElsewhere says that the supervisor of a mount cannot be seen from here.
var ErrElsewhere = errors.New("the process that keeps the mount is in another PID namespace, that of the host or of a container: " +
	"run this there, with its /proc")

// CheckAlive returns ErrDead if the supervisor is gone, and ErrElsewhere if processes here have other ids than it knew. Users can forge a
// mount's source: a process of another user, or without the memory of a mount, is no supervisor.
func (m *Mounted) CheckAlive() error {
	if err := m.verify(); !errors.Is(err, os.ErrPermission) {
		return err
	}
	return nil
}

// verify is CheckAlive, but an error where this user may not look.
func (m *Mounted) verify() error {
	if foreignProc() || m.namespace != 0 && m.namespace != pidNamespace() {
		return ErrElsewhere
	}
	stat, err := process.ReadStat(process.Dir(m.Supervisor))
	if err != nil || stat.Began != m.began {
		return ErrDead
	}
	if user, err := m.Credential(); err != nil || int(user.Uid) != m.Owner {
		return ErrDead
	}
	file, err := m.memory(stateMemory)
	if err == nil {
		return file.Close()
	}
	if errors.Is(err, os.ErrPermission) {
		return err
	}
	return ErrDead
}

// Credential returns the user and the groups as whom the supervisor, and so its workers, read token files.
func (m *Mounted) Credential() (*syscall.Credential, error) { return process.User(m.Supervisor) }

// IsStopped says whether a signal has stopped the supervisor.
func (m *Mounted) IsStopped() bool {
	stat, err := process.ReadStat(process.Dir(m.Supervisor))
	return err == nil && stat.State == 'T'
}

// Signal sends the supervisor a signal. The error may be one of CheckAlive.
func (m *Mounted) Signal(sig syscall.Signal) error {
	fd, err := m.Pidfd()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.PidfdSendSignal(fd, sig, nil, 0)
}

// Pidfd opens a descriptor of the supervisor, to be closed by the caller. The error may be one of CheckAlive.
func (m *Mounted) Pidfd() (int, error) {
	fd, err := unix.PidfdOpen(m.Supervisor, 0)
	if err != nil {
		return -1, cmp.Or(m.verify(), ErrDead)
	}
	if err := m.verify(); err != nil { // asked last: from now on the id stays with this process
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// IsDead says whether no process will ever serve the mount again. It asks the mount, and waits a second for the answer.
func (m *Mounted) IsDead() bool {
	asked := make(chan error, 1)
	go func() {
		var st unix.Statfs_t // which the kernel does not remember
		asked <- unix.Statfs(m.Mountpoint, &st)
	}()
	select {
	case err := <-asked:
		return err == unix.ENOTCONN || err == unix.ECONNABORTED
	case <-time.After(time.Second):
		// A killed worker can leave a thread behind that waits for the answer to another request, and holds the
		// connection. But if there is a supervisor, there will be another worker.
		return errors.Is(m.CheckAlive(), ErrDead)
	}
}

// OpenedBy says in words which processes use the mount, as far as this user may look at them.
func (m *Mounted) OpenedBy() (users []string) {
	for _, pid := range process.All() {
		for _, use := range m.uses(process.Dir(pid)) {
			users = append(users, process.Describe(pid)+" "+use)
		}
	}
	if len(users) == 0 {
		users = append(users, "a process that this user may not look at")
	}
	return users
}

// uses touches no file of the mount.
func (m *Mounted) uses(proc string) (all []string) {
	for link, how := range map[string]string{"cwd": "works in ", "root": "is rooted in "} {
		path, err := os.Readlink(proc + "/" + link)
		if err == nil && (path == m.Mountpoint || strings.HasPrefix(path, m.Mountpoint+"/")) {
			all = append(all, how+printable.Name(path))
		}
	}
	fds, _ := os.ReadDir(proc + "/fd")
	for _, fd := range fds {
		info, _ := os.ReadFile(proc + "/fdinfo/" + fd.Name())
		if m.has(info) {
			path, _ := os.Readlink(proc + "/fd/" + fd.Name())
			all = append(all, "has open "+printable.Name(path))
		}
	}
	maps, _ := os.ReadFile(proc + "/maps")
	for line := range strings.Lines(string(maps)) {
		if at := strings.Index(line, m.Mountpoint+"/"); at > 0 {
			all = append(all, "has mapped "+printable.Name(strings.TrimSpace(line[at:])))
		}
	}
	return slices.Compact(all)
}

// State maps the state that the supervisor holds; the caller closes it. Only the user that mounted, and root, may.
func (m *Mounted) State() (*state.Shared, error) {
	if err := m.CheckAlive(); err != nil {
		return nil, err
	}
	return m.state()
}

func (m *Mounted) state() (*state.Shared, error) {
	file, err := m.open(stateMemory, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return state.Map(file)
}

// Snapshot opens the file that the supervisor gives to new workers. Only the user that mounted, and root, may.
func (m *Mounted) Snapshot() (*os.File, error) {
	if err := m.CheckAlive(); err != nil {
		return nil, err
	}
	return m.open("batchfs-snapshot", os.O_RDONLY)
}

func (m *Mounted) open(name string, flag int) (*os.File, error) {
	file, err := m.memory(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return reopen(file, flag)
}

func permissionError(err error) error {
	return fmt.Errorf("only the user that mounted, and root, can look into a mount: %w", err)
}

const stateMemory = "batchfs" // name that state.New gives to the shared memory

// memory opens a memfd of the supervisor by its name, with O_PATH. The log that the Python package
// makes for a mount has the same name as the shared memory, so the shared memory is recognized by
// its content.
func (m *Mounted) memory(name string) (*os.File, error) {
	dir := process.Dir(m.Supervisor) + "/fd/"
	fds, err := os.ReadDir(dir)
	if err != nil {
		return nil, permissionError(err)
	}
	for _, fd := range fds {
		link, err := os.Readlink(dir + fd.Name())
		if errors.Is(err, os.ErrPermission) {
			return nil, permissionError(err)
		}
		if link != "/memfd:"+name+" (deleted)" {
			continue
		}
		file, err := os.OpenFile(dir+fd.Name(), unix.O_PATH, 0)
		if errors.Is(err, os.ErrNotExist) { // closed meanwhile: the supervisor holds a newer one
			return m.memory(name)
		}
		if err != nil {
			return nil, err
		}
		if isMemory(file, m.Owner) && (name != stateMemory || holdsState(file)) {
			return file, nil
		}
		file.Close()
	}
	return nil, fmt.Errorf("process %d keeps no mount", m.Supervisor)
}

// isMemory reports whether file is a memfd of the user owner. The name alone does not prove that:
// an ordinary file in a mount namespace of the user can have the same one.
func isMemory(file *os.File, owner int) bool {
	info, err := file.Stat()
	if err != nil {
		return false
	}
	stat := info.Sys().(*syscall.Stat_t)
	return info.Mode().IsRegular() && stat.Nlink == 0 && int(stat.Uid) == owner
}

// holdsState reports whether memory is the shared memory of a mount. Opening a memfd never blocks.
func holdsState(memory *os.File) bool {
	file, err := reopen(memory, os.O_RDONLY)
	if err != nil {
		return false
	}
	defer file.Close()
	return state.IsShared(file)
}

func reopen(file *os.File, flag int) (*os.File, error) {
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), flag, 0)
}
