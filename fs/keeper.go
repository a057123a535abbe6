package fs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// KeepOptions are what a keeper depends on.
type KeepOptions struct {
	// Worker is the command that serves, in a process that calls Inherit. The keeper adds descriptors. anew asks for one
	// that may find another program or configuration than the last.
	Worker     func(anew bool) *exec.Cmd
	AllowOther bool             // users other than the one that mounts may read, as far as Mode, UID and GID let them
	Snapshot   *os.File         // what the first worker is to begin from
	Signals    <-chan os.Signal // SIGHUP: replace the worker; any other: unmount
	Grace      time.Duration    // for open files, when the mount is to end
	NoResend   bool             // do as on kernels that do not send again what a dead worker left unanswered
	Serving    func()           // called once batches can be read
	Stopping   func()           // called when the mount begins to end
	Log        *slog.Logger
}

// A keeper holds a mount while workers come and go: the connection to the kernel, and what they share. It serves nothing
// itself.
type keeper struct {
	KeepOptions
	mountpoint string
	device     string // of this mount, as others may come to stand at its place
	connection *os.File
	block      *block
	memory     *os.File // of the block

	worker     *child
	unanswered int       // pings
	began      time.Time // when the worker did
	handled    uint64    // requests, when it did
	failures   int       // workers in a row that ended without having handled a request
	snapshots  int       // that were published
}

// A child is a worker's process, as its keeper sees it.
type child struct {
	cmd     *exec.Cmd
	control *socket
	said    chan string   // what it says; closed with its end of the socket
	files   chan *os.File // that came with it
	ended   chan struct{} // closed when the process has ended

	snapshot *os.File // that it published before it served, or nil
}

const (
	// What a worker says while nobody listens waits: pongs and snapshots, of which there are few.
	maxSaid   = 64
	pingEvery = time.Second
	// A worker that has left so many pings without an answer hangs.
	maxUnanswered = 3
	startLimit    = 20 * time.Second
	leavingLimit  = 2 * time.Second
	// So many workers in a row may end soon and without having handled a request, the later ones after a while: 10 ms, 20, 40, …
	maxFailures = 10
	soon        = 10 * time.Second
	backOff     = 10 * time.Millisecond
)

// Keep mounts, and sees to it that a worker serves until the mount ends, by whomever. The error is nil if it ended as it
// should.
func Keep(mountpoint string, o KeepOptions) error {
	// A worker is killed when the thread ends that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	k := &keeper{KeepOptions: o, mountpoint: mountpoint}
	var err error
	if k.memory, k.block, err = newBlock(); err != nil {
		return err
	}
	if err := k.mount(); err != nil {
		return err
	}
	defer k.connection.Close()
	if err := k.begin(false); err != nil {
		k.detach()
		return fmt.Errorf("cannot serve %s: %w", mountpoint, err)
	}
	o.Serving()
	err = k.keep()
	if errors.Is(err, errStopped) {
		err = nil
	}
	if err != nil {
		k.Log.Error("the mount ends: its readers get errors", "err", err)
	}
	k.detach()
	return err
}

// mount makes the connection.
func (k *keeper) mount() (err error) {
	if k.connection, err = connect(k.mountpoint, k.AllowOther); err != nil {
		return err
	}
	k.device, err = mountedAt(k.mountpoint)
	return err
}

// detach takes the mount from its place, if it is still there.
func (k *keeper) detach() {
	if k.worker != nil {
		k.worker.kill()
	}
	if device, err := mountedAt(k.mountpoint); err == nil && device == k.device {
		if err := Unmount(k.mountpoint, true); err != nil {
			k.Log.Error("the mount is dead, and cannot be detached", "err", err)
		}
	}
}

// start starts a worker, which can serve when it returns but does not yet.
func (k *keeper) start(anew bool) (*child, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "control")
	c := &child{
		cmd:     k.Worker(anew),
		control: newSocket(pair[0]),
		said:    make(chan string, maxSaid),
		files:   make(chan *os.File, maxSaid),
		ended:   make(chan struct{}),
	}
	c.cmd.ExtraFiles = []*os.File{k.connection, k.memory, theirs, k.Snapshot}
	// Ctrl-C is for the keeper, which then unmounts.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err = c.cmd.Start()
	theirs.Close() // or else the worker's end would not be seen
	if err != nil {
		unix.Close(pair[0])
		return nil, err
	}
	go c.listen()
	if said := c.wait(startLimit); said != sayPrepared {
		c.kill()
		return nil, c.why(said)
	}
	return c, nil
}

// listen hears what a worker says until it has ended.
func (c *child) listen() {
	for {
		said, file, err := c.control.hear()
		if err != nil {
			break
		}
		if file != nil {
			c.files <- file
		}
		c.said <- said
	}
	close(c.said)
	c.cmd.Wait()
	unix.Close(c.control.fd)
	close(c.ended)
}

// wait returns what a worker that does not serve yet says next, or nothing if it ends or takes too long.
func (c *child) wait(limit time.Duration) string {
	late := time.After(limit)
	for {
		select {
		case said := <-c.said:
			if said != saySnapshot {
				return said
			}
			c.snapshot = <-c.files
		case <-late:
			return ""
		}
	}
}

// keepSnapshot keeps what the next worker is to begin from.
func (k *keeper) keepSnapshot(file *os.File) {
	k.Snapshot.Close()
	k.Snapshot = file
	k.snapshots++
}

// why says why a worker did not do what it should have, which has ended.
func (c *child) why(said string) error {
	if reason, ok := strings.CutPrefix(said, sayRefused); ok {
		return errors.New(reason)
	}
	return fmt.Errorf("the process that was to serve ended (%v)", c.cmd.ProcessState)
}

// kill ends a process that may be at work. It is stopped before, so that it is not killed while the kernel copies a request
// or an answer, which would fail.
func (c *child) kill() {
	c.cmd.Process.Signal(syscall.SIGSTOP)
	for range 100 {
		if c.stopped() {
			break
		}
		time.Sleep(time.Millisecond)
	}
	c.cmd.Process.Kill()
	select {
	case <-c.ended:
	case <-time.After(leavingLimit): // a thread waits for a disk, and will do nothing else any more
	}
}

// stopped says whether the process has no thread that runs.
func (c *child) stopped() bool {
	tasks := fmt.Sprintf("/proc/%d/task", c.cmd.Process.Pid)
	threads, err := os.ReadDir(tasks)
	if err != nil {
		return true
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(tasks + "/" + thread.Name() + "/stat")
		if _, state, ok := strings.Cut(string(stat), ") "); err == nil && ok && strings.ContainsAny(state[:1], "RS") {
			return false
		}
	}
	return true
}

// begin has a worker serve.
func (k *keeper) begin(anew bool) error {
	c, err := k.start(anew)
	if err != nil {
		return err
	}
	return k.hand(c)
}

// hand gives the mount to a worker that was started.
func (k *keeper) hand(c *child) error {
	k.began, k.handled, k.unanswered = time.Now(), k.block.handled.Load(), 0
	if err := c.control.say(sayServe, nil); err != nil {
		c.kill()
		return c.why("")
	}
	if said := c.wait(startLimit); said != sayServing {
		c.kill()
		return c.why(said)
	}
	k.block.beat.Store(monotonic())
	k.worker = c
	// What is agreed at the beginning of a connection comes before.
	if err := setReadAhead(k.device); err != nil && k.block.workers.Load() == 1 {
		k.Log.Info("the kernel reads batches.bin and batches.npy less far ahead than it could, which costs time where they are read in order; root could change that",
			"want_kib", readAhead>>10, "err", err)
	}
	if c.snapshot != nil {
		k.keepSnapshot(c.snapshot)
	}
	return nil
}

// keep has a worker serve until the mount is gone.
func (k *keeper) keep() error {
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	for {
		select {
		case sig := <-k.Signals:
			if sig == syscall.SIGHUP {
				if err := k.restart(); err != nil {
					return err
				}
				continue
			}
			return k.end()
		case said, ok := <-k.worker.said:
			switch {
			case !ok:
				<-k.worker.ended
				if k.gone() {
					return nil
				}
				if err := k.replace(fmt.Sprint(k.worker.cmd.ProcessState)); err != nil {
					return err
				}
			case said == saySnapshot:
				k.keepSnapshot(<-k.worker.files)
			case said == sayPong:
				k.unanswered = 0
				k.block.beat.Store(monotonic())
			}
		case <-ping.C:
			// The time that the keeper itself was stopped does not count.
			if k.unanswered++; k.unanswered > maxUnanswered {
				k.worker.kill()
				if err := k.replace("it did not answer"); err != nil {
					return err
				}
			} else if err := k.worker.control.say(sayPing, nil); err != nil {
				k.Log.Debug("a ping was not sent", "err", err)
			}
		}
	}
}

// gone says whether the kernel has let go of the connection: the mount has ended, and so has every open file of it.
func (k *keeper) gone() bool {
	poll := []unix.PollFd{{Fd: int32(k.connection.Fd())}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 1 && poll[0].Revents&unix.POLLERR != 0
}

// resends says whether the kernel sends again what a dead worker left unanswered. It said so at the beginning.
func (k *keeper) resends() bool {
	const flags2, hasResend = 40 + 16, 1 << (39 - 32)
	request := k.block.request.get()
	return !k.NoResend && len(request) >= flags2+4 && binary.NativeEndian.Uint32(request[flags2:])&hasResend != 0
}

// errStopped ends a keeper as it should.
var errStopped = errors.New("told to stop")

// replace has another worker go on for one that ended.
func (k *keeper) replace(why string) error {
	began := time.Now()
	k.drain()
	k.failures++
	if k.block.handled.Load() != k.handled || time.Since(k.began) > soon {
		k.failures = 1
	}
	for {
		if k.failures > maxFailures {
			return fmt.Errorf("%d processes in a row ended before they had answered a request; the last one: %s", maxFailures, why)
		}
		if k.failures > 1 {
			select {
			case <-time.After(backOff << (k.failures - 2)):
			case sig := <-k.Signals:
				if sig != syscall.SIGHUP {
					return errStopped
				}
			}
		}
		if !k.resends() {
			if err := k.remount(); err != nil {
				return err
			}
		}
		err := k.begin(false)
		if err == nil {
			k.Log.Warn("the process that served ended: another goes on", "why", why, "after", time.Since(began), "pid", k.worker.cmd.Process.Pid)
			return nil
		}
		if k.gone() {
			return nil
		}
		why = err.Error()
		k.failures++
	}
}

// drain keeps what the worker that ended had published.
func (k *keeper) drain() {
	for {
		select {
		case said, ok := <-k.worker.said:
			if !ok {
				return
			}
			if said == saySnapshot {
				k.keepSnapshot(<-k.worker.files)
			}
		default:
			return
		}
	}
}

// remount ends the connection, so that all who wait for it get an error, and makes another.
func (k *keeper) remount() error {
	k.connection.Close()
	if device, err := mountedAt(k.mountpoint); err != nil || device == k.device {
		if err := Unmount(k.mountpoint, true); err != nil {
			return err
		}
	}
	k.block.forget()
	return k.mount()
}

// restart replaces the worker on purpose, unless its successor refuses.
func (k *keeper) restart() error {
	tell := func(outcome string) {
		k.block.outcome.set([]byte(outcome))
		k.block.restart.Add(1)
	}
	published := k.snapshots
	c, err := k.start(true)
	if err != nil {
		k.Log.Error("restart refused: the same process goes on", "err", err)
		tell(err.Error())
		return nil
	}
	old := k.worker
	if err := old.control.say(sayGo, nil); err == nil {
		select {
		case <-old.ended:
		case <-time.After(leavingLimit):
		}
	}
	old.kill()
	k.drain()
	switch {
	case k.gone():
		c.kill()
		return nil
	case !k.resends():
		c.kill() // it has the connection that ends now
		if err = k.remount(); err == nil {
			err = k.begin(true)
		}
	case k.snapshots != published:
		c.kill() // it began from an older one
		err = k.begin(true)
	default:
		err = k.hand(c)
	}
	if err != nil {
		tell(err.Error())
		return k.replace(err.Error())
	}
	k.Log.Info("restarted: another process goes on", "pid", k.worker.cmd.Process.Pid)
	tell("")
	return nil
}

// end unmounts. Files that are open may be read on for the time of grace.
func (k *keeper) end() error {
	k.Stopping()
	k.block.closing.Store(1)
	said, unmounted := false, false
	for deadline := time.Now().Add(k.Grace); ; {
		err := error(unix.EBUSY) // under its readers it may have been detached; they have their time nevertheless
		if device, _ := mountedAt(k.mountpoint); device == k.device {
			err = Unmount(k.mountpoint, false)
		}
		switch {
		case err == nil:
			unmounted = true
			deadline = time.Now().Add(leavingLimit)
		case !errors.Is(err, unix.EBUSY):
			return err
		case !said && !unmounted:
			k.Log.Warn("files are still open: they may be read on for a while", "grace", k.Grace)
			said = true
		}
		select {
		case <-k.Signals:
			k.Log.Warn("told to stop again: readers get errors")
			return nil
		case _, ok := <-k.worker.said:
			if ok {
				continue
			}
			<-k.worker.ended
			if k.gone() {
				return nil
			}
			if err := k.replace(fmt.Sprint(k.worker.cmd.ProcessState)); err != nil {
				return err
			}
		case <-time.After(min(endEvery, max(time.Until(deadline), 0))):
			if !time.Now().Before(deadline) {
				k.Log.Warn("files were still open at the end of the grace period: their readers get errors")
				return nil
			}
		}
	}
}

const endEvery = 50 * time.Millisecond
