package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"batchfs/cmd/batchfs/chart"
	"batchfs/cmd/batchfs/terminal"
)

type report struct {
	Host          hostInfo `json:"host"`
	ColdWasCached bool     `json:"not_cold"` // the file stayed in the page cache, as on tmpfs
	Scenes        []*scene `json:"scenes"`
}

// measured returns the scenes without the cold one if its file was in the page cache.
func (r *report) measured() []*scene {
	return slices.DeleteFunc(slices.Clone(r.Scenes), func(sc *scene) bool { return sc.Cold && r.ColdWasCached })
}

// print draws a bar for each loader in the scenes with compute, and says what to read in the last
// of them, which is the cold one if that was measured.
func (r *report) print(out io.Writer) {
	var last *scene
	for _, sc := range r.measured() {
		if sc.Compute == 0 {
			continue
		}
		last = sc
		fmt.Fprintf(out, "\nWait for a batch of %d rows of %d tokens, %s\n", sc.Batch, sc.Block, sc.Name)
		bests, longest := sc.bests(), 0.0
		for _, w := range bests {
			longest = max(longest, w.Wait)
		}
		for _, w := range bests {
			fmt.Fprintf(out, "  %-43s %s %s\n", w, terminal.Bar(w.Wait, longest, 22), formatWait(w.Wait))
		}
	}
	if r.ColdWasCached {
		fmt.Fprintln(out, "\nA cold disk was not measured, because no file here leaves the page cache (is this a tmpfs?): name a "+
			"directory on a disk with --dir")
	}
	fmt.Fprintf(out, "\n%s\n", last.advice())
}

// bests returns the fastest of the ways of each kind.
func (sc *scene) bests() (list []*way) {
	var kinds []string
	for _, w := range sc.Ways {
		if !slices.Contains(kinds, w.Kind) {
			kinds = append(kinds, w.Kind)
			list = append(list, fastest(sc.Ways, func(other *way) bool { return other.Kind == w.Kind }))
		}
	}
	return list
}

// fastest returns the fastest of the ways that match. If an earlier one is hardly slower, it
// returns that, because small differences are noise.
func fastest(ways []*way, match func(*way) bool) (best *way) {
	for _, w := range ways {
		if match(w) && (best == nil || best.Wait > 1.25*w.Wait) {
			best = w
		}
	}
	return best
}

// advice returns a sentence that says what to read, and how long a trainer then waits.
func (sc *scene) advice() string {
	bests := sc.bests()
	mount := fastest(bests, func(w *way) bool { return w.Access != "" })
	best := fastest([]*way{mount, fastest(bests, func(w *way) bool { return w.Access == "" })}, func(*way) bool { return true })
	what := "Read " + strings.TrimSuffix(mount.Name, ", "+mount.Access)
	switch {
	case best != mount:
		what = fmt.Sprintf("A mount is slower here (%s: %s), so use %s", mount, formatWait(mount.Wait), best)
	case mount.Access != defaultAccess:
		what += fmt.Sprintf(" with memory.access = %q", mount.Access)
	}
	return fmt.Sprintf("%s: a trainer waits %s for a batch, %s. With %s, it waits %s, %s times as long.",
		what, formatWait(best.Wait), sc.Name, sc.Ways[0], formatWait(sc.Ways[0].Wait), threeDigits(best.NanoGPT))
}

// String returns the name of w as part of a list of loaders.
func (w *way) String() string {
	if w.Access == "" {
		return w.Name
	}
	return "batchfs, " + w.Name
}

// savePlot draws a bar for each way in each scene.
func (r *report) savePlot(path string) error {
	var charts []chart.Chart
	for _, sc := range r.measured() {
		c := chart.Bars{Title: "Wait for a batch, " + sc.Name}
		for _, w := range sc.Ways {
			c.Bars = append(c.Bars, chart.Bar{Name: w.String(), Label: formatWait(w.Wait), Value: w.Wait, Highlight: w.Access != ""})
		}
		charts = append(charts, c)
	}
	return chart.Save(path, charts...)
}

// printAll prints every measurement.
func (r *report) printAll(out io.Writer) {
	h := r.Host
	library := "NumPy " + h.NumPy
	if h.Torch != "" {
		library = "PyTorch " + h.Torch + ", " + library
	}
	fmt.Fprintf(out, "%d cores, load %.2f at the start, Linux %s, %s, Python %s, %s\n", h.Cores, h.Load, h.Kernel, h.Go, h.Python, library)
	fmt.Fprintf(out, "token files of %d MiB (warm) and %d MiB (cold)\n", h.WarmBytes>>20, h.ColdBytes>>20)
	for _, sc := range r.measured() {
		fmt.Fprintf(out, "\n%s: %d rows of %d tokens, µs that the trainer waits for a batch\n", strings.ToUpper(sc.Name), sc.Batch, sc.Block)
		fmt.Fprintf(out, "  %-36s %8s %15s %8s %9s\n", "", "wait", "lowest-highest", "p99", "nanoGPT/")
		for _, w := range sc.Ways {
			fmt.Fprintf(out, "  %-36s %8s %15s %8s %8sx\n", w.Name, micros(w.Wait), micros(w.Low)+"-"+micros(w.High), micros(w.P99), threeDigits(w.NanoGPT))
		}
	}
}

// formatWait formats a time in µs with its unit.
func formatWait(t float64) string {
	if t >= 1000 {
		return threeDigits(t/1000) + " ms"
	}
	return micros(t) + " µs"
}

// threeDigits formats a number with at least three digits.
func threeDigits(n float64) string {
	if n < 999.5 {
		return fmt.Sprintf("%.3g", n)
	}
	return fmt.Sprintf("%.0f", n)
}

func micros(t float64) string {
	if t < 100 {
		return fmt.Sprintf("%.1f", t)
	}
	return fmt.Sprintf("%.0f", t)
}
