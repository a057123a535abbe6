package scan

import (
	"context"
	"crypto/sha256"
	"runtime"
	"sync/atomic"

	"batchfs/cmd/batchfs/terminal"
)

// partBytes is the size of the parts in which a file is checked.
const partBytes = 16 << 20

type part struct {
	file     int // index in check.files
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
	hashes          []windowHash
	err             error
}

func (c *check) parts() (all []part) {
	for i, f := range c.files {
		if f.array == nil {
			continue
		}
		size := c.partSize / int64(f.array.DType().Size())
		n := int((f.numbers + size - 1) / size)
		f.results = make([]result, n)
		for index := range n {
			from := int64(index) * size
			all = append(all, part{i, index, from, min(from+size, f.numbers)})
		}
	}
	return all
}

// readAll reads all parts, and then searches for leaks.
func (c *check) readAll(ctx context.Context) error {
	parts, progress := c.parts(), terminal.NewProgress(c.stderr, "checking", c.report.Bytes, terminal.Bytes)
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
				return errInterrupted
			}
			record(r)
		case <-ctx.Done():
			return errInterrupted
		}
	}
	return nil
}

func (c *check) record(r result) {
	f := c.files[r.file]
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
	f := c.files[s.file]
	r := result{part: s}
	sum, d := sha256.New(), decoder{dtype: f.array.DType()}
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
		list := d.decode(raw)
		r.hashes = winnower.add(list, r.hashes)
		r.zeros = trailingZeros(list, r.zeros)
		if vocab > 0 && isTokens(f.array) {
			r.countOutOfVocabulary(list, at, vocab, f.array.DType())
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
