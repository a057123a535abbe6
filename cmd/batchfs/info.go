package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cache/format"
	"batchfs/cache/localfile"
	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/scan"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/sampler"
)

// fileFlags holds the flags of commands that take token files instead of splits.
type fileFlags struct{ format, tensor, dtype string }

func (f *fileFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.format, "format", format.Auto, "`FORMAT` of the files, like the key format in config.toml")
	cmd.Flags().StringVar(&f.dtype, "token-dtype", "", "`DTYPE` of headerless files, like the key token_dtype in config.toml (default uint16)")
	cmd.Flags().StringVar(&f.tensor, "tensor", "", "`NAME` of the tensor to read, for files that have several")
	cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(format.Names(), cobra.ShellCompDirectiveNoFileComp))
}

func (f *fileFlags) options() (cache.Options, error) {
	remote := dataset.NewOpener(config.Default()).Remote
	remote.Blocks.Memory = 16 * remote.Blocks.BlockBytes
	o := cache.Options{Remote: remote, Format: f.format, Tensor: f.tensor, DType: array.DType(f.dtype), GuessedDType: f.dtype == "",
		Reading: localfile.Options{Access: localfile.Pread}}
	if f.dtype == "" {
		o.DType = array.Uint16
	}
	return o, cmp.Or(checkOneOf("--format", f.format, format.Names()), checkOneOf("--token-dtype", o.DType, array.DTypes()))
}

func checkOneOf[S ~string](flag string, value S, words []S) error {
	if slices.Contains(words, value) {
		return nil
	}
	return fmt.Errorf("%s: must be one of %s (got %q)", flag, words, value)
}

func infoCommand() *cobra.Command {
	var flags fileFlags
	var asJSON bool
	var blockSize int64
	o := scan.InfoOptions{}
	cmd := &cobra.Command{
		Use:   "info FILE...",
		Short: "Describe token files: format, number of tokens, ids, lengths of documents",
		Long: `Print the format, dtype, shape, number of tokens, number of documents and largest id
of each file. FILE can also be the URL of an object; the environment configures its
store (AWS_ENDPOINT_URL, AWS_REGION).

Info then draws the distributions of token ids and of the lengths of documents, over
all files. The lengths show which block_size holds most documents, and what packing
would save. They come from the indexes of files that have one. --block-size counts the
documents that are longer than a row, which the key too_long cuts, drops or truncates.

If a file is larger than 64 MiB, info reads only a sample, 16 blocks of 4 MiB, and
says so; of more than 2,097,152 documents, it reads the lengths of as many. --all
reads everything.`,
		Example: `  batchfs info train.bin
  batchfs info fineweb_*.bin --all
  batchfs info train.bin --block-size 2048
  batchfs info ids.bin --token-dtype uint32 --json
  batchfs info 's3://corpora/web/train_*.bin'`,
		Args: cobra.MinimumNArgs(1),
		RunE: command.Interruptible(func(cmd *cobra.Command, args []string) (err error) {
			if o.Open, err = flags.options(); err != nil {
				return err
			}
			if blockSize < 0 || blockSize > sampler.MaxBlockSize {
				return fmt.Errorf("--block-size: must be from 0 to %d (got %d)", sampler.MaxBlockSize, blockSize)
			}
			var s scan.Survey
			var bad []error
			for _, arg := range args {
				files := []string{arg} // the shell expands globs of local files
				if blob.IsRemote(arg) {
					var err error
					open := o.Open
					if files, open.Matched, err = blob.Resolve("", files, o.Open.Remote); err != nil {
						bad = append(bad, err)
					}
					files = cache.WithoutEmpty(files, open)
				}
				for _, file := range files {
					if err := s.AddFile(cmd.Context(), file, o, cmd.ErrOrStderr()); err != nil {
						bad = append(bad, err)
					}
				}
			}
			s.Finish(blockSize)
			switch {
			case len(s.Files) > 0 && asJSON:
				err = terminal.WriteJSON(cmd.OutOrStdout(), s)
			case len(s.Files) > 0:
				s.Print(cmd.OutOrStdout())
			}
			return errors.Join(append(bad, err)...)
		}),
	}
	flags.register(cmd)
	cmd.Flags().BoolVar(&o.All, "all", false, "read whole files instead of a sample")
	cmd.Flags().Int64Var(&blockSize, "block-size", 0, "count the documents with more than `T`+1 tokens, which are longer than a row")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
