package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"batchfs/fs"
	"batchfs/fs/mount"
)

func whyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "why PATH",
		Short: "Say why a path in a mount cannot be read",
		Long: `Look a path in a mount up again, and read its first batch, outside of the mount. Where that fails the exit status is 1, and the
error says what a program was told as ENOENT, EINVAL, ESTALE or EIO. It is also said what last failed there, and where the log is.

status.json of a mount has the last ten names that were not there.`,
		Example: "  batchfs why /mnt/batches/train/rank=8,world=8/next",
		Args:    cobra.ExactArgs(1),
		RunE: atOnce(func(cmd *cobra.Command, args []string) error {
			m, below, err := insideMount(args[0])
			if err != nil {
				return err
			}
			if _, err := diagnose(m); err != nil {
				return err
			}
			snapshot, err := snapshotOf(m)
			if err != nil {
				return err
			}
			c, err := snapshot.Config()
			if err != nil {
				return err
			}
			served, err := snapshot.Sequences(c, slog.New(slog.DiscardHandler), (*os.File).Close)
			if err != nil {
				return err
			}
			if fault := lastFault(m, below); fault != "" {
				printf(cmd.OutOrStdout(), "the last error of %s was: %s\n", args[0], fault)
			}
			if snapshot.Log != "" {
				printf(cmd.OutOrStdout(), "the log is %s\n", snapshot.Log)
			}
			if err := fs.Why(below, sequencesOf(served)); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			printf(cmd.OutOrStdout(), "%s can be read\n", args[0])
			return nil
		}),
	}
}

// lastFault is the last error of the sequence that a path in a mount leads to, as the shared memory has it.
func lastFault(m *mount.Mounted, below string) string {
	shared, err := m.State()
	if err != nil {
		return ""
	}
	defer shared.Close()
	longest, fault := 0, ""
	for n := range shared.SequencesUsed() {
		e := &shared.Sequences[n+1]
		if name := e.Name(); e.Used() && len(name) > longest && strings.HasPrefix(filepath.Clean(below)+"/", name+"/") {
			longest, fault = len(name), e.Fault()
		}
	}
	return fault
}
