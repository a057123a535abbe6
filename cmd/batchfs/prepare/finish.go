package prepare

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/prepare/units"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/internal/printable"
)

// finishJob checks what the tasks have written, and writes vocab.json.
func (o *options) finishJob(ctx context.Context) error {
	j, err := o.openJob()
	if err != nil {
		return err
	}
	listing, sidecars, err := j.sidecars(ctx)
	if err != nil {
		return err
	}
	if err := j.checkAllDone(sidecars); err != nil {
		return err
	}
	known := map[string]bool{}
	for _, s := range sidecars {
		for _, file := range s.Files {
			known[file.Name] = true
		}
	}
	if err := j.checkFiles(ctx, listing, sidecars, known); err != nil {
		return err
	}
	made, eot, total, err := sum(sidecars)
	if err != nil {
		return err
	}
	p := &plan{settings: j.settings, encoding: j.encoding}
	for _, in := range j.plan.Inputs {
		p.inputs = append(p.inputs, &input.File{Path: in.Name, Format: input.Format(in.Format)})
	}
	_, several := linesOrRows(p.inputs)
	if err := total.checkUnusable(several); err != nil {
		return err
	}
	if err := p.checkSplits(made, total); err != nil {
		return err
	}
	eotAt := p.settings.EOT
	if p.encoding.ids {
		eotAt = idsEOTAt(made, eot)
	}
	m := p.manifest(made, eotAt, total)
	m.Run = j.plan.DigestAll()
	if err := j.publishManifest(ctx, m); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	if err := j.out.Clean(ctx, func(name string) bool { return known[name] }); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	return o.printManifest(j.out.Path(""), m)
}

// sidecars lists the output, and returns the sidecars, which are nil for units that are not done.
func (j *job) sidecars(ctx context.Context) (*units.Listing, []*units.Sidecar, error) {
	files, err := j.out.List(ctx, true)
	if err != nil {
		return nil, nil, fmt.Errorf("--out: %w", err)
	}
	done, err := j.plan.Done(files)
	if err != nil {
		return nil, nil, fmt.Errorf("--out %s: %w", j.o.dir, err)
	}
	sidecars, err := units.ReadSidecars(ctx, j.out, done)
	return &units.Listing{Output: j.out, Files: files}, sidecars, err
}

func (j *job) checkAllDone(sidecars []*units.Sidecar) error {
	missing := j.plan.Summarize(sidecars).Missing
	if len(missing) == 0 {
		return nil
	}
	one := ""
	if len(missing) == 1 {
		one = ", which is " + j.plan.Describe(missing[0])
	}
	return fmt.Errorf("%d of %d units are missing, %s%s: run all tasks again, which skips what is done, or only --task UNIT/%d for each of these",
		len(missing), len(j.plan.Units), units.Numbers(missing), one, len(j.plan.Units))
}

// checkFiles checks the files of all units, several at a time, and that there are no others that a
// mount would take for shards. known has the names of the units' files.
func (j *job) checkFiles(ctx context.Context, listing *units.Listing, sidecars []*units.Sidecar, known map[string]bool) error {
	for name := range listing.Files {
		if outputFilePattern.MatchString(name) && !known[name] {
			return fmt.Errorf("%s: belongs to no unit of the plan, so a mount would mix it with the others: move it away", j.out.Path(name))
		}
	}
	progress := terminal.NewProgress(j.o.stderr, "checking", int64(len(sidecars)), terminal.Steps)
	defer progress.Finish()
	errs := make([]error, len(sidecars))
	units.Parallel(8, len(sidecars), func(i int) {
		if ctx.Err() == nil {
			errs[i] = sidecars[i].Check(ctx, listing, j.o.job.verify)
			progress.Add(1)
		}
	})
	if ctx.Err() != nil {
		return command.ErrInterrupted
	}
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if i < 0 {
		return nil
	}
	bad := 0
	for _, err := range errs {
		if err != nil {
			bad++
		}
	}
	more := ""
	if bad > 1 {
		more = fmt.Sprintf(" (and %d more units)", bad-1)
	}
	return fmt.Errorf("%w%s: remove %s, and run --task %d/%d again", errs[i], more, j.out.Path(sidecars[i].Name()), i, len(j.plan.Units))
}

// sum adds up what units have become, in order.
func sum(sidecars []*units.Sidecar) (made [len(splits)]vocabulary.Split, eot [len(splits)]units.EOTCounts, total *notes, err error) {
	total = new(notes)
	for _, s := range sidecars {
		for i, name := range splits {
			split := s.Splits[name]
			made[i].Shards = append(made[i].Shards, split.Shards...)
			made[i].Tokens += split.Tokens
			made[i].Documents += split.Documents
			if counts, ok := s.EOT[name]; ok { // only with --ids
				eot[i].Add(counts)
				made[i].EOTInside = eot[i].Inside()
			} else {
				made[i].EOTInside += split.EOTInside
			}
		}
		var n notes
		if err := json.Unmarshal(s.Notes, &n); err != nil {
			return made, eot, nil, fmt.Errorf("unit %s: its sidecar has broken notes: %w", units.Name(s.Unit), err)
		}
		total.add(&n)
	}
	return made, eot, total, nil
}

// publishManifest writes vocab.json. It leaves one with the same content, which a mount may use.
func (j *job) publishManifest(ctx context.Context, m *vocabulary.Manifest) error {
	var text bytes.Buffer
	if err := m.Write(&text); err != nil {
		return err
	}
	if f, err := j.out.Open(ctx, manifestName); err == nil {
		defer f.Close()
		if before, err := io.ReadAll(f); err == nil && bytes.Equal(before, text.Bytes()) {
			return nil
		}
	}
	return j.out.Write(ctx, manifestName, text.Bytes())
}

// printStatus prints how far the tasks of a plan are, according to the sidecars.
func (o *options) printStatus(ctx context.Context) error {
	j, err := o.openJob()
	if err != nil {
		return err
	}
	_, sidecars, err := j.sidecars(ctx)
	if err != nil {
		return err
	}
	s := j.plan.Summarize(sidecars)
	o.printLine("%d of %s done, %s of %s: %d tokens in %d documents", s.Done, terminal.Plural(int64(s.Units), "unit", "units"),
		terminal.FormatBytes(s.DoneBytes), terminal.FormatBytes(s.Bytes), s.Tokens, s.Documents)
	if s.Done > 0 {
		o.printLine("%s/s from %s to %s", terminal.FormatBytes(int64(s.Rate)), s.FirstBegun.Local().Format(time.DateTime),
			s.LastEnded.Local().Format(time.DateTime))
		for _, slow := range s.Slowest {
			o.printLine("slowest: %s took %.1f s", j.plan.Describe(slow.Unit), slow.Seconds)
		}
	}
	switch {
	case len(s.Missing) == 0:
		return o.printLine("next: batchfs prepare --finish --plan %s --out %s", printable.ShellArg(o.job.plan), printable.ShellArg(o.dir))
	case s.Left > 0:
		o.printLine("about %s left at this rate", s.Left)
	}
	return o.printLine("missing units: %s", units.Numbers(s.Missing))
}
