package main

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/doctor"
	"batchfs/fs/mount"
)

func restartCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "restart MOUNTPOINT",
		Short: "Reload the configuration and the program of a mount without disturbing its readers",
		Long: `Replace the worker of the mount at MOUNTPOINT with a new one. The new worker runs
the batchfs program that is installed now and reads the configuration again. Files
stay open, mappings stay valid, and no read fails (before Linux 6.9, readers must
open their files again).

If the new configuration would change a batch or a file of the mount, it is rejected
and the old worker keeps serving. However, a mixture can get other weights, stages,
max_epochs and further sources, provided that no row that was read or prefetched
changes. The command also fails if a split cannot be read after the restart.

Sending SIGHUP to the supervisor of the mount does the same, unless it has lost its
terminal, which ends the mount, or does nothing with nohup.`,
		Example: "  batchfs restart /mnt/batches",
		Args:    cobra.ExactArgs(1),
		RunE: command.Interruptible(func(cmd *cobra.Command, args []string) error {
			m, err := mount.At(args[0])
			if err != nil {
				return err
			}
			worker, err := restart(m)
			if err != nil {
				return err
			}
			printf(cmd.OutOrStdout(), "process %d now serves %s\n", worker, args[0])
			return probeSplits(m)
		}),
	}
}

// restart replaces the worker of a mount, and returns the process ID of the new one.
func restart(m *mount.Mounted) (worker int64, err error) {
	shared, err := m.State()
	if err != nil {
		return 0, err
	}
	defer shared.Close()
	if err := m.CheckRunning(); err != nil {
		return 0, err
	}
	// Await the first restart that begins after this, because one in progress may have read the
	// configuration before it changed.
	n := max(shared.Restarts.Load(), shared.RestartsBegun.Load()) + 1
	shared.AnnounceRestart()
	if err := m.Signal(syscall.SIGHUP); err != nil {
		return 0, err
	}
	if err := awaitRestart(m, func() bool { return shared.Restarts.Load() >= n }); err != nil {
		return 0, err
	}
	return shared.Worker.Load(), shared.RestartError(n)
}

// awaitRestart waits until a restart of the mount has ended.
func awaitRestart(m *mount.Mounted, hasEnded func() bool) error {
	// The supervisor gives up earlier by its own limits, unless the machine is busy: it counts only
	// time in which the new worker could run.
	const limit = 2 * time.Minute
	for end := time.Now().Add(limit); !hasEnded(); time.Sleep(10 * time.Millisecond) {
		if err := cmp.Or(m.CheckAlive(), m.CheckRunning()); err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: the restart has not ended after %v, and goes on; its outcome will be in the log of the mount", m.Mountpoint, limit)
		}
	}
	return nil
}

// probeSplits returns an error that names each split of a mount that cannot be read.
func probeSplits(m *mount.Mounted) error {
	splits, err := doctor.SplitsOf(m)
	for _, s := range splits {
		if _, unreadable := doctor.ProbeSplit(m, s); unreadable != nil {
			err = errors.Join(err, fmt.Errorf("%s cannot be read: %w", filepath.Join(m.Mountpoint, s.Name), unreadable))
		}
	}
	return err
}
