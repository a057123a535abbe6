package scan

import (
	"context"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cache/localfile"
	"batchfs/cmd/batchfs/command"
)

func (c *check) checkDocuments(ctx context.Context) error {
	for _, f := range c.mainFiles() {
		if !isTokens(f.array) {
			continue
		}
		a, err := f.openDocuments()
		if err == nil && a.Documents() != nil {
			err = c.checkEnds(ctx, f, a)
			if err == nil && f.splitArray.EOT >= 0 {
				f.documents = a.Documents()
			}
		}
		if ctx.Err() != nil {
			return command.ErrInterrupted
		}
		if err != nil {
			c.addProblem(f.problem(Documents), "%v", err)
		}
	}
	return nil
}

// openDocuments opens a file with its index of documents, if there is one.
func (f *checkedFile) openDocuments() (*cache.Array, error) {
	o := f.splitArray.Options
	if o.BOS == nil {
		o.Documents = cache.DocumentsIndexed
	}
	o.Reading.Access, o.VocabSize, o.BOS = localfile.Pread, 0, nil
	return cache.Open([]string{f.path}, o)
}

// checkEnds reads the ends of all documents of a file and, if there is a BOS, their first tokens.
func (c *check) checkEnds(ctx context.Context, f *checkedFile, a *cache.Array) error {
	bos, p := f.splitArray.Options.BOS, f.problem(Documents)
	var first error // for the first document that does not begin with bos
	document, begin := int64(0), int64(0)
	err := readEnds(ctx, a.Documents(), 0, a.Documents().Count(), func(ends []int64) error {
		if bos == nil {
			return nil
		}
		windows, numbers := make([]array.Window, 0, len(ends)), make([]int64, 0, len(ends))
		for i, end := range ends {
			if end > begin {
				windows, numbers = append(windows, array.Window{Start: begin, Len: 1}), append(numbers, document+int64(i))
			}
			begin = end
		}
		err := a.Read(windows, func(i int, raw []byte) error {
			token := a.DType().Bits(raw)
			if token == *bos {
				return nil
			}
			if p.Count++; first == nil || windows[i].Start < p.Index {
				p.Index = windows[i].Start
				first = array.BOSError(a.Locate(p.Index), numbers[i], a.DType().Text(token), *bos)
			}
			return nil
		})
		document += int64(len(ends))
		return err
	})
	if err == nil && first != nil {
		c.addProblem(p, "%v (%d of %d documents in this file begin otherwise)", first, p.Count, document)
	}
	return err
}

// countEndOfText compares the ends of documents with the tokens of a block, which begins at index
// at of the file. Empty documents don't count. The last document that is not empty may lack
// its end-of-text token, because the next file may continue it.
func (r *result) countEndOfText(raw []byte, at int64) error {
	f := r.file
	begin, end, documents := at, at+int64(len(raw)/f.size), f.documents.Count()
	document, err := f.documents.NumberAt(at)
	for ends := make([]int64, 512); err == nil && document < documents; document += int64(len(ends)) {
		ends = ends[:min(int64(len(ends)), documents-document)]
		err = f.documents.Ends(document, ends)
		for _, n := range ends {
			switch {
			case err != nil || n > end:
				return err
			case n == begin: // an empty document
			case int64(f.dtype.Bits(raw[(n-1-at)*int64(f.size):])) == f.splitArray.EOT:
				r.ended++
			case n < f.numbers:
				if r.unended++; r.unended == 1 {
					r.firstUnended = n - 1
				}
			}
			begin = n
		}
	}
	return err
}

func (c *check) reportEndOfText(f *checkedFile) {
	if f.documents == nil || f.failed {
		return
	}
	p := f.problem(EndOfText)
	var tokens, ended int64
	for _, r := range f.results {
		if p.Count == 0 {
			p.Index = r.firstUnended
		}
		tokens, ended, p.Count = tokens+r.endOfTexts, ended+r.ended, p.Count+r.unended
	}
	if ended == 0 && f.splitArray.MayOnlyPad {
		return
	}
	if inside := tokens - ended; inside > 0 {
		if c.report.EOTInside == nil {
			c.report.EOTInside = map[string]int64{}
		}
		c.report.EOTInside[f.splitArray.split] += inside
	}
	if p.Count > 0 {
		c.addProblem(p, "%s: %d of %d documents in its index do not end with eot, %d; the first such end is at index %d; is eot right, "+
			"and does the index belong to the file?",
			f.path, p.Count, f.documents.Count(), f.splitArray.EOT, p.Index)
	}
}
