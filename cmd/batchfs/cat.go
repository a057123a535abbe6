package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/spf13/cobra"

	"batchfs/fs"
	"batchfs/sampler"
)

func catCommand() *cobra.Command {
	var src configFlags
	var from, count uint64
	var format string
	cmd := &cobra.Command{
		Use:   "cat SPLIT",
		Short: "Write batches to standard output, without a mount",
		Long: `Write batches to standard output: the bytes that a mount under the same settings shows as batch/<k>, one batch after
the other. With --format npy they are one array whose first dimension counts the batches, as in batches.npy.`,
		Example: `  batchfs cat train --from 1000 | xxd | head
  batchfs cat val --data data --count 20 --format npy >val.npy
  batchfs cat train --from 7 --set batch.dtype=int64 | sha256sum`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := src.openSplit(args[0])
			if err != nil {
				return err
			}
			if format != "raw" && format != "npy" {
				return fmt.Errorf("--format: must be raw or npy (got %q)", format)
			}
			size := uint64(o.sequence.BatchBytes())
			if count < 1 || from >= sampler.MaxBatches || count > sampler.MaxBatches-from || count > math.MaxInt64/size {
				return fmt.Errorf("--from %d --count %d: there must be at least one batch, and numbers end at %d", from, count, uint64(sampler.MaxBatches-1))
			}
			out := cmd.OutOrStdout()
			if isTerminal(out) {
				return errors.New("batches are binary and standard output is a terminal: redirect it to a file, or pipe it into xxd")
			}
			if format == "npy" {
				shape := append([]int{int(count)}, o.sequence.Shape()...)
				if _, err := out.Write(fs.NPYHeader(string(o.sequence.DType), shape...)); err != nil {
					return err
				}
			}
			return writeBatches(cmd.Context(), out, o.sequence, from, int64(count*size))
		},
	}
	src.flags(cmd)
	cmd.Flags().Uint64Var(&from, "from", 0, "number of the first batch")
	cmd.Flags().Uint64Var(&count, "count", 1, "how many batches")
	cmd.Flags().StringVar(&format, "format", "raw", "raw, or npy: a NumPy file of shape (count, ...)")
	cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"raw", "npy"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func writeBatches(ctx context.Context, out io.Writer, q *sampler.Sequence, from uint64, n int64) error {
	buf := make([]byte, min(n, 1<<20))
	for off := int64(0); off < n; {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted after %d of %d bytes", off, n)
		}
		part := buf[:min(int64(len(buf)), n-off)]
		if err := q.Read(part, from, off); err != nil {
			return err
		}
		if _, err := out.Write(part); err != nil {
			return err
		}
		off += int64(len(part))
	}
	return nil
}
