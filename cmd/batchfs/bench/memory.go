package bench

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/chart"
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
	resident, cache := memoryLines(runs)
	printTable(out, "resident memory in MiB, after batches", resident)
	printTable(out, "page cache of the token file in MiB, after batches", cache)
	if o.plot == "" {
		return runs, nil
	}
	resident = slices.DeleteFunc(resident, func(l chart.Line) bool {
		return strings.Contains(l.Name, "per batch") || strings.HasSuffix(l.Name, "its trainer")
	})
	return runs, chart.Save(o.plot,
		chart.Lines("The memmap “leak”, and what ends it", "batches read", "resident memory, MiB", true, resident),
		chart.Lines("The kernel's page cache, beginning with none of the file", "batches read", "of the file in it, MiB", true, cache))
}

func (r memoryRun) line(name string, bytes func(measurement) int64) (line chart.Line) {
	line.Name = name
	for _, m := range r.Measurements {
		line.X, line.Y = append(line.X, float64(m.Batches)), append(line.Y, float64(bytes(m))/(1<<20))
	}
	return line
}

// memoryLines returns the resident memory of the processes that read tokens and of their trainers,
// and the page cache of the runs that started without the file in it.
func memoryLines(runs []memoryRun) (resident, cache []chart.Line) {
	trainer := func(m measurement) int64 { return m.Trainer.Resident }
	for _, r := range runs {
		switch {
		case !r.startsCached:
			cache = append(cache, r.line(r.Name, func(m measurement) int64 { return m.PageCache }))
		case r.sets == nil:
			resident = append(resident, r.line(r.Name, trainer))
		default:
			resident = append(resident, r.line(r.Name, func(m measurement) int64 { return m.Daemon.Resident }), r.line(r.Name+": its trainer", trainer))
		}
	}
	return resident, cache
}

func printTable(out io.Writer, title string, lines []chart.Line) {
	print := func(name string, numbers []float64) {
		fmt.Fprintf(out, "%-50s", name)
		for _, n := range numbers {
			fmt.Fprintf(out, "%7.0f", n)
		}
		fmt.Fprintln(out)
	}
	print(title, lines[0].X)
	for _, l := range lines {
		print(l.Name, l.Y)
	}
	fmt.Fprintln(out)
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
