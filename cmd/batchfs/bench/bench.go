// Package bench has the command `batchfs bench`, which measures how long a trainer waits for a batch, and how much memory that
// takes: from a mount, and from loaders in the trainer's own process. All contenders take turns in one run, because only their
// ratios mean anything.
//
// It runs contenders in scenes, which are conditions such as a cold disk (contenders.go), with trainers in processes of their
// own, and reports each target ratio next to the measured one.
package bench

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/chart"
)

// Command returns `batchfs bench`.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure how long a trainer waits for batches, next to loaders in its own process",
		Long: `Measure how long a trainer waits for each batch: nanoGPT's get_batch, other loaders in the trainer's own process,
PyTorch's DataLoader, and mounts, in turn, round after round in random order. Then say whether what batchfs promises
holds here. It takes a minute or two, --full several times that. The Python should have PyTorch, and must have NumPy.

Only the ratios mean much: compare nothing with another run's, and let nothing else run meanwhile.`,
		Example: `  batchfs bench --python ~/venv/bin/python
  batchfs bench --tokens data/train.bin --json bench.json --plot bench.svg
  batchfs bench --tokenize
  batchfs bench --full --dir /data/tmp`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := chart.Check(o.plot); err != nil {
				return err
			}
			// The first signal ends the run. Further ones must not interrupt cleaning up.
			signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			run := o.run
			switch {
			case o.memory && o.tokenize != "":
				return errors.New("--memory and --tokenize: give one of them")
			case o.memory:
				run = o.runMemory
			case o.tokenize != "":
				run = o.runTokenize
			}
			err := run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			if cmd.Context().Err() != nil {
				return errors.New("interrupted")
			}
			return err
		},
	}
	cmd.Flags().StringVar(&o.tokens, "tokens", "", "measure on this `file` of uint16 tokens (default: one is made, of random tokens)")
	cmd.Flags().StringVar(&o.dir, "dir", "/var/tmp", "put temporary files, of gigabytes, in this `directory`, on the disk to measure")
	cmd.Flags().StringVar(&o.python, "python", cmp.Or(os.Getenv("PYTHON"), "python3"), "the Python `program` of the trainer")
	cmd.Flags().StringArrayVar(&o.sets, "set", nil, "set one key of every mount, `key=value`, any number of times")
	cmd.Flags().BoolVar(&o.full, "full", false, "all access modes, dtypes, layouts and sizes")
	cmd.Flags().BoolVar(&o.memory, "memory", false, "resident memory and page cache against batches read")
	cmd.Flags().IntVar(&o.batches, "batches", 30000, "with --memory, how many batches each loader reads")
	cmd.Flags().StringVar(&o.tokenize, "tokenize", "", "how fast one core encodes the texts of a `directory` (default /usr/share), next to Python's tiktoken")
	cmd.Flags().Lookup("tokenize").NoOptDefVal = "/usr/share"
	cmd.Flags().StringVar(&o.json, "json", "", "write every figure to this `file`")
	cmd.Flags().StringVar(&o.plot, "plot", "", "draw charts to this `file`, .svg or .png")
	cmd.Flags().IntVar(&o.rounds, "rounds", 0, "")
	cmd.Flags().IntVar(&o.steps, "steps", 0, "")
	cmd.Flags().Int64Var(&o.bytes, "bytes", 0, "")
	for _, name := range []string{"rounds", "steps", "bytes"} {
		cmd.Flags().MarkHidden(name)
	}
	return cmd
}

func (o *options) run(ctx context.Context, out, stderr io.Writer) (err error) {
	s, err := newStage(o.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	b := &bench{stage: s, ctx: ctx, stderr: stderr, sets: o.sets, mounts: map[string]*daemon{}, load: loadAverage()}
	if err := b.files(o); err != nil {
		return err
	}
	var trainer hello
	for i := range maxReaders {
		if b.python[i], trainer, err = s.pythonTrainer(ctx, o.python); err != nil {
			return err
		}
		if b.compiled[i], err = s.goTrainer(ctx); err != nil {
			return err
		}
	}
	r := &report{}
	for _, scene := range o.scenes(trainer.Torch != "") {
		results, err := b.play(scene)
		if err != nil {
			return err
		}
		r.add(scene, results)
	}
	if r.Host, err = b.host(trainer); err != nil {
		return err
	}
	if r.Ideal, err = idealBytes(b.cold, 12, 1024); err != nil {
		return err
	}
	r.promise()
	r.print(out)
	if o.json != "" {
		err = r.writeJSON(o.json)
	}
	if o.plot != "" {
		err = errors.Join(err, chart.Save(o.plot, r.charts()...))
	}
	return err
}
