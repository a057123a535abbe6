package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"batchfs/cache/array"
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
		RunE: atOnce(func(cmd *cobra.Command, args []string) error {
			d, err := openSplit(&src, args[0])
			if err != nil {
				return err
			}
			if !slices.Contains(catFormats, format) {
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
			return cat(out, s, format, from, count)
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
func cat(out io.Writer, s *dataset.Served, format string, from, count uint64) error {
	batch := s.Sequence.Batch()
	f := catFile(batch, s.Metadata(), format)
	most := min(sampler.MaxBatches-min(from, sampler.MaxBatches), math.MaxInt64/f.bytes())
	if count == 0 && format != "npy" {
		count = most
	}
	if count < 1 || count > most {
		return fmt.Errorf("--from %d --count %d: there must be at least one batch, and numbers end at %d", from, count, uint64(sampler.MaxBatches-1))
	}
	if terminal.Is(out) {
		return errors.New("batches are binary and standard output is a terminal: redirect it to a file, or pipe it into xxd")
	}
	if format == "npy" {
		stack := batch.Stack()
		if _, err := out.Write(header.NPY(stack.DType, append([]int{int(count)}, stack.Shape...)...)); err != nil {
			return err
		}
	}
	return writeBatches(out, f, batch.Bytes(), s.Read, from, count)
}

// A batchFile is what is written of each batch: a header, or none, and the first bytes of its arrays.
type batchFile struct {
	header      func(k uint64) []byte
	headerBytes int
	shown       int64
}

func (f batchFile) bytes() uint64 { return uint64(f.headerBytes) + uint64(f.shown) }

func catFile(batch array.Batch, metadata map[string]string, format string) batchFile {
	if format != "safetensors" {
		return batchFile{shown: batch.MainBytes()}
	}
	return batchFile{header: func(k uint64) []byte { return header.Safetensors(batch, metadata, k) }, headerBytes: header.Bytes, shown: batch.Bytes()}
}

// writeBatches writes batches from, from+1, …, of size bytes each, which read reads as a sampler.Sequence does.
func writeBatches(out io.Writer, f batchFile, size int64, read func(dst []byte, k uint64, off int64) error, from, count uint64) error {
	n := int64(count) * f.shown
	whole := f.header == nil && f.shown == size // then one read may be of several batches
	buf := make([]byte, min(n, 1<<20))
	for off := int64(0); off < n; {
		part := buf[:min(int64(len(buf)), n-off)]
		k, at := from+uint64(off/f.shown), off%f.shown
		if !whole {
			part = part[:min(int64(len(part)), f.shown-at)]
		}
		if f.header != nil && at == 0 {
			if _, err := out.Write(f.header(k)); err != nil {
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
