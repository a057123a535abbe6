package bench

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

type report struct {
	Host          hostInfo `json:"host"`
	ColdWasCached bool     `json:"not_cold"` // the file stayed in the page cache, as on tmpfs
	Scenes        []*scene `json:"scenes"`
	Advice        string   `json:"advice"`
}

// rootReadAhead is how far the kernel reads ahead in a mount that root made, in KiB.
const rootReadAhead = 1024

// advice returns a sentence that says how a trainer with a default mount could wait less.
func (r *report) advice() string {
	const minSpeedup = 1.25 // smaller speedups may be noise
	busy, training := r.Scenes[0], r.Scenes[1]
	bin, keptOpen, reopened := training.find("batches_bin", "remap"), training.find("next_kept", "remap"), training.find("next_opened", "remap")
	var change []string
	best := bin
	took := fmt.Sprintf("%s µs a batch %s; next kept open takes %s, next opened for each batch %s",
		micros(bin.Wait), training.Name, micros(keptOpen.Wait), micros(reopened.Wait))
	switch {
	case keptOpen.Wait > minSpeedup*bin.Wait:
		change = append(change, "read batches.bin in order ("+took+")")
	case reopened.Wait > minSpeedup*keptOpen.Wait:
		best = keptOpen
		change = append(change, "keep next open (batches.bin takes "+took+")")
	}
	if remap, pread := busy.find(best.Kind, "remap"), busy.find(best.Kind, "pread"); remap.Wait > minSpeedup*pread.Wait {
		change = append(change, fmt.Sprintf(`set memory.access = "pread" (%s µs a batch %s; "remap" takes %s)`, micros(pread.Wait), busy.Name, micros(remap.Wait)))
	}
	if ahead := r.Host.MountReadAhead; ahead > 0 && ahead < rootReadAhead {
		change = append(change, fmt.Sprintf("mount as root, so that the kernel reads %d KiB of batches.bin ahead, not %d", rootReadAhead, ahead))
	}
	fastest := slices.MinFunc(training.Ways, func(a, b *way) int { return cmp.Compare(a.Wait, b.Wait) })
	if fastest.Access == "" && best.Wait > minSpeedup*fastest.Wait {
		change = append(change, fmt.Sprintf("or use no mount: the fastest is %s (%s µs)", fastest.Name, micros(fastest.Wait)))
	}
	if len(change) == 0 {
		return "Change nothing: every way to read takes about as long."
	}
	return "To wait less: " + strings.Join(change, "; ") + "."
}

func (sc *scene) find(kind, access string) *way {
	i := slices.IndexFunc(sc.Ways, func(w *way) bool { return w.Kind == kind && w.Access == access })
	return sc.Ways[i]
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
	fmt.Fprintf(out, "\n%s\n", r.Advice)
}

func micros(t float64) string {
	if t < 100 {
		return fmt.Sprintf("%.1f", t)
	}
	return fmt.Sprintf("%.0f", t)
}
