package plan

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"batchfs/cmd/batchfs/chart"
	"batchfs/cmd/batchfs/terminal"
)

// print prints the needs for people: tables, pictures, and what is within its limit.
func (n *Needs) print(out io.Writer) {
	var text strings.Builder
	fmt.Fprintf(&text, "%s tokens, %s in %s objects and %s blocks of %s\n", short(float64(n.Tokens)), terminal.Size(n.Bytes), short(float64(n.Objects)),
		short(float64(n.Blocks)), terminal.Size(n.BlockBytes))
	fmt.Fprintf(&text, "%d hosts of %d GPUs, each %d rows of %d tokens a step, order %s: %s tokens a step, every %s\n", n.Hosts, n.GPUs, n.BatchSize,
		n.BlockSize, n.Order, short(float64(n.StepTokens)), lasting(n.StepSeconds))
	fmt.Fprintf(&text, "a run of %s steps: epochs: %s, time: %s\n\n", short(float64(n.Steps)), short(n.Epochs), lasting(n.RunSeconds))

	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	hosts := float64(n.Hosts)
	row := func(name string, value float64, words func(float64) string) {
		fmt.Fprintf(w, "%s\t%s\t%s\t\n", left(name), words(value), words(value*hosts))
	}
	fmt.Fprintf(w, "%s\ta host\tall hosts\t\n", left(""))
	row("tokens a second", float64(n.StepTokens)/hosts/n.StepSeconds, short)
	row("bytes a second that trainers read", n.ReadRate, rate)
	row("blocks of a step", n.StepBlocks, short)
	for _, epoch := range []struct {
		name string
		of   Traffic
	}{{"first epoch", n.First}, {"later epochs", n.Later}} {
		row(epoch.name+": bytes a second, mean", epoch.of.Mean, rate)
		row(epoch.name+": bytes a second, peak", epoch.of.Peak, rate)
		row(epoch.name+": requests a second, mean", epoch.of.Requests, short)
		row(epoch.name+": requests a second, peak", epoch.of.Most, short)
	}
	row("the run: bytes", n.HostFetched, rate)
	row("the run: requests", n.Requests/hosts, short)
	row("the run: price of these", n.Price/hosts, func(v float64) string { return fmt.Sprintf("$%.2f", v) })
	row("each mount: requests", float64(n.MountRequests), short)
	row("block cache for all that a host needs", n.ShareBytes, rate)
	w.Flush()
	fmt.Fprintf(&text, "\nA mount opens in about %s alone, and in %s if all hosts mount at once. Its first batch takes %s more.\n", lasting(n.MountSeconds),
		lasting(n.FleetMount), lasting(n.FirstBatch))

	if len(n.Sources) > 1 {
		fmt.Fprintln(&text, "\nEpochs of each source in the run")
		w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
		most := 0.0
		for _, s := range n.Sources {
			most = max(most, s.Epochs)
		}
		for _, s := range n.Sources {
			fmt.Fprintf(w, "  %s\t%s tokens\t%s of all rows\t%s %s\n", s.Name, short(float64(s.Tokens)), percent(s.Share), terminal.Bar(s.Epochs, most), short(s.Epochs))
		}
		w.Flush()
	}

	fmt.Fprintln(&text, "\nBytes a second from the store to a host, until step")
	most := 0.0
	for _, m := range n.Timeline {
		most = max(most, m.Bytes)
	}
	for _, m := range n.Timeline[:min(2*parts, len(n.Timeline))] {
		fmt.Fprintf(&text, "  %6s  %s %s\n", short(float64(m.Step)), terminal.Bar(m.Bytes, most), rate(m.Bytes))
	}
	fmt.Fprintln(&text, "\nBlocks that later epochs find in a block cache of so many bytes")
	for _, c := range n.Caches {
		fmt.Fprintf(&text, "  %8s  %s %s\n", rate(c.Bytes), terminal.Bar(c.Hits, 1), percent(c.Hits))
	}
	fmt.Fprintln(&text)
	for _, v := range n.Verdicts {
		word := "ok:    "
		if !v.OK {
			word = "not ok:"
		}
		fmt.Fprintf(&text, "%s %s\n", word, v.Says)
	}
	io.WriteString(out, terminal.Printable(text.String()))
}

// left makes a cell of a table that is aligned to the right begin at the left.
func left(name string) string { return fmt.Sprintf("%-38s", name) }

// charts draw what changes during the run, and what a cache is worth.
func (n *Needs) charts() []chart.Chart {
	rate, hits := chart.Line{Name: "a host"}, chart.Line{Name: "hits"}
	for _, m := range n.Timeline {
		rate.X, rate.Y = append(rate.X, float64(m.Step)), append(rate.Y, m.Bytes/1e6)
	}
	hits.X, hits.Y = []float64{0}, []float64{0}
	for _, c := range n.Caches {
		hits.X, hits.Y = append(hits.X, c.Bytes/1e9), append(hits.Y, 100*c.Hits)
	}
	return []chart.Chart{
		chart.Lines("From the store", "steps", "MB a second", false, []chart.Line{rate}),
		chart.Lines("Blocks that later epochs find in the block cache", "its size, GB", "%", false, []chart.Line{hits}),
	}
}
