package main

import (
	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/scan"
)

func indexCommand() *cobra.Command {
	var flags fileFlags
	var eot int64
	var force bool
	cmd := &cobra.Command{
		Use:   "index FILE... --eot TOKEN",
		Short: "Write beside token files where their documents end",
		Long: `Index writes FILE.index beside each token file: for each document the number of tokens up to its end, as little-endian
uint64, the layout of datatrove. A document ends with the token --eot, which it includes; what follows the last of those is a
document too. A split whose rows are documents needs such a file beside each token file.

The index gets its name when it is complete. One that says otherwise is replaced only with --force.`,
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
	cmd.Flags().Int64Var(&eot, "eot", -1, "the `TOKEN` that ends a document; known by itself where a vocab.json of batchfs prepare lies beside the file")
	cmd.Flags().BoolVar(&force, "force", false, "replace an index that says otherwise")
	return cmd
}
