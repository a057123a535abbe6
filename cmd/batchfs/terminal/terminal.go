// Package terminal formats the output of commands: progress, sizes, bars and JSON. A command writes
// its results through an [Output] and shows a [Progress] on standard error.
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

// WriteJSON writes v as indented JSON.
func WriteJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// FormatBytes formats a number of bytes for people, in powers of 1000.
func FormatBytes[N int | int64 | float64](n N) string {
	const units = "kMGTPEZYRQ"
	if n < 1000 {
		return fmt.Sprintf("%d bytes", int64(n))
	}
	value, power := float64(n)/1000, 0
	for value >= 999.95 && power < len(units)-1 { // %.1f would print 1000.0
		value, power = value/1000, power+1
	}
	return fmt.Sprintf("%.1f %cB", value, units[power])
}

// Plural returns n followed by the singular or the plural of a noun.
func Plural(n int64, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}

// Bar returns a bar for n, with width columns if n equals most. For any n above 0, the bar has at
// least an eighth of a column.
func Bar(n, most float64, width int) string {
	if n <= 0 {
		return ""
	}
	eighths := int(math.Ceil(8 * float64(width) * n / most))
	return strings.Repeat("█", eighths/8) + strings.TrimSpace(string([]rune(" ▏▎▍▌▋▊▉")[eighths%8]))
}

// A Progress shows how much of some work is done. It is safe for concurrent use.
type Progress struct {
	bar         *progressbar.ProgressBar
	done, total atomic.Int64
	finished    chan struct{}
	lines       sync.WaitGroup
}

// A Unit is the unit that a [Progress] counts.
type Unit bool

const (
	Steps Unit = false
	Bytes Unit = true
)

// NewProgress starts a progress bar on out for total units of work, or -1 if that is unknown. If
// out is not a terminal, nothing is shown.
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

// WriteLines writes the progress also to out, as lines of text for a log. The unit must be Bytes.
// The first line comes after a second, and further ones at growing intervals of up to a minute.
func (p *Progress) WriteLines(out io.Writer) {
	p.lines.Go(func() {
		for wait := time.Second; ; wait = min(2*wait, time.Minute) {
			select {
			case <-p.finished:
				return
			case <-time.After(wait):
			}
			done, total := p.done.Load(), p.total.Load()
			if total > 0 {
				fmt.Fprintf(out, "%s: %d%% of %s\n", p.bar.State().Description, 100*min(done, total)/total, FormatBytes(total))
			} else {
				fmt.Fprintf(out, "%s: %s\n", p.bar.State().Description, FormatBytes(done))
			}
		}
	})
}

// Add counts n more units as done.
func (p *Progress) Add(n int) {
	p.done.Add(int64(n))
	p.bar.Add(n)
}

// Set sets how many units are done, and how many there are in total.
func (p *Progress) Set(done, total int64) {
	p.done.Store(done)
	p.total.Store(total)
	p.bar.ChangeMax64(total)
	p.bar.Set64(done)
}

// Describe changes the description of the work.
func (p *Progress) Describe(what string) { p.bar.Describe(what) }

// Finish removes the bar from the terminal and ends WriteLines. It must be called exactly once.
func (p *Progress) Finish() {
	close(p.finished)
	p.lines.Wait()
	p.bar.Finish()
}
