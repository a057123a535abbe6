package prepare

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/prepare/units"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/internal/printable"
)

// A job is a plan that is carried out, with its output.
type job struct {
	o        *options
	plan     *units.Plan
	settings settings
	encoding encoding
	out      units.Output
}

// openJob reads the plan and opens its tokenizer.
func (o *options) openJob() (*job, error) {
	p, err := o.job.readPlan()
	if err != nil {
		return nil, err
	}
	out, err := o.job.stores.OutputAt(o.dir)
	if err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	j := &job{o: o, plan: p, out: out}
	if j.settings, err = plannedSettings(p); err != nil {
		return nil, fmt.Errorf("--plan %s: %w", o.job.plan, err)
	}
	if strict := j.settings; strict.Invalid != "error" {
		strict.Invalid = "error" // a unit that is done has no invalid text
		if p.Stricter, err = json.Marshal(strict); err != nil {
			return nil, err
		}
	}
	if j.encoding, err = newEncoding(&j.settings, p.Tokenizer); err != nil {
		return nil, fmt.Errorf("--plan %s: %w", o.job.plan, err)
	}
	j.encoding.first = "the first row of the plan"
	return j, nil
}

// runTask does the units of a task that are not done. If one fails, it goes on with the others.
func (o *options) runTask(ctx context.Context) error {
	task, err := units.ParseTask(o.job.task)
	if o.job.task == "" {
		task, err = units.TaskOf(os.Getenv, o.job.tasks)
	}
	if err != nil {
		return err
	}
	j, err := o.openJob()
	if err != nil {
		return err
	}
	done, err := j.begin(ctx)
	if err != nil {
		return err
	}
	all := task.Units(len(j.plan.Units))
	if len(all) == 0 {
		return o.printLine("task %s has no units, because the plan has only %d", task, len(j.plan.Units))
	}
	todo, err := j.undone(ctx, all, done)
	if err != nil {
		return err
	}
	o.printLine("task %s: %s, of which %d are done", task, terminal.Plural(int64(len(all)), "unit", "units"), len(all)-len(todo))
	return j.doUnits(ctx, all, todo)
}

// begunName is the name of the first file that a task writes. Without it, other files in the output
// are not from tasks.
const begunName = units.Dir + "/begun"

// begin marks the output as one of tasks, unless it has files of something else, and returns the
// names of the sidecars, which are empty for units that are not done.
func (j *job) begin(ctx context.Context) (done []string, err error) {
	files, err := j.out.List(ctx, false)
	if err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	if _, ok := files[begunName]; !ok {
		for name := range files {
			if name == manifestName || outputFilePattern.MatchString(name) {
				return nil, fmt.Errorf("%s: already exists, and no task of a plan wrote it: choose another --out", j.out.Path(name))
			}
		}
		if err := cmp.Or(j.out.Make(ctx), j.out.Write(ctx, begunName, nil)); err != nil {
			return nil, fmt.Errorf("--out: %w", err)
		}
	}
	done, err = j.plan.Done(files)
	if err != nil {
		return nil, fmt.Errorf("--out %s: %w", j.o.dir, err)
	}
	return done, nil
}

// undone returns the units of a task that have no sidecar, or whose files differ from it.
func (j *job) undone(ctx context.Context, all []int, done []string) (todo []int, err error) {
	for _, unit := range all {
		if done[unit] != "" {
			_, err := j.checkedSidecar(ctx, unit, done[unit])
			if err == nil {
				continue
			}
			if ctx.Err() != nil {
				return nil, command.ErrInterrupted
			}
			j.o.printLine("%s: this task does it again", err)
		}
		todo = append(todo, unit)
	}
	return todo, nil
}

// checkedSidecar returns the sidecar of a unit, or an error if its files are not as it says.
func (j *job) checkedSidecar(ctx context.Context, unit int, name string) (*units.Sidecar, error) {
	s, err := units.ReadSidecar(ctx, j.out, unit, name)
	if err == nil {
		err = s.Check(ctx, j.out, false)
	}
	return s, err
}

// doUnits does units one after another, and prints how far the task is. It returns an error if one
// of them failed.
func (j *job) doUnits(ctx context.Context, all, todo []int) error {
	var left, read int64
	for _, unit := range todo {
		left += j.plan.Units[unit].Bytes
	}
	began, undone := time.Now(), len(todo)
	var failed []int
	var first error
	for _, unit := range todo {
		s, err := j.doUnit(ctx, unit)
		if ctx.Err() != nil {
			return command.ErrInterrupted
		}
		left -= j.plan.Units[unit].Bytes
		if err != nil {
			err = fmt.Errorf("%s: %w", j.plan.Describe(unit), err)
			failed, first = append(failed, unit), cmp.Or(first, err)
			printable.Fprintf(j.o.stderr, "%s\n", err)
			continue
		}
		undone--
		read += j.plan.Units[unit].Bytes
		rate := float64(read) / time.Since(began).Seconds()
		j.o.printLine("unit %s: %s in %.1f s; %d units done, %d left%s", units.Name(unit), tokensOf(s), s.Seconds, len(all)-undone, undone,
			timeLeft(left, rate))
	}
	switch len(failed) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("1 of %d units failed: %w; run the same task again when this is corrected", len(all), first)
	}
	return fmt.Errorf("%d of %d units failed, %s; the first is %w; run the same task again when this is corrected", len(failed), len(all),
		units.Numbers(failed), first)
}

func timeLeft(bytes int64, rate float64) string {
	if bytes == 0 || rate <= 0 {
		return ""
	}
	return fmt.Sprintf(", %s/s, %s to go", terminal.FormatBytes(int64(rate)), time.Duration(float64(bytes)/rate*float64(time.Second)).Round(time.Second))
}

func tokensOf(s *units.Sidecar) string {
	tokens, documents := s.Total()
	return fmt.Sprintf("%s of %s", terminal.Plural(tokens, "token", "tokens"), terminal.Plural(documents, "document", "documents"))
}

// doUnit encodes a unit and publishes its files and its sidecar.
func (j *job) doUnit(ctx context.Context, unit int) (*units.Sidecar, error) {
	began := time.Now()
	p, err := j.unitPlan(unit)
	if err != nil {
		return nil, err
	}
	dir, err := j.out.Scratch(units.Name(unit))
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	s, err := j.encodeUnit(ctx, p, unit, dir)
	if err == nil {
		s.Bytes = j.plan.Units[unit].Bytes
		err = j.publishUnit(ctx, s, dir, began)
	}
	if err == nil || ctx.Err() != nil {
		return s, err
	}
	// If --finish has removed the directory, another run of this task has done the unit.
	if other, otherErr := j.checkedSidecar(ctx, unit, j.plan.SidecarName(unit)); otherErr == nil {
		return other, nil
	}
	return nil, err
}

// unitPlan returns the plan for the inputs of a unit, which must be as they were planned.
func (j *job) unitPlan(unit int) (*plan, error) {
	p := &plan{settings: j.settings, encoding: j.encoding, val: valRule{fraction: j.settings.Val}}
	u := j.plan.Units[unit]
	for _, planned := range j.plan.InputsOf(unit) {
		in, err := j.o.job.stores.Planned(planned)
		if err == nil && !in.InStore() { // otherwise, each read checks its version
			err = in.Stat()
			if err == nil && (in.ReadableOnce() || !in.State().Equal(planned.State)) {
				err = fmt.Errorf("%s: has changed since it was planned: restore it, or make a new plan and write to another --out", in.Path)
			}
		}
		if err != nil {
			return nil, err
		}
		in.AsText = j.settings.As == input.Text
		if u.End > 0 {
			in.Part = &input.Part{Begin: u.Begin, End: u.End, Bytes: u.Bytes}
		}
		p.inputs = append(p.inputs, in)
	}
	return p, nil
}

// encodeUnit writes the files of a unit to dir. It returns the sidecar without what publishing
// tells.
func (j *job) encodeUnit(ctx context.Context, p *plan, unit int, dir string) (*units.Sidecar, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	progress := j.o.newProgress("encoding", p.inputs, position{})
	w := newUnitWriter(p, root, units.Name(unit), progress)
	defer w.close()
	err = encodeInputs(ctx, p, position{}, dir, w.write)
	progress.Finish()
	if err != nil {
		return nil, err
	}
	made, err := w.end()
	if err != nil {
		return nil, err
	}
	s := &units.Sidecar{Unit: unit, Digest: j.plan.Digest(unit), Splits: map[string]vocabulary.Split{}, EOT: map[string]units.EOTCounts{},
		Texts: fmt.Sprintf("%x", w.texts.Sum(nil))}
	for i, split := range made {
		if len(split.Shards) == 0 {
			continue
		}
		s.Splits[splits[i]] = split
		if p.encoding.ids {
			s.EOT[splits[i]] = w.shards[i].state.EOTCounts
		}
		for _, shard := range split.Shards {
			for _, name := range outputFormats[j.settings.Format].files(shard) {
				file := units.File{Name: name, SHA256: shard.SHA256}
				if name != shard.Name {
					if file.SHA256, err = units.Hash(ctx, units.Folder(dir), name); err != nil {
						return nil, err
					}
				}
				s.Files = append(s.Files, file)
			}
		}
	}
	s.Notes, err = json.Marshal(&w.state.Notes)
	return s, err
}

// publishUnit moves the files of a unit from dir to the output, and then its sidecar. It leaves
// what another run of the task has published meanwhile, which has the same bytes and may be
// mounted.
func (j *job) publishUnit(ctx context.Context, s *units.Sidecar, dir string, began time.Time) error {
	name := j.plan.SidecarName(s.Unit)
	if _, err := j.checkedSidecar(ctx, s.Unit, name); err == nil {
		return nil
	}
	for i := range slices.Backward(s.Files) { // each token file after the others of its shard
		file := &s.Files[i]
		var err error
		if file.State, err = j.out.Publish(ctx, filepath.Join(dir, file.Name), file.Name); err != nil {
			return err
		}
	}
	if err := j.out.Sync(ctx); err != nil {
		return err
	}
	s.Seconds, s.Finished = time.Since(began).Seconds(), time.Now().UTC()
	text, err := json.Marshal(s)
	if err == nil {
		err = j.out.Write(ctx, name, text)
	}
	return err
}
