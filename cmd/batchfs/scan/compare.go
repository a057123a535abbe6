package scan

import "batchfs/cache/array"

// A comparer compares numbers of two files. It belongs to one goroutine.
type comparer struct{ a, b blockCache }

// A blockCache holds decoded blocks of files. Similar files share many short runs that are close
// together, and reading each would cost a system call.
type blockCache [64]struct {
	file    *checkedFile
	number  int64
	decoder decoder
	decoded []uint64
}

const cachedNumbers = 4096 // numbers in a block of a blockCache

// block returns the block of a file that holds the number at an index. It is empty if the block
// cannot be read.
func (c *blockCache) block(f *checkedFile, index int64) []uint64 {
	number := index / cachedNumbers
	b := &c[number%int64(len(c))]
	if b.file == f && b.number == number {
		return b.decoded
	}
	b.file, b.number, b.decoded, b.decoder.dtype = f, number, nil, f.array.DType()
	start := number * cachedNumbers
	window := array.Window{Start: start, Len: int(min(cachedNumbers, f.numbers-start))}
	f.array.Read([]array.Window{window}, func(_ int, raw []byte) error {
		b.decoded = b.decoder.decode(raw)
		return nil
	})
	return b.decoded
}

// token returns the low bits of a token, or 0 if it cannot be read.
func (c *blockCache) token(f *checkedFile, index int64) uint16 {
	if list := c.block(f, index); len(list) > 0 {
		return uint16(list[index%cachedNumbers])
	}
	return 0
}

// equal returns how many numbers, at most limit, are equal in two files, from the indexes i and j
// on or, if backward, before them. Numbers that cannot be read are not equal.
func (c *comparer) equal(a *checkedFile, i int64, b *checkedFile, j, limit int64, backward bool) (n int64) {
	step := int64(1)
	if backward {
		step, limit, i, j = -1, min(limit, i, j), i-1, j-1
	} else {
		limit = min(limit, a.numbers-i, b.numbers-j)
	}
	for n < limit {
		x, y := c.a.block(a, i), c.b.block(b, j)
		p, q := i%cachedNumbers, j%cachedNumbers
		for n < limit && uint64(p) < uint64(len(x)) && uint64(q) < uint64(len(y)) {
			if x[p] != y[q] {
				return n
			}
			n, p, q = n+1, p+step, q+step
		}
		if p == i%cachedNumbers {
			return n
		}
		i, j = i-i%cachedNumbers+p, j-j%cachedNumbers+q
	}
	return n
}
