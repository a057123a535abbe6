package format

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"batchfs/cache/array"
)

// maxSafetensorsHeader is the limit of the format's own library.
const maxSafetensorsHeader = 100 << 20

func isSafetensors(in *Input) (bool, error) {
	if in.Size < 10 {
		return false, nil
	}
	first, err := in.read(0, 10)
	return err == nil && binary.LittleEndian.Uint64(first) <= maxSafetensorsHeader && string(first[8:]) == `{"`, err
}

type tensor struct {
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"` // of its bytes, from the end of the header on
}

// parseSafetensors finds a tensor: https://huggingface.co/docs/safetensors/index#format
func parseSafetensors(in *Input) (f Format, err error) {
	length, err := in.read(0, 8)
	if err != nil {
		return f, err
	}
	header := 8 + int64(binary.LittleEndian.Uint64(length))
	text, err := in.read(8, header-8)
	if err != nil {
		return f, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return f, fmt.Errorf("%s: its safetensors header is wrong: %w", in.Path, err)
	}
	delete(fields, "__metadata__")
	name, err := in.tensor(slices.Sorted(maps.Keys(fields)))
	if err != nil {
		return f, err
	}
	left, last := in.Size-header, int64(0)
	var t tensor
	for other, raw := range fields {
		var o tensor
		if err := json.Unmarshal(raw, &o); err != nil {
			return f, fmt.Errorf("%s: its safetensors header is wrong: tensor %q: %w", in.Path, other, err)
		}
		if o.Offsets[0] < 0 || o.Offsets[1] < o.Offsets[0] || o.Offsets[1] > left {
			return f, fmt.Errorf("%s is cut off: tensor %q has bytes %d, and behind the header there are %d; is it complete?",
				in.Path, other, o.Offsets, left)
		}
		if last = max(last, o.Offsets[1]); other == name {
			t = o
		}
	}
	if last < left {
		return f, fmt.Errorf("%s has %d bytes behind its last tensor; is it complete?", in.Path, left-last)
	}
	if f.DType = array.FromSafetensors(t.DType); f.DType == "" {
		return f, fmt.Errorf("%s: tensor %q has dtype %q, and batchfs serves %v", in.Path, name, t.DType, array.DTypes())
	}
	f.Offset = header + t.Offsets[0]
	if err := f.shaped(in.Path, t.Shape, t.Offsets[1]-t.Offsets[0]); err != nil {
		return f, fmt.Errorf("tensor %q: %w", name, err)
	}
	if f.end() != header+t.Offsets[1] {
		return f, fmt.Errorf("%s: its safetensors header is wrong: tensor %q has shape %d of %s and %d bytes",
			in.Path, name, t.Shape, t.DType, t.Offsets[1]-t.Offsets[0])
	}
	return f, nil
}

// tensor is the name of the tensor that Options means, one of names.
func (in *Input) tensor(names []string) (string, error) {
	some := names[:min(len(names), 20)]
	switch {
	case slices.Contains(names, in.Options.Tensor):
		return in.Options.Tensor, nil
	case len(names) == 0:
		return "", fmt.Errorf("%s has no tensors", in.Path)
	case in.Options.Tensor != "":
		return "", fmt.Errorf("%s has no tensor %q; it has %q", in.Path, in.Options.Tensor, some)
	case len(names) > 1:
		return "", fmt.Errorf("%s has several tensors: say tensor = %q, or which of %q it is", in.Path, names[0], some)
	}
	return names[0], nil
}
