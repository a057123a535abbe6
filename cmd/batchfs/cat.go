package main

import (
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/spf13/cobra"

	"batchfs/cache/array"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/fs/header"
	"batchfs/sampler"
)

func catCommand() *cobra.Command {
	var src config.Flags
	var from, count uint64
	var format string
	cmd := &cobra.Command{
		Use:   "cat SPLIT",
		Short: "Write batches to standard output, without a mount",
		Long: `Write batches to standard output: the bytes that a mount under the same settings shows as batch/<k>, one batch after
the other. With --format npy they are one array whose first dimension counts the batches, as in batches.npy.

SPLIT is one of the configuration, with settings or without, or the path of one in a mount, which is then read with the
settings of that mount.`,
		Example: `  batchfs cat train --from 1000 | xxd | head
  batchfs cat /mnt/batches/train/rank=3,world=8 --from 1000 | sha256sum
  batchfs cat val --data data --count 20 --format npy >val.npy
  batchfs cat train --from 7 --set batch.dtype=int64 | sha256sum`,
		Args: cobra.ExactArgs(1),
		RunE: atOnce(func(cmd *cobra.Command, args []string) error {
			d, err := openSplit(&src, args[0])
			if err != nil {
				return err
			}
			if format != "raw" && format != "npy" {
				return fmt.Errorf("--format: must be raw or npy (got %q)", format)
			}
			batch := d.Sequence.Batch()
			size := uint64(batch.MainBytes())
			if count < 1 || from >= sampler.MaxBatches || count > sampler.MaxBatches-from || count > math.MaxInt64/size {
				return fmt.Errorf("--from %d --count %d: there must be at least one batch, and numbers end at %d", from, count, uint64(sampler.MaxBatches-1))
			}
			out := cmd.OutOrStdout()
			if terminal.Is(out) {
				return errors.New("batches are binary and standard output is a terminal: redirect it to a file, or pipe it into xxd")
			}
			if format == "npy" {
				stack := batch.Stack()
				if _, err := out.Write(header.NPY(stack.DType, append([]int{int(count)}, stack.Shape...)...)); err != nil {
					return err
				}
			}
			return writeBatches(out, batch, d.Sequence.Read, from, int64(count*size))
		}),
	}
	src.Register(cmd)
	cmd.Flags().Uint64Var(&from, "from", 0, "number of the first batch")
	cmd.Flags().Uint64Var(&count, "count", 1, "how many batches")
	cmd.Flags().StringVar(&format, "format", "raw", "raw, or npy: a NumPy file of shape (count, ...)")
	cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"raw", "npy"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// writeBatches writes the first n bytes of the main arrays of batches from, from+1, …, which read reads as a sampler.Sequence does.
func writeBatches(out io.Writer, batch array.Batch, read func(dst []byte, k uint64, off int64) error,
	from uint64, n int64) error {
	shown, size := batch.MainBytes(), batch.Bytes()
	buf := make([]byte, min(n, 1<<20))
	for off := int64(0); off < n; {
		part := buf[:min(int64(len(buf)), n-off)]
		k, at := from+uint64(off/shown), off%shown
		if shown < size { // other arrays lie between these and the next batch
			part = part[:min(int64(len(part)), shown-at)]
		}
		if err := read(part, k, at); err != nil {
			return err
		}
		if _, err := out.Write(part); err != nil {
			return err
		}
		off += int64(len(part))
	}
	return nil
}
