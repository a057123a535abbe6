package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/command"
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
		Short: "Read all files of a split and report what is wrong",
		Long: `Read all files of the splits, on all processors, and report what is wrong:

  files that cannot be read, or do not match the configuration or their header, such as truncated files
  tokens at or above vocab_size: how many, and the first one
  files that end in zeros, as if they were allocated in full but not written to the end
  identical files, and passages that occur twice, in one file or in two
  arrays that do not have one element for each token
  document indexes that decrease
  documents that do not begin with bos or, except the last of a file, end with eot

Tokens inside documents that equal eot are only counted.

If you name several splits, check finds every passage of 64 or more tokens of one that
also occurs in a larger one, such as validation data inside the training data. It
reports how much of which documents leaked and where they are, or passages, if there
are no document indexes. A leak is a problem if it has at least half of a document, or
without indexes 1,000 tokens; --overlap makes every passage of that many tokens a
problem. Passages of 33 tokens that occur more than 16 times in the larger splits are
boilerplate, such as licenses. They are counted but not reported, nor is the rest of a
passage if it has fewer than 32 tokens.

Within a split, check finds repeated passages of at least 65,536 tokens, at any
position. If there is only one split, --overlap sets this length. By default, it is
smaller for small files (a quarter of a file), and larger above 34 billion tokens.
Check does not find copies that differ in a token every few thousand, nor passages
in which a few numbers repeat over and over.

At most 20 findings are printed, the largest leaks first; --json prints all. The last
line says what check looked for.

The exit status is 1 if anything is wrong.

SPLIT is a split of the configuration, or its path in a mount. In a mount, the
mount's configuration applies.`,
		Example: `  batchfs check train
  batchfs check train val --data data --json
  batchfs check /mnt/batches/train`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("overlap") && o.MinOverlap < 64 {
				return fmt.Errorf("--overlap: must be 64 or more (got %d)", o.MinOverlap)
			}
			return checkSplits(cmd, &src, args, o, asJSON)
		},
	}
	src.Register(cmd)
	cmd.Flags().Int64Var(&o.MinOverlap, "overlap", 0, "report every passage of this many `TOKENS` that occurs twice as a problem")
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
		err = terminal.WriteJSON(cmd.OutOrStdout(), report)
	} else {
		report.Print(cmd.OutOrStdout())
	}
	if err == nil && !report.OK {
		err = command.ExitStatus(1)
	}
	return err
}
