package prepare

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"batchfs/cmd/batchfs/prepare/field"
	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/vocabulary"
)

// notes counts what a user may not expect, to report it at the end. Checkpoints store it, so that
// it covers the whole run.
type notes struct {
	NotUTF8 vocabulary.LeftOut `json:"not_utf8"`
	Empty   vocabulary.LeftOut `json:"empty"`
	// Replaced counts documents in which U+FFFD replaced invalid bytes.
	Replaced replaced `json:"replaced"`
	// Unusable counts lines and rows that cannot be used, keyed by what is wrong with them. Lines
	// counts all lines and rows, except those that are not UTF-8.
	Unusable map[string]vocabulary.LeftOut `json:"unusable,omitempty"`
	Lines    int64                         `json:"lines,omitempty"`
	// Special counts names of special tokens that were encoded as ordinary text.
	Special field.Tally `json:"special,omitempty"`
	field.Counts
	// Lacking counts bytes that the vocabulary lacks, such as 0x00.
	Lacking field.Tally `json:"lacking,omitempty"`
}

func (n *notes) add(more *notes) {
	addLeftOut(&n.NotUTF8, more.NotUTF8.Documents, more.NotUTF8.First)
	addLeftOut(&n.Empty, more.Empty.Documents, more.Empty.First)
	n.Replaced.addAll(more.Replaced)
	for kind, left := range more.Unusable {
		n.countUnusable(kind, left.Documents, left.First)
	}
	n.Lines += more.Lines
	n.Special.AddAll(more.Special)
	n.Counts.AddAll(&more.Counts)
	n.Lacking.AddAll(more.Lacking)
}

// linesOrRows returns what the documents of inputs are called in messages: line, row, or both.
func linesOrRows(inputs []*input.File) (one, several string) {
	isRow := func(in *input.File) bool { return in.Format.HasRows() }
	isLine := func(in *input.File) bool { return in.Format == input.JSONL }
	switch {
	case !slices.ContainsFunc(inputs, isRow):
		return "line", "lines"
	case !slices.ContainsFunc(inputs, isLine):
		return "row", "rows"
	}
	return "line or row", "lines and rows"
}

// A place is the line or row of an input that a document comes from.
type place struct {
	kind   string // "line" or "row"
	number int64  // from 1
}

func (p place) String() string { return fmt.Sprintf("%s %d", p.kind, p.number) }

// of returns the place with the name of its input, such as line 7 of a.jsonl.
func (p place) of(in *input.File) string { return fmt.Sprintf("%s of %s", p, in.Name()) }

// addLeftOut counts left-out documents; first is the location of the first one.
func addLeftOut(to *vocabulary.LeftOut, documents int64, first string) {
	to.First = cmp.Or(to.First, first)
	to.Documents += documents
}

const tooLong = "too long"

// Unusable lines may be at most this fraction of all lines, once there are minLines.
const (
	maxUnusable = 0.1
	minLines    = 10_000
)

// addUnusable counts a line or row that cannot be used.
func (n *notes) addUnusable(kind, location string) { n.countUnusable(kind, 1, location) }

func (n *notes) countUnusable(kind string, lines int64, first string) {
	if n.Unusable == nil {
		n.Unusable = map[string]vocabulary.LeftOut{}
	}
	left := n.Unusable[kind]
	addLeftOut(&left, lines, first)
	n.Unusable[kind] = left
}

// checkUnusable returns an error if too many of the documents, which are called lines or rows,
// cannot be used.
func (n *notes) checkUnusable(called string) error {
	if lines := n.unusableLines(); n.Lines >= minLines && float64(lines) > maxUnusable*float64(n.Lines) {
		return fmt.Errorf("%d of %d %s cannot be used, which is more than %v%%, so perhaps an option is wrong: %s",
			lines, n.Lines, called, 100*maxUnusable, n.unusable())
	}
	return nil
}

func (n *notes) unusableLines() (lines int64) {
	for _, left := range n.Unusable {
		lines += left.Documents
	}
	return lines
}

// unusable lists what is wrong with lines and rows that were left out.
func (n *notes) unusable() string {
	var list []string
	for _, kind := range slices.Sorted(maps.Keys(n.Unusable)) {
		list = append(list, fmt.Sprintf("%s (%d, the first is %s)", kind, n.Unusable[kind].Documents, n.Unusable[kind].First))
	}
	return strings.Join(list, "; ")
}

// A replaced counts documents, in order. A document may be added several times in a row.
type replaced struct {
	vocabulary.LeftOut
	Last string `json:"last,omitempty"` // location of the last one
}

func (r *replaced) add(location string) {
	if location != r.Last {
		addLeftOut(&r.LeftOut, 1, location)
		r.Last = location
	}
}

func (r *replaced) addAll(more replaced) {
	if more.Documents > 0 {
		r.add(more.First)
		r.Documents += more.Documents - 1
		r.Last = more.Last
	}
}

// lines returns a line for each kind of note.
func (n *notes) lines(p *plan) (lines []string) {
	add := func(count int64, format string, args ...any) {
		if count > 0 {
			lines = append(lines, fmt.Sprintf(format, args...))
		}
	}
	what, options := "text", "--field or --mask"
	if p.encoding.ids {
		what, options = "ids", "--ids"
	}
	add(n.Empty.Documents, "left out because they have no %s: %s; the first is %s; if they should have some, check %s",
		what, terminal.Plural(n.Empty.Documents, "document", "documents"), n.Empty.First, options)
	add(n.Replaced.Documents, "not valid UTF-8: %s, in which U+FFFD replaced each invalid part; the first is %s",
		terminal.Plural(n.Replaced.Documents, "document", "documents"), n.Replaced.First)
	one, several := linesOrRows(p.inputs)
	add(n.unusableLines(), "left out because they cannot be used: %s: %s", terminal.Plural(n.unusableLines(), one, several), n.unusable())
	add(n.Special.Total(), "encoded as ordinary text: %s, %s; to encode them as these tokens, use --special",
		terminal.Plural(n.Special.Total(), "name of a special token", "names of special tokens"), n.Special)
	unknown := "dropped"
	if t, ok := p.encoding.tokenizer.(bpeTokenizer); ok && t.Unknown() != "" {
		unknown = "encoded as " + t.Unknown()
	}
	add(n.Lacking.Total(), "%s: %s that the vocabulary lacks, %s; the library tokenizers does the same", unknown,
		terminal.Plural(n.Lacking.Total(), "byte", "bytes"), n.Lacking)
	for _, f := range p.encoding.unmatched(n) {
		add(1, "matches 0 texts: part %s:%d of --mask; correct it, or remove it", f, f.Mask)
	}
	add(n.Unnamed.Total(), "given mask 0 because no part of --mask names them: %s, %s; to choose their mask, add them to --mask",
		terminal.Plural(n.Unnamed.Total(), "message", "messages"), n.Unnamed)
	add(n.Dropped.Total(), "dropped: %s, %s; to keep them, render each chat with its template, as in examples/prepare_chat.py",
		terminal.Plural(n.Dropped.Total(), "field of messages", "fields of messages"), n.Dropped)
	return lines
}

// unmatched returns the parts of --mask that apply to no text. A part that leads into no list
// always applies to one.
func (e *encoding) unmatched(n *notes) []field.Field {
	return slices.DeleteFunc(slices.Clone(e.fields), func(f field.Field) bool { return !e.masked || !f.InList() || n.Matched[f.String()] != nil })
}

// checkMask returns an error if a part of --mask with mask 1 applies to no text, or if no token of
// train has mask 1. ones is the number of tokens of train that have it.
func (e *encoding) checkMask(n *notes, ones int64) error {
	wantsOnes := func(f field.Field) bool { return f.Mask == 1 }
	hint := ""
	if len(n.Unnamed) > 0 {
		hint = "; messages that no part names: " + n.Unnamed.String()
	}
	if e.ids && e.masked && ones == 0 {
		return fmt.Errorf("%s is %d for all tokens of train, so there is nothing to learn: give some tokens their id as label, or remove the field",
			field.Labels, ignoredLabel)
	}
	unmatched := e.unmatched(n)
	switch i := slices.IndexFunc(unmatched, wantsOnes); {
	case i >= 0:
		return fmt.Errorf("--mask: part %s:1 matches 0 texts: correct it, or remove it%s", unmatched[i], hint)
	case e.masked && ones == 0 && slices.ContainsFunc(e.fields, wantsOnes):
		return fmt.Errorf("--mask: 0 tokens of train have mask 1, so there is nothing to learn: give mask 1 to a field that has text%s", hint)
	}
	return nil
}
