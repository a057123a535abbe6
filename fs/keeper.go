package fs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// KeepOptions are what a keeper depends on.
type KeepOptions struct {
	AllowOther bool // users other than the one that mounts may read, as far as Mode, UID and GID let them
	// Worker is the command that serves, in a process that calls Inherit. The keeper hands it descriptors, after which come
	// those of the command itself, from ExtraFd on. anew asks for one that may find another program or configuration.
	Worker   func(anew bool) *exec.Cmd
	Snapshot *os.File         // what the first worker is to begin from
	Restart  <-chan os.Signal // replace the worker
	Stop     <-chan os.Signal // unmount; a second time, at once
	Grace    time.Duration    // for open files, when the mount is to end
	NoResend bool             // do as on kernels that do not send again what a dead worker left unanswered

	Serving   func()        // called once batches can be read
	Restarted func(pid int) // called when a worker that was asked for anew serves
	Stopping  func()        // called when the mount begins to end
	Log       *slog.Logger
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
	began      time.Time // when it did
	handled    uint64    // requests, before
	unanswered int       // pings
	failures   int       // workers in a row that ended at once, without having handled a request

	next *child // that could take the worker's place, or will do so soon, or nil

	ending    time.Time // when the time of grace is over; zero: the mount is not to end
	warned    bool      // that files are open
	unmounted bool
}

const (
	// What a worker says while nobody listens waits: pongs and snapshots, of which there are few.
	maxSaid   = 64
	pingEvery = time.Second
	// A worker that has left so many pings without an answer hangs.
	maxUnanswered = 3
	startLimit    = 20 * time.Second
	leavingLimit  = 2 * time.Second
	// A worker's end is seen by that of its socket, but for one that leaves threads behind that cannot be killed; and whether
	// files are still open can only be tried.
	lookEvery = 50 * time.Millisecond
	// A worker that has served for so long, though nobody asked anything of it, did not fail to begin.
	settled = 200 * time.Millisecond
	// So many workers in a row may fail to begin, the later ones after a while: 10 ms, 20, 40, …
	maxFailures = 10
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
	defer func() { k.connection.Close() }()
	if err = k.begin(false); err != nil {
		err = fmt.Errorf("cannot serve %s: %w", mountpoint, err)
	} else {
		o.Serving()
		if err = k.keep(); errors.Is(err, errStopped) {
			err = nil
		} else if err != nil {
			k.Log.Error("the mount ends: its readers get errors", "err", err)
		}
	}
	for _, c := range []*child{k.worker, k.next} {
		if c != nil {
			c.kill()
		}
	}
	return errors.Join(err, k.detach())
}

// mount makes the connection.
func (k *keeper) mount() (err error) {
	if k.connection, err = connect(k.mountpoint, k.AllowOther); err != nil {
		return err
	}
	if k.device, err = mountedAt(k.mountpoint); err != nil {
		k.connection.Close()
	}
	return err
}

// inPlace says whether the mount is what its mountpoint leads to.
func (k *keeper) inPlace() (bool, error) {
	device, err := mountedAt(k.mountpoint)
	return err == nil && device == k.device, err
}

// detach takes the mount from its place, if it is still there.
func (k *keeper) detach() error {
	if ours, err := k.inPlace(); !ours {
		return err
	}
	return Unmount(k.mountpoint, true)
}

// start starts a worker, which says when it could serve.
func (k *keeper) start(anew bool) (*child, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "control")
	c := &child{
		cmd: k.Worker(anew), control: &socket{fd: pair[0]}, said: make(chan saying, maxSaid), ended: make(chan struct{}),
		anew: anew, began: time.Now(), from: k.Snapshot,
	}
	c.cmd.ExtraFiles = append([]*os.File{k.connection, k.memory, theirs, k.Snapshot}, c.cmd.ExtraFiles...)
	// Ctrl-C is for the keeper, which then unmounts.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err = c.cmd.Start()
	theirs.Close() // or else the worker's end would not be seen
	if err != nil {
		unix.Close(pair[0])
		return nil, err
	}
	go c.listen()
	return c, nil
}

// begin has a worker serve: the one that stands by, or another.
func (k *keeper) begin(anew bool) (err error) {
	c := k.next
	k.next = nil
	if c == nil {
		if c, err = k.start(anew); err != nil {
			return err
		}
	}
	if !c.prepared {
		if err := c.await(sayPrepared, startLimit); err != nil {
			return err
		}
	}
	return k.hand(c)
}

// standBy has a process stand by, because to start one takes long while readers keep every processor busy.
func (k *keeper) standBy() {
	if k.next != nil || !k.ending.IsZero() || !k.resends() {
		return
	}
	next, err := k.start(false)
	if err != nil {
		k.Log.Debug("no process stands by", "err", err)
		return
	}
	k.next = next
}

// hand gives the mount to a worker that could serve.
func (k *keeper) hand(c *child) error {
	k.handled = k.block.handled.Load()
	if err := c.control.say(sayServe, nil); err != nil {
		return c.why(saying{})
	}
	if err := c.await(sayServing, maxUnanswered*pingEvery); err != nil {
		return err
	}
	k.worker, k.began, k.unanswered = c, time.Now(), 0
	k.block.beat.Store(monotonic())
	// What is agreed at the beginning of a connection comes before.
	if err := setReadAhead(k.device); err != nil && k.block.workers.Load() == 1 {
		k.Log.Info("the kernel reads batches.bin and batches.npy less far ahead than it could, which costs time where they are read in order; root could change that",
			"want_kib", readAhead>>10, "err", err)
	}
	if c.snapshot != nil {
		k.keepSnapshot(c.snapshot)
		c.snapshot = nil
	}
	return nil
}

// keepSnapshot keeps what the next worker is to begin from. One that stands by began from another.
func (k *keeper) keepSnapshot(file *os.File) {
	k.Snapshot.Close()
	k.Snapshot = file
	if k.next != nil && !k.next.anew {
		k.drop(errors.New("the token files changed"))
	}
}

// errStopped ends a keeper as it should.
var errStopped = errors.New("told to stop")

// keep has a worker serve until the mount is gone.
func (k *keeper) keep() error {
	ping, look := time.NewTicker(pingEvery), time.NewTicker(lookEvery)
	defer ping.Stop()
	defer look.Stop()
	k.standBy()
	for !k.gone() {
		var next chan saying
		if k.next != nil {
			next = k.next.said
		}
		var err error
		select {
		case <-k.Restart:
			err = k.restart()
		case <-k.Stop:
			err = k.end()
		case said, ok := <-k.worker.said:
			err = k.heard(said, ok)
		case said := <-next:
			err = k.heardNext(said)
		case <-ping.C:
			if err = k.ping(); err == nil {
				k.standBy()
			}
		case <-look.C:
			switch {
			case k.worker.dying():
				err = k.replace("")
			case k.next != nil && !k.next.prepared && time.Since(k.next.began) > startLimit:
				k.drop(tooLate(startLimit))
			case !k.ending.IsZero():
				err = k.tryToEnd()
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (k *keeper) heard(said saying, ok bool) error {
	switch {
	case !ok:
		return k.replace("")
	case said.what == saySnapshot:
		k.keepSnapshot(said.file)
	case said.what == sayPong:
		k.unanswered = 0
		k.block.beat.Store(monotonic())
	}
	return nil
}

// ping asks the worker whether it is well. Pings are counted, not the time, as the keeper itself may have been stopped for a while.
func (k *keeper) ping() error {
	if k.unanswered++; k.unanswered > maxUnanswered {
		return k.replace("it did not answer")
	}
	k.worker.control.say(sayPing, nil) // it may have ended, of which there will be another sign
	return nil
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

// replace has another worker go on for one that ended, or is to end, unless the mount is gone. How it ended is why, if nothing
// else is.
func (k *keeper) replace(why string) error {
	began := time.Now()
	k.worker.kill()
	if why == "" {
		why = k.worker.state()
	}
	k.drain()
	if k.next != nil && k.next.anew {
		k.drop(errors.New("the process that served ended meanwhile; try again"))
	}
	k.failures++
	if k.block.handled.Load() != k.handled || time.Since(k.began) > settled {
		k.failures = 1
	}
	for ; !k.gone(); k.failures++ {
		if k.failures > maxFailures {
			return fmt.Errorf("%d processes in a row ended before they had answered a request; the last one: %s", maxFailures, why)
		}
		if k.failures > 1 {
			select {
			case <-time.After(backOff << (k.failures - 2)):
			case <-k.Stop:
				return errStopped
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
			k.standBy()
			return nil
		}
		why = err.Error()
	}
	return nil
}

// drain keeps what the worker that ended had published.
func (k *keeper) drain() {
	for {
		select {
		case said, ok := <-k.worker.said:
			if !ok {
				return
			}
			if said.what == saySnapshot {
				k.keepSnapshot(said.file)
			}
		default:
			return
		}
	}
}

// remount ends the connection, so that all who wait for it get an error, and makes another.
func (k *keeper) remount() error {
	k.connection.Close()
	ours, err := k.inPlace()
	if err != nil {
		return err
	}
	if !ours {
		return errStopped // it was unmounted, under its readers
	}
	if err := Unmount(k.mountpoint, true); err != nil {
		return err
	}
	k.block.forget()
	return k.mount()
}

// restart begins to replace the worker on purpose, unless that is under way, or the mount is to end.
func (k *keeper) restart() error {
	if k.next != nil && k.next.anew || !k.ending.IsZero() {
		return nil
	}
	next, err := k.start(true)
	if err != nil {
		k.refuse(err)
		return nil
	}
	if k.next != nil {
		k.next.kill()
	}
	k.next = next
	return nil
}

// heardNext goes on with a restart, or knows that a process stands by.
func (k *keeper) heardNext(said saying) error {
	switch {
	case said.what == saySnapshot:
		k.next.snapshot = said.file
	case said.what == sayPrepared && k.next.anew:
		return k.handOver()
	case said.what == sayPrepared:
		k.next.prepared = true
	default:
		k.drop(k.next.why(said))
	}
	return nil
}

// drop ends the process that was to take the worker's place.
func (k *keeper) drop(why error) {
	next := k.next
	k.next = nil
	next.kill()
	if next.anew {
		k.refuse(why)
	} else {
		k.Log.Debug("no process stands by", "err", why)
	}
}

// refuse ends a restart: the same worker goes on.
func (k *keeper) refuse(err error) {
	k.Log.Error("restart refused: the same process goes on", "err", err)
	k.tell(err.Error())
}

// tell is for who asked for the restart.
func (k *keeper) tell(outcome string) {
	k.block.outcome.set([]byte(outcome))
	k.block.restart.Add(1)
}

// handOver has the worker go, and the next one serve.
func (k *keeper) handOver() (err error) {
	old, next := k.worker, k.next
	if old.control.say(sayGo, nil) == nil {
		old.awaitEnd(leavingLimit)
	}
	old.kill()
	k.drain()
	k.next = nil
	switch {
	case k.gone():
		next.kill()
		return nil
	case !k.resends():
		next.kill() // it has the connection that ends now
		if err = k.remount(); err != nil {
			return err
		}
		err = k.begin(true)
	case k.Snapshot != next.from:
		next.kill() // it began from an older one
		err = k.begin(true)
	default:
		err = k.hand(next)
	}
	if err != nil {
		k.tell(err.Error())
		return k.replace(err.Error())
	}
	pid := k.worker.cmd.Process.Pid
	k.Log.Info("restarted: another process goes on", "pid", pid)
	k.Restarted(pid)
	k.tell("")
	k.standBy()
	return nil
}

// end begins to unmount. Files that are open may be read on for the time of grace.
func (k *keeper) end() error {
	if !k.ending.IsZero() {
		k.Log.Warn("told to stop again: readers get errors")
		return errStopped
	}
	k.Stopping()
	k.ending = time.Now().Add(k.Grace)
	k.block.closing.Store(1)
	return k.tryToEnd()
}

func (k *keeper) tryToEnd() error {
	err := error(unix.EBUSY) // under its readers it may have been detached; they have their time nevertheless
	if ours, _ := k.inPlace(); ours {
		err = Unmount(k.mountpoint, false)
	}
	switch {
	case err == nil:
		k.unmounted = true
		k.ending = time.Now().Add(leavingLimit)
	case !errors.Is(err, unix.EBUSY):
		return err
	case !time.Now().Before(k.ending):
		if !k.unmounted {
			k.Log.Warn("files were still open at the end of the grace period: their readers get errors")
		}
		return errStopped
	case !k.warned && !k.unmounted:
		k.Log.Warn("files are still open: they may be read on for a while", "grace", k.Grace)
		k.warned = true
	}
	return nil
}
