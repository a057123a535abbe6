// Package plan implements `batchfs plan`, which estimates what a run will need from the network,
// the store and the disks.
//
// It builds the sequences of all ranks, over the corpus of a configuration or one described by its
// size, and counts the blocks in which their batches lie (count.go). As in a mount, the sampler
// picks the rows, and the block cache determines their blocks. From these counts, plan computes
// rates, sizes and prices (estimate.go).
package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/chart"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/sampler"
)

type options struct {
	config      config.Flags
	tokens      string
	sources     []string
	shardTokens string
	hosts, gpus int
	step        time.Duration
	steps       uint64
	epochs      float64

	bandwidth, requests string
	latency             time.Duration
	getPrice, gbPrice   float64

	json bool
	plot string
}

// Command returns `batchfs plan`.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "plan [SPLIT]",
		Short: "Estimate what a run will need from the network, the object store and the disks",
		Long: `Estimate what a run will need while its tokens are in an object store: bandwidth
and requests over time, in the first and in later epochs, their price, the block cache
of each host, the time to mount, and the epochs of each source. Plan also says which of
these exceed a limit, and which key helps. --plot draws bandwidth, requests and the
block cache over the run.

Describe the corpus with --tokens or several --source; it need not exist, and its
settings are those of [batch]. Or name a SPLIT of the configuration, with or without
settings, such as train/order=shuffle (default: train); plan opens its files. If they
are local, plan says so, and estimates for objects of the same sizes. store.block_bytes,
store.cache_bytes and memory.ahead_bytes count as in a mount. Each host has one mount for
all its GPUs.

Plan picks the rows as a mount does, and counts the blocks that they need in two
samples: for some steps, it counts all blocks; for some blocks, it counts all steps
that need them. The default prices are those of AWS S3 Standard in us-east-1 in
November 2026, read from within the region; yours may differ.`,
		Example: `  batchfs plan --tokens 15T --hosts 512 --gpus 8 --step 0.25s
  batchfs plan --tokens 15T --hosts 512 --gpus 8 --step 0.25s --set batch.order=shuffle --bandwidth 25Gbit --plot plan.svg
  batchfs plan --source web=10T:3 --source books=100G:1 --hosts 64 --gpus 8 --step 0.5s --steps 200000
  batchfs plan train/order=shuffle,batch_size=32 -c config.toml --hosts 4 --gpus 8 --step 300ms --epochs 3 --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.config.Register(cmd)
	f := cmd.Flags()
	f.StringVar(&o.tokens, "tokens", "", "the `number` of tokens, such as 15T, instead of a split (k, M, B or G, T)")
	f.StringArrayVar(&o.sources, "source", nil, "a source of a mixture, `NAME=TOKENS:WEIGHT`, such as web=10T:3, instead of a split; can be repeated")
	f.StringVar(&o.shardTokens, "shard-tokens", "1G", "the `number` of tokens in each object, with --tokens or --source")
	f.IntVar(&o.hosts, "hosts", 1, "number of hosts")
	f.IntVar(&o.gpus, "gpus", 1, "number of GPUs of each host; each GPU is a rank. With tensor or pipeline parallelism, number of "+
		"data-parallel ranks on each host")
	f.DurationVar(&o.step, "step", 0, "duration of a training step, such as 0.25s")
	f.Uint64Var(&o.steps, "steps", 0, "number of steps in the run (default: from --epochs)")
	f.Float64Var(&o.epochs, "epochs", 1, "number of epochs in the run")
	f.StringVar(&o.bandwidth, "bandwidth", "", "the `rate` at which a host can receive, such as 25Gbit or 3GB (default: no limit)")
	f.StringVar(&o.requests, "requests", "5500", "the `number` of requests that the store answers per second; AWS promises 5500 for each prefix")
	f.DurationVar(&o.latency, "latency", 150*time.Millisecond, "duration of a request for a block")
	f.Float64Var(&o.getPrice, "get-price", 0.0004, "the `price` of 1,000 requests, in dollars")
	f.Float64Var(&o.gbPrice, "gb-price", 0, "the `price` of a gigabyte that leaves the store, in dollars")
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.StringVar(&o.plot, "plot", "", "draw bandwidth, requests and cache over the run to this `file`, .svg or .png")
	cmd.MarkFlagsMutuallyExclusive("tokens", "source", "data")
	cmd.MarkFlagsMutuallyExclusive("steps", "epochs")
	cmd.MarkFlagFilename("plot", "svg", "png")
	for _, name := range []string{"tokens", "source", "shard-tokens", "hosts", "gpus", "step", "steps", "epochs", "bandwidth", "requests", "latency",
		"get-price", "gb-price"} {
		cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return cmd
}

func (o *options) run(cmd *cobra.Command, args []string) error {
	if err := o.check(args); err != nil {
		return err
	}
	path := "train"
	if len(args) > 0 {
		path = args[0]
	}
	progress := terminal.NewProgress(cmd.ErrOrStderr(), "counting", 1000, terminal.Steps)
	done := 0.0
	n, err := o.computeEstimate(cmd.Context(), path, func(more float64) {
		done += more
		progress.Set(int64(1000*done), 1000)
	})
	progress.Finish()
	if err != nil {
		return err
	}
	if o.plot != "" {
		if err := n.savePlot(o.plot); err != nil {
			return err
		}
	}
	if o.json {
		return terminal.WriteJSON(cmd.OutOrStdout(), n)
	}
	n.print(cmd.OutOrStdout())
	return nil
}

func (o *options) check(args []string) error {
	switch {
	case len(args) > 0 && (o.tokens != "" || len(o.sources) > 0):
		return fmt.Errorf("%s: --tokens and --source replace the split; pass settings as --set batch.KEY=VALUE", args[0])
	case o.step <= 0:
		return errors.New("--step: set the duration of a training step, such as --step 0.25s")
	case o.hosts < 1:
		return fmt.Errorf("--hosts: must be 1 or more (got %d)", o.hosts)
	case o.gpus < 1:
		return fmt.Errorf("--gpus: must be 1 or more (got %d)", o.gpus)
	case o.hosts > sampler.MaxRows/o.gpus:
		return fmt.Errorf("--hosts, --gpus: must give at most %d ranks (got %d times %d)", sampler.MaxRows, o.hosts, o.gpus)
	case !(o.epochs > 0 && o.epochs <= 1e6):
		return fmt.Errorf("--epochs: must be above 0 and at most 1000000 (got %g)", o.epochs)
	case o.steps > sampler.MaxBatches:
		return fmt.Errorf("--steps: must be at most %d (got %d)", uint64(sampler.MaxBatches), o.steps)
	case o.latency < 0:
		return fmt.Errorf("--latency: must not be below 0 (got %v)", o.latency)
	case !(o.getPrice >= 0 && o.getPrice <= 1e6):
		return fmt.Errorf("--get-price: must be from 0 to 1000000 (got %g)", o.getPrice)
	case !(o.gbPrice >= 0 && o.gbPrice <= 1e6):
		return fmt.Errorf("--gb-price: must be from 0 to 1000000 (got %g)", o.gbPrice)
	}
	return chart.CheckPath(o.plot)
}

// computeEstimate estimates what a run over the corpus needs. progress receives the fraction of the
// work done since its last call.
func (o *options) computeEstimate(ctx context.Context, path string, progress func(more float64)) (*Estimate, error) {
	limits := resourceLimits{bandwidth: math.Inf(1)}
	var err error
	if o.bandwidth != "" {
		if limits.bandwidth, err = parseQuantity("--bandwidth", o.bandwidth, rates, 1, 1e15, "25Gbit or 3GB"); err != nil {
			return nil, err
		}
	}
	if limits.requests, err = parseQuantity("--requests", o.requests, counts, 1, 1e12, "5500"); err != nil {
		return nil, err
	}
	c, err := o.openCorpus(path)
	if err != nil {
		return nil, err
	}
	epoch := uint64(c.sequence.BatchesPerEpoch())
	steps := min(cmp.Or(o.steps, max(uint64(o.epochs*float64(epoch)+0.5), 1)), c.sequence.Batches())
	c.steps = steps
	// At least two epochs are counted, and at most four, because later epochs are like the fourth.
	counted := min(max(2, (steps+epoch-1)/epoch), 4) * epoch
	n, err := c.countBlocks(ctx, min(counted, c.sequence.Batches(), sampler.MaxBatches-1), progress)
	if err != nil {
		return nil, err
	}
	return o.newEstimate(c, n, epoch, steps, limits), nil
}
