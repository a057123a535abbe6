// Command batchfs mounts token files as training batches. Each subcommand has a file. The
// subcommands in open.go, supervise.go, worker.go and probe.go are hidden, because other subcommands and
// the supervisor start them.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/bench"
	"batchfs/cmd/batchfs/plan"
	"batchfs/cmd/batchfs/prepare"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/top"
	"batchfs/internal/printable"
)

// The kernel gives signals to the first thread of a process. While that reads a disk that does not answer, it would take none, and the
// process would not end. So it only waits: init still runs in it, and locks the main goroutine to it.
func init() { runtime.LockOSThread() }

func main() {
	out := terminal.NewOutput(os.Stdout)
	ended := make(chan error)
	go func() { ended <- run(os.Args[1:], out) }()
	err := <-ended
	var status exitStatus
	if err != nil && !errors.As(err, &status) {
		printError(os.Stderr, err)
		status = 1
	}
	if lost := out.Close(); lost != nil && !errors.Is(err, lost) {
		printError(os.Stderr, lost)
		status = cmp.Or(status, 1)
	}
	os.Exit(int(status))
}

// An exitStatus is the error of a command that ends with this status and prints nothing.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func printError(out io.Writer, err error) { io.WriteString(out, "batchfs: "+printable.Error(err)+"\n") }

// printf prints text for people. It escapes invisible characters in its arguments, because names of
// files and mounts may come from other users.
func printf(out io.Writer, format string, args ...any) { printable.Fprintf(out, format, args...) }

func run(args []string, out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(out)
	return root.ExecuteContext(ctx)
}

var errInterrupted = errors.New("interrupted")

// untilInterrupted runs f and returns its error. At the first signal it returns errInterrupted and
// leaves f running, because f may be waiting for a disk that does not answer.
func untilInterrupted(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return errInterrupted
	}
}

// interruptible makes a command end at the first signal, whatever it waits for.
func interruptible(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return untilInterrupted(cmd.Context(), func() error { return run(cmd, args) })
	}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "batchfs",
		Short: "Training batches as files: mount token files, read batches with open()",
		Long: `batchfs mounts token files, and trainers in any language open() files there to get training batches:

    MOUNTPOINT/train/next       a fresh random (x, y) batch, one per open
    MOUNTPOINT/train/batch/17   batch number 17, the same for ever

A README at the top of every mount says how to read its files.`,
		Example: `  batchfs prepare book.txt --out data          text to tokens
  batchfs mount --data data /mnt/batches       serve them; Ctrl-C unmounts
  head -c 100 /mnt/batches/train/next | xxd    a batch, from another terminal`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("batchfs {{.Version}}\n")
	root.AddCommand(mountCommand(), unmountCommand(), restartCommand(), seekCommand(), doctorCommand(), openCommand(), superviseCommand(), workerCommand(), probeCommand(),
		catCommand(), inspectCommand(), viewCommand(), infoCommand(), checkCommand(), indexCommand(), cacheCommand(), prepare.Command(),
		bench.Command(), plan.Command(), top.Command(), listCommand(), whyCommand(), versionCommand())
	return root
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  batchfs version",
		Args:    cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), "batchfs", version())
		},
	}
}

// stamped is the version of a release, which the linker sets.
var stamped string

// unreleased is the version of a build that knows neither its tag nor its commit.
const unreleased = "v0.1.0-dev"

// version is the tag of a release, or names the commit.
func version() string {
	if stamped != "" {
		return stamped
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return unreleased
}
