package processes

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/metrics"
	"batchfs/cmd/batchfs/web"
	"batchfs/fs/state"
	"batchfs/fs/supervise"
)

// superviseCommand returns the hidden command that mount -d starts in the background. It inherits
// descriptor 3, a pipe for a report; 4, the snapshot; and, with --handed-over, 5, the
// FUSE connection.
func superviseCommand() *cobra.Command {
	var handedOver bool
	cmd := &cobra.Command{
		Use:    "supervise",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			parent, file := os.NewFile(3, "parent"), os.NewFile(4, "snapshot")
			syscall.CloseOnExec(3)
			syscall.CloseOnExec(4)
			var connection *os.File
			if handedOver {
				syscall.CloseOnExec(5)
				connection = os.NewFile(5, "/dev/fuse")
			}
			// All paths are absolute, and a working directory would prevent an unmount.
			os.Chdir("/")
			tell := func(r *command.Report) {
				gob.NewEncoder(parent).Encode(r)
				parent.Close()
			}
			snapshot, err := dataset.ReadSnapshot(file)
			var c *config.Config
			if err == nil {
				c, err = snapshot.Config()
			}
			if err == nil {
				err = runSupervisor(cmd.Context(), cmd.Root().Version, snapshot, c, connection, file, cmd.ErrOrStderr(),
					func() { tell(&command.Report{Kind: command.Ready}) })
			}
			if err != nil {
				tell(command.NewReport(err))
			}
			return printWithTimeout(err)
		},
	}
	cmd.Flags().BoolVar(&handedOver, "handed-over", false, "the FUSE connection is open as descriptor 5")
	return cmd
}

// runSupervisor mounts, unless another process did and handed over connection, and supervises
// workers until the mount ends. It calls ready once batches can be read. file holds the encoded
// snapshot.
func runSupervisor(
	ctx context.Context, version string, snapshot *dataset.Snapshot, c *config.Config,
	connection, file *os.File, logTo io.Writer, ready func(),
) error {
	// The mount must outlive whoever reads its output, and output to a terminal must not stop it
	// (stty tostop).
	signal.Ignore(syscall.SIGPIPE, syscall.SIGTTOU)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50) // this process makes little garbage and lives as long as the mount
	}
	isOrphaned, nohup := lostTerminal(), signal.Ignored(syscall.SIGHUP)
	restart, stop := make(chan os.Signal, 1), make(chan os.Signal, 2)
	signal.Notify(restart, syscall.SIGHUP)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	// Each signal but SIGQUIT ends ctx, is in one of the channels, or both.
	if command.StopNotifying(ctx); ctx.Err() != nil {
		return command.ErrInterrupted
	}
	program, err := openExecutable()
	if err != nil {
		return err
	}
	log, flush := newLog(logTo, c.Log, snapshot.Mountpoint)
	defer flush()
	var listener net.Listener // nil without metrics
	if address := c.Mount.MetricsListen; address.IsValid() {
		if listener, err = net.Listen("tcp", address.String()); err != nil {
			hint := "choose an address of this machine and a free port, from 1024 on unless root mounts"
			if errors.Is(err, syscall.EAFNOSUPPORT) {
				hint = "allow it, in a unit of systemd: RestrictAddressFamilies=AF_INET AF_INET6"
			}
			return fmt.Errorf("mount.metrics_listen: %w; %s", err, hint)
		}
		defer listener.Close()
	}
	err = supervise.Run(snapshot.Mountpoint, supervise.Options{
		Connection: connection,
		AllowOther: c.Mount.AllowOther,
		WorkerCommand: func(isRestart bool) *exec.Cmd {
			cmd := program.worker(isRestart)
			cmd.Stderr = logTo
			return cmd
		},
		Snapshot:     file,
		Restart:      restart,
		IsOrphaned:   isOrphaned,
		IgnoreHangup: nohup,
		Stop:         stop,
		Grace:        c.Mount.Grace,
		NoResend:     snapshot.NoResend,
		Serving: func(shared *state.Shared) {
			daemon.SdNotify(false, daemon.SdNotifyReady)
			log.Info("mounted", "version", version, "pid", os.Getpid())
			snapshot.UnleasedWarning(c, log)()
			if listener != nil {
				serveMetrics(listener, shared, log)
			}
			ready()
			debug.FreeOSMemory() // returns memory that only the start needed
		},
		RestartEnded: program.endRestart,
		Stopping:     func() { daemon.SdNotify(false, daemon.SdNotifyStopping) },
		Log:          log,
	})
	if err == supervise.ErrInterrupted {
		return command.ErrInterrupted
	}
	if err == nil && connection == nil {
		log.Info("unmounted")
	}
	return err
}

// An executable is the program of the workers. It is an open file, because the path may name
// another program by the time a worker starts, or none.
type executable struct {
	path string   // a restart opens the program at this path
	file *os.File // the program of the worker that serves
	next *os.File // the program that the last restart opened, until it becomes file
}

func openExecutable() (*executable, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	file, err := os.Open("/proc/self/exe")
	return &executable{path: path, file: file}, err
}

// worker returns the command of a worker. In a restart, the worker runs the program that is now at
// the path.
func (e *executable) worker(isRestart bool) *exec.Cmd {
	file, args := e.file, []string{"worker"}
	if isRestart {
		next, err := os.Open(e.path)
		if err != nil {
			return &exec.Cmd{Err: err}
		}
		e.next.Close() // a restart may try twice
		e.next, file, args = next, next, append(args, "--restart")
	}
	cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", supervise.ExtraFd), args...)
	cmd.Args[0], cmd.ExtraFiles = e.path, []*os.File{file}
	return cmd
}

// endRestart has all later workers run the program that a restart has opened, if it succeeded.
func (e *executable) endRestart(succeeded bool) {
	if succeeded {
		e.file, e.next = e.next, e.file
	}
	e.next.Close()
	e.next = nil
}

// serveMetrics begins to serve the metrics of a mount.
func serveMetrics(listener net.Listener, shared *state.Shared, log *slog.Logger) {
	log.Info("serving metrics", "url", fmt.Sprintf("http://%s/metrics", listener.Addr()))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler(shared))
	go web.Serve(listener, mux, slog.NewLogLogger(log.Handler(), slog.LevelWarn))
}

// lostTerminal returns a function that reports whether this process has lost its terminal.
func lostTerminal() func() bool {
	hasTerminal := func() bool {
		tty, err := os.Open("/dev/tty")
		tty.Close()
		return err == nil
	}
	hadTerminal := hasTerminal()
	return func() bool { return hadTerminal && !hasTerminal() }
}
