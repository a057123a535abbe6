package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"batchfs/cache"
	"batchfs/cmd/batchfs/terminal"
)

// A bench runs contenders: the token files, trainers and mounts that they share.
type bench struct {
	*stage
	ctx        context.Context
	stderr     io.Writer
	sets       []string
	warm, cold string // token files
	python     [maxReaders]*trainer
	compiled   [maxReaders]*trainer
	mounts     map[string]*daemon // by access, of the scene's file
	readAhead  int                // of a mount, KiB
	load       float64
	ids        int
}

// files finds or makes the token file for warm scenes, and a large one for cold scenes.
func (b *bench) files(o *options) (err error) {
	size := cmp.Or(o.bytes, 2<<30)
	b.warm = o.tokens
	if b.warm == "" {
		if b.warm, err = b.makeFile("warm.bin", size); err != nil {
			return err
		}
	}
	if b.warm, err = filepath.Abs(b.warm); err != nil {
		return err
	}
	info, err := os.Stat(b.warm)
	if err != nil {
		return err
	}
	var memory unix.Sysinfo_t
	if err := unix.Sysinfo(&memory); err != nil {
		return err
	}
	if uint64(info.Size()) > memory.Totalram*uint64(memory.Unit)/2 {
		return fmt.Errorf("%s: is more than half of this machine's memory, and has to fit the page cache: take a part of it (head -c 4G)", b.warm)
	}
	if o.full && o.bytes == 0 {
		size = 8 << 30
	}
	b.cold = b.warm
	if info.Size() < size {
		b.cold, err = b.makeFile("cold.bin", size)
	}
	return err
}

func (b *bench) makeFile(name string, size int64) (string, error) {
	bar := b.progress(fmt.Sprintf("making a file of %d MiB", size>>20), size, terminal.Bytes)
	defer bar.Finish()
	return b.tokens(b.ctx, name, size, false, bar)
}

// progress shows a bar on a terminal, and a line elsewhere.
func (b *bench) progress(what string, total int64, unit terminal.Unit) *terminal.Progress {
	if !terminal.Is(b.stderr) {
		fmt.Fprintln(b.stderr, what)
	}
	return terminal.NewProgress(b.stderr, what, total, unit)
}

// A result is what was measured of one contender in one scene.
type result struct {
	contender contender
	id        int
	rounds    []float64 // of each round, the figure of the scene, in µs per batch
	waits     []float64 // of all batches, µs
	even      []float64 // of each round, slowest reader over fastest
	steps     int       // batches taken, timed or not
	disk      int64     // bytes read for them
}

// play runs every contender of a scene in every round, in random order.
func (b *bench) play(sc scene) ([]*result, error) {
	bar := b.progress(fmt.Sprintf("%s: %d contenders, %d rounds", sc.Name, len(sc.contenders), sc.rounds), int64(len(sc.contenders)*sc.rounds), terminal.Steps)
	defer bar.Finish()
	tokens := b.tokensOf(sc)
	if !sc.Cold {
		if err := warmUp(tokens, unix.FADV_NORMAL); err != nil {
			return nil, err
		}
	}
	var results []*result
	for _, c := range sc.contenders {
		b.ids += maxReaders
		results = append(results, &result{contender: c, id: b.ids})
	}
	order := slices.Clone(results)
	for range sc.rounds {
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, r := range order {
			if err := b.once(sc, tokens, r); err != nil {
				return nil, fmt.Errorf("%s: %w", r.contender, err)
			}
			bar.Add(1)
		}
	}
	return results, b.clear()
}

// tokensOf returns the token file of a scene. A large batch is read from a large file: in a small one many rows would be the same,
// which makes the batch cheap.
func (b *bench) tokensOf(sc scene) string {
	if info, err := os.Stat(b.warm); sc.Cold || sc.Name == large && err == nil && info.Size() < 256<<20 {
		return b.cold
	}
	return b.warm
}

// once runs one contender.
func (b *bench) once(sc scene, tokens string, r *result) error {
	c := r.contender
	trainers := b.python[:c.Readers]
	if c.Reader == "go" {
		trainers = b.compiled[:c.Readers]
	}
	path, pid := tokens, trainers[0].cmd.Process.Pid
	lead := min(24, sc.steps) // until the processor caches are as in a long run
	if sc.Cold {              // pages that are mapped stay, and a process may have mapped more than it read
		lead = 0
		if err := b.clear(); err != nil {
			return err
		}
	}
	if c.group() == mounted || c.group() == compiled {
		d, err := b.mounted(tokens, c.Access)
		if err != nil {
			return err
		}
		// By its seed each contender has its own rows, which no other contender warms up.
		path, pid = fmt.Sprintf("%s/train/seed=%d,steps=1000000,batch_size=%d,block_size=%d,dtype=%s,layout=%s",
			d.mountpoint, r.id, sc.Batch, sc.Block, c.DType, c.Layout), d.pid
	}
	if sc.Cold {
		if err := dropPages(tokens); err != nil {
			return err
		}
	}
	before := diskBytes(pid)
	for i, t := range trainers {
		t.write(command{ID: r.id + i, Kind: c.Kind, Path: path, Access: c.Access, DType: c.DType, Layout: c.Layout,
			Batch: sc.Batch, Block: sc.Block, Workers: c.Workers, Seed: uint64(r.id), First: uint64(i) * 100_000,
			Lead: lead, Steps: sc.steps, Seconds: sc.seconds, Compute: sc.Compute.Seconds()})
	}
	var means []float64
	for _, t := range trainers {
		var a answer
		if err := t.read(&a); err != nil {
			return err
		}
		means = append(means, mean(a.Waits))
		r.waits = append(r.waits, a.Waits...)
		r.steps += 1 + lead + len(a.Waits)
		if c.Readers == 1 {
			r.rounds = append(r.rounds, sc.figure(a.Waits))
		}
	}
	r.disk += diskBytes(pid) - before
	if c.Readers > 1 {
		rate := 0.0
		for _, m := range means {
			rate += 1 / m
		}
		r.rounds = append(r.rounds, 1/rate)
		r.even = append(r.even, slices.Min(means)/slices.Max(means))
	}
	return nil
}

// mounted returns the daemon for an access, which it starts if there is none.
func (b *bench) mounted(tokens, access string) (*daemon, error) {
	if b.mounts[access] == nil {
		d, err := b.mount(tokens, append([]string{"memory.access=" + access}, b.sets...)...)
		if err != nil {
			return nil, err
		}
		b.mounts[access] = d
		b.readAhead = cache.DiskReadAhead(d.mountpoint)
	}
	return b.mounts[access], nil
}

// clear makes the trainers close their files, and ends all daemons.
func (b *bench) clear() error {
	var errs []error
	for _, t := range b.trainers {
		errs = append(errs, t.forget())
	}
	for _, d := range b.mounts {
		errs = append(errs, d.end())
	}
	clear(b.mounts)
	return errors.Join(errs...)
}

// figure returns the µs per batch of one run. Back to back it is the median over windows of many batches, because read-ahead comes in
// bursts. With compute between batches it is the median, without the rare long waits; from a cold disk the mean, with them.
func (sc scene) figure(waits []float64) float64 {
	switch {
	case sc.Cold:
		return mean(waits)
	case sc.Compute > 0:
		return median(waits)
	}
	const window = 32
	if len(waits) < 4*window {
		return mean(waits)
	}
	var means []float64
	for w := range slices.Chunk(waits[:len(waits)/window*window], window) {
		means = append(means, mean(w))
	}
	return median(means)
}
