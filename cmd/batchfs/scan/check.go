package scan

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cache/localfile"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/internal/jsonbytes"
	"batchfs/internal/printable"
)

// CheckOptions configures [Check].
type CheckOptions struct {
	// With one split, MinOverlap is the length in tokens of the shortest duplicated passage to
	// report. With several, it is the length of the shortest run in two splits that is a problem.
	// If it is 0, the length of passages depends on the sizes of the files, and runs are judged by
	// the documents that they are in.
	MinOverlap int64
}

// A Report is the result of a check. It belongs to one goroutine.
type Report struct {
	OK     bool     `json:"ok"`
	Splits []string `json:"splits"`
	Files  int      `json:"files"`
	Tokens int64    `json:"tokens"` // elements of the main arrays
	Bytes  int64    `json:"bytes"`  // bytes of all arrays
	// MinPassage is a number of tokens. Every duplicated passage of at least that length is found.
	MinPassage      int64     `json:"min_passage"`
	VocabularyKnown bool      `json:"vocabulary_known"` // whether a vocabulary size is known
	Problems        []Problem `json:"problems"`

	// Repeated is, for each split, the fraction of elements that occur earlier in the same split,
	// or are in a file that is identical to one of an earlier split.
	Repeated map[string]float64 `json:"repeated,omitempty"`

	// EOTInside is, for each split with an index of documents, the number of end-of-text tokens
	// that do not end a document.
	EOTInside map[string]int64 `json:"eot_inside,omitempty"`

	// Short is, for each split, the number of files that are too short for a row.
	Short map[string]int `json:"short_files"`

	Shared []Shared  `json:"shared"`
	Common []Problem `json:"common"` // leaks that are too small to be problems
}

// The kinds of problems, in the JSON of batchfs check.
const (
	Unreadable = "unreadable" // a file cannot be read or does not match its description
	Vocabulary = "vocabulary" // tokens are not below vocab_size
	Zeros      = "zeros"      // a file ends in zeros
	Duplicate  = "duplicate"  // two files have the same content
	Overlap    = "overlap"    // a passage occurs twice
	Leak       = "leak"       // the same tokens occur in two splits
	Documents  = "documents"  // an index has decreasing ends, or documents do not begin with bos
	EndOfText  = "eot"        // documents do not end with eot
	Rejected   = "split"      // mount rejects the split for another reason
)

// rejectedByMount holds the kinds of problems that also make mount reject a split.
var rejectedByMount = map[string]bool{Unreadable: true, Vocabulary: true, Documents: true}

const maxPrinted = 20 // limit of problems that Print prints

// A Problem is a defect of Count elements of File, beginning at Index.
type Problem struct {
	Kind       string           `json:"kind"`
	Split      string           `json:"split"`
	File       jsonbytes.String `json:"file,omitempty"`
	Index      int64            `json:"index"`
	Count      int64            `json:"count"`
	Other      jsonbytes.String `json:"other,omitempty"` // file of the other copy
	OtherIndex int64            `json:"other_index"`
	Message    jsonbytes.String `json:"message"`
	Text       jsonbytes.String `json:"text,omitempty"` // beginning of duplicated tokens

	// These are set for a leak. Passage is the length of its longest passage, which begins at
	// OtherIndex in Other.
	Passage       int64  `json:"passage,omitempty"`
	Document      *int64 `json:"document,omitempty"` // number of the document in File, if indexed
	Size          int64  `json:"size,omitempty"`     // number of tokens in that document
	OtherDocument *int64 `json:"other_document,omitempty"`

	file *checkedFile
}

type checkedFile struct {
	splitArray *splitArray
	path       string
	array      *cache.Array // nil if the file cannot be opened
	dtype      array.DType
	size       int // size of a number in bytes
	numbers    int64
	offset     int64            // position of the first number in the concatenated main arrays
	results    []result         // one for each part
	documents  *cache.Documents // nil if documents need not end with EOT
	failed     bool             // whether a part could not be read
}

type splitArray struct {
	dataset.ArraySpec
	split string
	files []*checkedFile
}

func (a *splitArray) main() bool { return a.Name == "" }

type check struct {
	report   Report
	arrays   []*splitArray
	files    []*checkedFile
	leaks    []*leakSearch
	numbers  int64 // count of numbers in all main arrays that could be opened
	window   int64 // length of a hashed window, in numbers
	partSize int64 // size of a part in bytes
	leakPart int64 // number of tokens of a split that are searched for at a time
	itemPart int   // memory for the items that are searched for at a time, in tokens
	stderr   io.Writer
}

// Check reads all files of the splits in the openers' configurations, and reports what is wrong
// with them. It returns an error if the splits cannot be checked, or if ctx is canceled. It shows
// progress on stderr.
func Check(ctx context.Context, openers []*dataset.Opener, o CheckOptions, stderr io.Writer) (*Report, error) {
	// Tables take most of the memory. Collect garbage often, so that it does not double that.
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	c := &check{partSize: partBytes, leakPart: leakPart, stderr: stderr}
	c.report = Report{Splits: []string{}, Problems: []Problem{}, Short: map[string]int{}, Shared: []Shared{}, Common: []Problem{}}
	if err := c.open(openers); err != nil {
		return nil, err
	}
	if err := c.checkDocuments(ctx); err != nil {
		return nil, err
	}
	shortest := o.MinOverlap
	if len(openers) > 1 {
		shortest = 0
	}
	c.chooseWindow(shortest)
	if err := c.readAll(ctx); err != nil {
		return nil, err
	}
	c.reportProblems()
	if err := c.reportLeaks(ctx, o.MinOverlap); err != nil {
		return nil, err
	}
	c.addTexts()
	for _, opener := range openers {
		for _, s := range opener.Config.Splits {
			if slices.ContainsFunc(c.report.Problems, func(p Problem) bool { return p.Split == s.Name && rejectedByMount[p.Kind] }) {
				continue
			}
			if d, err := opener.OpenSplit(s); err != nil {
				c.addProblem(Problem{Kind: Rejected, Split: s.Name}, "%v", err)
			} else {
				c.report.Short[s.Name] = d.Sequence.TooShort()
			}
		}
	}
	c.report.OK = len(c.report.Problems) == 0
	return &c.report, nil
}

func (c *check) addProblem(p Problem, format string, args ...any) {
	p.Message = jsonbytes.String(fmt.Sprintf(format, args...))
	c.report.Problems = append(c.report.Problems, p)
}

func (f *checkedFile) problem(kind string) Problem {
	return Problem{Kind: kind, Split: f.splitArray.split, File: jsonbytes.String(f.path), file: f}
}

// open opens each file as a separate array, so that a bad file does not hide others.
func (c *check) open(openers []*dataset.Opener) error {
	for _, opener := range openers {
		for _, s := range opener.Config.Splits {
			c.report.Splits = append(c.report.Splits, s.Name)
			specs, err := opener.ArraySpecs(s)
			if err != nil {
				return err
			}
			for _, spec := range specs {
				c.openArray(&splitArray{ArraySpec: spec, split: s.Name})
			}
		}
	}
	c.report.Files = len(c.files)
	return nil
}

func (c *check) openArray(s *splitArray) {
	c.arrays = append(c.arrays, s)
	o := s.Options
	o.Reading.Access, o.Reading.StayOpen = localfile.Pread, true
	o.VocabSize, o.BOS = 0, nil // tokens are compared later
	for _, path := range s.Files {
		f := &checkedFile{splitArray: s, path: path}
		s.files, c.files = append(s.files, f), append(c.files, f)
		a, err := cache.Open([]string{path}, o)
		if err != nil {
			f.failed = true
			c.addProblem(f.problem(Unreadable), "%v", err)
			continue
		}
		f.array, f.dtype, f.size, f.numbers, f.offset = a, a.DType(), a.DType().Size(), numbersOf(a), c.numbers
		c.report.Bytes += a.Bytes()
		if s.main() {
			c.report.Tokens += a.Len()
			c.report.VocabularyKnown = c.report.VocabularyKnown || s.Options.VocabSize > 0 && isTokens(a)
			c.numbers += f.numbers
		}
	}
}

func (c *check) reportProblems() {
	for _, f := range c.mainFiles() {
		c.reportTokens(f)
		c.reportEndOfText(f)
	}
	c.reportOverlaps(c.reportDuplicates())
	c.countRepeated()
}

// countRepeated computes how much of each split is duplicated.
func (c *check) countRepeated() {
	duplicates := map[*checkedFile][]Problem{}
	for _, p := range c.report.Problems {
		if p.Kind == Overlap || p.Kind == Duplicate {
			duplicates[p.file] = append(duplicates[p.file], p)
		}
	}
	all, repeated := map[string]int64{}, map[string]int64{}
	for _, f := range c.mainFiles() {
		all[f.splitArray.split] += f.array.Len()
		copies, end := duplicates[f], int64(0)
		slices.SortFunc(copies, func(a, b Problem) int { return cmp.Compare(a.Index, b.Index) })
		for _, p := range copies {
			repeated[f.splitArray.split] += max(0, p.Index+p.Count-max(p.Index, end))
			end = max(end, p.Index+p.Count)
		}
	}
	for split, n := range repeated {
		if c.report.Repeated == nil {
			c.report.Repeated = map[string]float64{}
		}
		c.report.Repeated[split] = float64(n) / float64(all[split])
	}
}

// addTexts sets the text of the problems that report copies.
func (c *check) addTexts() {
	vocabularies := map[string]*vocabulary.Vocabulary{} // keyed by directory
	for _, list := range [][]Problem{c.report.Problems, c.report.Common} {
		for i := range list {
			p := &list[i]
			if p.Kind != Overlap && p.Kind != Duplicate && p.Kind != Leak || !isTokens(p.file.array) {
				continue
			}
			dir := filepath.Dir(p.file.path)
			v, known := vocabularies[dir]
			if !known {
				// Errors were reported earlier.
				v, _, _ = vocabulary.ForFiles([]string{p.file.path}, p.file.splitArray.Options.Remote)
				vocabularies[dir] = v
			}
			if v != nil {
				text, _ := dataset.Text(p.file.array, p.Index, int(min(32, p.Count)), v)
				p.Text = jsonbytes.String(text)
			}
		}
	}
}

// Print writes r in human-readable form.
func (r *Report) Print(out io.Writer) {
	files, tokens := terminal.Plural(int64(r.Files), "file", "files"), terminal.Plural(r.Tokens, "token", "tokens")
	printable.Fprintf(out, "%s: %s, %s, %s read", strings.Join(r.Splits, ", "), files, tokens, terminal.FormatBytes(r.Bytes))
	result := "no problems"
	if !r.OK {
		result = terminal.Plural(int64(len(r.Problems)), "problem", "problems")
	}
	fmt.Fprintf(out, ": %s\n", result)
	if !r.VocabularyKnown {
		fmt.Fprintln(out, "did not compare tokens with a vocabulary, because its size is unknown; set vocab_size")
	}
	for _, split := range r.Splits {
		if n := r.Short[split]; n > 0 {
			printable.Fprintf(out, "%s: %s too short for a row of block_size+1 tokens\n", split, terminal.Plural(int64(n), "file is", "files are"))
		}
		if fraction := r.Repeated[split]; fraction > 0 {
			printable.Fprintf(out, "%.3g%% of %s is duplicated\n", 100*fraction, split)
		}
	}
	for _, split := range r.Splits {
		if n := r.EOTInside[split]; n > 0 {
			printable.Fprintf(out, "the end-of-text token of %s occurs %s inside documents, where the index decides\n", split,
				terminal.Plural(n, "time", "times"))
		}
	}
	for _, s := range r.Shared {
		s.print(out)
	}
	for i, p := range slices.Concat(r.Problems, r.Common) {
		if i == maxPrinted {
			fmt.Fprintf(out, "and %d more; --json prints all\n", len(r.Problems)+len(r.Common)-i)
			break
		}
		printable.Fprintf(out, "%s\n", p.Message)
		if p.Text != "" {
			fmt.Fprintf(out, "    %q\n", string(p.Text))
		}
	}
	fmt.Fprint(out, "looked for ")
	for _, s := range r.Shared {
		printable.Fprintf(out, "passages of %d or more tokens of %s in %s, and ", minRun, s.Split, strings.Join(s.In, " or "))
	}
	fmt.Fprintf(out, "passages of %d or more tokens that occur twice in a split\n", r.MinPassage)
}
