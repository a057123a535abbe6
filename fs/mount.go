package fs

import (
	"bytes"
	"errors"
	"fmt"
	stdlog "log"
	"log/slog"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// One request carries at most this much; the kernel's own bound where it was not raised.
const maxRequest = 1 << 20

// Server is a mount that is being served.
type Server struct {
	mountpoint string
	device     string // of this mount, as others may come to stand at its place
	log        *slog.Logger
	served     chan struct{} // closed when the kernel has let go of the connection
}

// Mount mounts a tree of sequences at mountpoint and serves it until it is unmounted, by whomever.
func Mount(mountpoint string, sequences []*Sequence, o Options) (*Server, error) {
	log := o.Log
	t, err := newTree(mountpoint, sequences, o)
	if err != nil {
		return nil, err
	}
	fd, err := connect(mountpoint)
	if err != nil {
		return nil, err
	}
	server, err := fuse.NewServer(t, fmt.Sprintf("/dev/fd/%d", fd), &fuse.MountOptions{
		MaxWrite:                maxRequest,
		MaxInflightRequestBytes: 64 << 20,
		// Replies are made in memory: splicing them would be one copy more, through a pipe.
		DisableSplice: true,
		// A file's pages are dropped when we say so, not when its attributes seem to change.
		ExplicitDataCacheControl: true,
		DisableXAttrs:            true,
		DisableReadDirPlus:       true,
		Name:                     "batchfs",
		Logger:                   stdlog.New(warnings{log}, "", 0),
		PanicHandler: func(r any) fuse.Status {
			log.Error("a request panicked; its reader gets an error", "panic", r, "stack", string(debug.Stack()))
			return fuse.EIO
		},
	})
	if err != nil {
		Unmount(mountpoint, true)
		return nil, fmt.Errorf("cannot serve %s: %w", mountpoint, err)
	}
	s := &Server{mountpoint: mountpoint, log: log, served: make(chan struct{})}
	if s.device, err = mountedAt(mountpoint); err != nil {
		Unmount(mountpoint, true)
		return nil, err
	}
	if err := setReadAhead(s.device); err != nil {
		log.Info("the kernel reads batches.bin and batches.npy less far ahead than it could, which costs time where they are read in order; root could change that",
			"want_kib", readAhead>>10, "err", err)
	}
	for range forgetters {
		go func() {
			for p, ok := t.sequences.outdated(); ok; p, ok = t.sequences.outdated() {
				server.EntryNotify(uint64(p.dir), p.name) // it may have forgotten by itself
			}
		}()
	}
	go func() {
		server.Serve()
		t.sequences.close()
		t.table.close()
		close(s.served)
	}()
	return s, nil
}

// readAhead is how far the kernel reads a file ahead that is read in order. More was not faster, and a fault of a mapping reads
// as much around it.
const readAhead = maxRequest

// setReadAhead sets that for a mount, which takes root. New mounts have 128 KiB.
func setReadAhead(device string) error {
	file, err := os.OpenFile("/sys/class/bdi/"+device+"/read_ahead_kb", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(file, readAhead>>10)
	return errors.Join(err, file.Close())
}

// Served is closed when the mount is gone and its last open file is closed.
func (s *Server) Served() <-chan struct{} { return s.served }

// Unmount ends the mount. Files that are still open may be read to their end for grace; then they get errors.
func (s *Server) Unmount(grace time.Duration) error {
	device, err := mountedAt(s.mountpoint)
	if err != nil {
		return err
	}
	if device == s.device { // or else it was detached under its readers, who have their grace nevertheless
		err = Unmount(s.mountpoint, false)
	}
	if errors.Is(err, unix.EBUSY) {
		s.log.Warn("files are still open: the mountpoint is free, their readers may go on for a while", "grace", grace)
		err = Unmount(s.mountpoint, true)
	}
	if err != nil {
		return err
	}
	select {
	case <-s.served:
	case <-time.After(grace):
		s.log.Warn("files were still open at the end of the grace period; their readers get errors")
	}
	return nil
}

// connect mounts a FUSE filesystem that is not served yet and returns the connection, /dev/fuse.
func connect(mountpoint string) (fd int, err error) {
	fd, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return -1, fmt.Errorf("/dev/fuse: %w; load the kernel module (modprobe fuse), "+
			"or give the container the device (docker run --device /dev/fuse --cap-add SYS_ADMIN)", err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return -1, fmt.Errorf("/dev/fuse: %w; ordinary hosts let everybody open it: chmod 666 /dev/fuse, as root", err)
	case err != nil:
		return -1, fmt.Errorf("/dev/fuse: %w", err)
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,default_permissions,max_read=%d", fd, os.Geteuid(), os.Getegid(), maxRequest)
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err = unix.Mount("batchfs", mountpoint, "fuse.batchfs", flags, data)
	if err == nil {
		return fd, nil
	}
	unix.Close(fd)
	if err != unix.EPERM && err != unix.EACCES {
		return -1, fmt.Errorf("cannot mount %s: %w", mountpoint, err)
	}
	return connectAsUser(mountpoint)
}

// connectAsUser lets fusermount3, which is setuid root, mount and send the connection over a socket.
func connectAsUser(mountpoint string) (fd int, err error) {
	helper, err := fusermount()
	if err != nil {
		return -1, err
	}
	if _, err := os.Stat("/etc/mtab"); err != nil {
		// Without it fusermount3 mounts, and refuses to unmount.
		return -1, fmt.Errorf("fusermount3 needs /etc/mtab, which minimal systems lack (%w): as root, ln -s /proc/self/mounts /etc/mtab", err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socketpair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "connection"), os.NewFile(uintptr(pair[1]), "fusermount3")
	defer ours.Close()
	defer theirs.Close()
	options := fmt.Sprintf("ro,nosuid,nodev,noexec,default_permissions,fsname=batchfs,subtype=batchfs,max_read=%d", maxRequest)
	cmd := exec.Command(helper, "-o", options, "--", mountpoint)
	cmd.Env = append(os.Environ(), "_FUSE_COMMFD=3")
	cmd.ExtraFiles = []*os.File{theirs}
	if out, err := cmd.CombinedOutput(); err != nil {
		return -1, fmt.Errorf("cannot mount %s: %s (%w)", mountpoint, strings.TrimSpace(string(out)), err)
	}
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fusermount3 sent no connection: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) == 0 {
		return -1, fmt.Errorf("fusermount3 sent no connection (%v)", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, fmt.Errorf("fusermount3 sent no connection (%v)", err)
	}
	return fds[0], nil
}

func fusermount() (string, error) {
	helper, err := exec.LookPath("fusermount3")
	if err != nil {
		return "", errors.New("mounting needs root, or fusermount3, which is not installed: apt-get install fuse3")
	}
	return helper, nil
}

// Mounted says whether a batchfs is mounted at an absolute path. It asks the kernel's table, so it never hangs, whatever
// state the mount is in.
func Mounted(mountpoint string) (bool, error) {
	device, err := mountedAt(mountpoint)
	return device != "", err
}

// mountedAt names the batchfs that a path leads to, or is empty.
func mountedAt(mountpoint string) (device string, err error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != mountpoint, false })
	if err != nil {
		return "", fmt.Errorf("cannot list mounts: %w", err)
	}
	if len(mounts) == 0 {
		return "", nil
	}
	top := mounts[len(mounts)-1] // a later one hides an earlier one
	if top.FSType != "fuse.batchfs" {
		return "", nil
	}
	return fmt.Sprintf("%d:%d", top.Major, top.Minor), nil
}

// Unmount unmounts the batchfs at an absolute path and nothing else. While files are open there the error is EBUSY,
// unless lazy, which detaches it now and leaves them to their readers.
func Unmount(mountpoint string, lazy bool) error {
	mounted, err := Mounted(mountpoint)
	if err != nil {
		return err
	}
	if !mounted {
		return fmt.Errorf("%s: no batchfs is mounted there", mountpoint)
	}
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	err = unix.Unmount(mountpoint, flags)
	if err == unix.EPERM {
		return unmountAsUser(mountpoint, lazy)
	}
	if err != nil {
		return fmt.Errorf("cannot unmount %s: %w", mountpoint, err)
	}
	return nil
}

func unmountAsUser(mountpoint string, lazy bool) error {
	helper, err := fusermount()
	if err != nil {
		return err
	}
	args := []string{"-u", "--", mountpoint}
	if lazy {
		args = append([]string{"-z"}, args...)
	}
	cmd := exec.Command(helper, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case bytes.Contains(bytes.ToLower(out), []byte("busy")):
		return fmt.Errorf("cannot unmount %s: %w", mountpoint, unix.EBUSY)
	}
	return fmt.Errorf("cannot unmount %s: %s (%w)", mountpoint, strings.TrimSpace(string(out)), err)
}

// warnings passes on what go-fuse has to say.
type warnings struct{ log *slog.Logger }

func (w warnings) Write(line []byte) (int, error) {
	// The reader was killed meanwhile, and nobody waits for the answer.
	if !bytes.Contains(line, []byte("Write/Writev failed, err: 2=")) {
		w.log.Warn(strings.TrimSpace(string(line)))
	}
	return len(line), nil
}
