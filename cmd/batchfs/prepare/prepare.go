// Package prepare has the command `batchfs prepare`, which turns text into token files to mount.
//
// A reader (read.go) cuts the inputs (inputs.go) into chunks of about a mebibyte. Workers decode (json.go) and encode (encode.go)
// them with a tokenizer (tokenizer.go). Each chunk then goes, in the order of the inputs, to the shards of train and val
// (shards.go), in a format (format.go). A run (run.go) does all that; now and then a checkpoint (checkpoint.go) says which position of the
// inputs the shards have come to.
package prepare

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/vocabulary"
)

// settings are the options that decide what the token files hold.
type settings struct {
	By          string      `json:"by"`
	As          inputFormat `json:"as"`
	Field       string      `json:"field"`
	Mask        string      `json:"mask"`
	Special     bool        `json:"special"`
	Invalid     string      `json:"invalid"`
	EOT         string      `json:"eot"`
	EOTToken    string      `json:"eot_token"`
	Val         float64     `json:"val"`
	Format      string      `json:"format"`
	ShardTokens int64       `json:"shard_tokens"`
}

type options struct {
	settings
	dir     string
	include []string
	force   bool
	dryRun  bool

	stdin io.Reader
	out   io.Writer
	err   io.Writer // where a progress bar is shown
}

// Command returns `batchfs prepare`.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "prepare TEXT... --out DIR",
		Short: "Turn text into token files to mount",
		Long: `Prepare turns documents into token files, DIR/train.bin and DIR/val.bin, and
writes DIR/vocab.json, which says what each token stands for, and what each file
holds.

A TEXT is a file, a directory (every file below it, sorted by path), a glob, in
which ** stands for any directories, or - for standard input. In directories and
globs, names that begin with "." are left out; in directories, so are symbolic
links and what no --include matches. A document is a file, a line of a .jsonl or
.ndjson file, or a row of a .parquet file, compressed (gzip, zstd) or not.

A token is a character, numbered in the sorted set of the documents' Unicode code
points; a byte; or a byte pair of GPT-2, GPT-4 (cl100k), GPT-4o (o200k) or a
tokenizer.json, exactly as tiktoken or tokenizers have them. The names of special
tokens are text like any other, unless you say --special, and only a
tokenizer.json normalises text.

A FIELD is a path into a line: meta.body, or messages.*.content for a text of each
element of a list, or messages[role=user].content for elements with that value.
In --mask, a list has all its texts in their order: those that no part names have
mask 0. Of several parts that name a text, the first counts.

val gets documents chosen by a hash of the beginning of their text, so that more
files move none from train to val or back. Of one file of text, it gets the end.

Beside each file, FILE.index says where its documents end.

A line, a row, or a text without the end of a word may have 64 MiB, and a page of
parquet 256 MiB.

DIR gets its files when all are complete. A run that was interrupted, killed, or
ended by a full disk continues where it was when the same command is given again.`,
		Example: `  batchfs prepare input.txt --out data
  batchfs prepare input.txt --by gpt2 --out data
  batchfs prepare 'web/**/*.jsonl.zst' --val 0.0005 --shard-tokens 100000000 --out data
  batchfs prepare project/ --include '*.go' --include '*.md' --out data
  batchfs prepare sft.jsonl --mask prompt:0,completion:1 --by byte --out data
  batchfs prepare chat.jsonl --mask 'turns[role=assistant].text:1' --by tokenizer.json --special --out data
  curl https://example.org/book.gz | batchfs prepare - --by byte --val 0 --out data
  batchfs prepare wiki.parquet --field article.body --dry-run`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.prepare(cmd, args) },
	}
	o.register(cmd)
	return cmd
}

func (o *options) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.dir, "out", "", "write to this `DIR`, made if missing (required)")
	f.StringVar(&o.By, "by", vocabulary.Char, "what a token is: `char|byte|gpt2|cl100k|o200k|FILE`, a tokenizer.json of Hugging Face")
	f.StringVar((*string)(&o.As), "as", "", "what the files are, whatever their names say: `text|jsonl|parquet`")
	f.StringArrayVar(&o.include, "include", nil, "of directories, take the files that match this `PATTERN`, as '*.md', in which ** stands for any directories")
	f.StringVar(&o.Field, "field", "text", "the `FIELD` of a line, or column, that holds the text; dots lead into it")
	f.StringVar(&o.Mask, "mask", "", "take these `FIELD:MASK,...` of each line, such as prompt:0,completion:1 or messages[role=assistant].content:1, and write their masks "+
		"to NAME.mask.bin, a byte for each token")
	f.BoolVar(&o.Special, "special", false, "encode the names of special tokens in the texts as those tokens, as for rendered chats")
	f.StringVar(&o.Invalid, "invalid", "error", "what to do about text that is not UTF-8: `error|replace|skip`; skip leaves out the file, line or row")
	f.StringVar(&o.EOT, "eot", "end", "where the end-of-text token goes, if there is one: `end|begin|none` of each document")
	f.StringVar(&o.EOTToken, "eot-token", "", "the `NAME` of the special token that is it, such as '<|im_end|>' (default: the tokenizer's own, if it is known)")
	f.Float64Var(&o.Val, "val", 0.1, "this `FRACTION` goes to val; 0 for no val")
	f.StringVar(&o.Format, "format", "headerless", "how to write tokens: `headerless|llm.c|megatron|datatrove|npy`")
	f.Int64Var(&o.ShardTokens, "shard-tokens", 0, "write shards of this `NUMBER` of tokens, as train_000001.bin; 0 for one (default 100000000 for llm.c)")
	f.BoolVar(&o.force, "force", false, "replace the token files and vocab.json in DIR")
	f.BoolVar(&o.dryRun, "dry-run", false, "say about how many tokens there will be, from samples, and write nothing")
}

func (o *options) prepare(cmd *cobra.Command, args []string) error {
	o.stdin, o.out, o.err = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	c, err := o.newEncodeOptions()
	if err != nil {
		return err
	}
	switch {
	case o.dir == "" && !o.dryRun:
		return errors.New("--out: name the directory to write, such as --out data")
	case isURL(o.dir):
		return fmt.Errorf("--out %s: name a directory of this machine: batchfs writes nothing to a store; upload the files when they are complete", o.dir)
	}
	o.sayTokens(c)
	inputs, err := findInputs(args, o.include, o.As)
	if err == nil {
		err = o.suits(inputs, c)
	}
	if err != nil {
		return err
	}
	o.warnOfNoEOT(inputs, c)
	if o.dryRun {
		return o.estimate(cmd.Context(), inputs, c)
	}
	if !o.force && o.finished(inputs) {
		o.say("%s is complete: the same command made it of the same texts", o.dir)
		return o.report()
	}
	w, err := openWorkDir(o.dir)
	if err != nil {
		return err
	}
	defer w.close()
	s, err := o.begin(w, inputs)
	if err != nil {
		return err
	}
	if !s.Complete {
		o.sayContinuing(s, inputs)
		if err := o.complete(cmd.Context(), w, s, inputs, c); err != nil {
			if w.hasCheckpoint {
				err = fmt.Errorf("%w; the same command continues from what is done", err)
			}
			return err
		}
	}
	if err := w.publish(s); err != nil {
		return fmt.Errorf("--out %s: %w", o.dir, err)
	}
	return o.report()
}

// newEncodeOptions checks the options, and returns what they say about tokens.
func (o *options) newEncodeOptions() (*encodeOptions, error) {
	c := &encodeOptions{eot: -1, eotFirst: o.EOT == "begin", replace: o.Invalid == "replace", skip: o.Invalid == "skip", any: o.By == vocabulary.Byte, val: o.Val}
	_, known := outputFormats[o.Format]
	switch {
	case !(o.Val >= 0 && o.Val < 1): // so put, it refuses NaN too
		return nil, fmt.Errorf("--val: must be 0 or more and below 1, such as 0.1 (got %v)", o.Val)
	case !slices.Contains([]inputFormat{"", text, jsonl, parquet}, o.As):
		return nil, fmt.Errorf("--as: must be text, jsonl or parquet (got %q)", o.As)
	case !slices.Contains([]string{"error", "replace", "skip"}, o.Invalid):
		return nil, fmt.Errorf("--invalid: must be error, replace or skip (got %q)", o.Invalid)
	case !slices.Contains([]string{"end", "begin", "none"}, o.EOT):
		return nil, fmt.Errorf("--eot: must be end, begin or none (got %q)", o.EOT)
	case !known:
		return nil, fmt.Errorf("--format: must be headerless, llm.c, megatron, datatrove or npy (got %q)", o.Format)
	case o.ShardTokens < 0:
		return nil, fmt.Errorf("--shard-tokens: must be 0 or more (got %d)", o.ShardTokens)
	}
	if o.Format == "llm.c" && o.ShardTokens == 0 {
		o.ShardTokens = 100_000_000
	}
	t, err := o.tokenizer()
	if err != nil {
		return nil, err
	}
	c.use(t, o.EOT)
	c.fields = []field{newField(o.Field, 0)}
	if o.Mask != "" {
		c.masked = true
		c.fields, err = maskFields(o.Mask)
	}
	return c, err
}

func maskFields(list string) (fields []field, err error) {
	for part := range strings.SplitSeq(list, ",") {
		at := max(strings.LastIndex(part, ":"), 0)
		name, mask := part[:at], part[at:]
		if name == "" || mask != ":0" && mask != ":1" {
			return nil, fmt.Errorf("--mask: must be fields with 0 or 1, such as prompt:0,completion:1 or messages[role=assistant].content:1 (got %q)", list)
		}
		fields = append(fields, newField(name, mask[1]-'0'))
	}
	return fields, nil
}

// suits refuses texts that the options are not for.
func (o *options) suits(inputs []*input, c *encodeOptions) error {
	for _, in := range inputs {
		switch {
		case in.format == parquet && (len(c.fields) > 1 || c.fields[0].inList()):
			return fmt.Errorf("%s: of a parquet file, one column of text is read: write the rows as lines of .jsonl for %s", in.path, cmp.Or(o.Mask, o.Field))
		case in.format == text && in.once() && c.skip:
			return fmt.Errorf("%s: is not a regular file, and --invalid skip reads a text twice: save it to a file first", in.path)
		}
	}
	return nil
}

func (c *encodeOptions) use(t tokenizer, eot string) {
	c.tokenizer, c.width, c.eot = t, 2, -1
	if t.Size() > 1<<16 {
		c.width = 4
	}
	if token, ok := t.EndOfText(); ok && eot != "none" {
		c.eot = int64(token)
	}
}
