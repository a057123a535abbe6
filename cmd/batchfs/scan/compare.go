package scan

import "batchfs/cache/array"

// A comparer compares numbers of two files. It belongs to one goroutine.
type comparer struct{ a, b blockCache }

// A blockCache holds blocks of files. Similar files share many short runs that are close together,
// and reading each would cost system calls. raw was read from index at of file.
type blockCache struct {
	file    *checkedFile
	at      int64
	raw     []byte
	decoder decoder
	blocks  [2048]struct {
		file   *checkedFile
		number int64
		raw    []byte
	}
}

const cachedNumbers = 1024 // numbers in a block of a blockCache

// block returns the block with a number. It is empty if the block cannot be read.
func (c *blockCache) block(f *checkedFile, number int64) []byte {
	start, size := number*cachedNumbers, f.array.DType().Size()
	window := array.Window{Start: start, Len: int(min(cachedNumbers, f.numbers-start))}
	if from := int(start-c.at) * size; c.file == f && from >= 0 && from+window.Len*size <= len(c.raw) {
		return c.raw[from:][:window.Len*size]
	}
	b := &c.blocks[number%int64(len(c.blocks))]
	if b.file != f || b.number != number {
		b.file, b.number, b.raw = f, number, b.raw[:0]
		f.array.Read([]array.Window{window}, func(_ int, raw []byte) error {
			b.raw = append(b.raw, raw...)
			return nil
		})
	}
	return b.raw
}

// numbers returns some numbers of a file from an index on or, if backward, before it. It returns
// none if they cannot be read.
func (c *blockCache) numbers(f *checkedFile, index int64, backward bool) []uint64 {
	const most = 64
	from := index
	if backward {
		from = max(index-most, (index-1)/cachedNumbers*cachedNumbers)
	}
	raw, size := c.block(f, from/cachedNumbers), f.array.DType().Size()
	raw = raw[min(int(from%cachedNumbers)*size, len(raw)):]
	if backward {
		raw = raw[:min(int(index-from)*size, len(raw))]
	}
	c.decoder.dtype = f.array.DType()
	return c.decoder.decode(raw[:min(most*size, len(raw))])
}

// equal returns how many numbers, at most limit, are equal in two files, from the indexes i and j
// on or, if backward, before them. Numbers that cannot be read are not equal.
func (c *comparer) equal(a *checkedFile, i int64, b *checkedFile, j, limit int64, backward bool) (n int64) {
	step := int64(1)
	if backward {
		step, limit = -1, min(limit, i, j)
	} else {
		limit = min(limit, a.numbers-i, b.numbers-j)
	}
	for n < limit {
		x, y := c.a.numbers(a, i+step*n, backward), c.b.numbers(b, j+step*n, backward)
		most := min(len(x), len(y), int(limit-n))
		if most == 0 {
			break
		}
		for k := range most {
			if backward && x[len(x)-1-k] != y[len(y)-1-k] || !backward && x[k] != y[k] {
				return n
			}
			n++
		}
	}
	return n
}
