package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/sampler"
)

func inspectCommand() *cobra.Command {
	var src config.Flags
	var asJSON bool
	var find int64
	var epoch uint64
	var chars int
	cmd := &cobra.Command{
		Use:   "inspect SPLIT K",
		Short: "Say where the rows of a batch come from, or which batches hold a token",
		Long: `Inspect says where each row of batch K comes from: its number among all rows, its epoch, the file and the index of its
first token there; and the beginning of its text, if a vocab.json of batchfs prepare lies beside the token file; --chars says how
much of it. With --json it is what a mount shows as batch/<k>.json.

With --find it says which batches of an epoch hold a token: that at TOKEN_INDEX of all the split's tokens, in the order of
the files in info.json. For the orders shuffle and sequential that is computed, for the others every row of the epoch is
looked at. In a mixture, the epoch is that of the token's source.

SPLIT is one of the configuration, with settings or without, or the path of one in a mount, which then has the settings of
that mount.`,
		Example: `  batchfs inspect train 12345
  batchfs inspect /mnt/batches/train/rank=3,world=8 12345
  batchfs inspect train/rank=3,world=8 12345 --json
  batchfs inspect train --find 1000000 --epoch 2`,
		Args: cobra.RangeArgs(1, 2),
		RunE: interruptible(func(cmd *cobra.Command, args []string) error {
			finding := cmd.Flags().Changed("find")
			var k uint64
			switch {
			case finding == (len(args) == 2):
				return errors.New("name a batch, as in batchfs inspect train 17, or a token, as in batchfs inspect train --find 1000")
			case !finding && cmd.Flags().Changed("epoch"):
				return errors.New("--epoch is for --find: a batch's number says its epoch")
			case !finding:
				var err error
				if k, err = strconv.ParseUint(args[1], 10, 64); err != nil || k >= sampler.MaxBatches {
					return fmt.Errorf("batch number: must be a whole number from 0 to %d (got %q)", uint64(sampler.MaxBatches-1), args[1])
				}
			}
			d, err := openSplit(&src, args[0])
			switch {
			case err != nil:
				return err
			case finding:
				return findToken(cmd, d, find, epoch, asJSON)
			case asJSON:
				return d.Origins().Write(cmd.OutOrStdout(), k)
			}
			return d.Describe(cmd.OutOrStdout(), k, chars)
		}),
	}
	src.Register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().IntVar(&chars, "chars", 200, "show up to this `NUMBER` of characters of the text of each row, or document in it")
	cmd.Flags().Int64Var(&find, "find", 0, "say which batches hold the token at this `TOKEN_INDEX`")
	cmd.Flags().Uint64Var(&epoch, "epoch", 0, "with --find: of this epoch")
	return cmd
}

func findToken(cmd *cobra.Command, d *dataset.Dataset, pos int64, epoch uint64, asJSON bool) error {
	progress := terminal.NewProgress(cmd.ErrOrStderr(), "looking at rows", 1, terminal.Steps)
	found, err := d.Find(cmd.Context(), pos, epoch, progress.Set)
	progress.Finish()
	switch {
	case err != nil:
		return err
	case asJSON:
		_, err = cmd.OutOrStdout().Write(found.JSON())
		return err
	}
	found.Print(cmd.OutOrStdout())
	return nil
}
