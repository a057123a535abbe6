package top

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"batchfs/cmd/batchfs/terminal"
	"batchfs/fs/figures"
	"batchfs/internal/printable"
)

// A line is one line of the screen. Bad news is highlighted.
type line struct {
	text  string
	isBad bool
}

// badWaitFraction is the largest fraction of time that a reader may wait without being highlighted.
const badWaitFraction = 0.05

// frameLines renders a frame for a screen of the given width. history has the last minute by
// mountpoint.
func frameLines(f *figures.Frame, history map[string][]interval, width int) []line {
	all := []line{headline(f)}
	nameWidth := min(max(width-60, 12), 40)
	for _, m := range f.Mounts {
		all = append(all, line{}, line{fmt.Sprintf("%s  %s", m.Mountpoint, m.State), m.State == "dead" || m.State == "stuck"})
		if m.Processes == nil {
			continue
		}
		all = append(all, summaryLine(m))
		all = append(all, historyLines(m, history[m.Mountpoint], width)...)
		if !m.Store.IsZero() {
			all = append(all, storeLines(m)...)
		}
		all = append(all, line{text: fmt.Sprintf("  %-*s %8s %7s %7s %7s %6s %9s %6s",
			nameWidth, "SEQUENCE", "BATCH/S", "MB/S", "WAIT", "P99", "READY", "CURSOR", "EPOCH")})
		for _, s := range m.Sequences {
			all = append(all, sequenceLines(s, nameWidth)...)
		}
	}
	return all
}

// headline says whether training waits for data, as far as top can see.
func headline(f *figures.Frame) line {
	const question = "Is training waiting for data? "
	var worst *figures.Reader
	var path string // directory in which worst reads next
	numbered := false
	for _, m := range f.Mounts {
		for _, s := range m.Sequences {
			numbered = numbered || s.Rates != nil && s.Rates.Bytes > 0 && len(s.Readers) == 0
			for _, r := range s.Readers {
				if r.WaitedFraction != nil && (worst == nil || *r.WaitedFraction > *worst.WaitedFraction) {
					worst, path = r, m.Mountpoint+"/"+s.Name
				}
			}
		}
	}
	switch {
	case worst == nil && numbered:
		return line{text: question + "Not visible: readers of numbered files are served from the kernel's page cache"}
	case worst == nil:
		return line{text: question + "No process reads next"}
	}
	answer, bad := "No", *worst.WaitedFraction > badWaitFraction
	if bad {
		answer = "YES"
	}
	return line{fmt.Sprintf("%s%s: %s %d waits %s, %s/next", question, answer, worst.Command, worst.PID, percent(worst.WaitedFraction), path), bad}
}

func summaryLine(m *figures.Mount) line {
	text := fmt.Sprintf("  up %v, takeovers %d, waiting %d, MB:", time.Duration(m.Uptime)*time.Second, m.Takeovers, m.Waiting)
	for _, p := range m.Processes {
		text += fmt.Sprintf(" %s %d", p.Name, p.Resident/1e6)
	}
	return line{text, m.Waiting > 0}
}

// historyLines draws the last intervals that fit the width, next to the current rates.
func historyLines(m *figures.Mount, intervals []interval, width int) []line {
	const others = 20 // columns of text beside the bars
	intervals = intervals[max(0, len(intervals)-max(width-others, 0)):]
	most, batches, waited := 0.0, make([]float64, len(intervals)), make([]float64, len(intervals))
	for i, s := range intervals {
		most, batches[i] = max(most, s.batches), s.batches
		if s.waited != nil {
			waited[i] = *s.waited
		}
	}
	now := intervalOf(m)
	return []line{
		{text: fmt.Sprintf("  batches/s %s %.1f", sparkline(batches, most), now.batches)},
		{fmt.Sprintf("  waiting   %s %s", sparkline(waited, 1), percent(now.waited)), now.waited != nil && *now.waited > badWaitFraction},
	}
}

// sparkline draws a bar for each value, which is full if the value equals most. A value above 0 has
// at least an eighth of a bar.
func sparkline(values []float64, most float64) string {
	var b strings.Builder
	for _, v := range values {
		eighths := 0
		if v > 0 {
			eighths = min(max(int(math.Round(8*v/most)), 1), 8)
		}
		b.WriteRune([]rune(" ▁▂▃▄▅▆▇█")[eighths])
	}
	return b.String()
}

// storeLines renders what comes from the store and, if there is a block cache, how much it helps.
func storeLines(m *figures.Mount) []line {
	s, served := m.Store, uint64(0)
	for _, q := range m.Sequences {
		served += q.Bytes
	}
	r := s.Rates
	if r == nil {
		r = &figures.StoreRates{}
	}
	text := fmt.Sprintf("  store: %.1f MB/s, %.1f requests/s; fetched %s, %s of the bytes served", r.Fetched/1e6, r.Requests, terminal.FormatBytes(s.Fetched),
		percent(figures.Fraction(float64(s.Fetched), float64(served))))
	if s.Errors > 0 {
		text += fmt.Sprintf("; %s, %s", terminal.Plural(s.Errors, "error", "errors"), terminal.Plural(s.Retries, "retry", "retries"))
	}
	all := []line{{text, r.Errors > 0}}
	if s.Limit == 0 {
		return all
	}
	text = fmt.Sprintf("  cache: has %s of the %s needed; %s of %s used; %s of block reads hit",
		percent(figures.Fraction(float64(s.Stored), float64(s.Needed))),
		terminal.FormatBytes(s.Needed), terminal.FormatBytes(s.Used), terminal.FormatBytes(s.Limit), percent(figures.Fraction(float64(s.Hits), float64(s.Hits+s.Waits))))
	for _, dropped := range []struct {
		blocks int64
		why    string
	}{{s.Full, "did not fit"}, {s.Failed, "could not be written"}, {s.Slow, "not written in time, because the disk is slow"}} {
		if dropped.blocks > 0 {
			text += fmt.Sprintf("; %s %s", terminal.Plural(dropped.blocks, "block", "blocks"), dropped.why)
		}
	}
	return append(all, line{text, s.Full+s.Failed+s.Slow > 0})
}

// sequenceLines renders a sequence: its name in nameWidth columns, and its rates.
func sequenceLines(s *figures.Sequence, nameWidth int) []line {
	r, epoch := s.Rates, "-"
	if r == nil {
		r = &figures.Rates{}
	}
	if s.Epoch != nil {
		epoch = fmt.Sprintf("%.2f", *s.Epoch)
	}
	var all []line
	name := s.Name
	if utf8.RuneCountInString(name) > nameWidth { // gets a line of its own
		all, name = []line{{text: "  " + name}}, ""
	}
	all = append(all, line{text: fmt.Sprintf("  %-*s %8.1f %7.1f %7s %7s %6s %9d %6s",
		nameWidth, name, r.Batches, r.Bytes/1e6, formatSeconds(r.WaitMedian), formatSeconds(r.WaitP99), percent(r.ReadyFraction), s.Cursor, epoch)})
	for _, reader := range s.Readers {
		text := fmt.Sprintf("    %s %d waits %s of its time", reader.Command, reader.PID, percent(reader.WaitedFraction))
		all = append(all, line{text, reader.WaitedFraction != nil && *reader.WaitedFraction > badWaitFraction})
	}
	if len(s.Readers) == 0 && r.Bytes > 0 {
		all = append(all, line{text: "    reads of numbered files: how long their readers wait is not visible"})
	}
	if s.Errors > 0 {
		all = append(all, line{fmt.Sprintf("    %d errors, the last one: %s", s.Errors, s.LastError), true})
	}
	return all
}

// truncate shortens a text to a width in columns. It assumes that each rune takes one.
func truncate(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(width-1, 0)]) + "…"
}

func percent(fraction *float64) string {
	if fraction == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100**fraction)
}

func formatSeconds(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	switch s := *seconds; {
	case s < 1e-3:
		return fmt.Sprintf("%.0fµs", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.1fms", s*1e3)
	default:
		return fmt.Sprintf("%.1fs", s)
	}
}

// screen renders the first line, and then as many lines as fit, beginning with line 1+from, without
// control characters. It writes red before a line of bad news, and plain after it.
func screen(all []line, from, width, height int, red, plain string) string {
	var b strings.Builder
	for i, l := range slices.Concat(all[:1], all[min(1+from, len(all)):]) {
		if i == height {
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		text := truncate(printable.Name(l.text), width)
		if l.isBad {
			text = red + text + plain
		}
		b.WriteString(text)
	}
	return b.String()
}
