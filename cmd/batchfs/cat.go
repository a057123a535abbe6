package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/fs/header"
	"batchfs/internal/failure"
	"batchfs/internal/printable"
	"batchfs/sampler"
)

func catCommand() *cobra.Command {
	var src config.Flags
	var from, count uint64
	var format, identity string
	cmd := &cobra.Command{
		Use:   "cat SPLIT",
		Short: "Write batches to standard output, without a mount",
		Long: `Write batches to standard output, one after the other: the same bytes as the files
batch/<k> of a mount with the same settings. --format npy writes one array whose
first dimension counts the batches, like batches.npy. --format safetensors writes
all arrays of each batch, like batch/<k>.safetensors. --format info writes info.json
and no batch.

With --count 0, cat writes until the reader closes the pipe or the batches end, so a
trainer without /dev/fuse can read its batches from a pipe. To resume with the same
sequence, pass the identity from info.json with --identity: cat fails if the tokens
or settings have changed.

SPLIT is a split of the configuration, such as train or train/rank=3,world=8, or its
path in a mount. In a mount, the mount's configuration applies.`,
		Example: `  batchfs cat train --from 1000 | xxd | head
  batchfs cat /mnt/batches/train/rank=3,world=8 --from 1000 | sha256sum
  batchfs cat val --data data --count 20 --format npy >val.npy
  batchfs cat train --from 7 --set batch.dtype=int64 | sha256sum
  batchfs cat train --data data --from 1000 --count 0 | trainer`,
		Args: cobra.ExactArgs(1),
		RunE: command.Interruptible(func(cmd *cobra.Command, args []string) error {
			framing, framed := map[string]header.Format{
				"raw": header.FormatRaw, "npy": header.FormatNPY, "safetensors": header.FormatSafetensors,
			}[format]
			if !framed && format != "info" {
				return fmt.Errorf("--format: must be one of %s (got %q)", strings.Join(catFormats, ", "), format)
			}
			b, read, closeMount, err := openRecorded(&src, args[0])
			if err != nil {
				return err
			}
			defer closeMount()
			if identity != "" && !b.Continues(identity, from) {
				return failure.Data.Wrap(fmt.Errorf("%s has the identity %s, and --identity is %s: its tokens or its settings have "+
					"changed; put them back, or open the split again to continue with the new ones", args[0], b.Identity(), identity))
			}
			out := cmd.OutOrStdout()
			if format == "info" {
				_, err := out.Write(b.Info())
				return err
			}
			err = cat(out, b, read, framing, from, count)
			if why := b.CheckEnd(b.Sequence.Batches()); err == nil && count == 0 && why != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), why)
				command.StatusOf(cmd).Send(command.End, printable.Error(why))
			}
			return err
		}),
	}
	src.Register(cmd)
	cmd.Flags().Uint64Var(&from, "from", 0, "begin with this batch `NUMBER`")
	cmd.Flags().Uint64Var(&count, "count", 1, "write this `NUMBER` of batches; 0 means no limit")
	cmd.Flags().StringVar(&format, "format", "raw", "output `FORMAT`: raw, npy (one NumPy array of shape (count, ...)), safetensors or info")
	cmd.Flags().StringVar(&identity, "identity", "", "fail unless the sequence has this `IDENTITY`, from info.json")
	cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(catFormats, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

var catFormats = []string{"raw", "npy", "safetensors", "info"}

// cat writes count batches, beginning with number from, which it gets from read. A count of 0 means
// all further batches, which a .npy file cannot hold.
func cat(out io.Writer, b *dataset.FileBatches, read readFunc, format header.Format, from, count uint64) error {
	if err := b.CheckEnd(from + max(count, 1) - 1); err != nil {
		return err
	}
	batch := b.Sequence.Batch()
	f := header.Frame{Format: format, Batch: &batch, Array: header.MainArrays}
	most := min(b.Sequence.Batches()-min(from, b.Sequence.Batches()), uint64(math.MaxInt64/f.Size()))
	if count == 0 && format != header.FormatNPY {
		count = most
	}
	if count < 1 || count > most {
		return fmt.Errorf("--from %d --count %d: must name at least one batch, and none above %d", from, count, uint64(sampler.MaxBatches-1))
	}
	if terminal.Is(out) {
		return errors.New("batches are binary, and standard output is a terminal; redirect it to a file, or pipe it into xxd")
	}
	if format == header.FormatNPY {
		f.Batches = count
	}
	return writeBatches(out, f, b.Metadata(), read, from, count)
}

// A readFunc works like sampler.Sequence.Read.
type readFunc func(dst []byte, k uint64, off int64) error

// writeBatches writes count batches: as one .npy file if f.Batches is set, or else one after the
// other.
func writeBatches(out io.Writer, f header.Frame, metadata map[string]string, read readFunc, from, count uint64) error {
	_, size := f.ByteRange() // bytes of each batch
	n := int64(count) * size
	oneReadSpansBatches := f.Format != header.FormatSafetensors && size == f.Batch.Bytes()
	buf := make([]byte, min(n, 1<<20))
	for off := int64(0); off < n; {
		part := buf[:min(int64(len(buf)), n-off)]
		k, offset := from+uint64(off/size), off%size
		if !oneReadSpansBatches {
			part = part[:min(int64(len(part)), size-offset)]
		}
		if f.Format != header.FormatRaw && offset == 0 && (off == 0 || f.Batches == 0) {
			if _, err := out.Write(f.Header(k, metadata)); err != nil {
				return err
			}
		}
		if err := read(part, k, offset); err != nil {
			return failure.Data.Wrap(err)
		}
		if _, err := out.Write(part); err != nil {
			return err
		}
		off += int64(len(part))
	}
	return nil
}
