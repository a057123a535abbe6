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

// segmentBytes is how many bytes of a file are checked at a time. Their result is then saved.
const segmentBytes = 16 << 20

type segment struct {
	file     int // index in check.files
	index    int // index of the segment in the file
	from, to int64
}

// A result is what the check has found in a segment. Results are saved as JSON; see openState.
type result struct {
	File            int    `json:"file"`
	Index           int    `json:"segment"`
	Sum             []byte `json:"sum"`              // SHA-256 of the segment
	OutOfVocabulary int64  `json:"beyond,omitempty"` // tokens that are not below vocab_size
	First           int64  `json:"first,omitempty"`  // index of the first such token in the file
	Token           string `json:"token,omitempty"`  // value of that token
	Zeros           int64  `json:"zeros,omitempty"`  // zeros at the end of the segment
	// RunHashes holds fingerprints of 16 bytes: Hash and At, in 8 bytes each.
	RunHashes []byte `json:"prints,omitempty"`

	err error
}

// stateKey returns the key for openState: a hash of everything that the results depend on.
func (c *check) stateKey() string {
	sum := sha256.New()
	fmt.Fprintln(sum, 2, c.segmentSize, c.window) // 2 is the version of this scheme
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
		size := c.segmentSize / int64(f.array.DType().Size())
		n := int((f.numbers + size - 1) / size)
		f.results = make([]result, n)
		for index := range n {
			from := int64(index) * size
			all = append(all, segment{i, index, from, min(from+size, f.numbers)})
		}
	}
	return all
}

// readAll reads all segments, except those that an interrupted check has read.
func (c *check) readAll(ctx context.Context, restart bool) error {
	todo := c.segments()
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
			err = fmt.Errorf("%w; run the same command again to continue", err)
		}
		return err
	}
	if c.state != nil {
		os.Remove(c.state.Name())
	}
	return nil
}

// readSegments reads segments on all processors. When ctx is canceled, it returns immediately, even
// if a disk does not respond.
func (c *check) readSegments(ctx context.Context, todo []segment, progress *terminal.Progress) error {
	var next atomic.Int64
	results := make(chan result)
	for range runtime.GOMAXPROCS(0) {
		go func() {
			for i := next.Add(1); i <= int64(len(todo)); i = next.Add(1) {
				r := c.readSegment(ctx, todo[i-1], progress)
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

// readSegment reads a segment. In main arrays, it also examines the numbers.
func (c *check) readSegment(ctx context.Context, s segment, progress *terminal.Progress) result {
	f := c.files[s.file]
	r := result{File: s.file, Index: s.index}
	sum, d, hashes := sha256.New(), decoder{dtype: f.array.DType()}, []runHash(nil)
	var winnower *winnower
	readEnd := s.to
	if f.splitArray.main() {
		winnower = newWinnower(c.window, f.offset+s.from)
		// A run that begins in the segment may end in the next one.
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
		r.RunHashes = binary.LittleEndian.AppendUint64(r.RunHashes, p.Hash)
		r.RunHashes = binary.LittleEndian.AppendUint64(r.RunHashes, uint64(p.At))
	}
	return r
}
