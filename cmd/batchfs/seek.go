package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/doctor"
	"batchfs/fs"
	"batchfs/fs/mount"
)

func seekCommand() *cobra.Command {
	var row uint64
	cmd := &cobra.Command{
		Use:   "seek DIRECTORY N",
		Short: "Set the number of the batch that `next` returns",
		Long: `Set the cursor of DIRECTORY, which is a split in a mount or a settings directory
below it. The next reader of the file ` + "`next`" + ` in DIRECTORY gets batch N, the following
ones N+1, N+2 and so on. Batches that readers have already opened do not change.
With --row R instead of N, it is the batch whose first row, on rank 0, is global row R.

Only root and the user who mounted it may set a cursor. The cursor is kept until
unmount, even if another worker takes over.`,
		Example: `  batchfs seek /mnt/batches/train 1000
  batchfs seek /mnt/batches/train/rank=3,world=8 1000
  batchfs seek /mnt/batches/train/batch_size=24 --row 48000`,
		Args: cobra.RangeArgs(1, 2),
		RunE: command.Interruptible(func(cmd *cobra.Command, args []string) error {
			byRow := cmd.Flags().Changed("row")
			if byRow == (len(args) == 2) {
				return errors.New("name either the number of a batch or --row")
			}
			var number uint64
			if !byRow {
				var err error
				if number, err = parseBatch(args[1]); err != nil {
					return err
				}
			}
			m, below, err := mount.Containing(args[0])
			switch {
			case err != nil:
				return err
			case below == "":
				return fmt.Errorf("%s: name a split in the mount, such as %s", args[0], filepath.Join(args[0], "train"))
			}
			// Opening a file of a stuck mount would hang.
			if _, err := doctor.Diagnose(m); err != nil {
				return err
			}
			shared, err := m.State()
			if err != nil {
				return err
			}
			defer shared.Close()
			// The open file keeps the settings directory alive, and its inode number identifies the
			// sequence.
			file, err := os.Open(filepath.Join(args[0], "cursor"))
			switch {
			case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EINVAL):
				return fmt.Errorf("%s is neither a split in the mount nor a settings directory; batchfs why %[1]s explains wrong names and "+
					"settings (%w)", args[0], err)
			case errors.Is(err, syscall.EACCES) && os.Geteuid() != m.Owner && !m.AllowOther:
				return fmt.Errorf("only user %d, who mounted it, may access it, unless it is mounted with mount.allow_other: %w", m.Owner, err)
			case err != nil:
				return err
			}
			defer file.Close()
			info, err := file.Stat()
			if err == nil && byRow {
				number, err = batchAt(args[0], row)
			}
			if err != nil {
				return err
			}
			old := shared.Sequences[fs.SequenceOf(info.Sys().(*syscall.Stat_t).Ino)].Seek(number)
			printf(cmd.OutOrStdout(), "the next batch of %s is %d, was %d\n", strings.TrimSuffix(args[0], "/"), number, old)
			return nil
		}),
	}
	cmd.Flags().Uint64Var(&row, "row", 0, "global `NUMBER` of the batch's first row on rank 0, a multiple of batch_size times world")
	return cmd
}

// parseBatch parses the number of a batch.
func parseBatch(text string) (k uint64, err error) {
	if k, err = strconv.ParseUint(text, 10, 64); err != nil || k >= fs.MaxBatches {
		err = fmt.Errorf("batch number: must be a whole number from 0 to %d (got %q)", uint64(fs.MaxBatches-1), text)
	}
	return k, err
}

// batchAt returns the number of the batch of a settings directory that begins at a global row.
func batchAt(dir string, row uint64) (uint64, error) {
	var info struct {
		Rows  uint64 `json:"batch_size"`
		World uint64 `json:"world"`
	}
	text, err := os.ReadFile(filepath.Join(dir, "info.json"))
	if err == nil {
		err = json.Unmarshal(text, &info)
	}
	if err != nil {
		return 0, err
	}
	if rows := info.Rows * info.World; row%rows > 0 || row/rows >= fs.MaxBatches {
		return 0, fmt.Errorf("--row: must be a multiple of batch_size times world, %d, below %d times that (got %d)", rows, uint64(fs.MaxBatches), row)
	}
	return row / (info.Rows * info.World), nil
}
