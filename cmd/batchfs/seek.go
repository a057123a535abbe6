package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"batchfs/fs"
)

func seekCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "seek DIRECTORY N",
		Short: "Set the number of the batch that next takes",
		Long: `Set the cursor of DIRECTORY, a split in a mount or a directory of settings there: the next reader of its next takes batch N,
and those after it N+1, N+2, and so on. What readers hold already stays theirs. Only the user that mounted, and root, may.

A cursor lives as long as the mount, whichever process serves it.`,
		Example: `  batchfs seek /mnt/batches/train 1000
  batchfs seek /mnt/batches/train/rank=3,world=8 1000`,
		Args: cobra.ExactArgs(2),
		RunE: interruptible(func(cmd *cobra.Command, args []string) error {
			number, err := strconv.ParseUint(args[1], 10, 64)
			if err != nil || number >= fs.MaxBatches {
				return fmt.Errorf("batch number: must be a whole number from 0 to %d (got %q)", uint64(fs.MaxBatches-1), args[1])
			}
			m, below, err := requireMount(args[0])
			switch {
			case err != nil:
				return err
			case below == "":
				return fmt.Errorf("%s: name a split in it, such as %s", args[0], filepath.Join(args[0], "train"))
			}
			if _, err := diagnose(m); err != nil { // to open a file could hang
				return err
			}
			shared, err := m.State()
			if err != nil {
				return err
			}
			defer shared.Close()
			// An open file keeps the sequence of a directory of settings, and its inode number says which that is.
			file, err := os.Open(filepath.Join(args[0], "cursor"))
			switch {
			case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EINVAL):
				return fmt.Errorf("%s is no split in the mount, nor a split under settings; of settings the mount's log says what is wrong (%w)", args[0], err)
			case errors.Is(err, syscall.EACCES) && os.Geteuid() != m.Owner && !m.AllowOther:
				return fmt.Errorf("only user %d, who mounted, may enter, without mount.allow_other: %w", m.Owner, err)
			case err != nil:
				return err
			}
			defer file.Close()
			info, err := file.Stat()
			if err != nil {
				return err
			}
			was := shared.Sequences[fs.SequenceOf(info.Sys().(*syscall.Stat_t).Ino)].Seek(number)
			printf(cmd.OutOrStdout(), "next of %s takes batch %d, was %d\n", strings.TrimSuffix(args[0], "/"), number, was)
			return nil
		}),
	}
}
