// Package processes runs the processes of a mount. The command mount lets a child process open and
// check the token files (open.go), then supervises the mount itself or in the background
// (supervise.go), and the supervisor starts workers (worker.go).
package processes

import (
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/fs/mount"
	"batchfs/internal/failure"
	"batchfs/internal/printable"
)

// MountFlags holds the flags of mount, which are also those of the hidden command open.
type MountFlags struct {
	source          config.Flags
	printsConfig    bool
	background      bool
	logFile         string
	noResend        bool
	fd              int
	parent          int
	makesMountpoint bool
}

// Register adds the flags to a command.
func (f *MountFlags) Register(cmd *cobra.Command) {
	f.source.Register(cmd)
	cmd.Flags().BoolVar(&f.printsConfig, "print-config", false, "mount nothing; print the shortest configuration file that mounts the same")
	cmd.Flags().BoolVarP(&f.background, "background", "d", false, "move to the background once batches can be read")
	cmd.Flags().StringVar(&f.logFile, "log", "",
		"write the log to this `file` (default: standard error; with -d, a file for each mount in ~/.local/state/batchfs)")
	cmd.Flags().IntVar(&f.fd, "fd", -1, "do not mount; serve a mount that another process made with this `descriptor` of /dev/fuse")
	command.HideDefault(cmd, "fd")
	cmd.Flags().BoolVar(&f.noResend, "no-resend", false,
		"behave as on Linux before 6.9: if the worker dies, readers get errors and batchfs mounts again")
	cmd.Flags().IntVar(&f.parent, "parent", 0, "unmount and exit when the parent process `pid` has ended")
	cmd.Flags().BoolVar(&f.makesMountpoint, "make-mountpoint", false, "create the directory MOUNTPOINT, and remove it at the end")
	cmd.Flags().MarkHidden("make-mountpoint") // only for the Python package
	// batchfs cannot mount again if another process made the mount.
	cmd.MarkFlagsMutuallyExclusive("fd", "no-resend")
	for _, ofMounts := range []string{"background", "fd", "log", "no-resend", "parent", "make-mountpoint"} {
		cmd.MarkFlagsMutuallyExclusive("print-config", ofMounts) // which no configuration has
	}
	cmd.MarkFlagsMutuallyExclusive("parent", "background")
	cmd.MarkFlagsMutuallyExclusive("make-mountpoint", "background")
}

// ChildCommands returns the hidden commands that the processes of a mount start.
func ChildCommands() []*cobra.Command {
	return []*cobra.Command{openCommand(), superviseCommand(), workerCommand()}
}

// Run mounts, or prints the configuration: the body of mount.
func (f *MountFlags) Run(cmd *cobra.Command, args []string) error {
	if f.printsConfig {
		return command.UntilInterrupted(cmd.Context(), func() error {
			_, c, err := f.readConfig(args)
			if err != nil {
				return err
			}
			text, err := c.Text()
			if err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), text)
			return err
		})
	}
	if err := mount.CheckAddressSpace(); err != nil {
		return err
	}
	if f.makesMountpoint && len(args) == 1 {
		// A fusermount3 that lacks the capabilities of root must be able to enter it.
		if err := os.Mkdir(args[0], 0o755); err != nil {
			return failure.Mountpoint.Wrap(fmt.Errorf("cannot create the mountpoint: %w; set TMPDIR to a directory with free space, or name a mountpoint", err))
		}
		// This process removes the directory, because its caller may die first.
		defer unix.Rmdir(args[0])
	}
	if f.parent != 0 {
		go stopAfterParent(f.parent)
	}
	return f.mount(cmd, args)
}

func (f *MountFlags) mount(cmd *cobra.Command, args []string) error {
	var p pendingMount
	if err := command.UntilInterrupted(cmd.Context(), func() error { return p.prepare(f, cmd, args) }); err != nil {
		return err
	}
	defer p.snapshotFile.Close()
	if f.background {
		return p.startInBackground(cmd)
	}
	logTo := cmd.ErrOrStderr()
	if p.log != nil {
		defer p.log.Close()
		logTo = p.log
	}
	out := newLineWriter(cmd.OutOrStdout())
	return printWithTimeout(runSupervisor(cmd.Context(), cmd.Root().Version, p.snapshot, p.config, p.connection, p.snapshotFile, logTo, func() {
		p.describe(out)
		printable.Fprintf(out, "stop with Ctrl-C, or: batchfs unmount %s\n", printable.ShellArg(p.snapshot.Mountpoint))
		command.StatusOf(cmd).Send(command.Ready, "")
	}))
}

// A pendingMount holds what a supervisor needs, whether it runs in this process or in the
// background.
type pendingMount struct {
	connection   *os.File // FUSE connection from --fd, or nil
	snapshot     *dataset.Snapshot
	description  []string // lines for the user about the splits that are served
	config       *config.Config
	snapshotFile *os.File // encoded snapshot for other processes
	log          *os.File // file named by --log; nil without --log or in the background
}

func (p *pendingMount) prepare(f *MountFlags, cmd *cobra.Command, args []string) (err error) {
	if cmd.Flags().Changed("fd") {
		if p.connection, err = mount.OpenHandedOver(f.fd); err != nil {
			return fmt.Errorf("--fd: %w", err)
		}
	}
	if p.snapshot, p.description, err = openInChild(cmd, args); err != nil {
		return err
	}
	if p.config, err = p.snapshot.Config(); err != nil {
		return err
	}
	if !f.background && p.snapshot.Log != "" {
		if p.log, err = openLog(p.snapshot.Log); err != nil {
			return err
		}
	}
	p.snapshotFile, err = p.snapshot.File()
	return err
}

// stopAfterParent sends SIGTERM to this process once its parent has ended. It does not use
// PR_SET_PDEATHSIG, which sends the signal when the thread that started this process ends.
func stopAfterParent(parent int) {
	for os.Getppid() == parent {
		time.Sleep(time.Second)
	}
	syscall.Kill(os.Getpid(), syscall.SIGTERM)
}

func (p *pendingMount) describe(out io.Writer) {
	for _, line := range p.description {
		printable.Fprintf(out, "%s\n", line)
	}
}

// startInBackground starts a supervisor in the background, and returns once batches can be read.
func (p *pendingMount) startInBackground(cmd *cobra.Command) error {
	logFile, mountpoint := p.snapshot.Log, p.snapshot.Mountpoint
	daemon, fromDaemon, err := startSupervisor(logFile, p.connection, p.snapshotFile)
	if err != nil {
		return err
	}
	defer fromDaemon.Close()
	stop := context.AfterFunc(cmd.Context(), func() { daemon.Process.Signal(syscall.SIGTERM) })
	defer stop()
	var r command.Report
	err = gob.NewDecoder(fromDaemon).Decode(&r) // io.EOF if it was killed
	if cmd.Context().Err() != nil {
		daemon.Wait() // it unmounts before it ends
		return command.ErrInterrupted
	}
	if err != nil {
		return fmt.Errorf("the background process ended before it could serve batches: %w; see its log, %s", cmp.Or(daemon.Wait(), err), logFile)
	}
	if r.Kind != command.Ready {
		daemon.Wait()
		return r.Err()
	}
	// A reader that closes its pipe early, such as head -n 1, must not end this process, because
	// the mount exists now.
	signal.Ignore(syscall.SIGPIPE)
	p.describe(cmd.OutOrStdout())
	_, err = printable.Fprintf(cmd.OutOrStdout(), "running in the background, process %d, log %s\nstop with: batchfs unmount %s\n",
		daemon.Process.Pid, logFile, printable.ShellArg(mountpoint))
	if err != nil && !errors.Is(err, unix.EPIPE) {
		// A command that fails leaves nothing mounted.
		daemon.Process.Signal(syscall.SIGTERM)
		daemon.Wait() // it unmounts before it ends
		return err
	}
	command.StatusOf(cmd).Send(command.Ready, "")
	return daemon.Process.Release()
}

// startSupervisor starts the hidden command supervise, which writes a report to the pipe once
// batches can be read or it has failed.
func startSupervisor(logFile string, connection, snapshot *os.File) (daemon *exec.Cmd, fromDaemon *os.File, err error) {
	log, err := openLog(logFile)
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	program, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	fromDaemon, child, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer child.Close()
	daemon = exec.Command(program, "supervise")
	daemon.Stderr = log
	daemon.ExtraFiles = []*os.File{child, snapshot}
	if connection != nil {
		daemon.Args = append(daemon.Args, "--handed-over")
		daemon.ExtraFiles = append(daemon.ExtraFiles, connection)
	}
	daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// The daemon must not inherit descriptors of the caller, such as a pipe that another program
	// reads until it is closed.
	unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	return daemon, fromDaemon, daemon.Start()
}
