package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/fs/mount"
)

type mountFlags struct {
	config.Flags
	background      bool
	logFile         string
	noResend        bool
	fd              int
	parent          int
	makesMountpoint bool
}

func mountCommand() *cobra.Command {
	var f mountFlags
	cmd := &cobra.Command{
		Use:   "mount [MOUNTPOINT]",
		Short: "Mount token files as training batches",
		Long: `Mount the splits of a configuration file, or the token files of a directory, at MOUNTPOINT (an empty directory; default:
mountpoint of the configuration file). Every token file is checked first, and a batch of every split is read.

The command stays in the foreground until it is stopped with Ctrl-C or SIGTERM or the mount is unmounted. With -d it goes
to the background, and returns 0 only when batches can be read.

This process keeps the mount and starts a worker that serves it. If the worker dies or hangs, another takes over, and readers
do not notice. "batchfs restart" replaces it on purpose.

With --fd another process has mounted: it has opened /dev/fuse, called mount(2) with fd=N, and started this command with that
descriptor open, as Kubernetes drivers do. MOUNTPOINT is then where readers see the mount, and need not exist here. Its options,
such as allow_other, are those of the other process. So is unmounting: at the end readers get errors until it does.`,
		Example: `  batchfs mount --data data/shakespeare_char /mnt/batches
  batchfs mount -c config.toml -d
  batchfs mount -c config.toml --set batch.seed=7 --set splits.val.order=sequential /mnt/batches
  batchfs mount -c config.toml --fd 3 /mnt/batches`,
		Args:              aMountpoint,
		RunE:              f.run,
		ValidArgsFunction: directories,
	}
	f.register(cmd)
	return cmd
}

// register adds the flags of mount to a command.
func (f *mountFlags) register(cmd *cobra.Command) {
	f.Register(cmd)
	cmd.Flags().BoolVarP(&f.background, "background", "d", false, "go to the background when batches can be read")
	cmd.Flags().StringVar(&f.logFile, "log", "",
		"write the log to this `file` (default: standard error; with -d, one for each mount, in batchfs in the user's state directory)")
	cmd.Flags().IntVar(&f.fd, "fd", -1, "do not mount: serve the mount that was made with /dev/fuse open as this descriptor")
	cmd.Flags().BoolVar(&f.noResend, "no-resend", false,
		"do as on Linux before 6.9: if the worker dies, readers get errors, and there is a new mount at once")
	cmd.Flags().IntVar(&f.parent, "parent", 0, "end as after SIGTERM when the process `pid`, which started this one, has ended")
	cmd.Flags().BoolVar(&f.makesMountpoint, "make-mountpoint", false, "make the directory MOUNTPOINT, and remove it at the end")
	cmd.Flags().MarkHidden("make-mountpoint")         // only the Python package needs it
	cmd.MarkFlagsMutuallyExclusive("fd", "no-resend") // there would be no new mount
	cmd.MarkFlagsMutuallyExclusive("parent", "background")
	cmd.MarkFlagsMutuallyExclusive("make-mountpoint", "background")
}

// aMountpoint refuses what does not belong in the place of MOUNTPOINT.
func aMountpoint(_ *cobra.Command, args []string) error {
	if len(args) < 2 {
		return nil
	}
	if info, err := os.Stat(args[0]); err == nil && info.IsDir() && len(args) == 2 {
		return fmt.Errorf("mount takes a MOUNTPOINT alone: name the directory of token files with --data: batchfs mount --data %s %s", args[0], args[1])
	}
	return fmt.Errorf("mount takes a MOUNTPOINT alone (got %q): name a directory of token files with --data; "+
		"batchfs prepare makes them of text, and of the column of a Parquet file that --field names", args)
}

func (f *mountFlags) run(cmd *cobra.Command, args []string) error {
	if f.makesMountpoint && len(args) == 1 {
		if err := os.Mkdir(args[0], 0o700); err != nil {
			return fmt.Errorf("cannot make the mountpoint: %w; set TMPDIR to a directory with room, or name a mountpoint", err)
		}
		// This process removes the directory, because the one that asked for it may die first.
		defer unix.Rmdir(args[0])
	}
	if f.parent != 0 {
		go endWith(f.parent)
	}
	return f.mount(cmd, args)
}

func (f *mountFlags) mount(cmd *cobra.Command, args []string) error {
	var s starting
	if err := untilInterrupted(cmd.Context(), func() error { return s.begin(f, cmd, args) }); err != nil {
		return err
	}
	defer s.file.Close()
	if f.background {
		return s.inBackground(cmd)
	}
	if s.log != nil {
		defer s.log.Close()
	}
	logTo := cmd.ErrOrStderr()
	if s.log != nil {
		logTo = s.log
	}
	out := newLineWriter(cmd.OutOrStdout())
	return printAndExit(runSupervisor(cmd.Context(), s.snapshot, s.config, s.connection, s.file, logTo, func() {
		s.describe(out)
		printf(out, "stop with Ctrl-C, or: batchfs unmount %s\n", s.snapshot.Mountpoint)
	}))
}

// starting holds what a process needs to keep a mount, whether this one or one in the background.
type starting struct {
	connection  *os.File // FUSE connection from --fd, or nil
	snapshot    *dataset.Snapshot
	description []string // lines that tell people what is served
	config      *config.Config
	file        *os.File // encoded snapshot, for other processes
	log         *os.File // file named by --log; nil without --log or in the background
}

func (s *starting) begin(f *mountFlags, cmd *cobra.Command, args []string) (err error) {
	if cmd.Flags().Changed("fd") {
		if s.connection, err = mount.HandedOver(f.fd); err != nil {
			return fmt.Errorf("--fd: %w", err)
		}
	}
	if s.snapshot, s.description, err = openInChild(cmd.Flags(), args); err != nil {
		return err
	}
	if s.config, err = s.snapshot.Config(); err != nil {
		return err
	}
	if !f.background && s.snapshot.Log != "" {
		if s.log, err = openLog(s.snapshot.Log); err != nil {
			return err
		}
	}
	s.file, err = s.snapshot.File()
	return err
}

// endWith sends this process SIGTERM when its parent has ended. The kernel would do so too early (PR_SET_PDEATHSIG): when the thread of
// the parent ends that started this process.
func endWith(parent int) {
	for os.Getppid() == parent {
		time.Sleep(time.Second)
	}
	syscall.Kill(os.Getpid(), syscall.SIGTERM)
}

func (s *starting) describe(out io.Writer) {
	for _, line := range s.description {
		printf(out, "%s\n", line)
	}
}

// inBackground starts a process that keeps the mount, and returns once that process serves it.
func (s *starting) inBackground(cmd *cobra.Command) error {
	logFile, mountpoint := s.snapshot.Log, s.snapshot.Mountpoint
	daemon, ready, err := startSupervisor(logFile, s.connection, s.file)
	if err != nil {
		return err
	}
	defer ready.Close()
	stop := context.AfterFunc(cmd.Context(), func() { daemon.Process.Signal(syscall.SIGTERM) })
	defer stop()
	message, err := io.ReadAll(ready)
	if err != nil {
		return err
	}
	if cmd.Context().Err() != nil {
		daemon.Wait() // until nothing is mounted
		return errInterrupted
	}
	if string(message) != serving {
		err := daemon.Wait()
		if len(message) > 0 {
			return errors.New(string(message))
		}
		return fmt.Errorf("the background process ended before it served: %w; its log is %s", err, logFile)
	}
	s.describe(cmd.OutOrStdout())
	printf(cmd.OutOrStdout(), "in the background, process %d, log %s\nstop with: batchfs unmount %s\n", daemon.Process.Pid, logFile, mountpoint)
	return daemon.Process.Release()
}

// startSupervisor starts a process that writes to ready when batches can be read, or why they
// cannot.
func startSupervisor(logFile string, connection, snapshot *os.File) (daemon *exec.Cmd, ready *os.File, err error) {
	log, err := openLog(logFile)
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	program, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	ready, child, err := os.Pipe()
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
	// The daemon must not hold what the caller has open, such as a pipe for whose end a program waits.
	unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	return daemon, ready, daemon.Start()
}
