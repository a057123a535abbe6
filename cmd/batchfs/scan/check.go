package scan

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"batchfs/cache"
	"batchfs/cache/localfile"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/internal/jsontext"
	"batchfs/internal/printable"
)

// CheckOptions say how to check.
type CheckOptions struct {
	CommonRun int64 // report runs of so many tokens that stand twice; 0: as many as suit the files
	Restart   bool  // forget what an interrupted check has found
}

// A Report is the result of a check.
type Report struct {
	OK        bool      `json:"ok"`
	Splits    []string  `json:"splits"`
	Files     int       `json:"files"`
	Tokens    int64     `json:"tokens"` // elements of the main arrays
	Bytes     int64     `json:"bytes"`  // of all arrays
	Resumed   int64     `json:"bytes_resumed"`
	CommonRun int64     `json:"common_run"` // every run of so many tokens that stands twice is found
	Compared  bool      `json:"vocabulary_known"`
	Problems  []Problem `json:"problems"`

	Repeated map[string]float64 `json:"repeated,omitempty"` // by split: the share of its elements that stand twice, or in another split before it
}

// The kinds of problems.
const (
	Unreadable = "unreadable" // a file cannot be opened or read, or is not what it is said to be
	Vocabulary = "vocabulary" // tokens are not below vocab_size
	Zeros      = "zeros"      // a file ends in zeros
	Duplicate  = "duplicate"  // two files hold the same
	Overlap    = "overlap"    // tokens stand twice
	Documents  = "documents"  // the ends of documents do not increase
	Unmounted  = "split"      // mount refuses the split, as where an array beside the tokens has more or fewer elements
)

// refused are the kinds for which mount refuses a split too.
var refused = map[string]bool{Unreadable: true, Vocabulary: true, Documents: true}

// A Problem is something that is wrong. Index is the element in the file that it begins at, and Count how many elements it is about.
type Problem struct {
	Kind       string          `json:"kind"`
	Split      string          `json:"split"`
	File       jsontext.String `json:"file,omitempty"`
	Index      int64           `json:"index"`
	Count      int64           `json:"count"`
	Other      jsontext.String `json:"other,omitempty"` // the file that it is compared with
	OtherIndex int64           `json:"other_index"`
	Message    jsontext.String `json:"message"`
	Text       jsontext.String `json:"text,omitempty"` // of tokens that stand twice: how they begin
}

type checked struct {
	splitArray *splitArray
	path       string
	array      *cache.Array // nil if it cannot be opened
	numbers    int64
	base       int64    // where its numbers begin, counted over all files of main arrays
	results    []result // of its segments
	failed     bool     // a part could not be read
}

type splitArray struct {
	dataset.ArraySpec
	split string
	files []*checked
}

func (p *splitArray) main() bool { return p.Name == "" }

type check struct {
	report  Report
	arrays  []*splitArray
	files   []*checked
	numbers int64    // numbers in all main arrays opened so far
	window  int64    // length of a window of fingerprints, in numbers
	size    int64    // size of a segment, in bytes
	state   *os.File // see openState; nil: nothing is kept
	stderr  io.Writer
}

// Check reads all files of the splits that openers have. What is wrong with files is in the report;
// the error says that the splits cannot be checked, or that ctx ended the check, which the next one
// then continues. stderr shows progress.
func Check(ctx context.Context, openers []*dataset.Opener, o CheckOptions, stderr io.Writer) (*Report, error) {
	c := &check{size: segmentBytes, stderr: stderr, report: Report{Splits: []string{}, Problems: []Problem{}}}
	if err := c.open(openers); err != nil {
		return nil, err
	}
	if err := c.checkDocuments(ctx); err != nil {
		return nil, err
	}
	c.chooseWindow(o.CommonRun)
	if err := c.readAll(ctx, o.Restart); err != nil {
		return nil, err
	}
	c.judge()
	for _, opener := range openers {
		for _, s := range opener.Config.Splits {
			if slices.ContainsFunc(c.report.Problems, func(p Problem) bool { return p.Split == s.Name && refused[p.Kind] }) {
				continue
			}
			if _, err := opener.OpenSplit(s); err != nil {
				c.found(Problem{Kind: Unmounted, Split: s.Name}, "%v", err)
			}
		}
	}
	c.report.OK = len(c.report.Problems) == 0
	return &c.report, nil
}

func (c *check) found(p Problem, format string, args ...any) {
	p.Message = jsontext.String(fmt.Sprintf(format, args...))
	c.report.Problems = append(c.report.Problems, p)
}

func (f *checked) problem(kind string) Problem {
	return Problem{Kind: kind, Split: f.splitArray.split, File: jsontext.String(f.path)}
}

// open opens each file as an array by itself, so that a bad one does not hide the others.
func (c *check) open(openers []*dataset.Opener) error {
	for _, opener := range openers {
		for _, s := range opener.Config.Splits {
			c.report.Splits = append(c.report.Splits, s.Name)
			parts, err := opener.ArraySpecs(s)
			if err != nil {
				return err
			}
			for _, described := range parts {
				c.openArray(&splitArray{ArraySpec: described, split: s.Name})
			}
		}
	}
	c.report.Files = len(c.files)
	return nil
}

func (c *check) openArray(p *splitArray) {
	c.arrays = append(c.arrays, p)
	o := p.Options
	o.Access, o.VocabSize = localfile.Pread, 0 // all tokens are compared later, and counted
	for _, path := range p.Files {
		f := &checked{splitArray: p, path: path}
		p.files, c.files = append(p.files, f), append(c.files, f)
		a, err := cache.Open([]string{path}, o)
		if err != nil {
			f.failed = true
			c.found(f.problem(Unreadable), "%v", err)
			continue
		}
		f.array, f.numbers, f.base = a, numbersOf(a), c.numbers
		c.report.Bytes += a.Bytes()
		if p.main() {
			c.report.Tokens += a.Len()
			c.report.Compared = c.report.Compared || p.Options.VocabSize > 0 && isTokens(a)
			c.numbers += f.numbers
		}
	}
}

func (c *check) judge() {
	for _, f := range c.mains() {
		c.judgeTokens(f)
	}
	c.judgeOverlaps(c.judgeDuplicates())
	c.countRepeated()
}

// countRepeated says which share of each split stands twice, and how each such run begins.
func (c *check) countRepeated() {
	type file struct{ split, path string }
	twice := map[file][]*Problem{}
	for i := range c.report.Problems {
		if p := &c.report.Problems[i]; p.Kind == Overlap || p.Kind == Duplicate {
			of := file{p.Split, string(p.File)}
			twice[of] = append(twice[of], p)
		}
	}
	all, repeated := map[string]int64{}, map[string]int64{}
	for _, f := range c.mains() {
		all[f.splitArray.split] += f.array.Len()
		runs := twice[file{f.splitArray.split, f.path}]
		if len(runs) == 0 {
			continue
		}
		v, _, _ := vocabulary.Of([]string{f.path}) // an error has been said where the split was opened
		slices.SortFunc(runs, func(a, b *Problem) int { return cmp.Compare(a.Index, b.Index) })
		end := int64(0)
		for _, p := range runs {
			repeated[f.splitArray.split] += max(0, p.Index+p.Count-max(p.Index, end))
			end = max(end, p.Index+p.Count)
			if v != nil && isTokens(f.array) {
				text, _ := dataset.Text(f.array, p.Index, int(min(32, p.Count)), v) // an error has its own problem
				p.Text = jsontext.String(text)
			}
		}
	}
	for split, n := range repeated {
		if c.report.Repeated == nil {
			c.report.Repeated = map[string]float64{}
		}
		c.report.Repeated[split] = float64(n) / float64(all[split])
	}
}

// Print writes r for people.
func (r *Report) Print(out io.Writer) {
	files, tokens := terminal.Count(int64(r.Files), "file", "files"), terminal.Count(r.Tokens, "token", "tokens")
	printable.Fprintf(out, "%s: %s, %s, %s read", strings.Join(r.Splits, ", "), files, tokens, terminal.Size(r.Bytes))
	result := "nothing is wrong"
	if !r.OK {
		result = terminal.Count(int64(len(r.Problems)), "problem", "problems")
	}
	fmt.Fprintf(out, ": %s\nlooked for runs of %d tokens or more that stand twice\n", result, r.CommonRun)
	if !r.Compared {
		fmt.Fprintln(out, "compared no token with a vocabulary: nothing says how large it is; set vocab_size")
	}
	for _, split := range r.Splits {
		if share := r.Repeated[split]; share > 0 {
			printable.Fprintf(out, "%.3g%% of %s stands twice\n", 100*share, split)
		}
	}
	for _, p := range r.Problems {
		printable.Fprintf(out, "%s\n", p.Message)
		if p.Text != "" {
			fmt.Fprintf(out, "    %q\n", string(p.Text))
		}
	}
}
