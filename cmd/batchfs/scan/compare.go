package scan

import "batchfs/cache/array"

// A comparer compares numbers of two files. It belongs to one goroutine.
type comparer struct{ a, b blockCache }

// A blockCache keeps blocks of files in memory. Similar files share many short runs that are close
// together, so that blocks are needed again and again.
type blockCache struct {
	// raw holds numbers of file, beginning with the one at index at. They need no block.
	file    *checkedFile
	at      int64
	raw     []byte
	decoder decoder
	blocks  [2048]struct { // indexed by number modulo 2048
		file   *checkedFile
		number int64
		raw    []byte
	}
}

const cachedNumbers = 1024 // numbers in a block of a blockCache

// block returns the block with a number. It is empty if the block cannot be read.
func (c *blockCache) block(f *checkedFile, number int64) []byte {
	start, size := number*cachedNumbers, f.size
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

// numbers returns the numbers of a file from an index to the end of its block or, if backward, from
// the beginning of the block before it to the index. It returns none if they cannot be read.
func (c *blockCache) numbers(f *checkedFile, index int64, backward bool) []byte {
	first := index
	if backward {
		first--
	}
	raw := c.block(f, first/cachedNumbers)
	at := min(int(index-first/cachedNumbers*cachedNumbers)*f.size, len(raw))
	if backward {
		return raw[:at]
	}
	return raw[at:]
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
	c.a.decoder.dtype, c.b.decoder.dtype = a.dtype, b.dtype
	for n < limit {
		x, y := c.a.numbers(a, i+step*n, backward), c.b.numbers(b, j+step*n, backward)
		most := int(min(128, limit-n, int64(len(x)/a.size), int64(len(y)/b.size)))
		if backward {
			x, y = x[len(x)-most*a.size:], y[len(y)-most*b.size:]
		} else {
			x, y = x[:most*a.size], y[:most*b.size]
		}
		same := 0
		if a.dtype == b.dtype {
			same = equalElements(x, y, backward) / a.size
		} else {
			same = equalElements(c.a.decoder.decode(x), c.b.decoder.decode(y), backward)
		}
		if n += int64(same); same < most || most == 0 {
			break
		}
	}
	return n
}

// equalElements returns the length of the longest common prefix of two lists or, if backward, of
// their longest common suffix. The lists must have the same length.
func equalElements[T comparable](x, y []T, backward bool) (n int) {
	if y = y[:len(x)]; !backward {
		for n < len(x) && x[n] == y[n] {
			n++
		}
		return n
	}
	end := len(x)
	for end > 0 && x[end-1] == y[end-1] {
		end--
	}
	return len(x) - end
}
