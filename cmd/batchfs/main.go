// Command batchfs mounts token files as training batches. Each subcommand has its own file or its
// own package. Those that only batchfs itself and its Python package start are hidden: the child
// processes of mount and doctor, and resume.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"batchfs/cmd/batchfs/bench"
	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/doctor"
	"batchfs/cmd/batchfs/plan"
	"batchfs/cmd/batchfs/prepare"
	"batchfs/cmd/batchfs/processes"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/top"
	"batchfs/internal/failure"
	"batchfs/internal/printable"
)

// init locks the main goroutine, which only waits, to the first thread of the process. The kernel
// delivers signals to that thread, and if it were stuck reading a dead disk, no signal could end
// the process.
func init() { runtime.LockOSThread() }

func main() {
	out := terminal.NewOutput(os.Stdout)
	ended := make(chan error)
	go func() { ended <- run(os.Args[1:], out) }()
	err := <-ended
	var status command.ExitStatus
	if err != nil && !errors.As(err, &status) {
		if !errors.As(err, new(command.PrintedError)) {
			command.PrintError(os.Stderr, err)
		}
		status = command.ExitStatus(failure.KindOf(err).Status)
	}
	if lost := out.Close(); lost != nil && !errors.Is(err, lost) {
		command.PrintError(os.Stderr, lost)
		status = cmp.Or(status, command.ExitStatus(failure.Other.Status))
	}
	os.Exit(int(status))
}

// printf prints text for people. It escapes invisible characters in its arguments, because other
// users may have chosen the names of files and mounts.
func printf(out io.Writer, format string, args ...any) { printable.Fprintf(out, format, args...) }

func run(args []string, out io.Writer) error {
	ctx := command.UntilSignal(context.Background())
	defer command.StopNotifying(ctx)
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(out)
	hasBegun := false
	beforeRun(root, func() { hasBegun = true })
	cmd, err := root.ExecuteContextC(ctx)
	// An errno means that cobra itself could not write, for example the text of --version.
	if err != nil && !hasBegun && !errors.As(err, new(syscall.Errno)) {
		switch {
		case cmd != root:
			err = fmt.Errorf("%w; usage: %s (--help explains it)", err, cmd.UseLine())
		case !strings.Contains(err.Error(), "\n"): // nothing was suggested
			err = fmt.Errorf("%w; usage: batchfs COMMAND [flags] (--help lists the commands)", err)
		}
		err = failure.Usage.Wrap(err)
	}
	if err != nil {
		command.StatusOf(root).SendError(err)
	}
	return err
}

// beforeRun calls f before a command runs: once cobra has checked the command line.
func beforeRun(cmd *cobra.Command, f func()) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			f()
			return run(cmd, args)
		}
	}
	for _, c := range cmd.Commands() {
		beforeRun(c, f)
	}
}

// kindOfNumber says what a flag takes, by its type in pflag.
var kindOfNumber = map[string]string{
	"int": "a whole number", "int64": "a whole number", "uint16": "a whole number from 0 to 65535", "uint64": "a whole number from 0 on",
	"float64": "a number", "bool": "true or false",
}

var negativeNumber = regexp.MustCompile(`^[0-9]+$`) // without its sign

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "batchfs",
		Short: "Training batches as files: mount token files, read batches with open()",
		Long: `batchfs serves token files as training batches. Mount them, and a trainer in any
language reads a batch by opening a file:

    MOUNTPOINT/train/next       the next (x, y) batch; each open takes a new one
    MOUNTPOINT/train/batch/17   batch 17, the same bytes every time

MOUNTPOINT/README explains the files of a mount.`,
		Example: `  batchfs prepare book.txt --out data          turn text into tokens
  batchfs mount --data data /mnt/batches       serve them until Ctrl-C
  head -c 100 /mnt/batches/train/next | xxd    read a batch, from another terminal`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var flag *pflag.NotExistError
		var value *pflag.InvalidValueError
		var number *strconv.NumError
		switch {
		case errors.As(err, &flag) && negativeNumber.MatchString(flag.GetSpecifiedShortnames()):
			return fmt.Errorf("-%s: must be a whole number from 0 on", flag.GetSpecifiedShortnames())
		case flag != nil && cmd.Flags().Lookup("data") != nil: // a command that reads splits
			if key := config.KeyNamed(flag.GetSpecifiedName()); key != "" {
				return fmt.Errorf("%w; to set this key, use --set %s=VALUE", err, key)
			}
		case errors.As(err, &value) && errors.As(err, &number): // which would quote strconv
			f := value.GetFlag()
			if errors.Is(number, strconv.ErrRange) && f.Value.Type() != "uint16" {
				return fmt.Errorf("--%s: is out of range (got %q)", f.Name, value.GetValue())
			}
			return fmt.Errorf("--%s: must be %s (got %q)", f.Name, kindOfNumber[f.Value.Type()], value.GetValue())
		}
		return err
	})
	root.SetVersionTemplate("batchfs {{.Version}}\n")
	cobra.EnableCommandSorting = false // help lists the commands in this order
	addGroup(root, "Token files:", prepare.Command(), infoCommand(), checkCommand(), indexCommand())
	addGroup(root, "Mounts:", mountCommand(), unmountCommand(), restartCommand(), seekCommand(), listCommand())
	addGroup(root, "Batches:", catCommand(), inspectCommand(), viewCommand())
	addGroup(root, "Problems and performance:", doctor.Command(), whyCommand(), top.Command(), bench.Command())
	addGroup(root, "Object stores:", cacheCommand(), plan.Command())
	command.RegisterStatus(root)
	root.AddCommand(processes.ChildCommands()...)
	root.AddCommand(doctor.ProbeCommand(), resumeCommand(), versionCommand())
	return root
}

func addGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, cmd := range commands {
		cmd.GroupID = title
		root.AddCommand(cmd)
	}
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

// stamped is the version of a release, set by the linker, and empty in other builds.
var stamped string

// unreleased is the version of a build without information about its tag or commit.
const unreleased = "v0.1.0-dev"

// version returns the tag of a release, or a version that names the commit, if one is known.
func version() string {
	if stamped != "" {
		return stamped
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return unreleased
}
