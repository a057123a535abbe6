package format

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"batchfs/cache/array"
)

// maxSafetensorsHeader is the limit of the reference implementation, in bytes.
const maxSafetensorsHeader = 100 << 20

type tensor struct {
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"` // first and end byte, counted from the end of the header
}

// parseSafetensors reads the format of https://huggingface.co/docs/safetensors/index#format.
func parseSafetensors(in *Input) (f Format, matches bool, err error) {
	first, err := in.head(firstBytes)
	if err != nil || len(first) < 10 || binary.LittleEndian.Uint64(first) > maxSafetensorsHeader {
		return f, false, err
	}
	header, start := 8+int64(binary.LittleEndian.Uint64(first)), first[8:]
	if len(bytes.TrimLeft(start, jsonSpace)) == 0 && header <= in.Size { // the object begins later
		start, err = in.read(8, header-8)
	}
	if err != nil || !beginsJSONObject(start) {
		return f, false, err
	}
	text, err := in.read(8, header-8)
	if err != nil {
		return f, true, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return f, true, fmt.Errorf("%s: its safetensors header is wrong: %w", in.Path, err)
	}
	delete(fields, "__metadata__")
	name, err := in.tensorName(slices.Sorted(maps.Keys(fields)))
	if err != nil {
		return f, true, err
	}
	left, last := in.Size-header, int64(0)
	var t tensor
	for other, raw := range fields {
		var o tensor
		if err := json.Unmarshal(raw, &o); err != nil {
			return f, true, fmt.Errorf("%s: its safetensors header is wrong: tensor %q: %w", in.Path, other, err)
		}
		if o.Offsets[0] < 0 || o.Offsets[1] < o.Offsets[0] || o.Offsets[1] > left {
			return f, true, fmt.Errorf("%s is cut off: tensor %q has bytes %d, but only %d follow the header; is it complete?",
				in.Path, other, o.Offsets, left)
		}
		if last = max(last, o.Offsets[1]); other == name {
			t = o
		}
	}
	if last < left {
		return f, true, fmt.Errorf("%s has %d bytes after its last tensor; is it complete?", in.Path, left-last)
	}
	if f.DType = array.FromSafetensors(t.DType); f.DType == "" {
		return f, true, fmt.Errorf("%s: tensor %q has dtype %q, but batchfs serves only %v", in.Path, name, t.DType, array.DTypes())
	}
	f.Offset = header + t.Offsets[0]
	if err := f.setShape(in.Path, t.Shape, t.Offsets[1]-t.Offsets[0]); err != nil {
		return f, true, fmt.Errorf("tensor %q: %w", name, err)
	}
	return f, true, nil
}

const jsonSpace = " \t\r\n"

// beginsJSONObject reports whether a JSON object begins after white space.
func beginsJSONObject(text []byte) bool {
	inside, ok := bytes.CutPrefix(bytes.TrimLeft(text, jsonSpace), []byte("{"))
	inside = bytes.TrimLeft(inside, jsonSpace)
	return ok && len(inside) > 0 && (inside[0] == '"' || inside[0] == '}')
}

// tensorName returns the one of names that Options select.
func (in *Input) tensorName(names []string) (string, error) {
	listed := names[:min(len(names), 20)]
	switch {
	case slices.Contains(names, in.Options.Tensor):
		return in.Options.Tensor, nil
	case len(names) == 0:
		return "", fmt.Errorf("%s has no tensors", in.Path)
	case in.Options.Tensor != "":
		return "", fmt.Errorf("%s has no tensor %q; it has %q", in.Path, in.Options.Tensor, listed)
	case len(names) > 1:
		return "", fmt.Errorf("%s has several tensors: set tensor = %q, or whichever of %q it is", in.Path, names[0], listed)
	}
	return names[0], nil
}
