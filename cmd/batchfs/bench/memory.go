package bench

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/chart"
)

//go:embed memory.py
var memoryPy string

// A loading is one way to load batches, and the memory that it took.
type loading struct {
	Name    string   `json:"name"`
	how     string   // a function of memory.py
	file    string   // of tokens, or of a matrix
	sets    []string // of the mount that it reads; nil: it reads the token file
	cached  bool     // whether the page cache has all of the file at the beginning, or none of it
	stops   []int    // the numbers of batches after which samples are taken
	Samples []sample `json:"samples"`
}

// A sample is the memory taken after a number of batches.
type sample struct {
	Batches   int   `json:"batches"`
	PageCache int64 `json:"page_cache"` // bytes of the file
	Trainer   usage `json:"trainer"`
	Daemon    usage `json:"daemon,omitzero"`
}

func (o *options) runMemory(ctx context.Context, out, progress io.Writer) (err error) {
	if o.batches < 1 {
		return errors.New("--batches: must be at least 1")
	}
	s, err := newStage(o.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return err
	}
	if o.full && st.Type == unix.TMPFS_MAGIC {
		return fmt.Errorf("%s is on tmpfs, which would fill memory with 64 GiB of holes: name a directory on a disk with --dir", s.dir)
	}
	tokens := o.tokens
	if tokens == "" {
		fmt.Fprintf(progress, "making 1 GiB of tokens in %s\n", s.dir)
		if tokens, err = s.tokens(ctx, "tokens.bin", 1<<30, false, io.Discard); err != nil {
			return err
		}
	}
	if tokens, err = filepath.Abs(tokens); err != nil { // the daemon has another working directory
		return err
	}
	matrix, err := s.matrix(ctx, tokens)
	if err != nil {
		return err
	}
	loadings := []loading{
		{Name: "np.memmap kept, in the trainer", how: "kept"},
		{Name: "np.memmap per batch, in the trainer", how: "per_batch"},
	}
	for _, access := range []string{"map", "remap", "advise", "pread"} {
		loadings = append(loadings, loading{Name: "batchfs " + access, how: "opened", sets: []string{"memory.access=" + access}})
	}
	loadings = append(loadings,
		loading{Name: "np.memmap of a matrix, kept", how: "matrix", file: matrix},
		loading{Name: "batchfs, rows of a matrix", how: "opened", file: matrix, sets: []string{"splits.train.layout=rows",
			"splits.train.token_dtype=float32", fmt.Sprintf("splits.train.shape=[%d]", matrixColumns), "splits.train.order=shuffle"}})
	for i := range loadings {
		loadings[i].cached, loadings[i].stops = true, logarithmic(o.batches)
	}
	for _, keep := range []string{"keep", "drop"} {
		loadings = append(loadings, loading{
			Name: "page_cache = " + keep, how: "opened", sets: []string{"memory.page_cache=" + keep},
			stops: logarithmic((o.batches + 2) / 3), // these read the disk
		})
	}
	for i := range loadings {
		l := &loadings[i]
		l.file = cmp.Or(l.file, tokens)
		if err := o.load(ctx, s, l, progress); err != nil {
			return err
		}
	}
	resident, cache := memoryLines(loadings)
	printLines(out, "resident memory in MiB, after batches", resident)
	printLines(out, "page cache of the token file in MiB, after batches", cache)
	if o.full {
		long, err := o.loadLong(ctx, s, out, progress)
		if err != nil {
			return err
		}
		loadings = append(loadings, long...)
	}
	if o.json != "" {
		text, err := json.MarshalIndent(loadings, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.json, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	if o.plot == "" {
		return nil
	}
	resident = slices.DeleteFunc(resident, func(l chart.Line) bool {
		return strings.Contains(l.Name, "per batch") || strings.HasSuffix(l.Name, "its trainer")
	})
	return chart.Save(o.plot,
		chart.Lines("The memmap “leak”, and what ends it", "batches read", "resident memory, MiB", true, resident),
		chart.Lines("The kernel's page cache, beginning with none of the file", "batches read", "of the file in it, MiB", true, cache))
}

// loadLong takes samples of daemons that serve 64 GiB, after many batches.
func (o *options) loadLong(ctx context.Context, s *stage, out, progress io.Writer) ([]loading, error) {
	tokens, err := s.tokens(ctx, "sparse.bin", 64<<30, true, io.Discard)
	if err != nil {
		return nil, err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "64 GiB of tokens                    \tbatches\tresident MiB\tpage tables MiB\topen files\tthreads\tits trainer, MiB\t")
	var loadings []loading
	for _, access := range []string{"remap", "advise", "pread"} {
		sets := []string{"memory.access=" + access}
		loadings = append(loadings, loading{Name: "batchfs " + access + ", next kept open", how: "held", sets: sets, stops: []int{1e4, 1e6}})
	}
	loadings = append(loadings, loading{Name: "batchfs, next opened for each batch", how: "opened", sets: []string{}, stops: []int{100, 1e5}})
	for i := range loadings {
		l := &loadings[i]
		l.file = tokens
		if err := o.load(ctx, s, l, progress); err != nil {
			return nil, err
		}
		for _, a := range l.Samples {
			d := a.Daemon
			fmt.Fprintf(w, "%-36s\t%d\t%.1f\t%.1f\t%d\t%d\t%.1f\t\n", l.Name, a.Batches, mib(d.Resident), mib(d.PageTables), d.OpenFiles, d.Threads, mib(a.Trainer.Resident))
		}
	}
	return loadings, w.Flush()
}

// matrixColumns is how many float32 a row of the matrix has. With 12 rows a batch has as many bytes as one of tokens.
const matrixColumns = 1024

// matrix is a file of whole rows: that of the tokens, whose values do not matter, or else one of about its size.
func (s *stage) matrix(ctx context.Context, tokens string) (string, error) {
	info, err := os.Stat(tokens)
	if err != nil {
		return "", err
	}
	const row = 4 * matrixColumns
	if info.Size() >= row && info.Size()%row == 0 {
		return tokens, nil
	}
	return s.tokens(ctx, "matrix.bin", max(info.Size()/row, 1)*row, false, io.Discard)
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// memoryLines returns MiB against batches: resident, of the processes that read tokens and of their trainers; and cache, of the page
// cache where it began without the file.
func memoryLines(loadings []loading) (resident, cache []chart.Line) {
	for _, l := range loadings {
		process, trainer, pages := chart.Line{Name: l.Name}, chart.Line{Name: l.Name + ": its trainer"}, chart.Line{Name: l.Name}
		for _, a := range l.Samples {
			own := a.Trainer
			if l.sets != nil {
				own = a.Daemon
			}
			for at, bytes := range map[*chart.Line]int64{&process: own.Resident, &trainer: a.Trainer.Resident, &pages: a.PageCache} {
				at.X, at.Y = append(at.X, float64(a.Batches)), append(at.Y, mib(bytes))
			}
		}
		if !l.cached {
			cache = append(cache, pages)
			continue
		}
		if resident = append(resident, process); l.sets != nil {
			resident = append(resident, trainer)
		}
	}
	return resident, cache
}

// printLines prints lines that share their x as a table, with a column for each power of ten and the last x.
func printLines(out io.Writer, title string, all []chart.Line) {
	width := utf8.RuneCountInString(title)
	for _, l := range all {
		width = max(width, utf8.RuneCountInString(l.Name))
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, l chart.Line, value func(int) float64) {
		fmt.Fprintf(w, "%-*s\t", width, name)
		for i, x := range l.X {
			if i == len(l.X)-1 || math.Mod(math.Log10(x), 1) == 0 {
				fmt.Fprintf(w, "%.0f\t", value(i))
			}
		}
		fmt.Fprintln(w)
	}
	row(title, all[0], func(i int) float64 { return all[0].X[i] })
	for _, l := range all {
		row(l.Name, l, func(i int) float64 { return l.Y[i] })
	}
	w.Flush()
	fmt.Fprintln(out)
}

// logarithmic returns 1, 2, 5, 10, 20, 50, … below last, and then last.
func logarithmic(last int) []int {
	var stops []int
	for ten := 1; ten < last; ten *= 10 {
		for _, n := range []int{ten, 2 * ten, 5 * ten} {
			if n < last {
				stops = append(stops, n)
			}
		}
	}
	return append(stops, last)
}

// load runs a loading and takes its samples.
func (o *options) load(ctx context.Context, s *stage, l *loading, progress io.Writer) (err error) {
	fmt.Fprintf(progress, "%s: %d batches\n", l.Name, l.stops[len(l.stops)-1])
	if err := dropPages(l.file); err != nil {
		return err
	}
	if l.cached {
		// Page by page, as random batches do. Read-ahead makes large folios, and some kernels map a whole folio at one fault.
		if err := warmUp(l.file, unix.FADV_RANDOM); err != nil {
			return err
		}
	}
	path, daemonPID := l.file, 0
	if l.sets != nil {
		d, err := s.mount(l.file, l.sets...)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.end()) }()
		path, daemonPID = filepath.Join(d.mountpoint, "train/next"), d.pid
	}
	args := []string{o.python, "-c", memoryPy, l.how, path}
	for _, n := range l.stops {
		args = append(args, strconv.Itoa(n))
	}
	trainer, err := s.trainer(ctx, args...)
	if err != nil {
		return fmt.Errorf("--python: %w", err)
	}
	defer trainer.end()
	for len(l.Samples) < len(l.stops) {
		a := sample{}
		if err := trainer.read(&a.Batches); err != nil {
			return fmt.Errorf("%w; does the Python that --python names have NumPy?", err)
		}
		if a.PageCache, err = pageCache(l.file); err != nil {
			return err
		}
		if a.Trainer, err = usageOf(trainer.cmd.Process.Pid); err != nil {
			return err
		}
		if l.sets != nil {
			if a.Daemon, err = usageOf(daemonPID); err != nil {
				return err
			}
		}
		l.Samples = append(l.Samples, a)
		trainer.write(command{}) // continue
	}
	return nil
}
