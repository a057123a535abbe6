package cache

import (
	"fmt"

	"batchfs/cache/array"
)

// AutoFormat stands for the format that a file shows by itself.
const AutoFormat = "auto"

// Formats are the names that Options.Format may have.
func Formats() []string { return []string{AutoFormat, "headerless"} }

// A Format says where in a file its elements lie: Count of them, one after the other from byte Offset on. An element is a token, or
// as many numbers of one dtype as the further axes say, in C order.
type Format struct {
	Name   string      // "headerless"
	Offset int64       // of the first element's first byte, in bytes
	DType  array.DType // of a number
	Axes   []int       // the further axes of an element; none for a token
	Count  int64       // elements
}

// Numbers is how many numbers an element has.
func (f Format) Numbers() int64 {
	n := int64(1)
	for _, axis := range f.Axes {
		n *= int64(axis)
	}
	return n
}

// element describes an element in words.
func (f Format) element() string {
	if len(f.Axes) == 0 {
		return fmt.Sprintf("dtype %q", f.DType)
	}
	return fmt.Sprintf("dtype %q and shape %d", f.DType, f.Axes)
}

// headerless is the format of a file of size bytes that is nothing but elements. The error says if there are none, or if they
// end in the middle of one.
func headerless(path string, size int64, dtype array.DType, axes []int) (Format, error) {
	f := Format{Name: "headerless", DType: dtype, Axes: axes}
	width := f.Numbers() * int64(dtype.Size())
	switch {
	case size <= 0:
		return f, fmt.Errorf("%s is empty", path)
	case size%width != 0 && axes == nil:
		return f, fmt.Errorf("%s: %d bytes are not a whole number of tokens of %d bytes; is token_dtype right, "+
			"and is the file complete?", path, size, width)
	case size%width != 0:
		return f, fmt.Errorf("%s: %d bytes are not a whole number of elements of %d bytes, %s of shape %d; are dtype and shape right, "+
			"and is the file complete?", path, size, width, dtype, axes)
	}
	f.Count = size / width
	return f, nil
}

// fits returns an error unless the elements lie within the size bytes of the file at path: a read behind its end would be one
// of other memory.
func (f Format) fits(path string, size int64) error {
	if f.DType.Known() && f.Offset >= 0 && f.Offset <= size && f.Count >= 1 {
		left := (size - f.Offset) / int64(f.DType.Size()) / f.Count
		for _, axis := range f.Axes {
			if axis < 1 {
				left = 0
				break
			}
			left /= int64(axis)
		}
		if left > 0 {
			return nil
		}
	}
	return fmt.Errorf("%s: %d elements of %s from byte %d on are not within its %d bytes", path, f.Count, f.element(), f.Offset, size)
}
