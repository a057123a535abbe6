package format

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"batchfs/cache/array"
)

// NpyHeader returns the header of a .npy file, version 1.0, for an array in C order of
// little-endian numbers. The shape has at least one axis. The header is padded to the given size in
// bytes, which should be a multiple of 64.
func NpyHeader(size int, dtype array.DType, shape ...int) []byte {
	tuple := array.ShapeText(shape)
	if len(shape) == 1 {
		tuple += ","
	}
	dict := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", dtype.NumPy(), tuple)
	prefix := NpyMagic + "\x01\x00"
	length := size - len(prefix) - 2
	return fmt.Appendf(binary.LittleEndian.AppendUint16([]byte(prefix), uint16(length)), "%-*s\n", length-1, dict)
}

// NpyTokensHeader returns the header of a .npy file of unsigned tokens of width bytes.
func NpyTokensHeader(tokens int64, width int) []byte {
	return NpyHeader(128, array.DType(fmt.Sprintf("uint%d", 8*width)), int(tokens))
}

// An npyHeader is the dictionary in a header, such as {'descr': '<f4', 'fortran_order': False,
// 'shape': (60, 3), }.
type npyHeader struct {
	Descr   any     `json:"descr"` // not a string if the dtype is structured
	Fortran *bool   `json:"fortran_order"`
	Shape   []int64 `json:"shape"`
}

// parseNpy reads versions 1 to 3 of the format:
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
func parseNpy(in *Input) (f Format, matches bool, err error) {
	if matches, err := in.hasPrefix(NpyMagic); !matches {
		return f, false, err
	}
	fixed, err := in.read(0, 12)
	if err != nil {
		return f, true, err
	}
	start := int64(12) // position of the dictionary
	switch version := fixed[6]; version {
	case 1:
		start = 10
	case 2, 3:
	default:
		return f, true, fmt.Errorf("%s is a .npy file of version %d, but batchfs reads versions 1 to 3", in.Path, version)
	}
	f.Offset = start + int64(binary.LittleEndian.Uint32(append(fixed[8:start:start], 0, 0)))
	raw, err := in.read(start, f.Offset-start)
	if err != nil {
		return f, true, err
	}
	header, err := parseNpyHeader(string(raw))
	if err != nil {
		return f, true, fmt.Errorf("%s: its .npy header is wrong: %w", in.Path, err)
	}
	if f.DType, err = header.dtype(in.Path); err != nil {
		return f, true, err
	}
	if *header.Fortran && len(header.Shape) > 1 {
		return f, true, fmt.Errorf("%s is in Fortran order (the first axis varies fastest), so its rows are not contiguous; rewrite it: "+
			"numpy.save(FILE, numpy.ascontiguousarray(a))", in.Path)
	}
	return f, true, f.setShape(in.Path, header.Shape, in.Size-f.Offset)
}

func (h npyHeader) dtype(path string) (array.DType, error) {
	descr, ok := h.Descr.(string)
	if dtype := array.FromNumPy(descr); dtype != "" {
		return dtype, nil
	}
	const rewrite = "; rewrite it: numpy.save(FILE, a.astype(%q))"
	switch native := array.FromNumPy("<" + strings.TrimPrefix(descr, ">")); {
	case !ok:
		return "", fmt.Errorf("%s has a structured dtype; write each field to a separate file", path)
	case native != "":
		return "", fmt.Errorf("%s is big-endian (dtype %q)"+rewrite, path, descr, native)
	case strings.Contains(descr, "O"):
		return "", fmt.Errorf("%s holds pickled Python objects (dtype %q), not numbers"+rewrite, path, descr, array.Uint32)
	}
	return "", fmt.Errorf("%s has dtype %q, but batchfs serves only %v"+rewrite, path, descr, array.DTypes(), array.Uint32)
}

// npyLiterals and npyCommas turn the header's Python dictionary into JSON. Python 2 wrote integers
// as 3L.
var (
	npyLiterals = strings.NewReplacer("'", `"`, "(", "[", ")", "]", "True", "true", "False", "false", "L", "")
	npyCommas   = regexp.MustCompile(`,\s*([]}])`)
)

func parseNpyHeader(text string) (h npyHeader, err error) {
	asJSON := npyCommas.ReplaceAllString(npyLiterals.Replace(text), "$1")
	if json.Unmarshal([]byte(asJSON), &h) != nil || h.Descr == nil || h.Fortran == nil || h.Shape == nil {
		return h, errors.New("it is not a dictionary of descr, fortran_order and shape")
	}
	return h, nil
}
