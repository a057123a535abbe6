package survey

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"runtime"
	"slices"
	"strings"
	"sync"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/internal/jsontext"
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
}

// The kinds of problems.
const (
	Unreadable = "unreadable" // a file cannot be opened or read, or is not what it is said to be
	Vocabulary = "vocabulary" // tokens are not below vocab_size
	Zeros      = "zeros"      // a file ends in zeros
	Duplicate  = "duplicate"  // two files hold the same
	Overlap    = "overlap"    // tokens stand twice
	Length     = "length"     // an array beside the tokens has more or fewer elements
	Documents  = "documents"  // the ends of documents do not increase
	Unmounted  = "split"      // mount refuses the split
)

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
}

// minZeros is how many bytes of zeros at the end of a file are a problem: files that were made in their full size and not written
// to the end have them.
const minZeros = 4096

// segmentBytes is how much of a file is checked at a time, and noted in the state.
const segmentBytes = 16 << 20

// A checked is a file under check.
type checked struct {
	part    *part
	path    string
	array   *cache.Array // nil if it cannot be opened
	id      cache.Identity
	numbers int64
	base    int64    // where its numbers begin among those of all files of main arrays
	results []result // of its segments
	failed  bool     // some of it could not be read
}

// A part is an array of a source under check.
type part struct {
	dataset.Part
	split string
	files []*checked
}

func (p *part) main() bool { return p.Name == "" }

// A segment is some numbers of a file.
type segment struct {
	file     int // of check.files
	index    int // of the segment in the file
	from, to int64
}

// A result is what is known of a segment that was read.
type result struct {
	File   int    `json:"file"`
	Index  int    `json:"segment"`
	Sum    []byte `json:"sum"`              // SHA-256 of its bytes
	Beyond int64  `json:"beyond,omitempty"` // tokens not below vocab_size
	First  int64  `json:"first,omitempty"`  // the first of them
	Token  string `json:"token,omitempty"`  // and its value
	Zeros  int64  `json:"zeros,omitempty"`  // numbers at its end that are 0
	Prints []byte `json:"prints,omitempty"` // Hash and At of each, 8 bytes each

	err error
}

// A check is one under way.
type check struct {
	report Report
	parts  []*part
	files  []*checked
	window int64 // of fingerprints, in numbers
	size   int64 // of a segment, in bytes
	state  *state
	stderr io.Writer
}

// Check reads all files of splits. It shows on stderr how much it has read. What is wrong with files is in the report; the error
// says that the splits cannot be checked, or that ctx ended the check, which the next one then continues.
func Check(ctx context.Context, splits []*config.Split, m config.Memory, o CheckOptions, stderr io.Writer) (*Report, error) {
	c := &check{size: segmentBytes, stderr: stderr, report: Report{Splits: []string{}, Problems: []Problem{}}}
	if err := c.open(splits, m); err != nil {
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
	for _, s := range splits {
		if slices.ContainsFunc(c.report.Problems, func(p Problem) bool { return p.Split == s.Split }) {
			continue
		}
		if _, err := dataset.OpenSplit(s, m); err != nil {
			c.found(Problem{Kind: Unmounted, Split: s.Split}, "%v", err)
		}
	}
	c.report.OK = len(c.report.Problems) == 0
	return &c.report, nil
}

// found adds a problem.
func (c *check) found(p Problem, format string, args ...any) {
	p.Message = jsontext.String(fmt.Sprintf(format, args...))
	c.report.Problems = append(c.report.Problems, p)
}

// problem begins one of a file.
func (f *checked) problem(kind string) Problem {
	return Problem{Kind: kind, Split: f.part.split, File: jsontext.String(f.path)}
}

// open opens all files. Each is an array by itself, so that one that is bad does not hide the others.
func (c *check) open(splits []*config.Split, m config.Memory) error {
	var base int64
	for _, s := range splits {
		c.report.Splits = append(c.report.Splits, s.Split)
		parts, err := dataset.Parts(s, m)
		if err != nil {
			return err
		}
		for _, described := range parts {
			p := &part{Part: described, split: s.Split}
			c.parts = append(c.parts, p)
			o := p.Options
			o.Access, o.VocabSize = cache.Pread, 0 // all tokens are compared later, and counted
			for _, path := range p.Files {
				f := &checked{part: p, path: path}
				p.files, c.files = append(p.files, f), append(c.files, f)
				a, err := cache.Open([]string{path}, o)
				if err != nil {
					f.failed = true
					c.found(f.problem(Unreadable), "%v", err)
					continue
				}
				f.array, f.id, f.numbers, f.base = a, a.Manifest().Files[0].Identity, numbersOf(a), base
				c.report.Bytes += a.Bytes()
				if p.main() {
					c.report.Tokens += a.Len()
					c.report.Compared = c.report.Compared || p.Options.VocabSize > 0 && isTokens(a)
					base += f.numbers
				}
			}
		}
	}
	c.report.Files = len(c.files)
	return nil
}

// checkDocuments reads the indexes of documents that lie beside the tokens.
func (c *check) checkDocuments(ctx context.Context) error {
	for _, f := range c.files {
		if f.array == nil || !f.part.main() || !isTokens(f.array) {
			continue
		}
		o := f.part.Options
		o.Access, o.VocabSize, o.Documents = cache.Pread, 0, cache.DocumentsIndexed
		a, err := cache.Open([]string{f.path}, o)
		if err == nil && a.Documents() != nil {
			err = readEnds(ctx, a.Documents(), 0, a.Documents().Count(), func([]int64) {})
		}
		if ctx.Err() != nil {
			return errInterrupted
		}
		if err != nil {
			c.found(f.problem(Documents), "%v", err)
		}
	}
	return nil
}

const (
	// A common run is reported from so many tokens on: what is shorter may be the same text in two documents. In files of fewer
	// tokens than four times as many, it is a quarter of their tokens.
	maxCommonRun = 1 << 16
	minCommonRun = 1 << 8
	// maxPrints bounds the fingerprints of all files, which take 16 bytes each, and half as much again where they are compared.
	maxPrints = 1 << 21
)

// chooseWindow decides how long the runs are of which fingerprints are taken. Runs of twice as many numbers are found.
func (c *check) chooseWindow(run int64) {
	var numbers, files int64
	for _, f := range c.files {
		if f.part.main() && f.array != nil {
			numbers, files = numbers+f.numbers, files+1
		}
	}
	if run == 0 {
		run = min(maxCommonRun, max(minCommonRun, numbers/max(4*files, 1)))
	}
	run = max(run, 4*numbers/maxPrints, 16)
	c.window = 1 << (bits.Len64(uint64(run)) - 2)
	c.report.CommonRun = run
}

// key is that of the state: of everything that the results depend on.
func (c *check) key() string {
	sum := sha256.New()
	fmt.Fprintln(sum, 1, c.size, c.window) // the first is the version of this
	for _, f := range c.files {
		fmt.Fprintf(sum, "%q %+v %d %q\n", f.path, f.id, f.part.Options.VocabSize, f.part.Name)
		if f.array != nil {
			m := f.array.Manifest().Files[0]
			fmt.Fprintf(sum, "%x %+v\n", m.Sample.Sum, m.Format)
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:16])
}

// segments are those of all files.
func (c *check) segments() (all []segment) {
	for i, f := range c.files {
		if f.array == nil {
			continue
		}
		size := c.size / int64(f.array.DType().Size())
		n := int((f.numbers + size - 1) / size)
		f.results = make([]result, n)
		for index := range n {
			from := int64(index) * size
			all = append(all, segment{i, index, from, min(from+size, f.numbers)})
		}
	}
	return all
}

// readAll reads all segments that the state does not know.
func (c *check) readAll(ctx context.Context, restart bool) error {
	todo := c.segments()
	// Without a state, as where there is no home directory, a check that is interrupted begins again.
	state, done, err := openState(c.key(), restart)
	if err == nil {
		c.state = state
		defer state.close()
	}
	known := map[[2]int]bool{}
	for _, r := range done {
		if r.File < len(c.files) && r.Index < len(c.files[r.File].results) {
			known[[2]int{r.File, r.Index}] = true
			c.files[r.File].results[r.Index] = r
		}
	}
	todo = slices.DeleteFunc(todo, func(s segment) bool {
		if known[[2]int{s.file, s.index}] {
			c.report.Resumed += (s.to - s.from) * int64(c.files[s.file].array.DType().Size())
			return true
		}
		return false
	})
	progress := terminal.NewProgress(c.stderr, "checking", c.report.Bytes-c.report.Resumed, terminal.Bytes)
	defer progress.Finish()
	if err := c.readSegments(ctx, todo, progress); err != nil {
		return err
	}
	if c.state != nil {
		c.state.remove()
	}
	return nil
}

// readSegments reads segments on all processors. It returns as soon as ctx ends, also while a disk does not answer.
func (c *check) readSegments(ctx context.Context, todo []segment, progress *terminal.Progress) error {
	next, results := make(chan segment), make(chan result)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for s := range next {
				r := c.read(ctx, s, progress)
				select {
				case results <- r:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	go func() {
		defer close(results)
		defer workers.Wait()
		defer close(next)
		for _, s := range todo {
			select {
			case next <- s:
			case <-ctx.Done():
				return
			}
		}
	}()
	for left := len(todo); left > 0; left-- {
		select {
		case r := <-results:
			if ctx.Err() != nil {
				return c.interrupted()
			}
			c.note(r)
		case <-ctx.Done():
			return c.interrupted()
		}
	}
	return nil
}

func (c *check) interrupted() error {
	if c.state == nil {
		return errInterrupted
	}
	return errors.New("interrupted; the same command continues where this one was")
}

// note keeps the result of a segment.
func (c *check) note(r result) {
	f := c.files[r.File]
	if r.err != nil {
		if !f.failed {
			c.found(f.problem(Unreadable), "%v", r.err)
		}
		f.failed = true
		return
	}
	f.results[r.Index] = r
	if c.state != nil && c.state.add(r) != nil {
		c.state = nil // its disk is full
	}
}

// read reads a segment.
func (c *check) read(ctx context.Context, s segment, progress *terminal.Progress) result {
	f := c.files[s.file]
	r := result{File: s.file, Index: s.index}
	sum, d, prints := sha256.New(), decoder{dtype: f.array.DType()}, []print(nil)
	var winnower *winnower
	behind := s.to
	if f.part.main() {
		winnower = newWinnower(c.window, f.base+s.from)
		behind = min(s.to+2*c.window-2, f.numbers) // runs that begin in the segment may end in the next one
	}
	vocab := uint64(f.part.Options.VocabSize)
	r.err = read(ctx, f.array, s.from, s.to, func(at int64, raw []byte) error {
		sum.Write(raw)
		progress.Add(len(raw))
		if !f.part.main() {
			return nil
		}
		list := d.decode(raw)
		prints = winnower.add(list, prints)
		r.Zeros = endingZeros(list, r.Zeros)
		if vocab > 0 && isTokens(f.array) {
			r.compare(list, at, vocab, f.array.DType())
		}
		return nil
	})
	if r.err == nil && behind > s.to {
		r.err = read(ctx, f.array, s.to, behind, func(_ int64, raw []byte) error {
			prints = winnower.add(d.decode(raw), prints)
			return nil
		})
	}
	r.Sum = sum.Sum(nil)
	for _, p := range prints {
		r.Prints = binary.LittleEndian.AppendUint64(r.Prints, p.Hash)
		r.Prints = binary.LittleEndian.AppendUint64(r.Prints, uint64(p.At))
	}
	return r
}

// endingZeros is how many numbers at the end of list are 0, together with the zeros before list if it has nothing else.
func endingZeros(list []uint64, before int64) int64 {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i] != 0 {
			return int64(len(list) - 1 - i)
		}
	}
	return before + int64(len(list))
}

// compare counts the tokens of list that are not below a vocabulary's size. at is the position of the first.
func (r *result) compare(list []uint64, at int64, vocab uint64, dtype array.DType) {
	for i, v := range list {
		if v < vocab {
			continue
		}
		if r.Beyond++; r.Beyond == 1 {
			r.First, r.Token = at+int64(i), fmt.Sprint(v)
			if dtype.IsSigned() {
				r.Token = fmt.Sprint(int64(v))
			}
		}
	}
}

// judge finds the problems that the results show.
func (c *check) judge() {
	for _, f := range c.files {
		if f.array != nil && f.part.main() {
			c.judgeTokens(f)
		}
	}
	c.judgeLengths()
	c.judgeCopies()
}

// judgeTokens judges the tokens of a file by themselves.
func (c *check) judgeTokens(f *checked) {
	p := f.problem(Vocabulary)
	token := ""
	for _, r := range f.results {
		if r.Beyond > 0 && p.Count == 0 {
			p.Index, token = r.First, r.Token
		}
		p.Count += r.Beyond
	}
	if p.Count > 0 {
		c.found(p, "%s: %s not below vocab_size, which is %d; the first is %s, token %d of the file; are the file, token_dtype and vocab_size right?",
			f.path, numberOf(p.Count, "token is", "tokens are"), f.part.Options.VocabSize, token, p.Index)
	}
	if f.failed {
		return
	}
	per, zeros := perElement(f.array), int64(0)
	for i, size := len(f.results)-1, c.size/int64(f.array.DType().Size()); i >= 0; i-- {
		zeros += f.results[i].Zeros
		if f.results[i].Zeros < min(size, f.numbers-int64(i)*size) {
			break
		}
	}
	if zeros*int64(f.array.DType().Size()) >= minZeros {
		p := f.problem(Zeros)
		p.Count = zeros / per
		p.Index = f.array.Len() - p.Count
		c.found(p, "%s: the last %d elements are 0, from number %d on; was the file written to its end?", f.path, p.Count, p.Index)
	}
}

// judgeLengths compares the arrays beside the tokens with the tokens.
func (c *check) judgeLengths() {
	var main *part
	for _, p := range c.parts {
		if p.main() {
			main = p
			continue
		}
		mains, here, known := int64(0), int64(0), true
		for _, f := range main.files {
			if known = known && f.array != nil; known {
				mains += f.array.Len()
			}
		}
		for _, f := range p.files {
			if known = known && f.array != nil; known {
				here += f.array.Len()
			}
		}
		if !known || mains == here {
			continue
		}
		// Where the files correspond, the first that differs says more than the sum.
		for i, f := range p.files {
			if of := main.files[min(i, len(main.files)-1)]; len(p.files) == len(main.files) && f.array.Len() != of.array.Len() {
				problem := f.problem(Length)
				problem.Count, problem.Other = f.array.Len()-of.array.Len(), jsontext.String(of.path)
				c.found(problem, "%s: array %s has %d elements, but there are %d in %s: it must have one for each of them",
					f.path, p.Name, f.array.Len(), of.array.Len(), of.path)
				here = mains
			}
		}
		if here != mains {
			problem := p.files[0].problem(Length)
			problem.Count, problem.Other = here-mains, jsontext.String(main.files[0].path)
			c.found(problem, "splits.%s: array %s has %d elements in all its files, but there are %d in those that it lies beside: it must have one for each of them",
				p.split, p.Name, here, mains)
		}
	}
}

// judgeCopies looks for main arrays that hold the same, and for runs of numbers that stand twice.
func (c *check) judgeCopies() {
	first := map[string]*checked{} // by content
	same := map[*checked]*checked{}
	var files []*checked
	var starts []int64
	var prints []print
	for _, f := range c.files {
		if f.array == nil || !f.part.main() {
			continue
		}
		files, starts = append(files, f), append(starts, f.base)
		sum := sha256.New()
		fmt.Fprintln(sum, f.array.DType(), f.array.Axes(), f.numbers)
		for _, r := range f.results {
			sum.Write(r.Sum)
			for b := r.Prints; len(b) >= 16; b = b[16:] {
				prints = append(prints, print{binary.LittleEndian.Uint64(b), int64(binary.LittleEndian.Uint64(b[8:]))})
			}
		}
		if f.failed {
			continue
		}
		if of := first[string(sum.Sum(nil))]; of == nil {
			first[string(sum.Sum(nil))] = f
		} else {
			same[f] = of
			p := f.problem(Duplicate)
			p.Count, p.Other = f.array.Len(), jsontext.String(of.path)
			if f.path == of.path {
				c.found(p, "%s is named twice, in %s and in %s; leave it out of one", f.path, where(of), where(f))
			} else {
				c.found(p, "%s holds the same as %s; leave one of them out", f.path, of.path)
			}
		}
	}
	fileAt := func(at int64) *checked {
		i, found := slices.BinarySearch(starts, at)
		if !found {
			i--
		}
		return files[i]
	}
	for _, run := range commonRuns(prints, c.window, starts) {
		a, b := fileAt(run.a), fileAt(run.b)
		copies := func(f *checked) *checked {
			if of := same[f]; of != nil {
				return of
			}
			return f
		}
		if a != b && copies(a) == copies(b) && run.a-a.base == run.b-b.base {
			continue // they hold the same altogether
		}
		run = extend(run, a, b, c.window)
		per := perElement(a.array)
		if run.n < c.report.CommonRun {
			continue
		}
		p := b.problem(Overlap)
		// Whole elements only.
		p.Index = (run.b - b.base + per - 1) / per
		p.Count = (run.b-b.base+run.n)/per - p.Index
		p.Other, p.OtherIndex = jsontext.String(a.path), (run.a-run.b+b.base+p.Index*per-a.base)/per
		c.found(p, "%s: the %d elements from number %d on are those of %s from number %d on%s", b.path, p.Count, p.Index, a.path, p.OtherIndex,
			map[bool]string{true: ", which is in split " + a.part.split}[a.part.split != b.part.split])
	}
}

// where says in words which files a file is one of.
func where(f *checked) string {
	return fmt.Sprintf("source %d of splits.%s", f.part.Source, f.part.split)
}

// extend makes a common run of two files as long as it is. It is longer than it shows by fewer than w numbers on each side.
func extend(run common, a, b *checked, w int64) common {
	numbers := func(f *checked, from, n int64) (list []uint64) {
		d := decoder{dtype: f.array.DType()}
		f.array.Read([]cache.Window{{Start: from - f.base, Len: int(n)}}, func(_ int, raw []byte) error {
			list = d.decode(raw)
			return nil
		})
		return list // none where they cannot be read, and then the run is as long as it shows
	}
	if n := min(w, run.a-a.base, run.b-b.base); n > 0 {
		x, y := numbers(a, run.a-n, n), numbers(b, run.b-n, n)
		for n = 0; int(n) < min(len(x), len(y)) && x[len(x)-1-int(n)] == y[len(y)-1-int(n)]; n++ {
		}
		run = common{run.a - n, run.b - n, run.n + n}
	}
	enda, endb := run.a+run.n, run.b+run.n
	if n := min(w, a.base+a.numbers-enda, b.base+b.numbers-endb); n > 0 {
		x, y := numbers(a, enda, n), numbers(b, endb, n)
		for n = 0; int(n) < min(len(x), len(y)) && x[n] == y[n]; n++ {
		}
		run.n += n
	}
	return run
}

// JSON writes r for programs.
func (r *Report) JSON(out io.Writer) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Print writes r for people.
func (r *Report) Print(out io.Writer) {
	for _, p := range r.Problems {
		fmt.Fprintln(out, terminal.Printable(string(p.Message)))
	}
	fmt.Fprintf(out, "%s: %s, %s, %s read", strings.Join(r.Splits, ", "), numberOf(int64(r.Files), "file", "files"), numberOf(r.Tokens, "token", "tokens"), terminal.Size(r.Bytes))
	if r.Resumed > 0 {
		fmt.Fprintf(out, " (%s of them before this check continued)", terminal.Size(r.Resumed))
	}
	fmt.Fprintf(out, ": %s\n", map[bool]string{true: "nothing is wrong", false: numberOf(int64(len(r.Problems)), "problem", "problems")}[r.OK])
	fmt.Fprintf(out, "looked for runs of %d tokens or more that stand twice\n", r.CommonRun)
	if !r.Compared {
		fmt.Fprintln(out, "compared no token with a vocabulary: nothing says how large it is; set vocab_size")
	}
}
