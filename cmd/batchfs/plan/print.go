package plan

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"batchfs/cmd/batchfs/chart"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/internal/printable"
)

func (e *Estimate) print(out io.Writer) {
	var text strings.Builder
	if e.Local {
		text.WriteString("The files are local, not in a store, so a run needs no network. If each of them were an object in a store, it would need this:\n\n")
	}
	fmt.Fprintf(&text, "%s tokens, %s in %s objects and %s blocks of %s\n", formatCount(float64(e.Tokens)), terminal.FormatBytes(e.Bytes),
		formatCount(float64(e.Objects)),
		formatCount(float64(e.Blocks)), terminal.FormatBytes(e.BlockBytes))
	fmt.Fprintf(&text, "%d hosts with %d GPUs each, %d rows of %d tokens per GPU and step, order %s: %s tokens per step of %s\n", e.Hosts, e.GPUs, e.BatchSize,
		e.BlockSize, e.Order, formatCount(float64(e.StepTokens)), formatDuration(e.StepSeconds))
	fmt.Fprintf(&text, "a run of %s steps: epochs %s, time %s\n\n", formatCount(float64(e.Steps)), formatCount(e.Epochs), formatDuration(e.RunSeconds))

	e.printRates(&text)
	fmt.Fprintf(&text, "\nA mount opens in about %s alone, and in %s if all hosts mount at once. Its first batch takes %s more.\n",
		formatDuration(e.MountSeconds),
		formatDuration(e.FleetMountSeconds), formatDuration(e.FirstBatchSeconds))
	if len(e.Sources) > 1 {
		fmt.Fprintln(&text, "\nEpochs of each source in the run")
		w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
		for _, s := range e.Sources {
			fmt.Fprintf(w, "  %s\t%s tokens\t%s of all rows\t%s epochs\n", printable.Name(s.Name), formatCount(float64(s.Tokens)),
				formatPercent(s.Weight), formatCount(s.Epochs))
		}
		w.Flush()
	}
	if len(e.Stages) > 1 {
		e.printStages(&text)
	}
	e.printTimeline(&text)
	if len(e.Caches) > 0 {
		fmt.Fprintln(&text, "\nBlocks that later epochs find in the block cache, by its size")
	}
	for _, c := range e.Caches {
		fmt.Fprintf(&text, "  %8s  %s %s\n", terminal.FormatBytes(c.Bytes), terminal.Bar(c.Hits, 1, 40), formatPercent(c.Hits))
	}
	fmt.Fprintln(&text)
	for _, v := range e.Verdicts {
		word := "ok:    "
		if !v.OK {
			word = "not ok:"
		}
		printable.Fprintf(&text, "%s %s\n", word, v.Text)
	}
	io.WriteString(out, printable.Text(text.String()))
}

func (e *Estimate) printStages(out io.Writer) {
	fmt.Fprintln(out, "\nStages: tokens, fraction of the rows, and epochs by the end of the stage")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	for i, stage := range e.Stages {
		why := ""
		if stage.Cap != "" {
			why = fmt.Sprintf(", when max_epochs of %s are used up", printable.Name(stage.Cap))
		}
		fmt.Fprintf(w, "  stage %d, from step %d%s\n", i, stage.Step, why)
		for source, s := range stage.Sources {
			fmt.Fprintf(w, "    %s\t%s tokens\t%s\t%s epochs\n", printable.Name(e.Sources[source].Name), formatCount(s.Tokens),
				formatPercent(s.Fraction), formatCount(s.Epochs))
		}
	}
}

func (e *Estimate) printRates(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()
	hosts := float64(e.Hosts)
	line := func(name string, value float64, words func(float64) string) {
		fmt.Fprintf(w, "%-38s\t%s\t%s\t\n", name, words(value), words(value*hosts))
	}
	fmt.Fprintf(w, "%-38s\ta host\tall hosts\t\n", "")
	line("tokens a second", float64(e.StepTokens)/hosts/e.StepSeconds, formatCount)
	line("bytes a second that trainers read", e.ReadRate, terminal.FormatBytes)
	line("blocks per step", e.StepBlocks, formatCount)
	epoch := func(name string, traffic Traffic) {
		line(name+": bytes a second, mean", traffic.Bytes, terminal.FormatBytes)
		line(name+": bytes a second, peak", traffic.PeakBytes, terminal.FormatBytes)
		line(name+": requests a second, mean", traffic.Requests, formatCount)
		line(name+": requests a second, peak", traffic.PeakRequests, formatCount)
	}
	epoch("first epoch", e.FirstEpoch)
	epoch("later epochs", e.LaterEpochs)
	line("the run: bytes", e.HostFetched, terminal.FormatBytes)
	line("the run: requests", e.Requests/hosts, formatCount)
	line("the run: price", e.Price/hosts, func(v float64) string { return fmt.Sprintf("$%.2f", v) })
	line("each mount: requests", float64(e.MountRequests), formatCount)
	line("block cache to hold all a host needs", e.WorkingSetBytes, terminal.FormatBytes)
}

// printTimeline draws the first two epochs. Later ones are like the second, unless the block cache
// is filled late.
func (e *Estimate) printTimeline(out io.Writer) {
	parts, most := slices.DeleteFunc(slices.Clone(e.Timeline), func(p Part) bool { return p.End > 2*e.EpochSteps }), 0.0
	for _, p := range parts {
		most = max(most, p.Bytes)
	}
	fmt.Fprintln(out, "\nBytes a second from the store to a host, up to each step, from a sample of its blocks")
	for _, p := range parts {
		fmt.Fprintf(out, "  %8s  %s %s\n", formatCount(float64(p.End)), terminal.Bar(p.Bytes, most, 40), terminal.FormatBytes(p.Bytes))
	}
}

func (e *Estimate) savePlot(path string) error {
	steps := "steps, from a sample of the blocks"
	if last := e.Timeline[len(e.Timeline)-1].End; last < e.Steps {
		steps += fmt.Sprintf("; epochs after the first %s are like the last of these", formatCount(float64(last)/float64(e.EpochSteps)))
	}
	var charts []chart.Chart
	draw := func(title string, isMean bool, format func(float64) string, value func(Part) float64) {
		line := chart.Line{Title: title, XLabel: steps, FormatX: formatCount, FormatY: format, IsMean: isMean, Points: []chart.Point{{}}}
		for _, p := range e.Timeline {
			line.Points = append(line.Points, chart.Point{X: float64(p.End), Y: value(p)})
		}
		charts = append(charts, line)
	}
	draw("Bytes a second from the store to a host", true, terminal.FormatBytes, func(p Part) float64 { return p.Bytes })
	draw("Requests a second of a host", true, formatCount, func(p Part) float64 { return p.Requests })
	draw("Bytes in the block cache of a host", false, terminal.FormatBytes, func(p Part) float64 { return p.Cached })
	return chart.Save(path, charts...)
}
