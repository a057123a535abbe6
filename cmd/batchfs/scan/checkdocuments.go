package scan

import (
	"context"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cache/localfile"
)

func (c *check) checkDocuments(ctx context.Context) error {
	for _, f := range c.mainFiles() {
		if !isTokens(f.array) {
			continue
		}
		a, err := f.openDocuments()
		if err == nil && a.Documents() != nil {
			err = c.checkEnds(ctx, f, a)
		}
		if ctx.Err() != nil {
			return errInterrupted
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
	o.Access, o.VocabSize, o.BOS = localfile.Pread, 0, nil
	return cache.Open([]string{f.path}, o)
}

// checkEnds reads the ends of all documents of a file and, if there is a BOS, their first tokens.
func (c *check) checkEnds(ctx context.Context, f *checkedFile, a *cache.Array) error {
	bos, p := f.splitArray.Options.BOS, f.problem(Documents)
	var first error // for the first document that does not begin with bos
	document, begin := int64(0), int64(0)
	err := readEnds(ctx, a.Documents(), a.Documents().Count(), func(ends []int64) error {
		if bos == nil {
			return nil
		}
		windows := make([]array.Window, len(ends))
		for i, end := range ends {
			windows[i], begin = array.Window{Start: begin, Len: 1}, end
		}
		err := a.Read(windows, func(i int, raw []byte) error {
			token := a.DType().Bits(raw)
			if token == *bos {
				return nil
			}
			if p.Count++; first == nil || windows[i].Start < p.Index {
				p.Index = windows[i].Start
				first = array.BOSError(a.Locate(p.Index), document+int64(i), a.DType().Text(token), *bos)
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
