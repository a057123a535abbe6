package bench

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

//go:embed memory.py
var memoryPy string

// A memoryRun is one way of loading batches, with the memory that it takes.
type memoryRun struct {
	Name         string        `json:"name"`
	function     string        // function in memory.py
	sets         []string      // settings of the mount; nil: read the token file itself
	startsCached bool          // whether the page cache has all of the file at first, not none
	measureAfter []int         // numbers of batches after which memory is measured
	Measurements []measurement `json:"samples"`
}

// A measurement is the memory in use after a number of batches.
type measurement struct {
	Batches   int   `json:"batches"`
	PageCache int64 `json:"page_cache"` // bytes of the token file in the page cache
	Trainer   usage `json:"trainer"`
	Daemon    usage `json:"daemon,omitzero"`
}

func (o *options) runMemory(s *stage, out io.Writer) (any, error) {
	tokens, err := s.tokenFile(o.tokens, 1<<30)
	if err != nil {
		return nil, err
	}
	runs := []memoryRun{
		{Name: "np.memmap kept, in the trainer", function: "kept"},
		{Name: "np.memmap per batch, in the trainer", function: "per_batch"},
	}
	for _, access := range []string{"map", "remap", "advise", "pread"} {
		runs = append(runs, memoryRun{Name: "batchfs " + access, function: "opened", sets: []string{"memory.access=" + access}})
	}
	for i := range runs {
		runs[i].startsCached, runs[i].measureAfter = true, powersOfTen(o.batches)
	}
	for _, keep := range []string{"keep", "drop"} {
		runs = append(runs, memoryRun{
			Name: "page_cache = " + keep, function: "opened", sets: []string{"memory.page_cache=" + keep},
			measureAfter: powersOfTen((o.batches + 2) / 3), // fewer, because disk reads are slow
		})
	}
	for i := range runs {
		if err := o.measureMemory(s, tokens, &runs[i]); err != nil {
			return nil, err
		}
	}
	cold := slices.IndexFunc(runs, func(r memoryRun) bool { return !r.startsCached })
	printTable(out, "resident memory of the trainer", runs[:cold], func(m measurement) int64 { return m.Trainer.Resident })
	printTable(out, "resident memory of batchfs", runs[2:cold], func(m measurement) int64 { return m.Daemon.Resident })
	printTable(out, "page cache of the token file", runs[cold:], func(m measurement) int64 { return m.PageCache })
	return runs, nil
}

func printTable(out io.Writer, title string, runs []memoryRun, bytes func(measurement) int64) {
	fmt.Fprintf(out, "%-50s", title+" in MiB, after batches")
	for _, m := range runs[0].Measurements {
		fmt.Fprintf(out, "%7d", m.Batches)
	}
	for _, r := range runs {
		fmt.Fprintf(out, "\n%-50s", r.Name)
		for _, m := range r.Measurements {
			fmt.Fprintf(out, "%7d", bytes(m)>>20)
		}
	}
	fmt.Fprint(out, "\n\n")
}

// powersOfTen returns the powers of ten below last, followed by last.
func powersOfTen(last int) (stops []int) {
	for n := 1; n < last; n *= 10 {
		stops = append(stops, n)
	}
	return append(stops, last)
}

func (o *options) measureMemory(s *stage, tokens string, r *memoryRun) (err error) {
	fmt.Fprintf(s.stderr, "%s: %d batches\n", r.Name, r.measureAfter[len(r.measureAfter)-1])
	if err := dropPages(tokens); err != nil {
		return err
	}
	if r.startsCached {
		// Read page by page, as random batches do. Read-ahead would create large folios, and some
		// kernels map a whole folio on one page fault.
		if err := warmUp(tokens, unix.FADV_RANDOM); err != nil {
			return err
		}
	}
	path, daemonPID := tokens, 0
	if r.sets != nil {
		d, err := s.mount(tokens, slices.Concat(o.sets, r.sets)...)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.stop()) }()
		path, daemonPID = filepath.Join(d.mountpoint, "train/next"), d.workerPID
	}
	args := []string{r.function, path}
	for _, n := range r.measureAfter {
		args = append(args, strconv.Itoa(n))
	}
	trainer, err := s.startTrainer(o.python, memoryPy, args...)
	if err != nil {
		return err
	}
	defer trainer.stop()
	for len(r.Measurements) < len(r.measureAfter) {
		m := measurement{}
		if err := trainer.read(&m.Batches); err != nil {
			return fmt.Errorf("%w; does the Python that --python names have NumPy?", err)
		}
		if m.PageCache, err = pageCacheBytes(tokens); err != nil {
			return err
		}
		if m.Trainer, err = usageOf(trainer.cmd.Process.Pid); err != nil {
			return err
		}
		if r.sets != nil {
			if m.Daemon, err = usageOf(daemonPID); err != nil {
				return err
			}
		}
		r.Measurements = append(r.Measurements, m)
		trainer.write(trainerCommand{}) // makes memory.py continue
	}
	return nil
}
