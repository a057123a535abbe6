package main

import (
	"context"
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
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if ctx.Err() != nil {
		return fmt.Errorf("stopped before it was mounted")
	}
	program, err := openPrograms()
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
		Signals:  signals,
		Grace:    c.Mount.Grace,
		NoResend: taken.NoResend,
		Serving: func() {
			daemon.SdNotify(false, daemon.SdNotifyReady)
			log.Info("mounted", "version", version(), "pid", os.Getpid())
			ready()
			debug.FreeOSMemory() // what it took to set up
		},
		Stopping: func() { daemon.SdNotify(false, daemon.SdNotifyStopping) },
		Log:      log,
	})
	if err == nil {
		log.Info("unmounted")
	}
	return err
}

// programs are the files that workers run. A worker that died is replaced by one of the same program, although another
// may stand at its path by now; only a restart runs that.
type programs struct {
	path string
	file *os.File
}

func openPrograms() (*programs, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	file, err := os.Open("/proc/self/exe")
	return &programs{path, file}, err
}

// worker is the command of a worker.
func (p *programs) worker(anew bool) *exec.Cmd {
	args := []string{"worker"}
	if anew {
		return exec.Command(p.path, append(args, "--anew")...)
	}
	cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", p.file.Fd()), args...)
	cmd.Args[0] = p.path
	return cmd
}
