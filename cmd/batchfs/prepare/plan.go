package prepare

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"

	"golang.org/x/crypto/blake2b"

	"batchfs/cmd/batchfs/prepare/field"
	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/prepare/rows"
	"batchfs/cmd/batchfs/vocabulary"
)

// A plan determines the content of the token files. It never changes, so the reader, the encoders
// and the writer of a run share it. With --dry-run, samples are encoded with the same plan.
type plan struct {
	settings settings
	inputs   []*input.File
	encoding encoding
	val      valRule
}

// settings are the options that determine the content of the token files. Checkpoints store them.
type settings struct {
	By          string       `json:"by"`
	As          input.Format `json:"as"`
	Field       string       `json:"field"`
	Mask        string       `json:"mask"`
	Special     bool         `json:"special"`
	Invalid     string       `json:"invalid"`
	EOT         string       `json:"eot"`
	EOTToken    string       `json:"eot_token"`
	Val         float64      `json:"val"`
	ValFiles    string       `json:"val_files,omitempty"`
	Format      string       `json:"format"`
	ShardTokens int64        `json:"shard_tokens"`
	IDs         string       `json:"ids,omitempty"`
	VocabSize   int64        `json:"vocab_size,omitempty"`
	ID          string       `json:"id,omitempty"`
	// Labels says whether rows have labels, with --ids and a plan file. Without a plan file, it is
	// false, because each run looks at the rows itself.
	Labels bool `json:"labels,omitempty"`
	// LaterBytes is units.BytesVersion minus 1, so that a run neither continues that of a build
	// with other bytes, nor takes its files for its own. With a plan file, it is 0: sidecars have
	// the version.
	LaterBytes int `json:"later_bytes,omitempty"`
}

// newPlan returns the plan for inputs. With --ids, it reads the first row of them.
func newPlan(ctx context.Context, s settings, e encoding, inputs []*input.File) (*plan, error) {
	p := &plan{settings: s, inputs: inputs, encoding: e, val: valRule{fraction: s.Val}}
	err := cmp.Or(input.ChooseVal(inputs, s.ValFiles), p.checkInputs())
	if err == nil && e.ids {
		err = p.lookForLabels(ctx)
	}
	return p, err
}

// resolve checks the settings, and sets those that depend on others.
func (s *settings) resolve() error {
	if s.ValFiles != "" {
		s.Val = 0
	}
	_, known := outputFormats[s.Format]
	switch {
	case !(s.Val >= 0 && s.Val < 1): // also true for NaN
		return fmt.Errorf("--val: must be 0 or more and below 1, such as 0.1 (got %v)", s.Val)
	case !slices.Contains([]input.Format{"", input.Text, input.JSONL, input.Parquet, input.Arrow}, s.As):
		return fmt.Errorf("--as: must be text, jsonl, parquet or arrow (got %q)", s.As)
	case !slices.Contains([]string{"error", "replace", "skip"}, s.Invalid):
		return fmt.Errorf("--invalid: must be error, replace or skip (got %q)", s.Invalid)
	case !slices.Contains([]string{"end", "begin", "none"}, s.EOT):
		return fmt.Errorf("--eot: must be end, begin or none (got %q)", s.EOT)
	case !known:
		return fmt.Errorf("--format: must be headerless, llm.c, megatron, datatrove or npy (got %q)", s.Format)
	case s.ShardTokens < 0:
		return fmt.Errorf("--shard-tokens: must be 0 or more (got %d)", s.ShardTokens)
	case s.ID != "" && field.New(s.ID, 0).InList():
		return fmt.Errorf("--id: must lead to one value in each line or row, and not through a list (got %q)", s.ID)
	}
	for _, o := range []struct{ name, path string }{{"--field", s.Field}, {"--ids", s.IDs}, {"--id", s.ID}} {
		if err := field.CheckConditions(o.path); err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
	}
	if err := s.resolveIDs(); err != nil {
		return err
	}
	if s.Format == "llm.c" && s.ShardTokens == 0 {
		s.ShardTokens = 100_000_000
	}
	return nil
}

func (p *plan) checkInputs() error {
	for _, in := range p.inputs {
		kind := in.NonTextName()
		switch {
		case p.settings.As == "" && kind != nil && !(kind.Binary && p.encoding.leavesOutBinary()):
			return fmt.Errorf("%s: %w", in.Path, kind.Refused())
		case in.Format == input.Text && p.encoding.ids && (p.settings.As != "" || kind == nil):
			return fmt.Errorf("%s: is read as text, which has no ids: leave it out (in a directory, with --include '*.parquet'), "+
				"or use --as jsonl if its lines are JSON", in.Path)
		case p.encoding.ids && in.Info != nil && in.ReadableOnce():
			return fmt.Errorf("%s: is not a regular file, and --ids reads its beginning twice: save it to a file, or redirect it to standard input", in.Path)
		case in.Format == input.Text && p.encoding.masked && (p.settings.As != "" || kind == nil):
			// The other files are left out, because they are binary.
			return p.noFields(in, "--mask")
		case in.Format == input.Text && p.encoding.id != nil && (p.settings.As != "" || kind == nil):
			return p.noFields(in, "--id")
		case in.Format == input.Text && in.ReadableOnce() && p.encoding.skipInvalid:
			return fmt.Errorf("%s: is not a regular file, and --invalid skip reads a text twice: save it to a file first", in.Path)
		}
	}
	return nil
}

// noFields returns the error for a text if an option needs fields.
func (p *plan) noFields(in *input.File, option string) error {
	return fmt.Errorf("%s: is read as text, which has no fields for %s: leave it out (in a directory, with --include '*.jsonl'), "+
		"or use --as jsonl if its lines are JSON", in.Path, option)
}

func (p *plan) isSingleText() bool { return len(p.inputs) == 1 && p.inputs[0].Format == input.Text }

// digest identifies the plan by its settings and inputs, so that the same command recognizes its
// files on any host. It is empty if an input can be read only once.
func (p *plan) digest() string {
	if slices.ContainsFunc(p.inputs, (*input.File).ReadableOnce) {
		return ""
	}
	settings, _ := json.Marshal(p.settings)
	return fmt.Sprintf("%x", sha256.Sum256(append(settings, digestInputs(p.files(), false)...)))
}

// files returns the inputs and, if --by names a file, that file.
func (p *plan) files() []*input.File {
	if _, isBuiltIn := tokenizers[p.settings.By]; isBuiltIn {
		return p.inputs
	}
	if info, err := os.Stat(p.settings.By); err == nil {
		return append(slices.Clip(p.inputs), &input.File{Path: p.settings.By, Info: info})
	}
	return p.inputs
}

// digestInputs returns a hash of the names, formats and sizes of inputs, and of their modification
// times if times is true.
func digestInputs(inputs []*input.File, times bool) string {
	h := sha256.New()
	for _, in := range inputs {
		fmt.Fprintf(h, "%s\x00%s\x00", in.Path, in.Format)
		if in.Info != nil {
			fmt.Fprintf(h, "%d\n", in.Info.Size())
		}
		if in.Info != nil && times {
			fmt.Fprintf(h, "%d\n", in.Info.ModTime().UnixNano())
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// An encoding says how documents become tokens.
type encoding struct {
	tokenizer      tokenizer
	width          int // bytes per token
	fields         []field.Field
	ids            bool         // whether the first field leads to lists of ids instead of texts
	id             *field.Field // leads to the id of a document; nil without --id
	masked         bool
	first          string       // with ids, the row that decides whether rows have labels
	eot            int64        // end-of-text token, or -1
	eotBegins      bool         // whether eot begins documents instead of ending them
	replaceInvalid bool         // whether to replace invalid bytes by U+FFFD
	skipInvalid    bool         // whether to leave out documents that cannot be used
	anyBytes       bool         // whether text need not be UTF-8
	nameStarts     []*nameStart // beginnings of the names of special tokens to count
}

// columns returns what is read from each row.
func (e *encoding) columns() rows.Columns {
	return rows.Columns{Fields: e.fields, ID: e.id, IDs: e.ids, OneText: e.hasOneText()}
}

// hasOneText reports whether a single field leads to the text of each line or row.
func (e *encoding) hasOneText() bool { return !e.ids && !e.masked && !e.fields[0].InList() }

// isJSON reports whether pieces of inputs in a format are lines of JSON, or rows that became JSON.
func (e *encoding) isJSON(format input.Format) bool {
	return format == input.JSONL || format.HasRows() && !e.columns().AreTexts()
}

// newEncoding returns the encoding that the settings ask for. If content is not nil, it is that of
// the file that --by names.
func newEncoding(s *settings, content []byte) (e encoding, err error) {
	t, err := s.openTokenizer(content)
	if err != nil {
		return encoding{}, err
	}
	e = encoding{eotBegins: s.EOT == "begin", replaceInvalid: s.Invalid == "replace", skipInvalid: s.Invalid == "skip",
		anyBytes: s.By == vocabulary.Byte, fields: []field.Field{field.New(s.Field, 0)}, masked: s.Mask != "" || s.Labels}
	if !s.Special {
		e.nameStarts = nameStarts(t)
	}
	if s.IDs != "" {
		e.ids, e.fields = true, []field.Field{field.New(s.IDs, 1)}
		e.fields[0].Options = "--ids"
	}
	if s.Mask != "" {
		e.fields, err = field.ParseMask(s.Mask)
	}
	if s.ID != "" {
		e.id = new(field.New(s.ID, 0))
		e.id.Options = "--id"
	}
	return e.withTokenizer(t, s.EOT), err
}

// withTokenizer returns the encoding with another tokenizer, whose end-of-text token is not used if
// eotAt is none.
func (e encoding) withTokenizer(t tokenizer, eotAt string) encoding {
	e.tokenizer, e.width, e.eot = t, 2, -1
	if t.Size() > 1<<16 {
		e.width = 4
	}
	if token, ok := t.EndOfText(); ok && eotAt != "none" {
		e.eot = int64(token)
	}
	return e
}

// leavesOutBinary reports whether texts that are not UTF-8 are left out.
func (e *encoding) leavesOutBinary() bool { return e.skipInvalid && !e.anyBytes }

// A valRule decides which documents belong to val. The reader applies it to texts, because the
// pieces of a long text must stay together. The encoders apply it to lines and rows, because only
// they know the texts of these.
type valRule struct {
	fraction float64 // fraction of the documents that belong to val
	start    int64   // offset at which val begins in a single text; if 0, hashes choose documents
}

// valKey precedes what is hashed, so that the selection is independent of other hashes of a text.
const valKey = "batchfs: documents for val\x00"

// valBytes is the number of bytes at the beginning of a document that are hashed.
const valBytes = 1 << 16

// has reports whether the document at an offset of an input belongs to val. If the hash decides, it
// depends on nothing but the text: adding or renaming files moves no document to another split, and
// copies of a text are in the same split.
func (v valRule) has(in *input.File, offset int64, text []byte) bool {
	switch {
	case in.Val:
		return true
	case v.start > 0:
		return offset >= v.start
	case v.fraction == 0:
		return false
	}
	sum := sha256.Sum256(append([]byte(valKey), text[:min(len(text), valBytes)]...))
	return float64(binary.BigEndian.Uint64(sum[:])>>11)/(1<<53) < v.fraction
}

// hasIDs is like has, but for a document that consists of ids. tokens has the bytes that are
// written to the token file. The writer of the Python package selects the same documents.
func (v valRule) hasIDs(in *input.File, tokens []byte) bool {
	if in.Val || v.fraction == 0 {
		return in.Val
	}
	hash, _ := blake2b.New(8, nil)
	hash.Write(tokens)
	return binary.LittleEndian.Uint64(hash.Sum(nil)) < uint64(math.Ceil(v.fraction*0x1p64))
}
