package bench

import (
	"fmt"
	"io"
	"strings"
)

type report struct {
	Host          hostInfo `json:"host"`
	ColdWasCached bool     `json:"not_cold"` // the file stayed in the page cache, as on tmpfs
	Scenes        []*scene `json:"scenes"`
}

func (r *report) print(out io.Writer) {
	h := r.Host
	library := "NumPy " + h.NumPy
	if h.Torch != "" {
		library = "PyTorch " + h.Torch + ", " + library
	}
	fmt.Fprintf(out, "%d cores, load %.2f at the start, Linux %s, %s, Python %s, %s\n", h.Cores, h.Load, h.Kernel, h.Go, h.Python, library)
	fmt.Fprintf(out, "token files of %d MiB (warm) and %d MiB (cold)\n", h.WarmBytes>>20, h.ColdBytes>>20)
	for _, sc := range r.Scenes {
		fmt.Fprintf(out, "\n%s: %d rows of %d tokens, µs that the trainer waits for a batch\n", strings.ToUpper(sc.Name), sc.Batch, sc.Block)
		if sc.Cold && r.ColdWasCached {
			fmt.Fprintln(out, "  not measured, for no file here leaves the page cache (is this a tmpfs?): name a directory on a disk with --dir")
			continue
		}
		fmt.Fprintf(out, "  %-36s %8s %15s %8s %9s\n", "", "wait", "lowest-highest", "p99", "nanoGPT/")
		for _, w := range sc.Ways {
			fmt.Fprintf(out, "  %-36s %8s %15s %8s %8.3gx\n", w.Name, micros(w.Wait), micros(w.Low)+"-"+micros(w.High), micros(w.P99), w.NanoGPT)
		}
	}
}

func micros(t float64) string {
	if t < 100 {
		return fmt.Sprintf("%.1f", t)
	}
	return fmt.Sprintf("%.0f", t)
}
