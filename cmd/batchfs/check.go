package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/scan"
	"batchfs/cmd/batchfs/terminal"
)

func checkCommand() *cobra.Command {
	var src config.Flags
	var o scan.CheckOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check SPLIT...",
		Short: "Read all files of splits and say what is wrong with them",
		Long: `Check reads all files of the splits, on all processors, and lists what is wrong:

  files that cannot be read, or are not what the configuration or their header says, such as truncated ones
  tokens that are not below vocab_size: how many, and the first
  files that end in zeros, as those do that were made in their full size and not written to the end
  files that hold the same, and runs of tokens that stand twice, in two files or in one
  arrays beside the tokens of another length
  indexes of documents whose ends do not increase

Of several splits it also finds what two of them share, such as a validation set within the training data.

A run that stands twice is found wherever it lies if it has 65,536 tokens, or as many as --overlap says: a quarter of the tokens
of a file where files are small, and more where there are above 34 billion tokens. What is printed says from which length on.
Text that has another token every few thousand is not found, nor is a run of few numbers that come again and again.

Ctrl-C loses little: the same command continues where it was, as what was read is noted in the user's cache directory
(~/.cache/batchfs) until a check ends. The exit status is 1 if anything is wrong.

SPLIT is one of the configuration, or the path of one in a mount, which then has the configuration of that mount.`,
		Example: `  batchfs check train
  batchfs check train val --data data --json
  batchfs check /mnt/batches/train --restart`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("overlap") && o.CommonRun < 16 {
				return fmt.Errorf("--overlap: must be 16 or more (got %d)", o.CommonRun)
			}
			return checkSplits(cmd, &src, args, o, asJSON)
		},
	}
	src.Register(cmd)
	cmd.Flags().Int64Var(&o.CommonRun, "overlap", 0, "report runs of so many `TOKENS` that stand twice")
	cmd.Flags().BoolVar(&o.Restart, "restart", false, "do not continue a check that was interrupted")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func checkSplits(cmd *cobra.Command, src *config.Flags, paths []string, o scan.CheckOptions, asJSON bool) error {
	var openers []*dataset.Opener
	for _, path := range paths {
		opener, err := configuredSplit(src, path)
		if err != nil {
			return err
		}
		openers = append(openers, opener)
	}
	report, err := scan.Check(cmd.Context(), openers, o, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if asJSON {
		err = terminal.JSON(cmd.OutOrStdout(), report)
	} else {
		report.Print(cmd.OutOrStdout())
	}
	if err == nil && !report.OK {
		err = exitStatus(1)
	}
	return err
}
