package scan

import (
	"context"

	"batchfs/cache"
	"batchfs/cache/localfile"
)

func (c *check) checkDocuments(ctx context.Context) error {
	for _, f := range c.mainFiles() {
		if !isTokens(f.array) {
			continue
		}
		o := f.splitArray.Options
		o.Access, o.VocabSize, o.Documents = localfile.Pread, 0, cache.DocumentsIndexed
		a, err := cache.Open([]string{f.path}, o)
		if err == nil && a.Documents() != nil {
			err = readEnds(ctx, a.Documents(), a.Documents().Count(), func([]int64) {})
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
