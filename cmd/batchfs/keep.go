package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"batchfs/fs"
)

// What a keeper in the background tells the process that started it when batches can be read. Anything else is why not.
const serving = "serving"

// keepCommand is the keeper of a mount in the background. It inherits where to say that it serves, or why not, and a snapshot.
func keepCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "keep",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ready, file := os.NewFile(3, "ready"), os.NewFile(4, "snapshot")
			syscall.CloseOnExec(3)
			syscall.CloseOnExec(4)
			os.Chdir("/") // no file is named relative to a directory any more, and none should be kept busy
			tell := func(what string) {
				fmt.Fprint(ready, what)
				ready.Close()
			}
			taken, err := readSnapshot(file)
			var c *config
			if err == nil {
				c, err = taken.config()
			}
			if err == nil {
				err = keep(cmd.Context(), taken, c, file, cmd.ErrOrStderr(), func() { tell(serving) })
			}
			if err != nil {
				tell(err.Error())
			}
			return err
		},
	}
}

// keep mounts, and keeps the mount until it ends.
func keep(ctx context.Context, taken *snapshot, c *config, file *os.File, logTo io.Writer, ready func()) error {
	// Whoever listens to what is said here may go away; the trainers do not.
	signal.Ignore(syscall.SIGPIPE)
	restart, stop := make(chan os.Signal, 1), make(chan os.Signal, 2)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	signal.Notify(hangups(restart, stop), syscall.SIGHUP)
	if ctx.Err() != nil {
		return errors.New("stopped before it was mounted")
	}
	program, err := openProgram()
	if err != nil {
		return err
	}
	log := newLog(logTo, c.Log).With("mountpoint", taken.Mountpoint)
	err = fs.Keep(taken.Mountpoint, fs.KeepOptions{
		AllowOther: c.Mount.AllowOther,
		Worker: func(anew bool) *exec.Cmd {
			cmd := program.worker(anew)
			cmd.Stderr = logTo
			return cmd
		},
		Snapshot: file,
		Restart:  restart,
		Stop:     stop,
		Grace:    c.Mount.Grace,
		NoResend: taken.NoResend,
		Serving: func() {
			daemon.SdNotify(false, daemon.SdNotifyReady)
			log.Info("mounted", "version", version(), "pid", os.Getpid())
			ready()
			debug.FreeOSMemory() // what it took to set up
		},
		Restarted: func(pid int) {
			if err := program.take(pid); err != nil {
				log.Warn("should the process that serves die, one of an older program takes its place", "err", err)
			}
		},
		Stopping: func() { daemon.SdNotify(false, daemon.SdNotifyStopping) },
		Log:      log,
	})
	if err == nil {
		log.Info("unmounted")
	}
	return err
}

// hangups is where SIGHUP goes: it asks for a restart, unless it says that the terminal is gone.
func hangups(restart, stop chan<- os.Signal) chan<- os.Signal {
	terminal := func() bool {
		tty, err := os.Open("/dev/tty")
		tty.Close()
		return err == nil
	}
	had := terminal()
	all := make(chan os.Signal, 1)
	go func() {
		for sig := range all {
			to := restart
			if had && !terminal() {
				to = stop
			}
			select {
			case to <- sig:
			default: // it was asked before
			}
		}
	}()
	return all
}

// A program is the file that workers run. One that died is replaced by another of the same, although there may be another
// file at its path by now; only a restart runs that.
type program struct {
	path string
	file *os.File
}

func openProgram() (*program, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &program{path: path}
	return p, p.take(os.Getpid())
}

// take makes it the one that a process runs.
func (p *program) take(pid int) error {
	file, err := os.Open(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return err
	}
	if p.file != nil {
		p.file.Close()
	}
	p.file = file
	return nil
}

// worker is the command of a worker.
func (p *program) worker(anew bool) *exec.Cmd {
	if anew {
		return exec.Command(p.path, "worker", "--anew")
	}
	cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", fs.ExtraFd), "worker")
	cmd.Args[0] = p.path
	cmd.ExtraFiles = []*os.File{p.file}
	return cmd
}
