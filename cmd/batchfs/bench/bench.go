// Package bench has the command `batchfs bench`, which measures how long a trainer waits for a batch, and how much memory that
// takes: from a mount, and from loaders in the trainer's own process. All are measured alternately in one run, because only
// their ratios mean anything.
package bench

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/chart"
)

type options struct {
	tokens   string // file; empty: one is made
	dir      string // for temporary files
	python   string
	sets     []string
	memory   bool
	tokenize string // the directory of texts to encode; empty: measures batches
	json     string
	plot     string

	batches int // of each loading of memory

	rounds, steps int   // of every scene, for tests; 0: as the scene has it
	bytes         int64 // of the file that is made
}

// Command returns `batchfs bench`.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure how long a trainer waits for batches, next to loaders in its own process",
		Long: `Measure how long a trainer on this host waits for each batch: from mounts, by three ways of reading; from nanoGPT's get_batch,
from a fast loader in the trainer's own process, and from PyTorch's DataLoader. They alternate, round after round in random
order. The last line says what to change. It takes a minute or two. The Python should have PyTorch, and must have NumPy.

Only the ratios mean much: compare nothing with another run's, and let nothing else run meanwhile.`,
		Example: `  batchfs bench --python ~/venv/bin/python
  batchfs bench --tokens data/train.bin --json bench.json
  batchfs bench --memory --plot memory.svg
  batchfs bench --tokenize`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			// The first signal ends the run. Further ones must not interrupt cleaning up.
			signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			err := o.run(&stage{ctx: cmd.Context(), stderr: cmd.ErrOrStderr()}, cmd.OutOrStdout())
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
	cmd.Flags().BoolVar(&o.memory, "memory", false, "resident memory and page cache against batches read")
	cmd.Flags().IntVar(&o.batches, "batches", 30000, "with --memory, how many batches each loader reads")
	cmd.Flags().StringVar(&o.tokenize, "tokenize", "", "how fast one core encodes the texts of a `directory` (default /usr/share), next to Python's tiktoken")
	cmd.Flags().Lookup("tokenize").NoOptDefVal = "/usr/share"
	cmd.Flags().StringVar(&o.json, "json", "", "write every figure to this `file`")
	cmd.Flags().StringVar(&o.plot, "plot", "", "with --memory, draw charts to this `file`, .svg or .png")
	cmd.Flags().IntVar(&o.rounds, "rounds", 0, "")
	cmd.Flags().IntVar(&o.steps, "steps", 0, "")
	cmd.Flags().Int64Var(&o.bytes, "bytes", 2<<30, "")
	for _, name := range []string{"rounds", "steps", "bytes"} {
		cmd.Flags().MarkHidden(name)
	}
	return cmd
}

func (o *options) check() error {
	switch {
	case o.memory && o.tokenize != "":
		return errors.New("--memory and --tokenize: give one of them")
	case o.plot != "" && !o.memory:
		return errors.New("--plot: draws what --memory measures: add --memory, or use --json")
	case o.batches < 1:
		return errors.New("--batches: must be at least 1")
	}
	if o.tokens != "" {
		if _, err := os.Stat(o.tokens); err != nil {
			return fmt.Errorf("--tokens: %w", err)
		}
	}
	return chart.Check(o.plot)
}

func (o *options) run(s *stage, out io.Writer) (err error) {
	if err := s.open(o.dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	measure := o.runBatches
	switch {
	case o.memory:
		measure = o.runMemory
	case o.tokenize != "":
		measure = o.runTokenize
	}
	figures, err := measure(s, out)
	if figures == nil || o.json == "" {
		return err
	}
	text, e := json.MarshalIndent(figures, "", "  ")
	if e != nil {
		return e
	}
	return errors.Join(err, os.WriteFile(o.json, append(text, '\n'), 0o666))
}
