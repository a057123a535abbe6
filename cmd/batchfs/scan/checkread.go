package scan

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"

	"batchfs/cmd/batchfs/terminal"
)

// partBytes is the size of the parts in which a file is checked. The result of each is saved.
const partBytes = 16 << 20

type part struct {
	file     int // index in check.files
	index    int // index of the part in the file
	from, to int64
}

// A result is what the check has found in a part. Results are saved as JSON; see openState.
type result struct {
	File            int    `json:"file"`
	Index           int    `json:"segment"`
	Sum             []byte `json:"sum"`              // SHA-256 of the part
	OutOfVocabulary int64  `json:"beyond,omitempty"` // tokens that are not below vocab_size
	First           int64  `json:"first,omitempty"`  // index of the first such token in the file
	Token           string `json:"token,omitempty"`  // value of that token
	Zeros           int64  `json:"zeros,omitempty"`  // zeros at the end of the part
	// WindowHashes holds 16 bytes for each hash: Hash and At, in 8 bytes each.
	WindowHashes []byte `json:"prints,omitempty"`

	err error
}

// stateKey returns the key for openState: a hash of everything that the results depend on.
func (c *check) stateKey() string {
	sum := sha256.New()
	fmt.Fprintln(sum, 2, c.partSize, c.window) // 2 is the version of this scheme
	for _, f := range c.files {
		fmt.Fprintf(sum, "%q %d %q\n", f.path, f.splitArray.Options.VocabSize, f.splitArray.Name)
		if f.array != nil {
			m := f.array.Manifest().Files[0]
			fmt.Fprintf(sum, "%+v %x %+v\n", m.Identity, m.Sample.Sum, m.Format)
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:16])
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

// readAll reads all parts, except those that an interrupted check has read, and then searches for
// leaks.
func (c *check) readAll(ctx context.Context, restart bool) error {
	todo := c.parts()
	// Without a state, for example because there is no home directory, an interrupted check starts
	// over.
	state, done, err := openState(c.stateKey(), restart)
	if err == nil {
		c.state = state
		defer state.Close()
	}
	for _, r := range done {
		if r.File < len(c.files) && r.Index < len(c.files[r.File].results) {
			c.files[r.File].results[r.Index] = r
		}
	}
	todo = slices.DeleteFunc(todo, func(s part) bool {
		f := c.files[s.file]
		known := f.results[s.index].Sum != nil
		if known {
			c.report.Resumed += (s.to - s.from) * int64(f.array.DType().Size())
		}
		return known
	})
	progress := terminal.NewProgress(c.stderr, "checking", c.report.Bytes-c.report.Resumed, terminal.Bytes)
	err = c.readParts(ctx, todo, progress)
	progress.Finish()
	if err == nil {
		err = c.findLeaks(ctx)
	}
	if err != nil {
		if c.state != nil {
			err = fmt.Errorf("%w; run the same command again to continue", err)
		}
		return err
	}
	if c.state != nil {
		os.Remove(c.state.Name())
	}
	return nil
}

func (c *check) readParts(ctx context.Context, todo []part, progress *terminal.Progress) error {
	return onAllProcessors(ctx, len(todo), func(i int) result { return c.readPart(ctx, todo[i], progress) }, c.record)
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
	f := c.files[r.File]
	if r.err != nil {
		if !f.failed {
			c.addProblem(f.problem(Unreadable), "%v", r.err)
		}
		f.failed = true
		return
	}
	f.results[r.Index] = r
	if c.state != nil && r.save(c.state) != nil {
		c.state = nil // the disk may be full; the check goes on without saving
	}
}

// readPart reads a part. In main arrays, it also examines the numbers.
func (c *check) readPart(ctx context.Context, s part, progress *terminal.Progress) result {
	f := c.files[s.file]
	r := result{File: s.file, Index: s.index}
	sum, d, hashes := sha256.New(), decoder{dtype: f.array.DType()}, []windowHash(nil)
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
		hashes = winnower.add(list, hashes)
		r.Zeros = trailingZeros(list, r.Zeros)
		if vocab > 0 && isTokens(f.array) {
			r.countOutOfVocabulary(list, at, vocab, f.array.DType())
		}
		return nil
	})
	if r.err == nil && readEnd > s.to {
		r.err = read(ctx, f.array, s.to, readEnd, func(_ int64, raw []byte) error {
			hashes = winnower.add(d.decode(raw), hashes)
			return nil
		})
	}
	r.Sum = sum.Sum(nil)
	for _, p := range hashes {
		r.WindowHashes = binary.LittleEndian.AppendUint64(r.WindowHashes, p.Hash)
		r.WindowHashes = binary.LittleEndian.AppendUint64(r.WindowHashes, uint64(p.At))
	}
	return r
}
