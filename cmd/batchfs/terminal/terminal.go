// Package terminal writes what commands print: progress, sizes, bars and JSON.
package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Is reports whether out is a terminal.
func Is(out io.Writer) bool {
	f, ok := out.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

// JSON writes v for programs, indented.
func JSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// Size is a number of bytes in words.
func Size(n int64) string {
	const units = "kMGTPE"
	if n < 1000 {
		return fmt.Sprintf("%d bytes", n)
	}
	power := int(math.Log10(float64(n))+1e-9) / 3
	return fmt.Sprintf("%.1f %cB", float64(n)/math.Pow(1000, float64(power)), units[power-1])
}

// Count is n with the word for one, or for several.
func Count(n int64, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}

// Bar draws n, where most is a bar of 40 columns. What is not 0 has an eighth of a column at least.
func Bar(n, most float64) string {
	const width = 40
	if n <= 0 {
		return ""
	}
	eighths := int(math.Ceil(8 * width * n / most))
	return strings.Repeat("█", eighths/8) + strings.TrimSpace(string([]rune(" ▏▎▍▌▋▊▉")[eighths%8]))
}

// Progress shows how much of some work is done.
type Progress struct {
	bar         *progressbar.ProgressBar
	done, total atomic.Int64
	finished    chan struct{}
	lines       sync.WaitGroup
}

// A Unit is what a [Progress] counts.
type Unit bool

const (
	Steps Unit = false
	Bytes Unit = true
)

// NewProgress begins a progress bar on out for total units of work; -1 is unknown. Nothing is shown where out is no terminal.
func NewProgress(out io.Writer, what string, total int64, unit Unit) *Progress {
	p := &Progress{finished: make(chan struct{}), bar: progressbar.NewOptions64(total,
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetWriter(out),
		progressbar.OptionShowBytes(unit == Bytes),
		progressbar.OptionSetVisibility(Is(out)),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)}
	p.total.Store(total)
	return p
}

// Lines also writes the progress of bytes to out in lines, for a log: the first after a second, then ever more rarely, but every minute.
func (p *Progress) Lines(out io.Writer) {
	p.lines.Go(func() {
		for wait := time.Second; ; wait = min(2*wait, time.Minute) {
			select {
			case <-p.finished:
				return
			case <-time.After(wait):
			}
			done, total := p.done.Load(), p.total.Load()
			if total > 0 {
				fmt.Fprintf(out, "%s: %d%% of %s\n", p.bar.State().Description, 100*min(done, total)/total, Size(total))
			} else {
				fmt.Fprintf(out, "%s: %s\n", p.bar.State().Description, Size(done))
			}
		}
	})
}

// Add counts n more units as done.
func (p *Progress) Add(n int) {
	p.done.Add(int64(n))
	p.bar.Add(n)
}

// Set replaces how many units are done, and how many there are in total.
func (p *Progress) Set(done, total int64) {
	p.done.Store(done)
	p.total.Store(total)
	p.bar.ChangeMax64(total)
	p.bar.Set64(done)
}

// Describe replaces what the work is called.
func (p *Progress) Describe(what string) { p.bar.Describe(what) }

// Finish removes the bar from the terminal, and ends the lines. It is called once.
func (p *Progress) Finish() {
	close(p.finished)
	p.lines.Wait()
	p.bar.Finish()
}
