package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"batchfs/cmd/batchfs/chart"
)

// A report is everything that a bench measured.
type report struct {
	Host     host      `json:"host"`
	Ideal    float64   `json:"ideal_disk_bytes_per_batch"` // of the 4 KiB pages that the rows of a batch lie on
	NotCold  bool      `json:"not_cold"`                   // the file stayed in the page cache, as on a tmpfs
	Scenes   []played  `json:"scenes"`
	Promises []promise `json:"promises"`
}

type played struct {
	scene
	Rows []row `json:"rows"`
}

// A row is one contender in one scene. Times are in µs per batch.
type row struct {
	Name string `json:"name"`
	contender
	Rounds  []float64 `json:"rounds"`
	Figure  float64   `json:"figure"` // the median of the rounds
	Low     float64   `json:"low"`
	High    float64   `json:"high"`
	Mean    float64   `json:"mean"` // of single waits, as are the next two
	Median  float64   `json:"median"`
	P99     float64   `json:"p99"`
	NanoGPT float64   `json:"nanogpt_over_this"`
	Gather  float64   `json:"this_over_gather"`
	Disk    float64   `json:"disk_bytes_per_batch"` // read by the process that reads the token file
	Even    float64   `json:"slowest_over_fastest_reader"`
}

func (r *report) add(sc scene, results []*result) {
	p := played{scene: sc}
	for _, res := range results {
		w := row{Name: res.contender.String(), contender: res.contender, Rounds: res.rounds,
			Figure: median(res.rounds), Low: slices.Min(res.rounds), High: slices.Max(res.rounds),
			Mean: mean(res.waits), Median: median(res.waits), P99: quantile(res.waits, 0.99),
			Disk: float64(res.disk) / float64(res.steps), Even: median(res.even)}
		p.Rows = append(p.Rows, w)
	}
	for i := range p.Rows {
		w := &p.Rows[i]
		if base := p.find(nanoGPT); base != nil {
			w.NanoGPT = base.Figure / w.Figure
		}
		if gather := p.gatherOf(w.contender); gather != nil {
			w.Gather = w.Figure / gather.Figure
		}
	}
	r.Scenes = append(r.Scenes, p)
}

func (p *played) find(c contender) *row {
	i := slices.IndexFunc(p.Rows, func(w row) bool { return w.contender == c })
	if i < 0 {
		return nil
	}
	return &p.Rows[i]
}

// gatherOf returns the gather with the same access and dtype, or the nearest to it.
func (p *played) gatherOf(c contender) *row {
	for _, access := range []string{c.Access, "pread"} {
		for _, dtype := range []string{c.DType, "uint16", "int64"} {
			if w := p.find(compiledReader("gather", access).as(dtype, "xy")); w != nil {
				return w
			}
		}
	}
	return nil
}

// A promise is one ratio that batchfs promises, and its measured value.
type promise struct {
	Scene   string  `json:"scene"`
	Name    string  `json:"name"`
	Against string  `json:"against"`
	Ratio   float64 `json:"ratio"`
	Target  float64 `json:"target"`
	AtMost  bool    `json:"at_most"` // Target is what Ratio must not exceed; else what it must reach
	Holds   bool    `json:"holds"`
}

func (r *report) least(scene, name, against string, ratio, target float64) {
	r.Promises = append(r.Promises, promise{scene, name, against, ratio, target, false, ratio >= target})
}

func (r *report) most(scene, name, against string, ratio, target float64) {
	r.Promises = append(r.Promises, promise{scene, name, against, ratio, target, true, ratio <= target})
}

// promise fills in the promises.
func (r *report) promise() {
	for i := range r.Scenes {
		p := &r.Scenes[i]
		switch p.Name {
		case backToBack:
			r.promiseFast(p, []target{
				{mount("batches_bin", "pread"), 5}, {mount("batches_bin", "remap"), 2}, {mount("batches_npy", "pread"), 5}, {mount("batches_npy", "remap"), 2},
				{mount("next_kept", "pread"), 4}, {mount("next_kept", "remap"), 2}, {mount("next_open", "pread"), 2}, {mount("next_open", "remap"), 1.5},
				{mount("next_read", "pread"), 1}, {mount("next_read", "remap"), 1},
			})
			file, gather := p.find(compiledReader("batches_bin", "pread")), p.find(compiledReader("gather", "pread"))
			r.most(p.Name, file.Name+", compiled reader", gather.Name, file.Figure/gather.Figure, 2.5)
			for _, kind := range []string{"next_kept", "batches_bin"} {
				for _, access := range twoAccess {
					one, four := p.find(mount(kind, access)), p.find(mount(kind, access).readBy(maxReaders))
					r.least(p.Name, four.Name, "batches/s of one", one.Figure/four.Figure, 1.5)
					r.least(p.Name, four.Name, "slowest, fastest of them", four.Even, 0.5)
				}
			}
		case afterCompute:
			var targets []target
			for _, access := range allAccess {
				targets = append(targets, target{wholeRows("batches_bin", access), 15}, target{wholeRows("batches_npy", access), 15},
					target{mount("next_kept", access), 3}, target{mount("next_open", access), 2})
			}
			r.promiseFast(p, targets)
		case large:
			for _, access := range twoAccess {
				kept := p.find(compiledReader("next_kept", access).as("int64", "xy"))
				gather := p.find(compiledReader("gather", access).as("int64", "xy"))
				r.most(p.Name, kept.Name+", compiled reader", "gather + one read of a file", kept.Figure/(gather.Figure+p.find(ordinary).Figure), 2)
			}
		case cold:
			if p.find(nanoGPT).Disk < r.Ideal {
				r.NotCold = true
				continue
			}
			target := 15.0
			if r.Host.DiskReadAhead >= 8<<10 {
				target = 50
			}
			for _, kind := range []string{"batches_bin", "next_kept"} {
				for _, access := range twoAccess {
					w := p.find(mount(kind, access))
					r.least(p.Name, w.Name, "nanoGPT get_batch", w.NanoGPT, target)
					r.most(p.Name, w.Name, "disk bytes, to pages of rows", w.Disk/r.Ideal, 1.2)
				}
			}
		}
	}
}

type target struct {
	contender
	ratio float64 // of nanoGPT's wait to this one's
}

// promiseFast adds the promises that compare mounts, read from Python, with loaders in the trainer's process.
func (r *report) promiseFast(p *played, targets []target) {
	best := p.find(fastest[0])
	for _, c := range fastest {
		if w := p.find(c); w.Figure < best.Figure {
			best = w
		}
	}
	var slowest *row
	for _, t := range targets {
		w := p.find(t.contender)
		r.least(p.Name, w.Name, "nanoGPT get_batch", w.NanoGPT, t.ratio)
		if strings.HasPrefix(t.Kind, "batches_") && p.Compute > 0 {
			r.least(p.Name, w.Name, "the fastest in the trainer", best.Figure/w.Figure, 1.5)
		}
		if slowest == nil || w.Figure > slowest.Figure {
			slowest = w
		}
	}
	if loader := p.find(workers); loader != nil {
		r.least(p.Name, "every row above", loader.Name, loader.Figure/slowest.Figure, 1)
	}
}

func (r *report) print(out io.Writer) {
	h := r.Host
	library := "NumPy " + h.NumPy
	if h.Torch != "" {
		library = "PyTorch " + h.Torch + ", " + library
	}
	fmt.Fprintf(out, "%d cores, load %.2f at the start, Linux %s, %s, Python %s, %s\n", h.Cores, h.Load, h.Kernel, h.Go, h.Python, library)
	fmt.Fprintf(out, "token files of %d MiB (warm) and %d MiB (cold); read-ahead of the disk %d KiB, of a mount %d KiB\n",
		h.WarmBytes>>20, h.ColdBytes>>20, h.DiskReadAhead, h.MountReadAhead)
	fmt.Fprintf(out, "the rows of a batch of %d x %d lie on %.1f KiB of pages\n", r.Scenes[0].Batch, r.Scenes[0].Block, r.Ideal/1024)
	for _, p := range r.Scenes {
		p.print(out, r.Ideal)
	}
	fmt.Fprintf(out, "\nWHAT IS PROMISED\n%-46s %-30s %9s %9s\n", "", "against", "measured", "promised")
	scene := ""
	for _, p := range r.Promises {
		if p.Scene != scene {
			fmt.Fprintln(out, p.Scene)
			scene = p.Scene
		}
		sign, verdict := "", ""
		if p.AtMost {
			sign = "<="
		}
		if !p.Holds {
			verdict = "  DOES NOT HOLD"
		}
		fmt.Fprintf(out, "  %-44s %-30s %8.3gx %8s%s\n", p.Name, p.Against, p.Ratio, fmt.Sprintf("%s%gx", sign, p.Target), verdict)
	}
	if r.NotCold {
		fmt.Fprintln(out, "cold: not measured, for no file here leaves the page cache (is this a tmpfs?): name a directory on a disk with --dir")
	}
}

func (p *played) print(out io.Writer, ideal float64) {
	fmt.Fprintf(out, "\n%s: %d rows of %d tokens, µs that the trainer waits for a batch\n", strings.ToUpper(p.Name), p.Batch, p.Block)
	fmt.Fprintf(out, "%-46s %8s %15s %8s %8s %8s %9s %8s", "", "wait", "lowest-highest", "mean", "median", "p99", "nanoGPT/", "/gather")
	if p.Cold {
		fmt.Fprintf(out, " %9s %7s", "disk KiB", "/pages")
	}
	fmt.Fprintln(out)
	for _, group := range groups {
		head := group + "\n"
		for _, w := range p.Rows {
			if w.group() != group {
				continue
			}
			fmt.Fprint(out, head)
			head = ""
			fmt.Fprintf(out, "  %-44s %8s %15s %8s %8s %8s %9s %8s", w.Name, us(w.Figure), us(w.Low)+"-"+us(w.High),
				us(w.Mean), us(w.Median), us(w.P99), times(w.NanoGPT), times(w.Gather))
			if p.Cold {
				fmt.Fprintf(out, " %9s %7s", us(w.Disk/1024), times(w.Disk/ideal))
			}
			fmt.Fprintln(out)
		}
	}
}

func us(t float64) string {
	if t < 100 {
		return fmt.Sprintf("%.1f", t)
	}
	return fmt.Sprintf("%.0f", t)
}

func times(ratio float64) string {
	if ratio == 0 {
		return ""
	}
	return fmt.Sprintf("%.3gx", ratio)
}

func (r *report) charts() (all []chart.Chart) {
	for _, p := range r.Scenes {
		var b []chart.Bar
		for _, w := range p.Rows {
			b = append(b, chart.Bar{Name: w.Name, Group: w.group(), Value: w.Figure, Low: w.Low, High: w.High})
		}
		all = append(all, chart.Bars(fmt.Sprintf("%s: %d×%d tokens", p.Name, p.Batch, p.Block), "µs that the trainer waits for a batch", b))
	}
	return all
}

func (r *report) writeJSON(path string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o666)
}
