// Package prepare implements the command batchfs prepare, which turns text into token files.
//
// A [plan] determines what is read and which tokens are written. A [reader] cuts the inputs into
// chunks of up to 192 KiB, unless a line, row or word is longer. Each [encodeWorker] takes the
// documents from chunks and encodes them with a [tokenizer]. A [writer] appends the tokens, in the
// order of the inputs, to the shards of train and val, and regularly saves a [checkpoint], from
// which an interrupted run continues.
//
// The files by role; docs/design.md follows a line of JSON through them:
//
//   - the command: prepare.go, print.go, estimate.go (--dry-run)
//   - the plan: plan.go, ids.go (--ids), count.go (a first pass, as for --by char)
//   - the inputs: package input
//   - from reader to writer: pipeline.go, notes.go (what is counted on the way)
//   - the reader of text and JSON lines: read.go
//   - the reader of rows: package rows, readrows.go
//   - the encoders: encode.go, encodeids.go, utf8.go, memory.go
//   - what they find in a line: package field, nan.go
//   - the tokenizers: tokenizer.go, specialnames.go
//   - the writer: write.go, format.go, manifest.go (vocab.json)
//   - the directories it writes to: workdir.go, existing.go (an earlier run)
//   - plan files and tasks: planfile.go, task.go, finish.go
//   - the items of batchfs check --against: items.go
package prepare

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"batchfs/cache/blob"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/prepare/units"
	"batchfs/cmd/batchfs/vocabulary"
)

type options struct {
	settings settings
	dir      string
	include  []string
	force    bool
	dryRun   bool
	job      jobOptions

	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

// Command returns the command batchfs prepare.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "prepare TEXT... --out DIR",
		Short: "Turn text into token files to mount",
		Long: `Prepare turns documents into the token files DIR/train.bin and DIR/val.bin. It
also writes DIR/vocab.json, which describes the files and says which text each
token stands for.

A TEXT is a file, a directory (all files below it, sorted by path), a glob, in
which ** matches any number of directories, or - for standard input. Directories
and globs skip names that begin with "."; directories also skip files that no
--include matches. Symbolic links are followed; a file that one TEXT leads to in
several ways counts once. A directory or glob with JSON lines, .parquet or
.arrow files skips README.md, LICENSE, and the .json and .lock files that the
datasets library writes next to them, unless an --include matches only those.

A document is a text file, a line of a .jsonl, .ndjson or .json file, or a row
of a .parquet, .arrow, .arrows, .feather or .ipc file. Each file may be
compressed with gzip or zstd. JSON lists, tables such as .csv, archives, images
and other binary files are refused unless --as says how to read them.

With --by char, a token is a character: its index in the sorted set of all
characters of the documents. With --by byte, it is a byte. Otherwise, tokens
come from the byte-pair encoding of GPT-2, GPT-4 (cl100k), GPT-4o (o200k), or a
tokenizer.json or tekken.json, and are exactly those of the original library.
Names of special tokens are encoded as ordinary text unless --special is given.
Text is normalized only if a tokenizer.json requires it.

A FIELD is a path into a line or row: meta.body, or messages.*.content for a
text in each element of a list, or messages[role=user].content for elements with
this value. With --mask, all texts of a list are taken, in their order; texts
that no FIELD names get mask 0. If several FIELDs name the same text, the first
one counts.

With --ids, a FIELD leads to the ids of a document, which a tokenizer has made
already, and they are written as they are. Ids whose attention_mask is 0 are
dropped. The labels next to them, if the first row has some, become the mask: 1
if a label is the id, and 0 if it is -100.

Documents are assigned to val by a hash of the beginning of their text, or of
their ids, so adding files moves no document between train and val. A single
text file is divided instead: val is its end. With --val-files, val has all
documents of the files whose paths match the GLOB, or whose names match if it
has no slash.

FILE.index, next to each token file, records where its documents end. With --id,
FILE.ids has a line of JSON for each document, in the same order.

A line, a row, or a stretch of text in which no word ends may have up to 64 MiB.

The files appear in DIR when all of them are complete. After an interrupted or
killed run, or one that ran out of disk space, the same command continues from
the last checkpoint.

To prepare on many machines, write a plan with --plan, run its tasks with
--task, and end with --finish. A plan divides the TEXTs into units, each of
which becomes a shard such as train_000017.bin. Tasks need only the plan, the
TEXTs and DIR. They may run in any order and number, be killed, and run again:
what is done is skipped. Before --finish, a mount rejects DIR. The plan, the
TEXTs and DIR may be in a store that speaks S3, such as s3://bucket/web.`,
		Example: `  batchfs prepare input.txt --out data
  batchfs prepare input.txt --by gpt2 --out data
  batchfs prepare 'web/**/*.jsonl.zst' --val 0.0005 --shard-tokens 100000000 --out data
  batchfs prepare project/ --include '*.go' --include '*.md' --out data
  batchfs prepare sft.jsonl --mask prompt:0,completion:1 --by byte --out data
  batchfs prepare chat.jsonl --mask 'turns[role=assistant].text:1' --by tokenizer.json --special --out data
  curl https://example.org/book.gz | batchfs prepare - --by byte --val 0 --out data
  batchfs prepare tokenized/ --ids input_ids --by tokenizer.json --out data
  batchfs prepare wiki.parquet --field article.body --dry-run
  batchfs prepare 'web/**/*.parquet' --by gpt2 --plan plan.json
  batchfs prepare --plan plan.json --task 3/16 --out data
  batchfs prepare --plan plan.json --status --out data
  batchfs prepare --plan plan.json --finish --out data`,
		Args: func(cmd *cobra.Command, args []string) error { return o.checkFlags(cmd.Flags(), args) },
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.register(cmd)
	return cmd
}

func (o *options) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.dir, "out", "", "write to this `DIR`, which is created if missing (required, except to write a plan)")
	f.StringVar(&o.settings.By, "by", vocabulary.Char, "the tokenizer: `char|byte|gpt2|cl100k|o200k|FILE`, where FILE is a "+
		"tokenizer.json of Hugging Face or a tekken.json of Mistral")
	f.StringVar((*string)(&o.settings.As), "as", "", "the format of all files, whatever their names: `text|jsonl|parquet|arrow`")
	f.StringArrayVar(&o.include, "include", nil, "in directories, take only files that match this `PATTERN`, such as '*.md'; ** matches "+
		"any number of directories")
	f.StringVar(&o.settings.Field, "field", "text", "the `FIELD` of a line, or column, that holds the text; dots separate nested names")
	f.StringVar(&o.settings.IDs, "ids", "", "read ids that exist already from this `FIELD` of each line, or column, such as input_ids, "+
		"and write them as they are")
	f.Int64Var(&o.settings.VocabSize, "vocab-size", 0, "with --ids, all ids are below this `NUMBER`; or give their tokenizer with --by")
	f.StringVar(&o.settings.Mask, "mask", "", "take these fields of each line, `FIELD:MASK,...`, such as prompt:0,completion:1 or "+
		"messages[role=assistant].content:1, and write the mask of each token, one byte, to NAME.mask.bin")
	f.StringVar(&o.settings.ID, "id", "", "write the value of this `FIELD` of each line, or column, to FILE.ids next to each token FILE, such as url; "+
		"each shard then ends with a document")
	f.BoolVar(&o.settings.Special, "special", false, "encode names of special tokens in texts as those tokens, for example in rendered chats")
	f.StringVar(&o.settings.Invalid, "invalid", "error", "what to do about text that is not UTF-8: `error|replace|skip`; skip leaves "+
		"out the file, line or row, and lines of JSON without the text or ids")
	f.StringVar(&o.settings.EOT, "eot", "end", "where to put the end-of-text token of each document: `end|begin|none`")
	f.StringVar(&o.settings.EOTToken, "eot-token", "", "the `NAME` of the special token to use as end-of-text token, such as "+
		"'<|im_end|>' (default: the tokenizer's, if known)")
	f.Float64Var(&o.settings.Val, "val", 0.1, "put this `FRACTION` of the documents, or of a single text file, into val; 0 for no val")
	f.StringVar(&o.settings.ValFiles, "val-files", "", "put the files that match this `GLOB` into val, and all others into train, such "+
		"as 'shard_06542.parquet'")
	f.StringVar(&o.settings.Format, "format", "headerless", "format of the token files: `headerless|llm.c|megatron|datatrove|npy`")
	f.Int64Var(&o.settings.ShardTokens, "shard-tokens", 0, "write shards of this `NUMBER` of tokens, such as train_000001.bin; 0 for a "+
		"single file (default 100000000 for llm.c). If --eot is begin, with --ids or --id, and in the formats megatron and datatrove, a "+
		"shard ends with the document that reaches it")
	f.BoolVar(&o.force, "force", false, "replace the token files and vocab.json in DIR")
	f.BoolVar(&o.dryRun, "dry-run", false, "estimate the number of tokens from samples, and write nothing")
	cmd.MarkFlagsMutuallyExclusive("val", "val-files")
	o.job.register(cmd)
}

// jobFlags are the flags that need --plan. Those that make a plan are false, those that use one are
// true.
var jobFlags = map[string]bool{"unit-bytes": false, "task": true, "tasks": true, "finish": true, "verify": true, "status": true}

// storeFlags are for both.
var storeFlags = []string{"config", "set"}

// checkFlags returns an error if flags do not go together.
func (o *options) checkFlags(flags *pflag.FlagSet, args []string) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		uses, isJob := jobFlags[f.Name]
		switch {
		case err != nil || f.Name == "plan" || f.Hidden:
		case o.job.plan == "" && (isJob || slices.Contains(storeFlags, f.Name)):
			err = fmt.Errorf("--%s: works on a plan: name its file with --plan", f.Name)
		case o.job.plan == "", slices.Contains(storeFlags, f.Name):
		case len(args) > 0 && uses:
			err = fmt.Errorf("--%s: leave out the texts, which the plan has, or leave out --%[1]s to add them to the plan", f.Name)
		case f.Name == "force", f.Name == "dry-run":
			err = fmt.Errorf("--%s: does not go with --plan: leave it out", f.Name)
		case len(args) > 0 && f.Name == "out":
			err = errors.New("--out: does not go with making a plan, which writes nothing but itself: give it to the tasks")
		case f.Name == "shard-tokens":
			err = errors.New("--shard-tokens: does not go with --plan, where each unit is one shard: choose their size with --unit-bytes")
		case len(args) == 0 && !uses && f.Name != "out":
			err = fmt.Errorf("--%s: is for making a plan: name the texts too, or leave it out, because the plan in %s has all options", f.Name, o.job.plan)
		}
	})
	switch {
	case err != nil:
		return err
	case o.job.plan == "" && len(args) == 0:
		return errors.New("name the texts to read, such as batchfs prepare input.txt --out data")
	case o.job.verify && !o.job.finish:
		return errors.New("--verify: goes with --finish")
	case o.job.unitBytes < 1:
		return fmt.Errorf("--unit-bytes: must be at least 1 (got %d)", o.job.unitBytes)
	case o.job.plan != "" && len(args) == 0 && o.dir == "":
		return errors.New("--out: give the directory that all tasks write to, such as --out data")
	}
	if err := config.CheckPath(o.dir); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	return o.settings.checkIDs(flags.Changed)
}

func (o *options) run(cmd *cobra.Command, args []string) error {
	o.job.stores.Ctx = cmd.Context()
	o.stdin, o.stdout, o.stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	switch {
	case o.job.plan == "":
		return o.prepare(cmd, args)
	case len(args) > 0:
		return o.writePlan(args, cmd.Flags().Changed("unit-bytes"))
	case o.job.finish:
		return o.finishJob(cmd.Context())
	case o.job.status:
		return o.printStatus(cmd.Context())
	}
	return o.runTask(cmd.Context())
}

func (o *options) prepare(cmd *cobra.Command, args []string) error {
	p, err := o.makePlan(cmd.Context(), args)
	if err != nil {
		return err
	}
	if o.dryRun {
		return o.estimate(cmd.Context(), p)
	}
	if !o.force && o.isComplete(p) {
		o.printLine("%s is already complete: the same command made it from the same texts", o.dir)
		removePublished(o.dir)
		return o.printResult()
	}
	work, err := openWorkDir(o.dir)
	if err != nil {
		return err
	}
	defer work.close()
	s, err := o.startCheckpoint(work, p)
	if err != nil {
		return err
	}
	if !s.Complete {
		o.printContinuing(s, p.inputs)
		if err := o.makeFiles(cmd.Context(), p, work, s); err != nil {
			if work.hasCheckpoint {
				err = fmt.Errorf("%w; run the same command again to continue", err)
			}
			return err
		}
	}
	if err := work.publish(s); err != nil {
		return fmt.Errorf("--out %s: %w", o.dir, err)
	}
	return o.printResult()
}

// makePlan checks the options and returns the plan for the files that the arguments name. It prints
// what a user may want to change.
func (o *options) makePlan(ctx context.Context, args []string) (*plan, error) {
	if err := o.settings.resolve(); err != nil {
		return nil, err
	}
	o.settings.LaterBytes = units.BytesVersion - 1
	e, err := newEncoding(&o.settings, nil)
	if err != nil {
		return nil, err
	}
	switch {
	case o.dir == "" && !o.dryRun:
		return nil, errors.New("--out: give the directory to write to, such as --out data")
	case blob.IsURL(o.dir):
		return nil, fmt.Errorf("--out %s: give a local directory, because prepare writes to a store only with --plan; or upload the "+
			"files when they are complete", o.dir)
	}
	o.printTokens(e)
	inputs, leftOut, err := input.Find(args, o.include, o.settings.As, o.stdin, nil)
	if err != nil {
		return nil, err
	}
	if inputs = o.withoutOutput(inputs, args); len(inputs) == 0 {
		return nil, fmt.Errorf("%s: has no texts, but only the output of an earlier run", strings.Join(args, " "))
	}
	p, err := newPlan(ctx, o.settings, e, inputs)
	if err != nil {
		return nil, err
	}
	o.printLeftOut(leftOut)
	o.printIDs(p)
	o.warnField()
	o.warnMissingEOT(p)
	o.warnTokenizer(p)
	return p, o.announceWindows(inputs)
}

// makeFiles makes the files of a plan in the working directory, continuing from checkpoint s.
func (o *options) makeFiles(ctx context.Context, p *plan, work *workDir, s *checkpoint) error {
	scratchDir := work.dir.Name()
	p, err := o.count(ctx, p, scratchDir)
	if err != nil {
		return err
	}
	progress := o.newProgress("encoding", p.inputs, s.Position)
	w := newWriter(p, work, s, "", progress)
	defer w.close()
	err = encodeInputs(ctx, p, s.Position, scratchDir, w.write)
	progress.Finish()
	if err != nil {
		return err
	}
	made, err := w.end()
	if err != nil {
		return err
	}
	if err := p.checkSplits(made, &s.Notes); err != nil {
		work.hasCheckpoint = false // the same command would fail again
		return err
	}
	eotAt := p.settings.EOT
	if p.encoding.ids {
		eotAt = idsEOTAt(made, w.eotCounts())
	}
	manifest := p.manifest(made, eotAt, &s.Notes)
	if p.hasChangedSince(s.Inputs) {
		manifest.Run = "" // so that the same command does not take these files for its own
	}
	if err := create(work.dir, manifestName, func(out *bufio.Writer) error { return manifest.Write(out) }); err != nil {
		return err
	}
	if s.Stale, err = o.filesToRemove(work, p); err != nil {
		return work.keepFiles(err)
	}
	s.Complete = true
	return w.save(position{Input: len(p.inputs)})
}
