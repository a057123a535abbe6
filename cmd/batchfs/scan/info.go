package scan

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/internal/jsonbytes"
	"batchfs/internal/printable"
)

// A Survey describes token files. The zero value is empty. It belongs to one goroutine.
type Survey struct {
	Files []*File `json:"files"`
	// These are set by Finish. IDs and Numbers are histograms over all files: of token ids, and of
	// integers that are not tokens. Lengths describes the documents of files with an index.
	IDs     []Bin    `json:"token_ids,omitempty"`
	Numbers []Bin    `json:"numbers,omitempty"`
	Lengths *Lengths `json:"document_lengths,omitempty"`

	ids, numbers histogram
	lengths      lengths
	documents    int64 // number of documents, which may be more than those in lengths
}

// A File describes one file. If only samples of it were read, Largest covers only them.
type File struct {
	Path      jsonbytes.String `json:"path"`
	Format    string           `json:"format"`
	Array     string           `json:"array,omitempty"` // name of an aligned array
	DType     array.DType      `json:"dtype"`
	Shape     []int64          `json:"shape"`
	Tokens    int64            `json:"tokens,omitempty"` // 0 if the elements cannot be tokens
	Bytes     int64            `json:"bytes"`
	Read      int64            `json:"bytes_read"`
	Largest   any              `json:"largest"`             // integer or bool; nil for other dtypes
	Documents int64            `json:"documents,omitempty"` // from the index, if there is one

	largest uint64
}

// InfoOptions configures [Survey.AddFile].
type InfoOptions struct {
	Open cache.Options
	All  bool // whether to read whole files instead of samples
}

// completeFromVocabulary completes o and eot from the vocabulary next to a file, if there is one:
// the dtype of a headerless file, and the token that ends each document. For an aligned array, it
// completes o with its dtype and shape.
func completeFromVocabulary(path string, o cache.Options, eot int64) (cache.Options, int64, error) {
	m, err := vocabulary.Read(blob.Sibling(path, vocabulary.FileName), o.Remote)
	if a := m.ArrayFiles()[filepath.Base(path)]; o.GuessedDType && array.DType(a.DType).Known() {
		o.DType, o.Axes, o.GuessedDType, o.AlignedArray = array.DType(a.DType), a.Shape, false, a.Name
		return o, eot, nil
	}
	if m == nil {
		return o, eot, err
	}
	if dtype := array.DType(m.Vocabulary.TokenDType); o.GuessedDType && dtype.Known() {
		o.DType = dtype
	}
	if v := m.Vocabulary; eot < 0 && v.EOT != nil && v.EOTAt == "end" {
		eot = int64(*v.EOT)
	}
	return o, eot, nil
}

// Large files are sampled: sampledBlocks blocks of sampledBytes are read.
const (
	sampledBlocks = 16
	sampledBytes  = 4 << 20
)

// sample divides n numbers or documents into the blocks to read. It returns the length of a block,
// the number of blocks, and the distance between their starts. If all is set or n is small, one
// block has all n.
func sample(n, perBlock int64, all bool) (block, blocks, every int64) {
	if all || n <= sampledBlocks*perBlock {
		return n, 1, 0
	}
	return perBlock, sampledBlocks, (n - perBlock) / (sampledBlocks - 1)
}

// AddFile reads a file, or samples of a large one. It shows progress on stderr. If only the index
// of documents is wrong, it still adds the file, and returns an error.
func (s *Survey) AddFile(ctx context.Context, path string, o InfoOptions, stderr io.Writer) (err error) {
	if o.Open, _, err = completeFromVocabulary(path, o.Open, -1); err != nil {
		return err
	}
	a, err := cache.Open([]string{path}, o.Open)
	if err != nil {
		return err
	}
	hasTokens := isTokens(a) && o.Open.AlignedArray == ""
	f := &File{
		Path: jsonbytes.String(path), Format: a.Manifest().Files[0].Format.Name, DType: a.DType(), Shape: []int64{a.Len()}, Bytes: a.Bytes(),
		Array: o.Open.AlignedArray,
	}
	if f.DType.IsSigned() {
		f.largest = 1 << 63 // smallest int64
	}
	for _, axis := range a.Axes() {
		f.Shape = append(f.Shape, int64(axis))
	}
	if hasTokens {
		f.Tokens = a.Len()
	}
	counted := &s.numbers
	if hasTokens {
		counted = &s.ids
	}
	numbers := *counted // the survey has only whole files
	if err := f.countNumbers(ctx, a, o, stderr, &numbers); err != nil {
		return err
	}
	*counted = numbers
	var wrong error
	if f.Tokens > 0 {
		wrong = s.countDocuments(ctx, f, o)
	}
	s.Files = append(s.Files, f)
	return wrong
}

// Finish computes the distributions over all files that were added. It counts the documents that
// are longer than a row of blockSize+1 tokens, unless blockSize is 0.
func (s *Survey) Finish(blockSize int64) {
	row := blockSize + min(blockSize, 1)
	s.IDs, s.Numbers, s.Lengths = s.ids.bins(), s.numbers.bins(), s.lengths.describe(row)
}

// countDocuments takes the number of documents and their lengths from the index, if there is one.
// Of many documents, it reads the lengths of evenly spaced blocks of them.
func (s *Survey) countDocuments(ctx context.Context, f *File, o InfoOptions) error {
	o.Open.Documents = cache.DocumentsIndexed
	a, err := cache.Open([]string{string(f.Path)}, o.Open)
	if err != nil || a.Documents() == nil {
		return err
	}
	d, counted := a.Documents(), lengths{}
	block, blocks, every := sample(d.Count(), endsPerBlock, o.All)
	for i := range blocks {
		first := i * every
		var previous [1]int64 // end of the document before
		if first > 0 {
			if err := d.Ends(first-1, previous[:]); err != nil {
				return err
			}
		}
		err := readEnds(ctx, d, first, first+block, func(ends []int64) error {
			for _, end := range ends {
				counted[end-previous[0]]++
				previous[0] = end
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	f.Documents = d.Count()
	s.documents += f.Documents
	if s.lengths == nil {
		s.lengths = lengths{}
	}
	for length, n := range counted {
		s.lengths[length] += n
	}
	return nil
}

// countNumbers reads a file, or a sample of it. It counts the integers, and finds the largest.
func (f *File) countNumbers(ctx context.Context, a *cache.Array, o InfoOptions, stderr io.Writer, counted *histogram) error {
	size := int64(a.DType().Size())
	block, blocks, every := sample(numbersOf(a), sampledBytes/size, o.All)
	progress := terminal.NewProgress(stderr, "reading", blocks*block*size, terminal.Bytes)
	defer progress.Finish()
	d := decoder{dtype: a.DType()}
	for i := range blocks {
		err := read(ctx, a, i*every, i*every+block, func(_ int64, raw []byte) error {
			if a.DType().IsInteger() || a.DType() == array.Bool {
				list := d.decode(raw)
				f.updateLargest(list)
				counted.add(list, f.DType.IsSigned())
			}
			f.Read += int64(len(raw))
			progress.Add(len(raw))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *File) updateLargest(list []uint64) {
	isSigned := f.DType.IsSigned()
	for _, v := range list {
		if isSigned {
			f.largest = uint64(max(int64(f.largest), int64(v)))
		} else {
			f.largest = max(f.largest, v)
		}
	}
	f.Largest = f.largest
	if isSigned {
		f.Largest = int64(f.largest)
	}
}

// Print writes s in human-readable form.
func (s *Survey) Print(out io.Writer) {
	var text strings.Builder
	sampled := map[bool]string{} // by whether the file has tokens
	for _, f := range s.Files {
		f.print(&text)
		if f.Read < f.Bytes {
			sampled[f.Tokens > 0] = ", in a sample"
		}
	}
	draw := func(title string, bins []Bin) {
		if len(bins) > 0 {
			fmt.Fprintf(&text, "\n%s\n", title)
			drawBins(&text, bins)
		}
	}
	draw("token ids"+sampled[true], s.IDs)
	draw("numbers"+sampled[false], s.Numbers)
	if l := s.Lengths; l != nil {
		sample := ""
		if l.Documents < s.documents {
			sample = fmt.Sprintf(", in a sample of %s (--all reads everything)", terminal.Plural(l.Documents, "document", "documents"))
		}
		draw("tokens per document"+sample, l.Bins)
		fmt.Fprintf(&text, "  shortest %d, 10%% up to %d, median %d, 90%% up to %d, 99%% up to %d, longest %d, mean %d\n",
			l.Shortest, l.P10, l.Median, l.P90, l.P99, l.Longest, l.Mean)
		if l.Long != nil {
			fmt.Fprintf(&text, "  %d of %d are longer than a row of %d tokens\n", *l.Long, l.Documents, l.row)
		}
	}
	io.WriteString(out, text.String())
}

func (f *File) print(out io.Writer) {
	printable.Fprintf(out, "%s\n  %s, %s, shape %d, %s\n", f.Path, f.Format, f.DType, f.Shape, terminal.FormatBytes(f.Bytes))
	sample := ""
	if f.Read < f.Bytes {
		sample = fmt.Sprintf(" in a sample of %s (%.2g%%; --all reads everything)", terminal.FormatBytes(f.Read), 100*float64(f.Read)/float64(f.Bytes))
	}
	if f.Array != "" {
		printable.Fprintf(out, "  array %s, one element for each token\n", f.Array)
	}
	number := "number"
	if f.Tokens > 0 {
		number = "id"
		fmt.Fprintf(out, "  %s\n", terminal.Plural(f.Tokens, "token", "tokens"))
	}
	if f.Largest != nil {
		fmt.Fprintf(out, "  largest %s %d%s\n", number, f.Largest, sample)
	}
	if f.Documents > 0 {
		fmt.Fprintf(out, "  %s\n", terminal.Plural(f.Documents, "document", "documents"))
	}
}
