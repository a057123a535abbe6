package bench

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

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
	cached  bool     // whether the page cache has the whole file at the beginning, or nothing
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

func (o *options) runMemory(s *stage, out io.Writer) (any, error) {
	tokens, err := s.given(o.tokens, 1<<30)
	if err != nil {
		return nil, err
	}
	matrix, err := s.matrix(tokens)
	if err != nil {
		return nil, err
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
		if err := o.load(s, l); err != nil {
			return nil, err
		}
	}
	resident, cache := memoryLines(loadings)
	printLines(out, "resident memory in MiB, after batches", resident)
	printLines(out, "page cache of the token file in MiB, after batches", cache)
	if o.plot == "" {
		return loadings, nil
	}
	resident = slices.DeleteFunc(resident, func(l chart.Line) bool {
		return strings.Contains(l.Name, "per batch") || strings.HasSuffix(l.Name, "its trainer")
	})
	return loadings, chart.Save(o.plot,
		chart.Lines("The memmap “leak”, and what ends it", "batches read", "resident memory, MiB", true, resident),
		chart.Lines("The kernel's page cache, beginning with none of the file", "batches read", "of the file in it, MiB", true, cache))
}

// matrixColumns is how many float32 a row of the matrix has. With 12 rows a batch has as many bytes as one of tokens.
const matrixColumns = 1024

// matrix is a file of whole rows: the token file, whose values do not matter, or else a file of about its size.
func (s *stage) matrix(tokens string) (string, error) {
	info, err := os.Stat(tokens)
	if err != nil {
		return "", err
	}
	const row = 4 * matrixColumns
	if info.Size() >= row && info.Size()%row == 0 {
		return tokens, nil
	}
	return s.tokens("matrix.bin", max(info.Size()/row, 1)*row)
}

func (l loading) line(name string, bytes func(sample) int64) (line chart.Line) {
	line.Name = name
	for _, a := range l.Samples {
		line.X, line.Y = append(line.X, float64(a.Batches)), append(line.Y, float64(bytes(a))/(1<<20))
	}
	return line
}

// memoryLines returns lines of what is resident, of the processes that read tokens and of their trainers; and of the page cache where
// it began without the file.
func memoryLines(loadings []loading) (resident, cache []chart.Line) {
	trainer := func(a sample) int64 { return a.Trainer.Resident }
	for _, l := range loadings {
		switch {
		case !l.cached:
			cache = append(cache, l.line(l.Name, func(a sample) int64 { return a.PageCache }))
		case l.sets == nil:
			resident = append(resident, l.line(l.Name, trainer))
		default:
			resident = append(resident, l.line(l.Name, func(a sample) int64 { return a.Daemon.Resident }), l.line(l.Name+": its trainer", trainer))
		}
	}
	return resident, cache
}

// printLines prints lines that share their x as a table, with a column for each power of ten and the last x.
func printLines(out io.Writer, title string, all []chart.Line) {
	print := func(name string, x, y []float64) {
		fmt.Fprintf(out, "%-50s", name)
		for i := range x {
			if i == len(x)-1 || math.Mod(math.Log10(x[i]), 1) == 0 {
				fmt.Fprintf(out, "%7.0f", y[i])
			}
		}
		fmt.Fprintln(out)
	}
	print(title, all[0].X, all[0].X)
	for _, l := range all {
		print(l.Name, l.X, l.Y)
	}
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

func (o *options) load(s *stage, l *loading) (err error) {
	fmt.Fprintf(s.stderr, "%s: %d batches\n", l.Name, l.stops[len(l.stops)-1])
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
		d, err := s.mount(l.file, slices.Concat(o.sets, l.sets)...)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.end()) }()
		path, daemonPID = filepath.Join(d.mountpoint, "train/next"), d.pid
	}
	args := []string{l.how, path}
	for _, n := range l.stops {
		args = append(args, strconv.Itoa(n))
	}
	trainer, err := s.trainer(o.python, memoryPy, args...)
	if err != nil {
		return err
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
