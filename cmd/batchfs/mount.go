package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/processes"
	"batchfs/internal/printable"
)

func mountCommand() *cobra.Command {
	var f processes.MountFlags
	cmd := &cobra.Command{
		Use:   "mount [MOUNTPOINT]",
		Short: "Mount token files as training batches",
		Long: `Mount the splits of a configuration file, or the token files in a directory, at
MOUNTPOINT. MOUNTPOINT must be an empty directory; the default is the mountpoint set
in the configuration file. Before mounting, batchfs checks every token file and
reads one batch of every split.

The command runs in the foreground until Ctrl-C, SIGTERM or "batchfs unmount" stops
it. With -d it moves to the background, and exits with status 0 only once batches
can be read.

This process supervises the mount and starts a worker that serves it. If the worker
dies or hangs, another one takes over; on Linux 6.9 and later, open files stay
open. "batchfs restart" replaces the worker on request.

With --fd, another process mounts, as Kubernetes drivers do: it opens /dev/fuse,
calls mount(2) with fd=N, and starts this command with that descriptor open.
MOUNTPOINT is then the path where readers see the mount, and need not exist here.
The other process chooses the mount options, such as allow_other, and must unmount:
once this command has ended, readers get errors until it does.

With --print-config, the command mounts nothing. It prints the shortest configuration
file that mounts the same, with a comment for each key, to begin with. Save it in the
working directory: relative paths in a configuration file are relative to the file.`,
		Example: `  batchfs mount --data data/shakespeare_char /mnt/batches
  batchfs mount --data data --set batch.block_size=64 --print-config > config.toml
  batchfs mount -c config.toml -d
  batchfs mount -c config.toml --set batch.seed=7 --set splits.val.order=sequential /mnt/batches
  batchfs mount -c config.toml --fd 3 /mnt/batches`,
		Args:              atMostMountpoint,
		RunE:              f.Run,
		ValidArgsFunction: command.DirCompletion,
	}
	f.Register(cmd)
	return cmd
}

// atMostMountpoint rejects arguments after MOUNTPOINT, and explains how to name token files.
func atMostMountpoint(_ *cobra.Command, args []string) error {
	if len(args) < 2 {
		return nil
	}
	if info, err := os.Stat(args[0]); err == nil && info.IsDir() && len(args) == 2 {
		return fmt.Errorf("mount takes only a MOUNTPOINT; name the directory of token files with --data: batchfs mount --data %s %s",
			printable.ShellArg(args[0]), printable.ShellArg(args[1]))
	}
	return fmt.Errorf("mount takes only a MOUNTPOINT (got %q); name a directory of token files with --data, "+
		"or create one with batchfs prepare from text or from a column of Parquet files (--field)", args)
}
