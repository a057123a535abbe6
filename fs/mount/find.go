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

// selfSource returns the source of this process's mounts in the kernel's table:
// batchfs:PID:BEGAN:NAMESPACE. BEGAN is the process's start time in clock ticks since boot, because
// process ids are reused. NAMESPACE is the inode number of its PID namespace.
func selfSource() (source string, err error) {
	if isProcForeign() {
		return "", errors.New("/proc belongs to another PID namespace, and batchfs needs one that shows its own processes: " +
			"mount -t proc proc /proc, or unshare --mount-proc")
	}
	stat, err := process.ReadStat("/proc/self")
	return fmt.Sprintf("batchfs:%d:%d:%d", os.Getpid(), stat.StartTicks, pidNamespace()), err
}

func isProcForeign() bool {
	pid, _ := os.Readlink("/proc/self")
	return pid != strconv.Itoa(os.Getpid())
}

// pidNamespace returns the inode number of this process's PID namespace, or 0 if unknown.
func pidNamespace() uint64 {
	var st unix.Stat_t
	unix.Stat("/proc/self/ns/pid", &st)
	return st.Ino
}

// A Mounted describes a mount as the kernel's table of mounts shows it, or as Adopt recorded it.
// Reading either never hangs, even if the mount does. A Mounted is safe for concurrent use.
type Mounted struct {
	Mountpoint string // absolute path
	Root       string // mounted path within the batchfs: "/", or another path after mount --bind
	Device     string // MAJOR:MINOR
	Supervisor int    // process id of the supervisor, which may have ended
	Owner      int    // id of the user who mounted
	AllowOther bool   // whether other users may use the mount
	HandedOver bool   // whether another process made the mount, and must unmount it
	began      uint64 // supervisor's start time in clock ticks since boot
	namespace  uint64 // supervisor's PID namespace; 0 if unknown
	source     string // see selfSource
	id         int    // mount id
}

// Find returns the batchfs that is mounted at an absolute path, or nil if there is none or it is
// hidden.
func Find(mountpoint string) (*Mounted, error) {
	mounts, err := listMounts(func(i *mountinfo.Info) bool { return i.Mountpoint == mountpoint })
	if len(mounts) == 0 {
		return nil, err
	}
	return mounts[len(mounts)-1], nil // the last mount hides the others
}

// All returns the mounts of this machine, including those handed over to supervisors of this user,
// but only the last one at each path.
func All() (all []*Mounted, err error) {
	found, err := listMounts(func(i *mountinfo.Info) bool { return i.FSType == fsType && i.Root == "/" })
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

// Current returns the mount as it is now, perhaps in a moved directory, or nil if it is gone.
func (m *Mounted) Current() (*Mounted, error) {
	mounts, err := listMounts(func(i *mountinfo.Info) bool { return i.FSType == fsType && i.ID == m.id && i.Source == m.source })
	if len(mounts) == 0 {
		return nil, err
	}
	return mounts[0], nil
}

// Whole returns a mount of the whole batchfs in this mount namespace, or nil if there is none. m
// may be a bind mount of a part of it.
func (m *Mounted) Whole() *Mounted {
	if m.Root == "/" {
		return m
	}
	mounts, _ := listMounts(func(i *mountinfo.Info) bool { return i.FSType == fsType && i.Root == "/" && i.Source == m.source })
	if len(mounts) == 0 {
		return nil
	}
	return mounts[0]
}

func (m *Mounted) setSource(source string) {
	m.source = source
	fmt.Sscanf(source, "batchfs:%d:%d:%d", &m.Supervisor, &m.began, &m.namespace)
}

// listMounts returns the wanted mounts of the kernel's table. Entries for other file systems are
// nil.
func listMounts(wanted func(*mountinfo.Info) bool) (all []*Mounted, err error) {
	mounts, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) { return !wanted(i), false })
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w; as root, run: mount -t proc proc /proc", err)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list mounts: %w", err)
	}
	for _, i := range mounts {
		// A mount that was handed over can have any source.
		if i.FSType != fsType || !strings.HasPrefix(i.Source, "batchfs:") {
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

// ErrDead means that the supervisor of a mount is gone.
var ErrDead = errors.New("the mount is dead: its supervisor process is gone; batchfs unmount ends it")

// ErrElsewhere means that the supervisor of a mount is in another PID namespace.
var ErrElsewhere = errors.New("the supervisor of the mount is in another PID namespace, that of the host or of a container: " +
	"run this command there, with its /proc")

// CheckAlive returns ErrDead if the supervisor is gone, or ErrElsewhere if it is in another PID
// namespace. Because users can forge a mount's source, a supervisor must belong to the user who
// mounted and hold the shared memory of a mount.
func (m *Mounted) CheckAlive() error {
	if err := m.verify(); !errors.Is(err, os.ErrPermission) {
		return m.named(err)
	}
	return nil
}

// named adds the mountpoint to an error, unless it is nil.
func (m *Mounted) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", m.Mountpoint, err)
}

// verify is like CheckAlive, but also fails if this user may not inspect the supervisor.
func (m *Mounted) verify() error {
	if isProcForeign() || m.namespace != 0 && m.namespace != pidNamespace() {
		return ErrElsewhere
	}
	stat, err := process.ReadStat(process.Dir(m.Supervisor))
	if err != nil && unix.Kill(m.Supervisor, 0) == unix.EPERM { // /proc is mounted with hidepid
		return permissionError(fmt.Errorf("/proc hides process %d: %w", m.Supervisor, os.ErrPermission))
	}
	if err != nil || stat.StartTicks != m.began || stat.HasEnded() {
		return ErrDead
	}
	if user, err := m.Credential(); err != nil || int(user.Uid) != m.Owner {
		return ErrDead
	}
	file, err := m.findMemfd(stateMemfd, holdsState)
	if err == nil {
		return file.Close()
	}
	if errors.Is(err, os.ErrPermission) {
		return err
	}
	return ErrDead
}

// Credential returns the user and groups with which workers read token files.
func (m *Mounted) Credential() (*syscall.Credential, error) { return process.User(m.Supervisor) }

// CheckRunning returns an error if a signal such as SIGSTOP has stopped the supervisor.
func (m *Mounted) CheckRunning() error {
	if !m.IsStopped() {
		return nil
	}
	return fmt.Errorf("%s is stuck: its supervisor, process %d, is stopped; continue it with: kill -CONT %[2]d", m.Mountpoint, m.Supervisor)
}

// IsStopped reports whether a signal has stopped the supervisor.
func (m *Mounted) IsStopped() bool {
	stat, err := process.ReadStat(process.Dir(m.Supervisor))
	return err == nil && stat.State == 'T'
}

// Signal sends a signal to the supervisor. The errors include those of CheckAlive.
func (m *Mounted) Signal(sig syscall.Signal) error {
	fd, err := m.Pidfd()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.PidfdSendSignal(fd, sig, nil, 0)
}

// Pidfd returns a new pidfd of the supervisor, which the caller must close. The errors include
// those of CheckAlive.
func (m *Mounted) Pidfd() (int, error) {
	fd, err := unix.PidfdOpen(m.Supervisor, 0)
	if err != nil {
		return -1, m.named(cmp.Or(m.verify(), ErrDead))
	}
	if err := m.verify(); err != nil { // after PidfdOpen, because ids are reused
		unix.Close(fd)
		return -1, m.named(err)
	}
	return fd, nil
}

// IsDead reports whether no process will ever serve the mount again. It waits at most a second for
// the mount to reply.
func (m *Mounted) IsDead() bool {
	reply := make(chan error, 1)
	go func() {
		var st unix.Statfs_t // never cached by the kernel
		reply <- unix.Statfs(m.Mountpoint, &st)
	}()
	select {
	case err := <-reply:
		return err == unix.ENOTCONN || err == unix.ECONNABORTED
	case <-time.After(time.Second):
		// A thread of a killed worker may still hold the connection, while it waits for the reply
		// to another request. If the supervisor is alive, another worker will reply.
		return errors.Is(m.CheckAlive(), ErrDead)
	}
}

// OpenedBy describes the processes that use the mount and that this user may inspect, and the
// mounts below it.
func (m *Mounted) OpenedBy() (users []string) {
	below, _ := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(i.Mountpoint, m.Mountpoint+"/"), false
	})
	for _, other := range below {
		users = append(users, "something is mounted on "+printable.Name(other.Mountpoint))
	}
	for _, pid := range process.All() {
		for _, use := range m.usesBy(process.Dir(pid)) {
			users = append(users, process.Describe(pid)+" "+use)
		}
	}
	if len(users) == 0 {
		users = append(users, "a process that this user may not inspect, or the kernel, as for a loop device (losetup --list) or an NFS server")
	}
	return users
}

// usesBy describes how a process uses the mount, given its directory in /proc. It does not touch
// the mount.
func (m *Mounted) usesBy(proc string) (all []string) {
	for link, how := range map[string]string{"cwd": "works in ", "root": "is rooted in "} {
		path, err := os.Readlink(proc + "/" + link)
		if err == nil && (path == m.Mountpoint || strings.HasPrefix(path, m.Mountpoint+"/")) {
			all = append(all, how+printable.Name(path))
		}
	}
	fds, _ := os.ReadDir(proc + "/fd")
	for _, fd := range fds {
		info, _ := os.ReadFile(proc + "/fdinfo/" + fd.Name())
		if m.containsFile(info) {
			path, _ := os.Readlink(proc + "/fd/" + fd.Name())
			all = append(all, "has open "+printable.Name(path))
		}
	}
	maps, _ := os.ReadFile(proc + "/maps")
	for line := range strings.Lines(string(maps)) {
		// The path is the last field, and no other field has a slash.
		if pos := strings.IndexByte(line, '/'); pos > 0 && strings.HasPrefix(line[pos:], m.Mountpoint+"/") {
			all = append(all, "has mapped "+printable.Name(strings.TrimSpace(line[pos:])))
		}
	}
	return slices.Compact(all)
}

// State maps the shared memory of the mount. The caller must close it. Only root and the user who
// mounted may do so.
func (m *Mounted) State() (*state.Shared, error) {
	if err := m.verify(); err != nil {
		return nil, m.named(err)
	}
	shared, err := m.mapState()
	return shared, m.named(err)
}

func (m *Mounted) mapState() (*state.Shared, error) {
	file, err := m.openMemfd(stateMemfd, os.O_RDWR, holdsState)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return state.Map(file)
}

// Snapshot opens the snapshot that the supervisor gives to new workers. The caller must close it.
// Only root and the user who mounted may do so.
func (m *Mounted) Snapshot() (*os.File, error) {
	shared, err := m.State()
	if err != nil {
		return nil, err
	}
	defer shared.Close()
	for {
		inode := shared.Snapshot.Load()
		file, err := m.openMemfd("batchfs-snapshot", os.O_RDONLY, func(memfd *os.File) bool { return inode == 0 || inodeOf(memfd) == inode })
		if err == nil || shared.Snapshot.Load() == inode {
			return file, m.named(err)
		}
		// The snapshot has just been replaced by another one.
	}
}

// openMemfd opens the memfd of the supervisor that has this name and for which matches returns
// true.
func (m *Mounted) openMemfd(name string, flag int, matches func(memfd *os.File) bool) (*os.File, error) {
	file, err := m.findMemfd(name, matches)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return reopen(file, flag)
}

func permissionError(err error) error {
	return fmt.Errorf("only root and the user who mounted can inspect a mount: %w", err)
}

const stateMemfd = "batchfs" // name of the memfd from state.New

// findMemfd is like openMemfd, but opens the memfd with O_PATH. A supervisor may hold several
// memfds of one name: a log of the Python package has the name of the shared memory, and a restart
// adds another snapshot.
func (m *Mounted) findMemfd(name string, matches func(memfd *os.File) bool) (*os.File, error) {
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
		if errors.Is(err, os.ErrNotExist) { // replaced in the meantime
			return m.findMemfd(name, matches)
		}
		if err != nil {
			return nil, err
		}
		if isMemfd(file, m.Owner) && matches(file) {
			return file, nil
		}
		file.Close()
	}
	return nil, fmt.Errorf("process %d is not the supervisor of a mount", m.Supervisor)
}

// isMemfd reports whether file is a memfd that belongs to owner. The name is no proof: in a mount
// namespace, a user can create a file with that name.
func isMemfd(file *os.File, owner int) bool {
	info, err := file.Stat()
	if err != nil {
		return false
	}
	stat := info.Sys().(*syscall.Stat_t)
	return info.Mode().IsRegular() && stat.Nlink == 0 && int(stat.Uid) == owner
}

// inodeOf returns the inode number of a file, or 0 if it is unknown.
func inodeOf(file *os.File) uint64 {
	info, err := file.Stat()
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// holdsState reports whether a memfd holds the shared memory of a mount. It never blocks.
func holdsState(memfd *os.File) bool {
	file, err := reopen(memfd, os.O_RDONLY)
	if err != nil {
		return false
	}
	defer file.Close()
	return state.IsShared(file)
}

func reopen(file *os.File, flag int) (*os.File, error) {
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), flag, 0)
}
