// Package bench implements `batchfs bench`, which measures how long a trainer waits for a batch,
// with a mount and with loaders in the trainer's own process. Mount and loaders take turns in one
// run, because only ratios are meaningful.
package bench

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/chart"
	"batchfs/cmd/batchfs/command"
)

type options struct {
	tokens string // file of uint16 tokens; empty: create one
	dir    string
	python string
	sets   []string
	all    bool
	json   string
	plot   string

	rounds, steps int // limits for tests; 0 keeps those of each scene
	bytes         int64
}

// Command returns `batchfs bench`.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure how long a trainer waits for batches, compared with loaders in its own process",
		Long: `Measure how long a trainer on this host waits for each batch. Bench reads a mount in
three ways, and compares them with three loaders that need no mount: nanoGPT's
get_batch, a fast loader in the trainer's own process, and PyTorch's DataLoader. They
take turns, round after round in random order. Bench takes a minute or two. The
Python interpreter must have NumPy, and should have PyTorch.

Bench draws a bar for each loader, and the last line says what to read and how long a
trainer then waits. The bar of a way to read a mount is that of remap, or of another
memory.access that is at least 1.25 times as fast. --all prints every measurement.

Only ratios within one run are meaningful. Don't compare numbers from different runs,
and run nothing else in the meantime.`,
		Example: `  batchfs bench --python ~/venv/bin/python
  batchfs bench --tokens data/train.bin --all --json bench.json --plot bench.svg`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(chart.CheckPath(o.plot), chart.CheckWritable("--json", o.json)); err != nil {
				return err
			}
			if o.tokens != "" {
				if _, err := os.Stat(o.tokens); err != nil {
					return fmt.Errorf("--tokens: %w", err)
				}
			}
			// The first signal ends the run. Further ones must not interrupt cleaning up.
			signal.Notify(make(chan os.Signal, 1), command.Signals()...)
			err := o.run(&stage{ctx: cmd.Context(), stderr: cmd.ErrOrStderr()}, cmd.OutOrStdout())
			if cmd.Context().Err() != nil {
				return command.ErrInterrupted
			}
			return err
		},
	}
	cmd.Flags().StringVar(&o.tokens, "tokens", "", "read this `file` of uint16 tokens (default: a new file of random tokens)")
	cmd.Flags().StringVar(&o.dir, "dir", "/var/tmp", "put gigabytes of temporary files in this `directory`, on the disk to measure")
	cmd.Flags().StringVar(&o.python, "python", cmp.Or(os.Getenv("PYTHON"), "python3"), "run the trainer with this Python `program`")
	cmd.Flags().StringArrayVar(&o.sets, "set", nil, "set one key of every mount, `key=value`; can be repeated")
	cmd.Flags().BoolVar(&o.all, "all", false, "print all measurements")
	cmd.Flags().StringVar(&o.json, "json", "", "write all measurements to this `file`")
	cmd.Flags().StringVar(&o.plot, "plot", "", "draw waits by loader and scenario to this `file`, .svg or .png")
	cmd.MarkFlagFilename("plot", "svg", "png")
	cmd.Flags().IntVar(&o.rounds, "rounds", 0, "")
	cmd.Flags().IntVar(&o.steps, "steps", 0, "")
	cmd.Flags().Int64Var(&o.bytes, "bytes", 2<<30, "")
	for _, name := range []string{"rounds", "steps", "bytes"} {
		cmd.Flags().MarkHidden(name)
	}
	return cmd
}

func (o *options) run(s *stage, out io.Writer) (err error) {
	if err := s.open(o.dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r, err := o.runBatches(s)
	if err != nil {
		return err
	}
	if o.all {
		r.printAll(out)
	}
	r.print(out)
	if o.json != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.json, append(text, '\n'), 0o666); err != nil {
			return err
		}
	}
	if o.plot != "" {
		return r.savePlot(o.plot)
	}
	return nil
}
