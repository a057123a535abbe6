// Package scan reads token files in blocks, from end to end or in samples: [Survey.AddFile]
// describes what a file holds, [Check] finds what is wrong with the files of splits, and
// [WriteIndex] records where documents end.
package scan

import (
	"context"
	"encoding/binary"
	"iter"
	"slices"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cmd/batchfs/command"
)

// blockSize is the number of bytes that are read at a time.
const blockSize = 1 << 20

// numbersOf returns how many numbers an array has. An element may consist of several.
func numbersOf(a *cache.Array) int64 { return a.Bytes() / int64(a.DType().Size()) }

func numbersPerElement(a *cache.Array) int64 { return numbersOf(a) / a.Len() }

// read calls visit with the numbers [from, to) of an array, block by block. at is the index of a
// block's first number. raw is valid only during the call.
func read(ctx context.Context, a *cache.Array, from, to int64, visit func(at int64, raw []byte) error) error {
	block := int64(blockSize / a.DType().Size())
	var raw []byte
	copyBlock := func(_ int, read []byte) error {
		raw = append(raw[:0], read...)
		return nil
	}
	for at := from; at < to; at += block {
		if ctx.Err() != nil {
			return command.ErrInterrupted
		}
		if err := a.Read([]array.Window{{Start: at, Len: int(min(block, to-at))}}, copyBlock); err != nil {
			return err
		}
		if err := visit(at, raw); err != nil {
			return err
		}
	}
	return nil
}

const endsPerBlock = blockSize / 8 // documents per block of an index

// readEnds calls visit with the ends of documents [from, to), block by block. ends is valid only
// during the call.
func readEnds(ctx context.Context, d *cache.Documents, from, to int64, visit func(ends []int64) error) error {
	ends := make([]int64, min(endsPerBlock, to-from))
	for at := from; at < to; at += endsPerBlock {
		if ctx.Err() != nil {
			return command.ErrInterrupted
		}
		ends = ends[:min(endsPerBlock, to-at)]
		if err := d.Ends(at, ends); err != nil {
			return err
		}
		if err := visit(ends); err != nil {
			return err
		}
	}
	return nil
}

const decodedBatch = 4096 // few enough numbers for the processor's first-level cache

// A decoder turns numbers of any dtype into uint64. Integers keep their value, as two's complement
// if negative; other dtypes keep their bits. A decoder belongs to one goroutine.
type decoder struct {
	dtype   array.DType
	numbers []uint64
}

// batches yields the numbers in raw, at most decodedBatch at a time. A batch is valid until the
// next one.
func (d *decoder) batches(raw []byte) iter.Seq[[]uint64] {
	return func(yield func([]uint64) bool) {
		for most := decodedBatch * d.dtype.Size(); len(raw) > 0; {
			n := min(len(raw), most)
			if !yield(d.decode(raw[:n])) {
				return
			}
			raw = raw[n:]
		}
	}
}

// decode returns the numbers in raw. They are valid until the next call.
func (d *decoder) decode(raw []byte) []uint64 {
	size := d.dtype.Size()
	d.numbers = slices.Grow(d.numbers[:0], len(raw)/size)[:len(raw)/size]
	switch size {
	case 1:
		for i := range d.numbers {
			d.numbers[i] = uint64(raw[i])
		}
	case 2:
		n := d.numbers
		for ; len(n) >= 4 && len(raw) >= 8; n, raw = n[4:], raw[8:] {
			v := binary.LittleEndian.Uint64(raw)
			n[0], n[1], n[2], n[3] = v&0xffff, v>>16&0xffff, v>>32&0xffff, v>>48
		}
		for i := range n {
			n[i] = uint64(binary.LittleEndian.Uint16(raw[2*i:]))
		}
	case 4:
		for i := range d.numbers {
			d.numbers[i] = uint64(binary.LittleEndian.Uint32(raw[4*i:]))
		}
	default:
		for i := range d.numbers {
			d.numbers[i] = binary.LittleEndian.Uint64(raw[8*i:])
		}
	}
	if unused := 64 - 8*size; d.dtype.IsSigned() {
		for i, v := range d.numbers {
			d.numbers[i] = uint64(int64(v<<unused) >> unused)
		}
	}
	return d.numbers
}

func isTokens(a *cache.Array) bool { return a.DType().IsInteger() && len(a.Axes()) == 0 }
