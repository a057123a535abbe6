package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/fs/header"
	"batchfs/sampler"
)

func catCommand() *cobra.Command {
	var src config.Flags
	var from, count uint64
	var format, identity string
	cmd := &cobra.Command{
		Use:   "cat SPLIT",
		Short: "Write batches to standard output, without a mount",
		Long: `Write batches to standard output: the bytes that a mount under the same settings shows as batch/<k>, one batch after
the other. With --format npy they are one array whose first dimension counts the batches, as in batches.npy. With --format
safetensors each batch has all its arrays, as in batch/<k>.safetensors. With --format info no batch is written but info.json.

With --count 0 it writes until nobody reads: a trainer without /dev/fuse reads its batches from a pipe. If it starts cat
again, --identity with the identity in info.json makes sure that the batches are still those of the same sequence.

SPLIT is one of the configuration, with settings or without, or the path of one in a mount, which is then read with the
settings of that mount.`,
		Example: `  batchfs cat train --from 1000 | xxd | head
  batchfs cat /mnt/batches/train/rank=3,world=8 --from 1000 | sha256sum
  batchfs cat val --data data --count 20 --format npy >val.npy
  batchfs cat train --from 7 --set batch.dtype=int64 | sha256sum
  batchfs cat train --data data --from 1000 --count 0 | trainer`,
		Args: cobra.ExactArgs(1),
		RunE: interruptible(func(cmd *cobra.Command, args []string) error {
			d, err := openSplit(&src, args[0])
			if err != nil {
				return err
			}
			framing, framed := map[string]header.Format{
				"raw": header.FormatRaw, "npy": header.FormatNPY, "safetensors": header.FormatSafetensors,
			}[format]
			if !framed && format != "info" {
				return fmt.Errorf("--format: must be one of %s (got %q)", strings.Join(catFormats, ", "), format)
			}
			if is := d.Identity(); identity != "" && is != identity {
				return fmt.Errorf("%s has the identity %s, and --identity is %s: its tokens or its settings have changed; put them back, or open the split "+
					"again to continue with the new ones", args[0], is, identity)
			}
			s, out := d.Served(), cmd.OutOrStdout()
			if format == "info" {
				_, err := out.Write(s.Info())
				return err
			}
			return cat(out, s, framing, from, count)
		}),
	}
	src.Register(cmd)
	cmd.Flags().Uint64Var(&from, "from", 0, "number of the first batch")
	cmd.Flags().Uint64Var(&count, "count", 1, "how many batches; 0: without end")
	cmd.Flags().StringVar(&format, "format", "raw", "raw, npy (a NumPy file of shape (count, ...)), safetensors, or info")
	cmd.Flags().StringVar(&identity, "identity", "", "write nothing unless info.json has this identity")
	cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(catFormats, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

var catFormats = []string{"raw", "npy", "safetensors", "info"}

// cat writes batches from number from on, as many as count says, or, with 0, until the numbers end.
func cat(out io.Writer, s *dataset.Served, format header.Format, from, count uint64) error {
	batch := s.Sequence.Batch()
	f := header.Frame{Format: format, Batch: &batch, Array: header.AllArrays}
	most := min(sampler.MaxBatches-min(from, sampler.MaxBatches), uint64(math.MaxInt64/f.Size()))
	if count == 0 && format != header.FormatNPY {
		count = most
	}
	if count < 1 || count > most {
		return fmt.Errorf("--from %d --count %d: there must be at least one batch, and numbers end at %d", from, count, uint64(sampler.MaxBatches-1))
	}
	if terminal.Is(out) {
		return errors.New("batches are binary and standard output is a terminal: redirect it to a file, or pipe it into xxd")
	}
	if format == header.FormatNPY {
		f.Batches = count
	}
	return writeBatches(out, f, s.Metadata(), s.Read, from, count)
}

// writeBatches writes batches from, from+1, …, which read reads as a sampler.Sequence does, as one
// .npy file or one file after the other.
func writeBatches(out io.Writer, f header.Frame, metadata map[string]string, read func(dst []byte, k uint64, off int64) error, from, count uint64) error {
	_, shown := f.ByteRange()
	n := int64(count) * shown
	whole := f.Format != header.FormatSafetensors && shown == f.Batch.Bytes() // then one read may be of several batches
	buf := make([]byte, min(n, 1<<20))
	for off := int64(0); off < n; {
		part := buf[:min(int64(len(buf)), n-off)]
		k, at := from+uint64(off/shown), off%shown
		if !whole {
			part = part[:min(int64(len(part)), shown-at)]
		}
		if f.Format != header.FormatRaw && at == 0 && (off == 0 || f.Batches == 0) {
			if _, err := out.Write(f.Header(k, metadata)); err != nil {
				return err
			}
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
