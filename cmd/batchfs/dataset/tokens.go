package dataset

import (
	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cache/blocks"
)

// TokensLen returns the size of tokens.bin in bytes. It leaves out sources that a restart has
// added.
func (d *Dataset) TokensLen() (n int64) {
	mains := d.mains
	if d.mounted != nil {
		mains = mains[:sourcesIn(&d.mounted.Settings)]
	}
	for _, main := range mains {
		n += main.Bytes()
	}
	return n
}

// ReadTokens fills dst with tokens.bin, starting at byte off. That file has the tokens of all
// sources as stored, one source after the other. The range must be within TokensLen.
func (d *Dataset) ReadTokens(dst []byte, off int64) error {
	for _, main := range d.mains {
		n := max(min(int64(len(dst)), main.Bytes()-off), 0)
		if n > 0 {
			if err := readBytes(main, dst[:n], off); err != nil {
				return err
			}
			dst, off = dst[n:], off+n
		}
		off -= main.Bytes()
	}
	return nil
}

// tokensPrefetchBytes is how many bytes of tokens.bin are prefetched from a store at each read.
const tokensPrefetchBytes = 16 << 20

func readBytes(from *cache.Array, dst []byte, off int64) error {
	size := int64(from.DType().Size())
	first := off / size
	last := (off + int64(len(dst)) + size - 1) / size
	from.Prefetch(array.Window{Start: last, Len: int(min(tokensPrefetchBytes, from.Bytes()-last*size) / size)}, blocks.Demand{})
	return from.Read([]array.Window{{Start: first, Len: int(last - first)}}, func(_ int, raw []byte) error {
		copy(dst, raw[off-first*size:])
		return nil
	})
}
