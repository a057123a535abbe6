package dataset

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// checkCaps returns an error if max_epochs contradict the configured stages: if a stage reads a
// source that is used up before the stage begins, or if a stage never begins because all sources of
// the stages before it are used up.
func (d *Dataset) checkCaps() error {
	stages, configured := d.Sequence.Stages(), d.Sequence.Settings.Stages
	if d.Sequence.Only > 0 {
		return nil
	}
	usedUp := make([]uint64, len(d.sources)) // row at which each source is used up; 0 if it is not
	refuse := func(stage, source int) error {
		return fmt.Errorf("%s: reads source %q, whose max_epochs, %g, are used up at row %d; leave it out of the stage, or raise its max_epochs",
			d.Split.StagePrefix(stage), d.Split.Sources[source].Name, d.Sequence.MaxEpochs[source], usedUp[source])
	}
	for i, at := range stages[1:] {
		for source, rows := range at.Rows {
			if rows > 0 || len(configured) == 0 || configured[at.Configured].Weights[source] == 0 {
				continue
			}
			if stages[i].Rows[source] > 0 {
				usedUp[source] = at.Row
			}
			if at.Configured > stages[i].Configured {
				return refuse(at.Configured, source)
			}
		}
	}
	if last := stages[len(stages)-1].Configured; last+1 < len(configured) {
		for source, weight := range configured[last+1].Weights {
			if weight > 0 && usedUp[source] > 0 {
				return refuse(last+1, source)
			}
		}
		return fmt.Errorf("%s: never begins, because the max_epochs of all sources of the stages before it are used up; raise one of them, or begin the stage earlier",
			d.Split.StagePrefix(last+1))
	}
	return nil
}

// stageInfos describes the stages for info.json.
func (d *Dataset) stageInfos() (list []map[string]any) {
	names := d.Split.SourceNames()
	for i, at := range d.Sequence.Stages() {
		weights, tokens, epochs, why := map[string]int{}, map[string]uint64{}, map[string]float64{}, "configured"
		for source, name := range names {
			rows := at.Before[source] * uint64(d.Sequence.Hosts())
			weights[name], tokens[name], epochs[name] = at.Rows[source], rows*uint64(d.Sequence.BlockSize), float64(rows)/float64(d.Sequence.WindowsOf(source))
		}
		if source := d.Sequence.UsedUpAt(i); source >= 0 {
			why = "max_epochs of " + names[source]
		}
		list = append(list, map[string]any{
			"row": at.Row * uint64(d.Sequence.Hosts()), "batch": at.Batch, "why": why, "rows": weights, "of": at.Period, "tokens": tokens, "epochs": epochs,
		})
	}
	return list
}

// schedule describes which source each row comes from, for example "0=9:1,1000=1:1": from row 0 on,
// 9 of 10 rows come from the first source, and from row 1000 on, 1 of 2. Equal schedules have the
// same description: a stage that goes on with the periods of the stage before it is left out.
func (d *Dataset) schedule() string {
	var list []string
	last, begin := "", uint64(0)
	for _, at := range d.Sequence.Stages() {
		var rows []string
		for _, n := range at.Rows {
			rows = append(rows, strconv.Itoa(n))
		}
		for rows[len(rows)-1] == "0" { // further sources of later stages must change nothing
			rows = rows[:len(rows)-1]
		}
		if text := strings.Join(rows, ":"); text != last || (at.Row-begin)%uint64(at.Period) > 0 {
			list = append(list, fmt.Sprintf("%d=%s", at.Row, text))
			last, begin = text, at.Row
		}
	}
	return strings.Join(list, ",")
}

// past returns the part of a description from schedule that affects the rows before a given one.
func past(schedule string, row uint64) string {
	stages := strings.Split(schedule, ",")
	n := slices.IndexFunc(stages, func(stage string) bool {
		begin, _, _ := strings.Cut(stage, "=")
		first, err := strconv.ParseUint(begin, 10, 64)
		return err != nil || first >= row
	})
	if n >= 0 {
		stages = stages[:n]
	}
	return strings.Join(stages, ",")
}

// Continues reports whether batches 0 to k equal those of the sequence with the given identity. The
// schedules may differ in stages that begin after batch k, and one may have more sources.
func (d *Dataset) Continues(identity string, k uint64) bool {
	now, then := strings.Fields(d.Identity()), strings.Fields(identity)
	if len(now) != 3 || len(then) != 3 || now[0] != then[0] {
		return slices.Equal(now, then)
	}
	a, b := strings.Split(now[1], ","), strings.Split(then[1], ",")
	known := min(len(a), len(b))
	// Rows are numbered within the share of a host.
	end := (k + 1) * uint64(d.Sequence.BatchSize*d.Sequence.World) / uint64(d.Sequence.Hosts())
	return slices.Equal(a[:known], b[:known]) && past(now[2], end) == past(then[2], end)
}
