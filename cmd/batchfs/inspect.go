package main

import (
	"errors"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/view"
)

func inspectCommand() *cobra.Command {
	var src config.Flags
	var asJSON bool
	var find int64
	var epoch uint64
	var chars int
	var by string
	cmd := &cobra.Command{
		Use:   "inspect SPLIT K",
		Short: "Show where the rows of a batch come from, or find the batches with a token",
		Long: `Show where each row of batch K comes from: its number among all rows, its epoch, its
file, and the index of its first token in that file. If the vocab.json of batchfs
prepare is next to the token file, or --by names the tokenizer, inspect also shows the
beginning of the row's text; --chars sets how much. --json prints the same as the file batch/<k>.json of a
mount.

--find lists the batches of one epoch that contain a given token, those of all ranks.
TOKEN_INDEX counts all tokens of the split, in the order of the files in info.json. This
is fast for the orders shuffle and sequential. For the other orders, every row of the
epoch is examined. In a mixture, --epoch counts the epochs of the token's source.

SPLIT is a split of the configuration, such as train or train/rank=3,world=8, or its
path in a mount. In a mount, the mount's configuration applies.`,
		Example: `  batchfs inspect train 12345
  batchfs inspect /mnt/batches/train/rank=3,world=8 12345
  batchfs inspect train/rank=3,world=8 12345 --json
  batchfs inspect train --find 1000000 --epoch 2`,
		Args: cobra.RangeArgs(1, 2),
		RunE: command.Interruptible(func(cmd *cobra.Command, args []string) error {
			finding := cmd.Flags().Changed("find")
			var k uint64
			switch {
			case finding == (len(args) == 2):
				return errors.New("name a batch, as in batchfs inspect train 17, or a token, as in batchfs inspect train --find 1000")
			case !finding && cmd.Flags().Changed("epoch"):
				return errors.New("--epoch needs --find; the number of a batch already determines its epoch")
			case !finding:
				var err error
				if k, err = parseBatch(args[1]); err != nil {
					return err
				}
			}
			d, _, err := openSplit(&src, args[0])
			switch {
			case err != nil:
				return err
			case finding:
				return findToken(cmd, d, find, epoch, asJSON)
			}
			if err := d.CheckEnd(k); err != nil {
				return err
			}
			if asJSON {
				return d.Origins().Write(cmd.OutOrStdout(), k)
			}
			named, err := view.NamedVocabulary(by, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return d.Describe(cmd.OutOrStdout(), k, chars, named)
		}),
	}
	src.Register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&by, "by", "", byHelp)
	cmd.Flags().IntVar(&chars, "chars", 200, "show at most this `NUMBER` of characters of each row, or of each document in it")
	cmd.Flags().Int64Var(&find, "find", 0, "find the batches that contain the token at this `TOKEN_INDEX`")
	cmd.Flags().Uint64Var(&epoch, "epoch", 0, "with --find: search this `EPOCH`")
	return cmd
}

func findToken(cmd *cobra.Command, d *dataset.Dataset, pos int64, epoch uint64, asJSON bool) error {
	progress := terminal.NewProgress(cmd.ErrOrStderr(), "searching rows", 1, terminal.Steps)
	found, err := d.Find(cmd.Context(), pos, epoch, progress.Set)
	progress.Finish()
	switch {
	case err != nil:
		return err
	case asJSON:
		return terminal.WriteJSON(cmd.OutOrStdout(), found)
	}
	found.Print(cmd.OutOrStdout())
	return nil
}
