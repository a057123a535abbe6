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

// segmentBytes is how much of a file is checked at a time, and noted in the state.
const segmentBytes = 16 << 20

type segment struct {
	file     int // of check.files
	index    int // of the segment in the file
	from, to int64
}

type result struct {
	File      int    `json:"file"`
	Index     int    `json:"segment"`
	Sum       []byte `json:"sum"`              // SHA-256 of its bytes
	Beyond    int64  `json:"beyond,omitempty"` // tokens not below vocab_size
	First     int64  `json:"first,omitempty"`  // the first of them
	Token     string `json:"token,omitempty"`  // and its value
	Zeros     int64  `json:"zeros,omitempty"`  // numbers at its end that are 0
	RunHashes []byte `json:"prints,omitempty"` // Hash and At of each, 8 bytes each

	err error
}

// key names the state: it is a hash of everything that the results depend on.
func (c *check) key() string {
	sum := sha256.New()
	fmt.Fprintln(sum, 2, c.size, c.window) // the first is the version of this
	for _, f := range c.files {
		fmt.Fprintf(sum, "%q %d %q\n", f.path, f.splitArray.Options.VocabSize, f.splitArray.Name)
		if f.array != nil {
			m := f.array.Manifest().Files[0]
			fmt.Fprintf(sum, "%+v %x %+v\n", m.Identity, m.Sample.Sum, m.Format)
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:16])
}

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

func (c *check) readAll(ctx context.Context, restart bool) error {
	todo := c.segments()
	// Without a state, as where there is no home directory, a check that is interrupted begins again.
	state, done, err := openState(c.key(), restart)
	if err == nil {
		c.state = state
		defer state.Close()
	}
	for _, r := range done {
		if r.File < len(c.files) && r.Index < len(c.files[r.File].results) {
			c.files[r.File].results[r.Index] = r
		}
	}
	todo = slices.DeleteFunc(todo, func(s segment) bool {
		f := c.files[s.file]
		known := f.results[s.index].Sum != nil
		if known {
			c.report.Resumed += (s.to - s.from) * int64(f.array.DType().Size())
		}
		return known
	})
	progress := terminal.NewProgress(c.stderr, "checking", c.report.Bytes-c.report.Resumed, terminal.Bytes)
	defer progress.Finish()
	if err := c.readSegments(ctx, todo, progress); err != nil {
		if c.state != nil {
			err = fmt.Errorf("%w; the same command continues where this one was", err)
		}
		return err
	}
	if c.state != nil {
		os.Remove(c.state.Name()) // one that stays is only of use for the same files
	}
	return nil
}

// readSegments reads segments on all processors. It returns as soon as ctx ends, also while a disk does not answer.
func (c *check) readSegments(ctx context.Context, todo []segment, progress *terminal.Progress) error {
	var next atomic.Int64
	results := make(chan result)
	for range runtime.GOMAXPROCS(0) {
		go func() {
			for i := next.Add(1); i <= int64(len(todo)); i = next.Add(1) {
				r := c.read(ctx, todo[i-1], progress)
				select {
				case results <- r:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	for range todo {
		select {
		case r := <-results:
			if ctx.Err() != nil {
				return errInterrupted
			}
			c.record(r)
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
			c.found(f.problem(Unreadable), "%v", r.err)
		}
		f.failed = true
		return
	}
	f.results[r.Index] = r
	if c.state != nil && r.save(c.state) != nil {
		c.state = nil // its disk is full
	}
}

func (c *check) read(ctx context.Context, s segment, progress *terminal.Progress) result {
	f := c.files[s.file]
	r := result{File: s.file, Index: s.index}
	sum, d, prints := sha256.New(), decoder{dtype: f.array.DType()}, []runHash(nil)
	var winnower *winnower
	behind := s.to
	if f.splitArray.main() {
		winnower = newWinnower(c.window, f.base+s.from)
		behind = min(s.to+2*c.window-2, f.numbers) // runs that begin in the segment may end in the next one
	}
	vocab := uint64(f.splitArray.Options.VocabSize)
	r.err = read(ctx, f.array, s.from, s.to, func(at int64, raw []byte) error {
		sum.Write(raw)
		progress.Add(len(raw))
		if !f.splitArray.main() {
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
		r.RunHashes = binary.LittleEndian.AppendUint64(r.RunHashes, p.Hash)
		r.RunHashes = binary.LittleEndian.AppendUint64(r.RunHashes, uint64(p.At))
	}
	return r
}
