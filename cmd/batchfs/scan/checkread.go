package scan

import (
	"cmp"
	"context"
	"crypto/sha256"
	"runtime"
	"sync/atomic"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/terminal"
)

// partBytes is the size of the parts in which a file is checked.
const partBytes = 16 << 20

type part struct {
	file     *checkedFile
	index    int // index of the part in the file
	from, to int64
}

// A result is what the check has found in a part.
type result struct {
	part
	sum             []byte // SHA-256 of the part
	outOfVocabulary int64  // tokens that are not below vocab_size
	first           int64  // index of the first such token in the file
	token           string // value of that token
	zeros           int64  // zeros at the end of the part
	endOfTexts      int64  // tokens that equal EOT
	ended, unended  int64  // documents that end with EOT, and that should but do not
	firstUnended    int64  // index of the last token of the first such document
	hashes          []windowHash
	err             error
}

// partsOf divides files into parts of at most size bytes.
func partsOf(files []*checkedFile, size int64) (parts []part) {
	for _, f := range files {
		for index, from := 0, int64(0); from < f.numbers; index++ {
			to := min(from+size/int64(f.size), f.numbers)
			parts = append(parts, part{f, index, from, to})
			from = to
		}
	}
	return parts
}

// readAll reads all parts, and then searches for leaks.
func (c *check) readAll(ctx context.Context) error {
	parts, progress := partsOf(c.files, c.partSize), terminal.NewProgress(c.stderr, "checking", c.report.Bytes, terminal.Bytes)
	for _, p := range parts {
		p.file.results = append(p.file.results, result{})
	}
	err := onAllProcessors(ctx, len(parts), func(i int) result { return c.readPart(ctx, parts[i], progress) }, c.record)
	progress.Finish()
	if err != nil {
		return err
	}
	return c.findLeaks(ctx)
}

// onAllProcessors calls record with do(0) to do(n-1), in any order. When ctx is canceled, it
// returns immediately, even if a disk does not respond.
func onAllProcessors[T any](ctx context.Context, n int, do func(int) T, record func(T)) error {
	var next atomic.Int64
	results := make(chan T)
	for range runtime.GOMAXPROCS(0) {
		go func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				r := do(int(i - 1))
				select {
				case results <- r:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	for range n {
		select {
		case r := <-results:
			if ctx.Err() != nil {
				return command.ErrInterrupted
			}
			record(r)
		case <-ctx.Done():
			return command.ErrInterrupted
		}
	}
	return nil
}

// doAll calls do(0) to do(n-1) on all processors, and returns the first error.
func doAll(ctx context.Context, n int, do func(int) error) error {
	var failure error
	err := onAllProcessors(ctx, n, do, func(err error) { failure = cmp.Or(failure, err) })
	return cmp.Or(err, failure)
}

func (c *check) record(r result) {
	f := r.file
	if r.err != nil {
		if !f.failed {
			c.addProblem(f.problem(Unreadable), "%v", r.err)
		}
		f.failed = true
		return
	}
	f.results[r.index] = r
}

// readPart reads a part. In main arrays, it also examines the numbers.
func (c *check) readPart(ctx context.Context, s part, progress *terminal.Progress) result {
	f := s.file
	r := result{part: s}
	sum, d := sha256.New(), decoder{dtype: f.dtype}
	var winnower *winnower
	readEnd := s.to
	if f.splitArray.main() {
		winnower = newWinnower(c.window, f.offset+s.from)
		// A passage that begins in this part may end in the next one.
		readEnd = min(s.to+2*c.window-2, f.numbers)
	}
	vocab := uint64(f.splitArray.Options.VocabSize)
	r.err = read(ctx, f.array, s.from, s.to, func(at int64, raw []byte) error {
		sum.Write(raw)
		progress.Add(len(raw))
		if !f.splitArray.main() {
			return nil
		}
		if f.documents != nil {
			if err := r.countEndOfText(raw, at); err != nil {
				return err
			}
		}
		for list := range d.batches(raw) {
			r.hashes = winnower.add(list, r.hashes)
			r.zeros = trailingZeros(list, r.zeros)
			if f.documents != nil {
				r.endOfTexts += count(list, uint64(f.splitArray.EOT))
			}
			if vocab > 0 && isTokens(f.array) {
				r.countOutOfVocabulary(list, at, vocab, f.dtype)
			}
			at += int64(len(list))
		}
		return nil
	})
	if r.err == nil && readEnd > s.to {
		r.err = read(ctx, f.array, s.to, readEnd, func(_ int64, raw []byte) error {
			r.hashes = winnower.add(d.decode(raw), r.hashes)
			return nil
		})
	}
	r.sum = sum.Sum(nil)
	return r
}
