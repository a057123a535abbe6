package sampler

import (
	"bytes"
	"testing"

	"batchfs/cache/array"
)

// Any number of tokens, from any byte on, is converted one by one; the first that does not fit is the one that is told.
func TestConvertAnyLength(t *testing.T) {
	most := map[array.DType]int64{array.Uint16: 1<<16 - 1, array.Uint32: 1<<32 - 1, array.Int32: 1<<31 - 1, array.Int64: 1<<63 - 1}
	for _, from := range []array.DType{array.Uint16, array.Uint32} {
		for to, limit := range most {
			for n := 1; n < 40; n++ { // a read has no empty part
				var raw, want []byte
				for i := range n {
					v := min(most[from], limit) - int64(i)
					raw, want = appendToken(raw, v, from.Size()), appendToken(want, v, to.Size())
				}
				for odd := range 2 {
					src, dst := append(make([]byte, odd), raw...)[odd:], make([]byte, odd+len(want)+1)[odd:]
					if bad := convert(dst[:len(want)], src, to, from); bad != -1 || !bytes.Equal(dst[:len(want)], want) || dst[len(want)] != 0 {
						t.Fatalf("%d tokens, %s to %s: %d, % x, want % x", n, from, to, bad, dst, want)
					}
				}
				if limit >= most[from] {
					continue
				}
				for first := range n {
					src := bytes.Clone(raw)
					for i := first; i < n; i += 3 {
						copy(src[i*from.Size():], appendToken(nil, limit+1, from.Size()))
					}
					if bad := convert(make([]byte, len(want)), src, to, from); bad != first {
						t.Fatalf("%d tokens, %s to %s: token %d does not fit, %d is said", n, from, to, first, bad)
					}
				}
			}
		}
	}
}
