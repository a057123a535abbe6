package cache

import (
	"fmt"

	"batchfs/cache/array"
)

// A Format says where in a file its tokens lie: Count numbers of one dtype, one after the other from byte Offset on.
type Format struct {
	Name      string      // "headerless"
	Offset    int64       // of the first token's first byte, in bytes
	DType     array.DType // of a token
	Count     int64       // tokens
	Documents []int64     // for each document, the index in the file of the token behind its last; nil where the format knows of none
}

// headerless is the format of a file of size bytes that is nothing but tokens. The error says if there are none, or if they
// end in the middle of one.
func headerless(path string, size int64, dtype array.DType) (Format, error) {
	width := int64(dtype.Size())
	switch {
	case size <= 0:
		return Format{}, fmt.Errorf("%s is empty", path)
	case size%width != 0:
		return Format{}, fmt.Errorf("%s: %d bytes are not a whole number of tokens of %d bytes; is token_dtype right, "+
			"and is the file complete?", path, size, width)
	}
	return Format{Name: "headerless", DType: dtype, Count: size / width}, nil
}

// fits returns an error unless the tokens lie within the size bytes of the file at path: a read behind its end would be one
// of other memory.
func (f Format) fits(path string, size int64) error {
	if !f.DType.Known() || f.Offset < 0 || f.Offset > size || f.Count < 1 || f.Count > (size-f.Offset)/int64(f.DType.Size()) {
		return fmt.Errorf("%s: %d tokens of dtype %q from byte %d on are not within its %d bytes", path, f.Count, f.DType, f.Offset, size)
	}
	return nil
}
