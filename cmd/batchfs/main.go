// Command batchfs mounts token files as training batches.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/bench"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "batchfs:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// A second signal is not waited for.
	context.AfterFunc(ctx, stop)
	root := rootCommand()
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
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
	root.AddCommand(mountCommand(), unmountCommand(), restartCommand(), doctorCommand(), keepCommand(), workerCommand(),
		catCommand(), inspectCommand(), prepareCommand(), bench.Command(), bench.ReaderCommand(), &cobra.Command{
			Use:     "version",
			Short:   "Print the version",
			Example: "  batchfs version",
			Args:    cobra.NoArgs,
			Run: func(cmd *cobra.Command, _ []string) {
				fmt.Fprintln(cmd.OutOrStdout(), "batchfs", version())
			},
		})
	return root
}

// directories completes an argument that is one.
var directories = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)

// version is what the build knows of its source: a release's tag, or the commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && v == "(devel)" {
			v = "devel-" + s.Value[:min(12, len(s.Value))]
		}
	}
	return v
}
