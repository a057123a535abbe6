package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"batchfs/cache/array"
)

const npyMagic = "\x93NUMPY"

// NpyHeader is the header of an array of unsigned integers of width bytes.
func NpyHeader(elements int64, width int) []byte {
	dict := fmt.Sprintf("{'descr': '<u%d', 'fortran_order': False, 'shape': (%d,), }", width, elements)
	return fmt.Appendf(nil, npyMagic+"\x01\x00\x76\x00%-117s\n", dict)
}

func isNpy(in *Input) (bool, error) { return in.begins(npyMagic) }

// parseNpy knows the versions 1 to 3 of the format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
func parseNpy(in *Input) (f Format, err error) {
	fixed, err := in.read(0, 8)
	if err != nil {
		return f, err
	}
	size := int64(2) // of the header's length
	switch version := fixed[6]; version {
	case 1:
	case 2, 3:
		size = 4
	default:
		return f, fmt.Errorf("%s is a .npy file of version %d, and batchfs knows versions 1 to 3", in.Path, version)
	}
	length, err := in.read(8, size)
	if err != nil {
		return f, err
	}
	f.Offset = 8 + size + int64(binary.LittleEndian.Uint32(append(length, 0, 0)))
	raw, err := in.read(8+size, f.Offset-8-size)
	if err != nil {
		return f, err
	}
	header, err := parseNpyHeader(string(raw))
	if err != nil {
		return f, fmt.Errorf("%s: its .npy header is wrong: %w", in.Path, err)
	}
	if f.DType, err = header.dtype(in.Path); err != nil {
		return f, err
	}
	if header.fortran && len(header.shape) > 1 {
		return f, fmt.Errorf("%s is in Fortran order (the first axis varies fastest), and rows of it lie in pieces; write it anew: "+
			"numpy.save(FILE, numpy.ascontiguousarray(a))", in.Path)
	}
	if err := f.shaped(in.Path, header.shape, in.Size-f.Offset); err != nil {
		return f, err
	}
	if behind := in.Size - f.end(); behind > 0 {
		return f, fmt.Errorf("%s has %d bytes behind its array of shape %d; did two arrays go into one file?",
			in.Path, behind, header.shape)
	}
	return f, nil
}

type npyHeader struct {
	descr   string // "" for a structured dtype
	fortran bool
	shape   []int64
}

func (h npyHeader) dtype(path string) (array.DType, error) {
	if dtype := array.FromNumPy(h.descr); dtype != "" {
		return dtype, nil
	}
	const anew = "; write it anew: numpy.save(FILE, a.astype(%q))"
	switch native := array.FromNumPy("<" + strings.TrimPrefix(h.descr, ">")); {
	case h.descr == "":
		return "", fmt.Errorf("%s has a structured dtype; write each field of it to a file of its own", path)
	case native != "":
		return "", fmt.Errorf("%s is big-endian (dtype %q)"+anew, path, h.descr, native)
	case strings.Contains(h.descr, "O"):
		return "", fmt.Errorf("%s holds pickled Python objects (dtype %q), not numbers"+anew, path, h.descr, array.Uint16)
	}
	return "", fmt.Errorf("%s has dtype %q, and batchfs serves %v"+anew, path, h.descr, array.DTypes(), array.Uint16)
}

var errSyntax = errors.New("it is no dictionary of descr, fortran_order and shape")

// The entries of the dictionary in a header, in any order. Python 2 wrote whole numbers as 3L.
var (
	npyDescr   = regexp.MustCompile(`["']descr["']\s*:\s*(?:'([^'\\]+)'|"([^"\\]+)"|(\[))`)
	npyFortran = regexp.MustCompile(`["']fortran_order["']\s*:\s*(True|False)`)
	npyShape   = regexp.MustCompile(`["']shape["']\s*:\s*\(((?:\s*\d+L?\s*,)*(?:\s*\d+L?)?)\s*\)`)
	npyRest    = regexp.MustCompile(`^\s*\{\s*,\s*,\s*,?\s*\}\s*$`)
)

// parseNpyHeader reads a Python dictionary such as {'descr': '<f4', 'fortran_order': False, 'shape': (60, 3), }.
func parseNpyHeader(text string) (h npyHeader, err error) {
	var found [3][]string
	for i, entry := range []*regexp.Regexp{npyDescr, npyFortran, npyShape} {
		at := entry.FindStringSubmatchIndex(text)
		if at == nil {
			return h, errSyntax
		}
		found[i] = entry.FindStringSubmatch(text)
		if found[0][3] != "" {
			return npyHeader{shape: []int64{1}}, nil // of a structured dtype nothing else matters
		}
		text = text[:at[0]] + text[at[1]:]
	}
	if !npyRest.MatchString(text) {
		return h, errSyntax
	}
	h = npyHeader{descr: found[0][1] + found[0][2], fortran: found[1][1] == "True"}
	for _, digits := range strings.FieldsFunc(found[2][1], func(r rune) bool { return r < '0' || r > '9' }) {
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return h, errSyntax
		}
		h.shape = append(h.shape, n)
	}
	return h, nil
}
