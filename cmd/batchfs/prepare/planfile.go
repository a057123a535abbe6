package prepare

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/prepare/field"
	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/prepare/rows"
	"batchfs/cmd/batchfs/prepare/units"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/internal/printable"
)

// jobOptions are the options with which prepare divides its work among tasks.
type jobOptions struct {
	plan      string // path of the plan file; empty if all happens in one process
	unitBytes int64
	task      string
	tasks     int
	finish    bool
	verify    bool
	status    bool
	stores    input.Stores
}

func (j *jobOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&j.plan, "plan", "", "with TEXTs, write a plan to this `FILE`, or add TEXTs to it, and encode nothing; without TEXTs, "+
		"do a part of the plan: a task, --finish or --status")
	f.Int64Var(&j.unitBytes, "unit-bytes", 1<<30, "divide the TEXTs of a plan into units of this `NUMBER` of bytes, as they are stored")
	f.StringVar(&j.task, "task", "", "do task `I/N` of the plan, where I counts from 0; tasks may run anywhere, in any order and "+
		"number, and again (default: from Slurm's or Kubernetes' environment)")
	f.IntVar(&j.tasks, "tasks", 0, "the `NUMBER` of tasks, if a variable of the environment has I")
	f.BoolVar(&j.finish, "finish", false, "after all tasks, check what they wrote, and write vocab.json")
	f.BoolVar(&j.verify, "verify", false, "with --finish, also read all files and compare their hashes")
	f.BoolVar(&j.status, "status", false, "print how much of the plan is done")
	j.stores.Flags.RegisterStore(cmd)
	cmd.MarkFlagsMutuallyExclusive("task", "finish", "status")
	cmd.MarkFlagsMutuallyExclusive("tasks", "finish", "status")
	cmd.MarkFlagsMutuallyExclusive("task", "tasks")
	cmd.MarkFlagsMutuallyExclusive("verify", "status")
	cmd.MarkFlagsMutuallyExclusive("verify", "task")
}

// writePlan writes a plan for the texts that the arguments name, or adds them to one.
func (o *options) writePlan(args []string, unitBytesGiven bool) error {
	if o.settings.By == vocabulary.Char && o.settings.IDs == "" {
		return errors.New("--by char: does not go with --plan, because its tokens depend on all texts, and no task reads them all: " +
			"choose another tokenizer with --by; to add texts to a plan, give its options again")
	}
	if err := o.settings.resolve(); err != nil {
		return err
	}
	o.settings.ShardTokens = 0 // each unit is one shard, also in llm.c's format
	var tokenizer []byte
	var unread error
	if _, ok := tokenizers[o.settings.By]; !ok && o.settings.By != "" {
		tokenizer, unread = os.ReadFile(o.settings.By) // may be readable only once
	}
	e, err := newEncoding(&o.settings, tokenizer) // explains why the file cannot be read
	if err = cmp.Or(err, unread); err != nil {
		return err
	}
	made, err := o.planToExtend(tokenizer, unitBytesGiven)
	if err != nil {
		return err
	}
	o.printTokens(e)
	inputs, leftOut, err := input.Find(args, o.include, o.settings.As, o.stdin, &o.job.stores)
	if err != nil {
		return err
	}
	info, _ := os.Stat(o.job.plan) // the plan may be in the directory of the texts
	inputs = slices.DeleteFunc(inputs, func(in *input.File) bool {
		return in.Path == o.job.plan || in.Info != nil && os.SameFile(in.Info, info)
	})
	p := &plan{settings: o.settings, inputs: inputs, encoding: e, val: valRule{fraction: o.settings.Val}}
	if err := cmp.Or(p.checkPlanned(made.Inputs), p.checkInputs()); err != nil {
		return err
	}
	if e.ids {
		if err := o.planLabels(p, made); err != nil {
			return err
		}
	}
	if made.Options == nil {
		if made.Options, err = json.Marshal(o.settings); err != nil {
			return err
		}
	}
	o.printLeftOut(leftOut)
	o.printIDs(p)
	o.warnField()
	o.warnMissingEOT(p)
	o.warnTokenizer(p)
	before := len(made.Units)
	added, err := made.Add(plannedInputs(inputs), o.divide)
	if err != nil {
		return err
	}
	if err := o.savePlan(made); err != nil {
		return err
	}
	return o.printPlan(made, added, before)
}

func (o *options) savePlan(p *units.Plan) error {
	var text bytes.Buffer
	if err := p.Write(&text); err != nil {
		return err
	}
	out, name, err := o.job.stores.Output(o.job.plan)
	if err != nil {
		return fmt.Errorf("--plan: %w", err)
	}
	if err := out.Write(o.job.stores.Ctx, name, text.Bytes()); err != nil {
		return fmt.Errorf("--plan: %w", err)
	}
	return nil
}

// planToExtend returns the existing plan, or an empty one, which has no options yet. The error says
// which option differs.
func (o *options) planToExtend(tokenizer []byte, unitBytesGiven bool) (*units.Plan, error) {
	planned := units.New(nil, tokenizer, o.job.unitBytes)
	p, err := o.job.readPlan()
	if errors.Is(err, fs.ErrNotExist) {
		return planned, nil
	}
	if err != nil {
		return nil, err
	}
	other := func(what string) error {
		return fmt.Errorf("--plan %s: was made with %s: give the same again, or write another file", o.job.plan, what)
	}
	before, err := plannedSettings(p)
	if err != nil {
		return nil, fmt.Errorf("--plan %s: %w", o.job.plan, err)
	}
	options := string(p.Options)
	o.settings.Labels = before.Labels // planLabels checks the labels of further inputs
	// What is done without an error has no invalid text.
	if before.Invalid == "error" && o.settings.Invalid != "error" {
		before.Invalid = o.settings.Invalid
		if p.Options, err = json.Marshal(o.settings); err != nil {
			return nil, err
		}
	}
	switch {
	case before != o.settings:
		return nil, other("other options, " + options)
	case p.SHA256 != planned.SHA256:
		return nil, other("another tokenizer in " + o.settings.By)
	case unitBytesGiven && p.UnitBytes != o.job.unitBytes:
		return nil, other(fmt.Sprintf("--unit-bytes %d", p.UnitBytes))
	}
	return p, nil
}

// planLabels looks for labels in the inputs of p that the plan file lacks. A new plan file records
// whether there are any; those that are added to one must agree with it.
func (o *options) planLabels(p *plan, made *units.Plan) error {
	planned := make(map[string]bool, len(made.Inputs))
	for _, in := range made.Inputs {
		planned[in.Name] = true
	}
	added := *p
	added.inputs = slices.DeleteFunc(slices.Clone(p.inputs), func(in *input.File) bool { return planned[in.Path] })
	added.encoding.skipInvalid = true // rows that cannot be used decide nothing; tasks report them
	if err := added.lookForLabels(o.job.stores.Ctx); err != nil {
		return err
	}
	labels, first := added.encoding.masked, added.encoding.first
	switch {
	case made.Options == nil:
		o.settings.Labels = labels
	case first != "" && labels != o.settings.Labels:
		has, planHas := "no "+field.Labels, "some"
		if labels {
			has, planHas = field.Labels, "none"
		}
		return fmt.Errorf("--plan %s: %s has %s, but the rows of the plan have %s: write another plan for such texts, with another --out for its tasks",
			o.job.plan, first, has, planHas)
	}
	p.encoding.masked = o.settings.Labels
	return nil
}

func (j *jobOptions) readPlan() (*units.Plan, error) {
	out, name, err := j.stores.Output(j.plan)
	if err != nil {
		return nil, fmt.Errorf("--plan: %w", err)
	}
	f, err := out.Open(j.stores.Ctx, name)
	if err != nil {
		return nil, fmt.Errorf("--plan: %w", err)
	}
	defer f.Close()
	return units.Read(f, j.plan)
}

// checkPlanned returns an error if tasks cannot read an input of p. before has the inputs that the
// plan file lists already. It also determines which inputs belong to val.
func (p *plan) checkPlanned(before []units.Input) error {
	given := make(map[string]bool, len(p.inputs))
	for _, in := range p.inputs {
		switch {
		case in.ReadableOnce():
			return fmt.Errorf("%s: is not a regular file, so tasks cannot read it: save it to a file first", in.Path)
		case !utf8.ValidString(in.Path):
			return fmt.Errorf("%s: has a name that is not UTF-8, which the JSON of a plan cannot hold: rename it", in.Path)
		}
		given[in.Path] = true
	}
	all := slices.Clip(p.inputs)
	for _, in := range before {
		if !given[in.Name] {
			all = append(all, &input.File{Path: in.Name, Format: input.Format(in.Format)})
		}
	}
	if len(all) == 1 && all[0].Format == input.Text && p.settings.Val > 0 {
		return fmt.Errorf("%s: is a single text, whose end would be val, but tasks do not divide texts: "+
			"use --val 0, or divide it into files, or prepare it without --plan", all[0].Path)
	}
	return input.ChooseVal(all, p.settings.ValFiles)
}

func plannedInputs(inputs []*input.File) (all []units.Input) {
	for _, in := range inputs {
		all = append(all, units.Input{Name: in.Path, Format: string(in.Format), Val: in.Val, State: in.State()})
	}
	return all
}

// largeWhole is the size of an input in bytes above which a warning says that it is not divided.
const largeWhole = 4 << 30

// divide implements [units.Divider]. By its name, a compressed file cannot be divided.
func (o *options) divide(planned units.Input, unitBytes int64) ([]units.Part, error) {
	in, err := o.job.stores.Planned(planned)
	if err != nil {
		return nil, err
	}
	switch {
	case in.HasCompressedName():
	case in.Format == input.JSONL:
		return units.Lines(planned, unitBytes)
	case in.Format == input.Parquet:
		sizes, err := rows.GroupSizes(in)
		if err != nil || len(sizes) < 2 {
			return nil, err
		}
		return units.Groups(sizes, unitBytes), nil
	}
	if planned.Size > largeWhole {
		o.printLine("warning: %s has %s and cannot be divided, so one task reads all of it: if that takes too long, save it as several files, "+
			"or as JSON lines or Parquet without compression of the whole", in.Path, terminal.FormatBytes(planned.Size))
	}
	return nil, nil
}

// plannedSettings returns the options of a plan. An option that this program does not know is an
// error, because it may decide tokens.
func plannedSettings(p *units.Plan) (s settings, err error) {
	d := json.NewDecoder(bytes.NewReader(p.Options))
	d.DisallowUnknownFields()
	if err = d.Decode(&s); err != nil {
		err = fmt.Errorf("%w: the plan may be of a newer batchfs: use the same version for all tasks", err)
	}
	return s, err
}

func (o *options) printPlan(p *units.Plan, added, before int) error {
	var all int64
	for _, in := range p.Inputs {
		all += in.Size
	}
	what := fmt.Sprintf("%s: %s of %s, in %s", o.job.plan, terminal.Plural(int64(len(p.Inputs)), "input", "inputs"), terminal.FormatBytes(all),
		terminal.Plural(int64(len(p.Units)), "unit", "units"))
	if before > 0 {
		what += fmt.Sprintf("; %s and %s are new", terminal.Plural(int64(added), "input", "inputs"),
			terminal.Plural(int64(len(p.Units)-before), "unit", "units"))
	}
	o.printLine("%s", what)
	plan := printable.ShellArg(o.job.plan)
	o.printLine("next: run tasks, such as all of 0/16 to 15/16: batchfs prepare --task 0/16 --plan %s --out DIR", plan)
	return o.printLine("then: batchfs prepare --finish --plan %s --out DIR", plan)
}
