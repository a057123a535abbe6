// Package units divides the work of batchfs prepare among tasks that share nothing but a [Plan] and
// an output directory.
//
// A plan pins the inputs, the options and the tokenizer, and divides the inputs into units. A task
// encodes some of the units, each into at most one shard for every split, and then writes a
// [Sidecar], which records what the unit became. Because the files of a unit depend on nothing but
// the plan, tasks may be killed, repeated or run twice at the same time, in any order and number.
// Package prepare connects this to the encoders.
package units

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"batchfs/cache/store"
)

// A Plan is the content of a plan file. Tasks only read it.
type Plan struct {
	Version   int             `json:"version"`
	Options   json.RawMessage `json:"options"`             // of prepare; they decide tokens
	Tokenizer []byte          `json:"tokenizer,omitempty"` // content of the file that --by names
	SHA256    string          `json:"tokenizer_sha256"`    // hash of Tokenizer
	UnitBytes int64           `json:"unit_bytes"`
	Inputs    []Input         `json:"inputs"`
	Units     []Unit          `json:"units"`

	// Stricter has the options of another plan. Its tasks may fail where those of this plan do not,
	// but if they succeed, they write the same files, so their sidecars count for this plan. It is
	// nil if there is no such plan.
	Stricter json.RawMessage `json:"-"`
}

const (
	planVersion = 1
	maxUnits    = 1_000_000 // names have six digits
)

// An Input is a file of documents, as it was when it was planned.
type Input struct {
	Name   string `json:"name"`
	Format string `json:"format"`
	Val    bool   `json:"val,omitempty"` // whether all of it belongs to val
	// End is where the last part of a divided input ends, in bytes or row groups, or 0.
	End int64 `json:"end,omitempty"`
	State
}

// Object returns the object with the name and version of the input. ok is false if the input is a
// file.
func (in *Input) Object() (o store.Object, ok bool) {
	o, ok = store.Parse(in.Name)
	o.ETag, o.Size = in.ETag, in.Size
	return o, ok
}

// State identifies a version of a file or an object: by its size, and by the modification time of a
// file or the ETag of an object.
type State struct {
	Size     int64     `json:"size"` // bytes
	Modified time.Time `json:"modified,omitzero"`
	ETag     string    `json:"etag,omitempty"`
}

// Equal reports whether s and other describe the same version.
func (s State) Equal(other State) bool {
	return s.Size == other.Size && s.ETag == other.ETag && s.Modified.Equal(other.Modified)
}

// A Unit is a number of consecutive inputs, or a part of a single one: the lines that begin in a
// range of bytes, or a range of row groups. The fields marshal to the bytes that Digest hashes, so
// their names and order never change.
type Unit struct {
	First  int   `json:"first"`  // index of the first input
	Inputs int   `json:"inputs"` // number of inputs
	Begin  int64 `json:"begin,omitempty"`
	End    int64 `json:"end,omitempty"` // 0 if the unit has all of its inputs
	Bytes  int64 `json:"bytes"`         // of the inputs, as stored
}

// A Divider divides an input that has more than unitBytes into parts. It returns nil if the input
// cannot be divided.
type Divider func(in Input, unitBytes int64) (parts []Part, err error)

// A Part of an input begins where the part before it ends.
type Part struct {
	End   int64 // in bytes or row groups
	Bytes int64 // size of the part
}

// New returns a plan without inputs.
func New(options json.RawMessage, tokenizer []byte, unitBytes int64) *Plan {
	return &Plan{Version: planVersion, Options: options, Tokenizer: tokenizer, SHA256: hashOf(tokenizer), UnitBytes: unitBytes,
		Inputs: []Input{}, Units: []Unit{}}
}

// Add appends the inputs that the plan does not have yet, and units for them. It returns how many
// inputs it added. Existing units stay as they are, so what tasks have made of them stays valid.
func (p *Plan) Add(inputs []Input, divide Divider) (added int, err error) {
	known := make(map[string]Input, len(p.Inputs))
	for _, in := range p.Inputs {
		known[in.Name] = in
	}
	var unit Unit
	end := func() {
		if unit.Inputs > 0 {
			p.Units = append(p.Units, unit)
		}
		unit = Unit{First: len(p.Inputs)}
	}
	end()
	for _, in := range inputs {
		if before, ok := known[in.Name]; ok {
			if !before.Equal(in.State) || before.Format != in.Format || before.Val != in.Val {
				return 0, fmt.Errorf("%s: has changed since it was planned, or an option applies to it differently: restore it, or make a new plan", in.Name)
			}
			continue
		}
		added++
		var parts []Part
		if in.Size > p.UnitBytes {
			if parts, err = divide(in, p.UnitBytes); err != nil {
				return 0, fmt.Errorf("%s: %w", in.Name, err)
			}
		}
		if n := len(p.Units) + len(parts); n > maxUnits {
			return 0, tooManyUnits(int64(n))
		}
		if len(parts) > 0 || unit.Bytes+in.Size > p.UnitBytes {
			end()
		}
		if len(parts) > 0 {
			in.End = parts[len(parts)-1].End
		}
		p.Inputs = append(p.Inputs, in)
		if len(parts) == 0 {
			unit.Inputs, unit.Bytes = unit.Inputs+1, unit.Bytes+in.Size
			continue
		}
		begin := int64(0)
		for _, part := range parts {
			p.Units = append(p.Units, Unit{First: len(p.Inputs) - 1, Inputs: 1, Begin: begin, End: part.End, Bytes: part.Bytes})
			begin = part.End
		}
		end()
	}
	end()
	return added, p.check()
}

// Lines divides a file of lines into parts of about equal size, none of which exceeds unitBytes. A
// line belongs to the part in which it begins.
func Lines(in Input, unitBytes int64) ([]Part, error) {
	n := (in.Size + unitBytes - 1) / unitBytes
	if n > maxUnits { // also because the parts would need much memory
		return nil, tooManyUnits(n)
	}
	parts, begin := make([]Part, n), int64(0)
	for i := range parts {
		// This does not overflow, unlike size*i/n.
		end := in.Size/n*int64(i+1) + in.Size%n*int64(i+1)/n
		parts[i], begin = Part{end, end - begin}, end
	}
	return parts, nil
}

// Groups divides a file of row groups, whose sizes in bytes are given, into parts. A part exceeds
// unitBytes only if it is a single row group.
func Groups(sizes []int64, unitBytes int64) (parts []Part) {
	var current Part
	for i, size := range sizes {
		if current.Bytes > 0 && current.Bytes+size > unitBytes {
			parts = append(parts, current)
			current.Bytes = 0
		}
		current = Part{int64(i + 1), current.Bytes + size}
	}
	return append(parts, current)
}

// Read reads and checks a plan. name is for messages.
func Read(r io.Reader, name string) (*Plan, error) {
	p := new(Plan)
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	err := d.Decode(p)
	if err == nil {
		err = p.check()
	} else {
		err = fmt.Errorf("cannot be read as a plan of prepare: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("--plan %s: %w", name, err)
	}
	return p, nil
}

// Write writes a plan as JSON, with one input or unit in a line.
func (p *Plan) Write(w io.Writer) error {
	head := *p
	head.Inputs, head.Units = nil, nil
	text, err := json.Marshal(head)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	b.Write(bytes.TrimSuffix(text, []byte(`"inputs":null,"units":null}`)))
	b.WriteString(`"inputs":[`)
	if err := writeLines(&b, p.Inputs); err != nil {
		return err
	}
	b.WriteString(`],"units":[`)
	if err := writeLines(&b, p.Units); err != nil {
		return err
	}
	b.WriteString("]}\n")
	_, err = w.Write(b.Bytes())
	return err
}

func writeLines[T any](b *bytes.Buffer, list []T) error {
	for i, element := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		text, err := json.Marshal(element)
		if err != nil {
			return err
		}
		b.Write(text)
	}
	return nil
}

func tooManyUnits(n int64) error {
	return fmt.Errorf("%d units are too many, because the limit is %d: use a larger --unit-bytes", n, maxUnits)
}

// check returns an error unless every part of every input belongs to exactly one unit.
func (p *Plan) check() error {
	switch {
	case p.Version != planVersion:
		return fmt.Errorf("has version %d, but this batchfs reads version %d: use the batchfs that made it, or make a new plan", p.Version, planVersion)
	case p.SHA256 != hashOf(p.Tokenizer):
		return errors.New("its tokenizer has been changed: make a new plan")
	case len(p.Units) > maxUnits:
		return tooManyUnits(int64(len(p.Units)))
	case p.UnitBytes <= 0:
		return fmt.Errorf("unit_bytes must be at least 1 (got %d)", p.UnitBytes)
	}
	broken := func(i int) error {
		return fmt.Errorf("unit %s does not begin where the one before it ends: make a new plan", Name(i))
	}
	// The units so far cover all inputs before input, and input up to at.
	input, at := 0, int64(0)
	for i, u := range p.Units {
		switch {
		case u.Inputs < 1 || u.First != input || u.Begin != at || u.First+u.Inputs > len(p.Inputs):
			return broken(i)
		case u.End == 0 && at == 0 && !slices.ContainsFunc(p.InputsOf(i), func(in Input) bool { return in.End > 0 }):
			input += u.Inputs
		case u.Inputs > 1 || u.End <= u.Begin || u.End > p.Inputs[input].End:
			return broken(i)
		case u.End < p.Inputs[input].End:
			at = u.End
		default:
			input, at = input+1, 0
		}
	}
	if input != len(p.Inputs) || at != 0 {
		return errors.New("the units do not cover all inputs: make a new plan")
	}
	return nil
}

// Name returns the name of a unit, which is its number, from 0 on, in six digits.
func Name(unit int) string { return fmt.Sprintf("%06d", unit) }

// InputsOf returns the inputs of a unit.
func (p *Plan) InputsOf(unit int) []Input {
	u := p.Units[unit]
	return p.Inputs[u.First : u.First+u.Inputs]
}

// Describe returns the name of a unit and of its inputs, for messages.
func (p *Plan) Describe(unit int) string {
	u, inputs := p.Units[unit], p.InputsOf(unit)
	what := inputs[0].Name
	switch {
	case u.End > 0 && inputs[0].Format == "parquet":
		what += fmt.Sprintf(", row groups %d to %d", u.Begin, u.End-1)
	case u.End > 0:
		what += fmt.Sprintf(", bytes %d to %d", u.Begin, u.End-1)
	case u.Inputs > 1:
		what += " to " + inputs[len(inputs)-1].Name
	}
	return fmt.Sprintf("unit %s (%s)", Name(unit), what)
}

// Digest returns a hash of all that decides the files of a unit, apart from its number.
func (p *Plan) Digest(unit int) string { return p.digestWith(p.Options, unit) }

func (p *Plan) digestWith(options json.RawMessage, unit int) string {
	return digest(options, p.SHA256, p.InputsOf(unit), p.Units[unit].Begin, p.Units[unit].End)
}

// DigestAll returns a hash of all that decides the files of all units.
func (p *Plan) DigestAll() string { return digest(p.Options, p.SHA256, p.Inputs, p.Units) }

func hashOf(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }

func digest(parts ...any) string {
	h := sha256.New()
	enc := json.NewEncoder(h)
	for _, part := range parts {
		if err := enc.Encode(part); err != nil {
			panic(err) // impossible for these types
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// Numbers returns a sorted list of numbers with ranges, such as 3,17,40-42. Schedulers take this
// form.
func Numbers(list []int) string {
	var b strings.Builder
	for i := 0; i < len(list); {
		end := i + 1
		for end < len(list) && list[end] == list[end-1]+1 {
			end++
		}
		fmt.Fprintf(&b, ",%d", list[i])
		if end-i > 1 {
			fmt.Fprintf(&b, "-%d", list[end-1])
		}
		i = end
	}
	return strings.TrimPrefix(b.String(), ",")
}
