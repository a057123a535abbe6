// Package prepare has the command `batchfs prepare`, which turns text into token files to mount.
//
// A reader (read.go) cuts the inputs (inputs.go) into batches of about a mebibyte. Workers decode (json.go) and encode (encode.go)
// them with a tokenizer (tokenizer.go). Each batch then goes, in the order of the inputs, to the shards of train and val
// (shards.go), in a format (format.go). Now and then a checkpoint (state.go) says which position of the inputs the shards have
// come to.
package prepare

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/vocabulary"
)

// settings are the options that decide what the token files hold.
type settings struct {
	By          string  `json:"by"`
	As          kind    `json:"as"`
	Field       string  `json:"field"`
	Mask        string  `json:"mask"`
	Special     bool    `json:"special"`
	Invalid     string  `json:"invalid"`
	EOT         string  `json:"eot"`
	EOTToken    string  `json:"eot_token"`
	Val         float64 `json:"val"`
	Format      string  `json:"format"`
	ShardTokens int64   `json:"shard_tokens"`
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
	c, err := o.coding()
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
	w, err := openWorkplace(o.dir)
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
			if w.kept {
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

// coding checks the options, and returns what they say about tokens.
func (o *options) coding() (*coding, error) {
	c := &coding{eot: -1, eotFirst: o.EOT == "begin", replace: o.Invalid == "replace", skip: o.Invalid == "skip", any: o.By == vocabulary.Byte, val: o.Val}
	_, known := formats[o.Format]
	switch {
	case !(o.Val >= 0 && o.Val < 1): // so put, it refuses NaN too
		return nil, fmt.Errorf("--val: must be 0 or more and below 1, such as 0.1 (got %v)", o.Val)
	case !slices.Contains([]kind{"", text, jsonl, parquet}, o.As):
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
func (o *options) suits(inputs []*input, c *coding) error {
	for _, in := range inputs {
		switch {
		case in.kind == parquet && (len(c.fields) > 1 || c.fields[0].inList()):
			return fmt.Errorf("%s: of a parquet file, one column of text is read: write the rows as lines of .jsonl for %s", in.path, cmp.Or(o.Mask, o.Field))
		case in.kind == text && in.once() && c.skip:
			return fmt.Errorf("%s: is not a regular file, and --invalid skip reads a text twice: save it to a file first", in.path)
		}
	}
	return nil
}

func (c *coding) use(t tokenizer, eot string) {
	c.tokenizer, c.width, c.eot = t, 2, -1
	if t.Size() > 1<<16 {
		c.width = 4
	}
	if token, ok := t.EndOfText(); ok && eot != "none" {
		c.eot = int64(token)
	}
}

// digest stands for the texts, and for the tokenizer's file if there is one.
func (o *options) digest(inputs []*input) string {
	all := inputs
	if info, err := os.Stat(o.By); err == nil {
		all = append(slices.Clip(inputs), &input{path: o.By, info: info})
	}
	return digest(all)
}

// run stands for a run, so that the same command knows its files; it is empty where the texts can be read only once.
func (o *options) run(inputs []*input) string {
	if slices.ContainsFunc(inputs, (*input).once) {
		return ""
	}
	settings, _ := json.Marshal(o.settings)
	return fmt.Sprintf("%x", sha256.Sum256(append(settings, o.digest(inputs)...)))
}

// finished reports whether DIR holds the files of the same run.
func (o *options) finished(inputs []*input) bool {
	m, err := vocabulary.Read(filepath.Join(o.dir, manifestName))
	if err != nil || m == nil || m.Run == "" || m.Run != o.run(inputs) {
		return false
	}
	for _, split := range m.Splits {
		for _, shard := range split.Shards {
			if _, err := os.Stat(filepath.Join(o.dir, shard.Name)); err != nil {
				return false
			}
		}
	}
	return true
}

// begin returns where to begin: at the last checkpoint, if there is one of the same command.
func (o *options) begin(w *workplace, inputs []*input) (*state, error) {
	begin := &state{Settings: o.settings, Inputs: o.digest(inputs)}
	s, err := w.load()
	if s != nil {
		switch {
		case s.Settings != begin.Settings:
			then, _ := json.Marshal(s.Settings)
			err = fmt.Errorf("%s is of an unfinished run with other options: repeat those, or give --force to begin again: %s", w.dir.Name(), then)
		case s.Inputs != begin.Inputs:
			err = fmt.Errorf("%s is of an unfinished run, and since then the texts, or their sizes or modification times, are others: "+
				"restore them, or give --force to begin again", w.dir.Name())
		default:
			w.kept = true
			return s, nil
		}
	}
	if err != nil && !o.force {
		w.kept = true
		return nil, err
	}
	if _, err := o.stale(inputs); err != nil {
		return nil, err
	}
	return begin, w.clear()
}

const manifestName = vocabulary.FileName

// tokenFile matches the names of files that prepare writes for a split; its first group is the name of the shard without suffix.
var tokenFile = regexp.MustCompile(`^((?:train|val)(?:_\d+)?)(?:\.mask\.bin|\.bin|\.idx|\.npy|\.ds|\.(?:bin|npy|ds)\.index|\.ds\.metadata)$`)

// stale returns the token files of an earlier run in DIR. It fails if there is anything that may not be replaced.
func (o *options) stale(inputs []*input) ([]string, error) {
	entries, err := os.ReadDir(o.dir)
	if err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	old := map[string]bool{}
	if m, err := vocabulary.Read(filepath.Join(o.dir, manifestName)); err == nil && m != nil {
		for _, split := range m.Splits {
			for _, shard := range split.Shards {
				if match := tokenFile.FindStringSubmatch(shard.Name); match != nil {
					old[match[1]] = true
				}
			}
		}
	}
	var stale []string
	for _, e := range entries {
		match := tokenFile.FindStringSubmatch(e.Name())
		if match == nil && e.Name() != manifestName {
			continue
		}
		path := filepath.Join(o.dir, e.Name())
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("--out: %w", err)
		}
		for _, in := range inputs {
			if in.info != nil && os.SameFile(in.info, info) {
				return nil, fmt.Errorf("%s: is a text and would be written too: name the texts one by one, or choose another --out", in.path)
			}
		}
		switch {
		case info.IsDir():
			return nil, fmt.Errorf("%s: is a directory, where a file will be written: choose another --out", path)
		case !o.force:
			return nil, fmt.Errorf("%s: exists: give --force to replace it, or choose another --out", path)
		case match == nil:
		case old[match[1]]:
			stale = append(stale, e.Name())
		case o.ShardTokens > 0 || strings.Contains(match[1], "_"):
			return nil, fmt.Errorf("%s: is no file of the vocab.json there, and would be mixed with the new ones: move it away", path)
		}
	}
	return stale, nil
}

// complete goes from a state to a complete one.
func (o *options) complete(ctx context.Context, w *workplace, s *state, inputs []*input, c *coding) error {
	r := &reader{inputs: inputs, column: c.fields[0].names(), stdin: o.stdin, scratch: w.dir.Name(), inVal: c.inVal, cut: c.cut, whole: c.skip && !c.any}
	if err := o.count(ctx, r, c); err != nil {
		return err
	}
	out := &output{dir: w.dir, format: formats[o.Format], width: c.width, most: o.ShardTokens, masked: c.masked, tokenizer: c.Name()}
	var written [len(splits)]*split
	for i := range splits {
		written[i] = &split{output: out, name: splits[i], splitState: s.Splits[i]}
		defer written[i].close()
	}
	checkpoint := func(at position) error {
		if slices.ContainsFunc(inputs, (*input).once) { // it has other text the next time
			return nil
		}
		s.Position = at
		for i, split := range written {
			if err := split.sync(); err != nil {
				return err
			}
			s.Splits[i] = split.splitState
		}
		return w.save(s)
	}
	if err := o.encode(ctx, r, s, c, written, checkpoint); err != nil {
		return err
	}
	var sums [len(splits)]vocabulary.Split
	for i, split := range written {
		if err := split.complete(); err != nil {
			return err
		}
		sums[i].Shards = split.Shards
		for _, shard := range split.Shards {
			sums[i].Tokens += shard.Tokens
			sums[i].Documents += shard.Documents
		}
	}
	if train, val := sums[0], sums[1]; train.Tokens == 0 || val.Tokens == 0 && o.Val > 0 {
		w.kept = false
		return fmt.Errorf("--val: %v of %d documents leaves %d tokens for train and %d for val: give more text or another fraction",
			o.Val, train.Documents+val.Documents, train.Tokens, val.Tokens)
	}
	if err := o.manifest(w, c, sums, s, inputs); err != nil {
		return err
	}
	stale, err := o.stale(inputs)
	if err != nil {
		return err
	}
	names, err := w.files()
	if err != nil {
		return err
	}
	s.Stale = slices.DeleteFunc(stale, func(name string) bool { return slices.Contains(names, name) })
	s.Complete = true
	return checkpoint(position{Input: len(inputs)})
}

// encode writes the tokens of what r reads from the position of a state on, and checkpoints: the first after a second, and then every ten.
func (o *options) encode(ctx context.Context, r *reader, s *state, c *coding, written [len(splits)]*split, checkpoint func(position) error) error {
	progress := o.progress("encoding", r.inputs, s.Position)
	defer progress.Finish()
	var tokens int64
	began := time.Now()
	next := began.Add(time.Second)
	return pipeline(ctx, r, s.Position, c.run, func(b *batch) error {
		save := time.Now().After(next)
		s.leaveOut(b.leftOut)
		for i, split := range written {
			tokens += int64(len(b.out[i].tokens) / c.width)
			completed, err := split.write(b.out[i])
			if err != nil {
				return err
			}
			save = save || completed
		}
		progress.upTo(b.end)
		progress.Describe(fmt.Sprintf("encoding, %.2f million tokens/s", float64(tokens)/1e6/time.Since(began).Seconds()))
		if !save {
			return nil
		}
		next = time.Now().Add(10 * time.Second)
		return checkpoint(b.end)
	})
}

// count goes through the inputs once before they are encoded where that is needed: for the characters that there are, and for where
// val begins in a single text.
func (o *options) count(ctx context.Context, r *reader, c *coding) error {
	single := len(r.inputs) == 1 && r.inputs[0].kind == text && o.Val > 0
	if o.By != vocabulary.Char && !single {
		return nil
	}
	for _, in := range r.inputs {
		if in.once() {
			return fmt.Errorf("%s: is not a regular file, and --by char, or val at the end of a single text, reads it twice: save it to a file first, or give another --by and --val 0", in.path)
		}
	}
	progress := o.progress("counting", r.inputs, position{})
	defer progress.Finish()
	counting := *c
	seen := new(counter)
	if !c.any {
		counting.use(seen, "none")
	}
	counting.val = 0
	var tokens int64
	r.inVal, r.cut = counting.inVal, counting.cut
	err := pipeline(ctx, r, position{}, counting.run, func(b *batch) error {
		tokens += int64(len(b.out[0].tokens) / counting.width)
		progress.upTo(b.end)
		return nil
	})
	if err != nil {
		return err
	}
	r.inVal, r.cut = c.inVal, c.cut
	if o.By == vocabulary.Char {
		c.use(seen.characters(), o.EOT)
	}
	if !single {
		return nil
	}
	train := int64(float64(tokens) * (1 - o.Val)) // nanoGPT's int(n*0.9): 1-0.1 is 0.9 to the last bit
	if train == 0 || train == tokens {
		return fmt.Errorf("--val: %v of %d leaves %d for train and %d for val: give more text or another fraction", o.Val, tokens, train, tokens-train)
	}
	if r.tail, err = o.offset(r.inputs[0], c, train); err != nil {
		return fmt.Errorf("%s: %w", r.inputs[0].path, err)
	}
	return nil
}

// offset is where a text has so many characters, or bytes, before it.
func (o *options) offset(in *input, c *coding, n int64) (int64, error) {
	s, err := in.open(o.stdin, 0, func(int) {})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	text := bufio.NewReaderSize(s, 1<<16)
	var at int64
	if mark, _ := text.Peek(len(byteOrderMark)); string(mark) == string(byteOrderMark) {
		text.Discard(len(mark))
		at = int64(len(mark))
	}
	if c.any {
		return at + n, nil
	}
	for range n {
		_, size, err := text.ReadRune()
		if err != nil {
			return 0, cmp.Or(s.unchanged(), err)
		}
		at += int64(size)
	}
	return at, nil
}

func (o *options) manifest(w *workplace, c *coding, sums [len(splits)]vocabulary.Split, s *state, inputs []*input) error {
	m := vocabulary.Manifest{
		Tokenizer: c.Name(), Format: o.Format, Run: o.run(inputs), LeftOut: s.LeftOut,
		Splits:     map[string]vocabulary.Split{},
		Vocabulary: vocabulary.Vocabulary{Kind: c.Name(), Size: int(c.Size()), TokenDType: "uint" + strconv.Itoa(8*c.width), EOTAt: "none"},
	}
	for i, sum := range sums {
		if sum.Tokens > 0 {
			m.Splits[splits[i]] = sum
		}
	}
	if c.eot >= 0 {
		eot := uint32(c.eot)
		m.EOT, m.EOTAt = &eot, o.EOT
	}
	if m.Kind != vocabulary.Char && m.Kind != vocabulary.Byte {
		m.Kind = vocabulary.BPE
	}
	for token := range uint32(c.Size()) {
		switch m.Kind {
		case vocabulary.Char:
			m.Tokens = append(m.Tokens, string(c.Bytes(token)))
		case vocabulary.BPE:
			m.TokenBytes = append(m.TokenBytes, c.Bytes(token))
		}
	}
	return create(w.dir, manifestName, func(out *bufio.Writer) error { return m.Write(out) })
}
