package format

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"batchfs/cache/array"
)

// Options are what is said of a file, besides what it shows by itself.
type Options struct {
	Format       string      // one of Names; "" is Auto
	DType        array.DType // of the numbers; "" where only the file says it
	GuessedDType bool        // DType is a guess
	Axes         []int       // of an element; nil for tokens, or where only the file says it
	Tensor       string      // the name of the one to serve, of a file with several
	AlignedArray string      // the name of an array that lies beside another; empty for the main one
}

const (
	Auto       = "auto" // the one that a file shows by itself
	Headerless = "headerless"
)

// Names are the names that Options.Format may have.
func Names() []string {
	names := []string{Auto, Headerless}
	for _, p := range parsers {
		names = append(names, p.name)
	}
	return names
}

// A Format says where in a file its elements lie: Count of them, one after the other from byte Offset on. An element is a token, or
// as many numbers of one dtype as the further axes say, in C order.
type Format struct {
	Name   string      // one of Names, but not Auto
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

// A parser knows a format that files show by themselves.
type parser struct {
	name string
	bare bool   // the file is nothing but elements, so it is also headerless
	sign string // what a file lacks that does not show the format

	// parse finds where the elements lie of a file that shows the format. The error says what is wrong with it.
	parse func(*Input) (f Format, is bool, err error)
}

var parsers = []parser{
	{"llm.c", false, "begins as a token file of llm.c or modded-nanogpt does", parseLLMC},
	{"megatron", true, "is a .bin file that has its .idx of Megatron-LM beside it", parseMegatron},
	{"npy", false, "begins as a .npy file does (OLMo's do not: they are headerless)", parseNpy},
	{"datatrove", true, "has the .metadata of datatrove beside it, as in a.ds.metadata", parseDatatrove},
	{"safetensors", false, "begins as a safetensors file does", parseSafetensors},
}

// An Input is a file to find the format of.
type Input struct {
	Path        string
	Size        int64
	Content     io.ReaderAt
	OpenSidecar func(path string) (*Input, error) // another file, nil where there is none
	Options     Options
}

// read returns n bytes from byte off on. The error says that the file is too short for that.
func (in *Input) read(off, n int64) ([]byte, error) {
	if off < 0 || n < 0 || off > in.Size || n > in.Size-off {
		return nil, fmt.Errorf("%s is cut off: its %d bytes end within its header", in.Path, in.Size)
	}
	raw := make([]byte, n)
	_, err := in.Content.ReadAt(raw, off)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%s became shorter than its %d bytes while it was opened", in.Path, in.Size)
	case err != nil:
		return nil, err
	}
	return raw, nil
}

// head returns the first n bytes, or all where there are fewer.
func (in *Input) head(n int64) ([]byte, error) { return in.read(0, min(n, in.Size)) }

func (in *Input) begins(with string) (bool, error) {
	first, err := in.head(int64(len(with)))
	return string(first) == with, err
}

// Format finds where in the file its elements lie. The error says that the file is not what Options say, or what is wrong with it.
func (in *Input) Format() (f Format, err error) {
	if in.Size <= 0 {
		return f, fmt.Errorf("%s is empty", in.Path)
	}
	var found *parser
	for i := 0; i < len(parsers) && found == nil && err == nil; i++ {
		var is bool
		if f, is, err = parsers[i].parse(in); is {
			found = &parsers[i]
			f.Name = found.name
		}
	}
	switch asked := cmp.Or(in.Options.Format, Auto); {
	case found == nil && err != nil, found != nil && (asked == Auto || asked == found.name):
	case found != nil && (asked != Headerless || !found.bare):
		err = fmt.Errorf("%s %s, so its format is %s (got format = %q); leave format out", in.Path, found.sign, found.name, asked)
	case asked == Auto, asked == Headerless:
		f, err = in.headerless()
	default:
		err = in.without(asked)
	}
	return f, cmp.Or(err, f.Fits(in.Path, in.Size), in.agrees(f))
}

// without is the error of a file that does not show the format that it should have.
func (in *Input) without(asked string) error {
	i := slices.IndexFunc(parsers, func(p parser) bool { return p.name == asked })
	if i < 0 {
		return fmt.Errorf("format must be one of %s (got %q)", strings.Join(Names(), ", "), asked)
	}
	if err := in.isForeign(); err != nil {
		return err
	}
	return fmt.Errorf("%s: format is %s, but a file of that format %s", in.Path, asked, parsers[i].sign)
}

// isForeign returns an error if the first bytes show that the file is of no format that is served.
func (in *Input) isForeign() error {
	first, err := in.head(firstBytes)
	if known := formatOf(first); err == nil && known != "" {
		return fmt.Errorf("%s is %s", in.Path, known)
	}
	return err
}

// key is the key of the configuration for the dtype of headerless files.
func (in *Input) key() string {
	if in.Options.AlignedArray != "" {
		return "dtype"
	}
	return "token_dtype"
}

// isConfigured reports whether the configuration says which dtype the numbers have.
func (in *Input) isConfigured() bool { return in.Options.DType != "" && !in.Options.GuessedDType }

// agrees returns an error if Options contradict the file.
func (in *Input) agrees(f Format) error {
	switch {
	case in.isConfigured() && f.DType != in.Options.DType:
		return fmt.Errorf("%s: its numbers are %s, as the file says, whose format is %s, but %s says %s; leave %[4]s out",
			in.Path, f.DType, f.Name, in.key(), in.Options.DType)
	case in.Options.Axes != nil && !slices.Equal(f.Axes, in.Options.Axes):
		return fmt.Errorf("%s: its elements have shape %d, as the file says, whose format is %s, but shape says %d; leave shape out",
			in.Path, f.Axes, f.Name, in.Options.Axes)
	case in.Options.Tensor != "" && f.Name != "safetensors":
		return fmt.Errorf("%s has no tensor %q: its format is %s; leave tensor out", in.Path, in.Options.Tensor, f.Name)
	}
	return nil
}

// headerless is the format of a file that does not show any. The error says if it ends in the middle of an element.
func (in *Input) headerless() (f Format, err error) {
	if err := in.isForeign(); err != nil {
		return f, err
	}
	for _, end := range []string{".index", ".metadata"} {
		if of, ok := strings.CutSuffix(in.Path, end); ok {
			if beside, err := in.OpenSidecar(of); beside != nil || err != nil {
				return f, errors.Join(err, fmt.Errorf("%s describes %s and holds no tokens; name that file alone", in.Path, of))
			}
		}
	}
	switch dtypes := `, or which of ` + fmt.Sprint(array.DTypes()) + " it is"; {
	case !in.isConfigured() && strings.HasSuffix(in.Path, ".npy"):
		return f, fmt.Errorf("%s is named .npy but has no header that says its dtype, as OLMo's files have none; say %s = \"uint16\"%s",
			in.Path, in.key(), dtypes)
	case !in.isConfigured() && (in.Options.AlignedArray != "" || in.Options.Axes != nil):
		return f, fmt.Errorf("%s has no header that says its dtype; say %s = \"uint8\"%s", in.Path, in.key(), dtypes)
	}
	f = Format{Name: Headerless, DType: in.Options.DType, Axes: in.Options.Axes}
	width := f.Numbers() * int64(f.DType.Size())
	f.Count = in.Size / width
	switch {
	case in.Size%width == 0:
		return f, nil
	case f.Axes == nil:
		return f, fmt.Errorf("%s: %d bytes are not a whole number of tokens of %d bytes; is %s right, and is the file complete?",
			in.Path, in.Size, width, in.key())
	}
	return f, fmt.Errorf("%s: %d bytes are not a whole number of elements of %d bytes, %s of shape %d; are %s and shape right, "+
		"and is the file complete?", in.Path, in.Size, width, f.DType, f.Axes, in.key())
}

// shaped sets Axes and Count to the shape of a whole array, which must have elements, and all of size bytes.
func (f *Format) shaped(path string, shape []int64, size int64) error {
	if len(shape) == 0 {
		return fmt.Errorf("%s holds a single number, not an array", path)
	}
	if slices.Min(shape) <= 0 {
		return fmt.Errorf("%s: its shape is %d, which has no elements", path, shape)
	}
	f.Count = shape[0]
	for _, axis := range shape[1:] {
		f.Axes = append(f.Axes, int(axis))
	}
	if f.Fits(path, f.Offset+size) != nil {
		return fmt.Errorf("%s is cut off: its shape is %d of %s, and the file has %d bytes for that; is it complete?",
			path, shape, f.DType, size)
	}
	if behind := size - f.Count*f.Numbers()*int64(f.DType.Size()); behind > 0 {
		return fmt.Errorf("%s has %d bytes behind its array of shape %d of %s; is it complete, and one array alone?", path, behind, shape, f.DType)
	}
	return nil
}

// Fits returns an error unless the elements lie within the size bytes of the file at path: a read behind its end is one of other memory.
func (f Format) Fits(path string, size int64) error {
	if f.DType.Known() && f.Offset >= 0 && f.Offset <= size && f.Count >= 1 && !slices.ContainsFunc(f.Axes, func(n int) bool { return n < 1 }) {
		left := (size - f.Offset) / int64(f.DType.Size()) / f.Count
		for _, axis := range f.Axes {
			left /= int64(axis)
		}
		if left > 0 {
			return nil
		}
	}
	return fmt.Errorf("%s: %d elements of dtype %q and shape %d from byte %d on are not within its %d bytes", path, f.Count, f.DType, f.Axes, f.Offset, size)
}

const firstBytes = 4096
