// Package format reads and writes the formats of token files. [Input.Format] finds the elements of
// a file and returns a [Format], [Input.Ends] finds the ends of its documents, and an [Inspection]
// checks whether its content is plausible.
package format

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"batchfs/cache/array"
)

// Options describe what a file may not say about itself.
type Options struct {
	Format       string      // one of Names; "" means Auto
	DType        array.DType // dtype of the numbers; "" if only the file says it
	GuessedDType bool        // whether DType is only a guess
	Axes         []int       // shape of an element; nil for tokens, or if only the file says it
	Tensor       string      // tensor to serve, if the file has several
	AlignedArray string      // name of an array aligned with the main one; empty for the main one
}

const (
	Auto       = "auto" // determined by the content and its sidecars
	Headerless = "headerless"
)

// Names returns the valid values of Options.Format.
func Names() []string {
	names := []string{Auto, Headerless}
	for _, p := range parsers {
		names = append(names, p.name)
	}
	return names
}

// A Format says where the elements of a file lie: Count of them, one after the other, starting at
// byte Offset. An element is a token, or an array of numbers in C order.
type Format struct {
	Name   string // one of Names other than Auto
	Offset int64
	DType  array.DType
	Axes   []int // shape of an element; none for a token
	Count  int64
}

// Numbers returns how many numbers an element has.
func (f Format) Numbers() int64 {
	n := int64(1)
	for _, axis := range f.Axes {
		n *= int64(axis)
	}
	return n
}

// A parser recognizes a format by the content of a file or by a sidecar.
type parser struct {
	name            string
	headerlessAlone bool   // whether the file, without its sidecar, is headerless
	requirement     string // property of files in this format, for messages

	// parse finds the elements of a file. matches reports whether the file is in the format; if so,
	// err says what is wrong with it.
	parse func(*Input) (f Format, matches bool, err error)
}

var parsers = []parser{
	{"llm.c", false, "begins like a token file of llm.c or modded-nanogpt", parseLLMC},
	{"megatron", true, "is a .bin file with the .idx file of Megatron-LM next to it", parseMegatron},
	{"npy", false, "begins like a .npy file (OLMo's do not: they are headerless)", parseNpy},
	{"datatrove", true, "has a .metadata file of datatrove next to it, such as a.ds.metadata", parseDatatrove},
	{"safetensors", false, "begins like a safetensors file", parseSafetensors},
}

// An Input is a file whose format is unknown.
type Input struct {
	Path    string
	Size    int64 // bytes
	Content io.ReaderAt
	Options Options

	// OpenSidecar opens a file next to this one. It returns nil if there is none.
	OpenSidecar func(path string) (*Input, error)
}

// read returns the n bytes at off, or an error if the file is too short.
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

// head returns the first n bytes, or the whole file if it is shorter.
func (in *Input) head(n int64) ([]byte, error) { return in.read(0, min(n, in.Size)) }

func (in *Input) hasPrefix(prefix string) (bool, error) {
	first, err := in.head(int64(len(prefix)))
	return string(first) == prefix, err
}

// Format finds the elements of the file. The error says that the file is damaged, or that it
// contradicts Options.
func (in *Input) Format() (f Format, err error) {
	var found *parser
	for i := 0; i < len(parsers) && found == nil && err == nil; i++ {
		var matches bool
		if f, matches, err = parsers[i].parse(in); matches {
			found = &parsers[i]
			f.Name = found.name
		}
	}
	switch asked := cmp.Or(in.Options.Format, Auto); {
	case found == nil && err == nil && in.Size == 0:
		err = in.emptyError()
	case found == nil && err != nil, found != nil && (asked == Auto || asked == found.name):
	case found != nil && (asked != Headerless || !found.headerlessAlone):
		err = fmt.Errorf("%s %s, so its format is %s (got format = %q); leave format out", in.Path, found.requirement, found.name, asked)
	case asked == Auto, asked == Headerless:
		f, err = in.headerless()
	default:
		err = in.missingFormatError(asked)
	}
	return f, cmp.Or(err, f.CheckFits(in.Path, in.Size), in.checkOptions(f))
}

// An EmptyError is the error for a file that is complete, but has no elements.
type EmptyError string

func (e EmptyError) Error() string { return string(e) }

// emptyError returns the error for a file without bytes that no parser recognizes.
func (in *Input) emptyError() error {
	index, err := in.OpenSidecar(in.Path + IndexSuffix)
	last := int64(0)
	if index != nil && err == nil {
		last, err = index.lastEnd(Ends{Count: index.Size / 8})
	}
	if last != 0 {
		return fmt.Errorf("%s is empty, but %s says where its documents end; is it complete?", in.Path, index.Path)
	}
	return cmp.Or(err, error(EmptyError(in.Path+" is empty")))
}

// missingFormatError returns the error for a file that is not in the requested format.
func (in *Input) missingFormatError(asked string) error {
	i := slices.IndexFunc(parsers, func(p parser) bool { return p.name == asked })
	if i < 0 {
		return fmt.Errorf("format must be one of %s (got %q)", strings.Join(Names(), ", "), asked)
	}
	if err := in.checkForeign(); err != nil {
		return err
	}
	return fmt.Errorf("%s: format is %s, but a file of that format %s", in.Path, asked, parsers[i].requirement)
}

// checkForeign returns an error if the file begins like a format that is not served.
func (in *Input) checkForeign() error {
	known, err := in.describeBeginning()
	if err == nil && known != "" {
		return fmt.Errorf("%s is %s", in.Path, known)
	}
	return err
}

// dtypeKey returns the configuration key for the dtype of headerless files.
func (in *Input) dtypeKey() string {
	if in.Options.AlignedArray != "" {
		return "dtype"
	}
	return "token_dtype"
}

func (in *Input) isConfigured() bool { return in.Options.DType != "" && !in.Options.GuessedDType }

// checkOptions returns an error if Options contradict the format of the file.
func (in *Input) checkOptions(f Format) error {
	switch {
	case in.isConfigured() && f.DType != in.Options.DType:
		return fmt.Errorf("%s: its numbers are %s, according to the %s file itself, but %s says %s; leave %[4]s out",
			in.Path, f.DType, f.Name, in.dtypeKey(), in.Options.DType)
	case in.Options.Axes != nil && !slices.Equal(f.Axes, in.Options.Axes):
		return fmt.Errorf("%s: its elements have shape %d, according to the %s file itself, but shape says %d; leave shape out",
			in.Path, f.Axes, f.Name, in.Options.Axes)
	case in.Options.Tensor != "" && f.Name != "safetensors":
		return fmt.Errorf("%s has no tensor %q: its format is %s; leave tensor out", in.Path, in.Options.Tensor, f.Name)
	}
	return nil
}

// headerless returns the format of a file that no parser recognizes.
func (in *Input) headerless() (f Format, err error) {
	if err := in.checkForeign(); err != nil {
		return f, err
	}
	for _, suffix := range []string{".index", ".metadata"} {
		if described, ok := strings.CutSuffix(in.Path, suffix); ok {
			if file, err := in.OpenSidecar(described); file != nil || err != nil {
				return f, errors.Join(err, fmt.Errorf("%s describes %s and holds no tokens; name only that file", in.Path, described))
			}
		}
	}
	if in.Options.Format != Headerless {
		if err := in.checkName(); err != nil {
			return f, err
		}
	}
	switch dtypes := `, or whichever of ` + fmt.Sprint(array.DTypes()) + " it is"; {
	case !in.isConfigured() && strings.EqualFold(path.Ext(in.Path), ".npy"):
		first, err := in.head(firstBytes)
		start := Inspection{Guessed: true}
		start.Visit(0, first)
		return f, cmp.Or(err, fmt.Errorf("%s is named .npy but has no header that says its dtype, like the files of OLMo; set %s = %q%s",
			in.Path, in.dtypeKey(), cmp.Or(start.widerDType(), array.Uint16), dtypes))
	case !in.isConfigured() && (in.Options.AlignedArray != "" || in.Options.Axes != nil):
		return f, fmt.Errorf("%s has no header that says its dtype; set %s = \"uint8\"%s", in.Path, in.dtypeKey(), dtypes)
	}
	f = Format{Name: Headerless, DType: in.Options.DType, Axes: in.Options.Axes}
	width := f.Numbers() * int64(f.DType.Size())
	f.Count = in.Size / width
	switch {
	case in.Size%width == 0:
		return f, nil
	case f.Axes == nil:
		return f, fmt.Errorf("%s: %d bytes are not a whole number of tokens of %d bytes; is %s right, and is the file complete?",
			in.Path, in.Size, width, in.dtypeKey())
	}
	return f, fmt.Errorf("%s: %d bytes are not a whole number of elements of %d bytes, %s of shape %d; are %s and shape right, "+
		"and is the file complete?", in.Path, in.Size, width, f.DType, f.Axes, in.dtypeKey())
}

// CheckBOS returns an error unless the first token of the file is bos.
func (in *Input) CheckBOS(f Format, bos uint64) error {
	raw, err := in.read(f.Offset, int64(f.DType.Size()))
	if err != nil {
		return err
	}
	if token := f.DType.Bits(raw); token != bos {
		return array.BOSError(array.Location{Path: in.Path}, 0, f.DType.Text(token), bos)
	}
	return nil
}

// setShape sets Axes and Count from the shape of an array, which must have exactly size bytes.
func (f *Format) setShape(path string, shape []int64, size int64) error {
	if len(shape) == 0 {
		return fmt.Errorf("%s holds a single number, not an array", path)
	}
	if least := slices.Min(shape); least == 0 && size == 0 {
		return EmptyError(fmt.Sprintf("%s: its shape is %d, which has no elements", path, shape))
	} else if least <= 0 {
		return fmt.Errorf("%s: its shape is %d, which has no elements, but the file has %d bytes of data; is it complete?", path, shape, size)
	}
	f.Count = shape[0]
	for _, axis := range shape[1:] {
		f.Axes = append(f.Axes, int(axis))
	}
	if f.CheckFits(path, f.Offset+size) != nil {
		return fmt.Errorf("%s is cut off: its shape is %d of %s, but the file has only %d bytes of data; is it complete?",
			path, shape, f.DType, size)
	}
	if extra := size - f.Count*f.Numbers()*int64(f.DType.Size()); extra > 0 {
		return fmt.Errorf("%s has %d bytes after its array of shape %d of %s; is it complete, and does it hold only one array?",
			path, extra, shape, f.DType)
	}
	return nil
}

// CheckFits returns an error unless the elements lie within the size bytes of the file at path. A
// read beyond the end of a mapping could return other memory.
func (f Format) CheckFits(path string, size int64) error {
	if f.DType.Known() && f.Offset >= 0 && f.Offset <= size && f.Count >= 1 && !slices.ContainsFunc(f.Axes, func(n int) bool { return n < 1 }) {
		left := (size - f.Offset) / int64(f.DType.Size()) / f.Count
		for _, axis := range f.Axes {
			left /= int64(axis)
		}
		if left > 0 {
			return nil
		}
	}
	return fmt.Errorf("%s: %d elements of dtype %q and shape %d from byte %d on are not within its %d bytes",
		path, f.Count, f.DType, f.Axes, f.Offset, size)
}

// firstBytes is how many bytes of a file are read to recognize it, or to parse it as metadata.
const firstBytes = 4096
