package main

import (
	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/scan"
)

func indexCommand() *cobra.Command {
	var flags fileFlags
	var eot int64
	var force bool
	cmd := &cobra.Command{
		Use:   "index FILE... --eot TOKEN",
		Short: "Write an index of the documents of token files",
		Long: `Write FILE.index next to each token file. For each document, it holds the number of
tokens up to the document's end, as little-endian uint64, like datatrove's index. The
token --eot is the last token of a document. Tokens after the last --eot are a
document too. A split whose rows are documents needs such an index next to each
token file.

The index gets its name only once it is complete. An existing index with different
contents is replaced only with --force. For files of Megatron-LM, FILE.index counts
instead of the .idx, which stays as it is. It is written only with --force.`,
		Example: `  batchfs index train.bin val.bin --eot 50256
  batchfs index ids.bin --token-dtype uint32 --eot 128001 --force`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := flags.options()
			if err != nil {
				return err
			}
			for _, file := range args {
				index, err := scan.WriteIndex(cmd.Context(), file, o, eot, force, cmd.ErrOrStderr())
				if err != nil {
					return err
				}
				printf(cmd.OutOrStdout(), "%s: %d documents\n", index.Path, index.Documents)
			}
			return nil
		},
	}
	flags.register(cmd)
	cmd.Flags().Int64Var(&eot, "eot", -1, "`TOKEN` that ends a document (default: from the vocab.json of batchfs prepare next to the file)")
	command.HideDefault(cmd, "eot")
	cmd.Flags().BoolVar(&force, "force", false, "replace an existing index with different contents")
	return cmd
}
