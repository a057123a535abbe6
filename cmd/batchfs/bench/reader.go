package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/sampler"
)

const readerName = "bench-reader"

// ReaderCommand returns `batchfs bench-reader`, the trainer that is not written in Python. It measures what a batch costs without an
// interpreter, and without a mount.
func ReaderCommand() *cobra.Command {
	return &cobra.Command{
		Use:     readerName,
		Short:   "Read batches for bench",
		Example: `  batchfs bench-reader <commands`,
		Hidden:  true,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, out := json.NewDecoder(cmd.InOrStdin()), json.NewEncoder(cmd.OutOrStdout())
			running := map[int]*reader{}
			for {
				var c command
				if err := in.Decode(&c); err == io.EOF {
					return nil
				} else if err != nil {
					return err
				}
				waits, err := c.run(running)
				if err != nil {
					return fmt.Errorf("%s: %w", c.Kind, err)
				}
				if err := out.Encode(answer{waits}); err != nil {
					return err
				}
			}
		},
	}
}

// A reader runs one contender.
type reader struct {
	command
	next func(k uint64) error // reads batch k, or the next one, into buf
	buf  []byte
	k    uint64
	fd   int // -1 if none stays open
}

func (c command) run(running map[int]*reader) ([]float64, error) {
	if c.Kind == "forget" {
		for _, r := range running {
			unix.Close(r.fd)
		}
		clear(running)
		runtime.GC() // which unmaps what a gather keeps
		return nil, nil
	}
	r := running[c.ID]
	if r == nil {
		var err error
		if r, err = newReader(c); err != nil {
			return nil, err
		}
		running[c.ID] = r
	}
	return r.run(c)
}

// newReader knows some kinds of bench.py, and two that need no mount: gather makes batches in this process, and ordinary reads as
// many bytes of a file in the page cache.
func newReader(c command) (r *reader, err error) {
	r = &reader{command: c, buf: make([]byte, batchBytes(c)), k: c.First, fd: -1}
	n := int64(len(r.buf))
	open := func(name string) { r.fd, err = unix.Open(c.Path+name, unix.O_RDONLY, 0) }
	once := func(name string) error {
		fd, err := unix.Open(c.Path+name, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return preadFull(fd, r.buf, 0)
	}
	switch c.Kind {
	case "gather":
		q, err := openSequence(c)
		r.next = func(k uint64) error { return q.Read(r.buf, k, 0) }
		return r, err
	case "ordinary":
		info, err := os.Stat(c.Path)
		if err != nil {
			return nil, err
		}
		open("")
		r.next = func(k uint64) error { return preadFull(r.fd, r.buf, int64(k)*n%(info.Size()-n)) }
	case "batches_bin":
		open("/batches.bin")
		r.next = func(k uint64) error { return preadFull(r.fd, r.buf, int64(k)*n) }
	case "next_kept":
		open("/next")
		r.next = func(uint64) error { return preadFull(r.fd, r.buf, 0) }
	case "next_open":
		r.next = func(uint64) error { return once("/next") }
	case "by_number":
		r.next = func(k uint64) error { return once("/batch/" + strconv.FormatUint(k, 10)) }
	default:
		err = errors.New("unknown kind")
	}
	return r, err
}

// openSequence returns the sequence that a mount of the token file has under the same settings.
func openSequence(c command) (*sampler.Sequence, error) {
	tokens, err := cache.Open([]string{c.Path}, cache.Options{DType: array.Uint16, Access: cache.Access(c.Access)})
	if err != nil {
		return nil, err
	}
	return sampler.New([]sampler.Source{{Main: tokens}}, sampler.Settings{Split: "train", BatchSize: c.Batch, BlockSize: c.Block, World: 1,
		DType: array.DType(c.DType), Layout: sampler.Layout(c.Layout), Order: sampler.Random, Seed: c.Seed})
}

func batchBytes(c command) int {
	if c.Layout == string(sampler.WholeRows) {
		return array.DType(c.DType).Size() * c.Batch * (c.Block + 1)
	}
	return array.DType(c.DType).Size() * c.Batch * c.Block * 2
}

func preadFull(fd int, buf []byte, off int64) error {
	for len(buf) > 0 {
		n, err := unix.Pread(fd, buf, off)
		if err != nil && err != unix.EINTR {
			return err
		}
		if n == 0 && err == nil {
			return io.ErrUnexpectedEOF
		}
		n = max(n, 0)
		buf, off = buf[n:], off+int64(n)
	}
	return nil
}

func (r *reader) run(c command) ([]float64, error) {
	waits := make([]float64, 0, min(c.Steps, 1<<16))
	end := time.Now()
	for step := -1 - c.Lead; step < c.Steps && (step <= 0 || time.Now().Before(end)); step++ {
		for start := time.Now(); time.Since(start).Seconds() < c.Compute; { // computing, not sleeping: a trainer's core is awake
		}
		start := time.Now()
		if err := r.next(r.k); err != nil {
			return nil, err
		}
		wait := time.Since(start)
		r.k++
		switch {
		case step == -1-c.Lead:
			if err := r.check(); err != nil {
				return nil, err
			}
		case step == 0:
			end = start.Add(time.Duration(c.Seconds * 1e9))
			fallthrough
		case step > 0:
			waits = append(waits, float64(wait)/1e3)
		}
	}
	return waits, r.check()
}

// check compares y with x of a batch in layout xy.
func (r *reader) check() error {
	if r.Kind == "ordinary" || r.Layout != string(sampler.XY) {
		return nil
	}
	size := len(r.buf) / 2 / r.Batch / r.Block
	x, y := r.buf[:len(r.buf)/2], r.buf[len(r.buf)/2:]
	row := r.Block * size
	for ; len(x) > 0; x, y = x[row:], y[row:] {
		if string(x[size:row]) != string(y[:row-size]) {
			return errors.New("y is not x shifted by one")
		}
	}
	return nil
}

// idealBytes returns the least bytes that a batch needs of the disk: the 4 KiB pages that its rows lie on.
func idealBytes(path string, batch, block int) (float64, error) {
	const batches, page = 1000, 4096
	q, err := openSequence(command{Path: path, Access: string(cache.Pread), DType: "uint16", Layout: "xy", Batch: batch, Block: block, Seed: 1337})
	if err != nil {
		return 0, err
	}
	pages := 0
	for k := range uint64(batches) {
		seen := map[int64]bool{}
		for j := range batch {
			_, start := q.Start(k, j)
			from := 2 * start
			for p := from / page; p <= (from+2*int64(block)+1)/page; p++ {
				seen[p] = true
			}
		}
		pages += len(seen)
	}
	return float64(pages*page) / batches, nil
}
