package prepare

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// The fields next to that of --ids, as tokenizers and data collators of Hugging Face name them.
const (
	attentionField = "attention_mask"
	labelsField    = "labels"

	ignoredLabel = -100 // the label of a token that a trainer does not learn to predict
)

// An idRow has the ids of a document and what is next to them, as JSON.
type idRow struct {
	ids               jsontext.Value
	attention, labels jsontext.Value // nil if there are none
}

// idRow returns the ids to which --ids leads in a line. If there are none, names that are separated
// by dots may be a single key.
func (e *encoding) idRow(line jsontext.Value) (idRow, error) {
	row, err := e.fields[0].idRow(line)
	if err != nil && e.hasDots {
		if row, err := e.fields[0].joined(line, 0).idRow(line); err == nil {
			return row, nil
		}
	}
	return row, err
}

func (f field) idRow(line jsontext.Value) (row idRow, err error) {
	last := len(f.path) - 1
	for depth := range last {
		if line, err = f.follow(line, depth, nil); err != nil {
			return idRow{}, err
		}
	}
	row.ids, err = f.follow(line, last, func(name []byte, value jsontext.Value) {
		switch {
		case value.Kind() == jsontext.KindNull:
		case string(name) == attentionField:
			row.attention = value
		case string(name) == labelsField:
			row.labels = value
		}
	})
	return row, err
}

// encodeIDs adds the ids of a line as a document, unless there are none. Nothing is appended to
// them.
func (w *encodeWorker) encodeIDs(ch *chunk, in *input, line jsontext.Value, unit string, number int64) error {
	row, err := w.encoding.idRow(line)
	if err != nil {
		return err
	}
	ids, mask, err := w.decodeIDs(row)
	switch {
	case err != nil:
		return err
	case len(ids) == 0:
		addLeftOut(&ch.notes.Empty, 1, location(unit, number, in))
		return nil
	}
	w.raw = appendLittleEndian(w.raw[:0], ids, w.encoding.width)
	out := &ch.encoded[0]
	if w.val.hasIDs(in, w.raw) {
		out = &ch.encoded[1]
	}
	out.tokens = append(out.tokens, w.raw...)
	if w.encoding.masked {
		out.mask = append(out.mask, mask...)
	}
	w.appendEnd(out)
	for i, id := range ids {
		if int64(id) == w.encoding.eot {
			out.eotInside++
			if i == 0 {
				out.eotBegins++
			}
			if i == len(ids)-1 {
				out.eotEnds++
			}
		}
	}
	return nil
}

// decodeIDs returns the ids to which the model attends, and their mask: 1 if a label is the id. The
// next call overwrites both.
func (w *encodeWorker) decodeIDs(row idRow) (ids []uint32, mask []byte, err error) {
	name := w.encoding.fields[0].String()
	if w.ids, err = appendIntegers(w.ids[:0], row.ids, name); err != nil {
		return nil, nil, err
	}
	n := len(w.ids)
	aligned := func(to []int64, value jsontext.Value, other string) ([]int64, error) {
		if value == nil {
			return nil, nil
		}
		to, err := appendIntegers(to, value, other)
		if err == nil && len(to) != n {
			err = unusable(fmt.Sprintf("%s and %s differ in length", name, other), fmt.Sprintf(": %d and %d", n, len(to)))
		}
		return to, err
	}
	attention, err := aligned(nil, row.attention, attentionField)
	if err != nil {
		return nil, nil, err
	}
	labels, err := aligned(nil, row.labels, labelsField)
	switch {
	case err != nil || n == 0:
		return nil, nil, err
	case row.labels == nil && w.encoding.masked:
		return nil, nil, unusable("has no "+labelsField, fmt.Sprintf(", but %s has: prepare rows with and without them separately", w.encoding.first))
	case row.labels != nil && !w.encoding.masked:
		return nil, nil, unusable("has "+labelsField, fmt.Sprintf(", but %s has none: prepare rows with and without them separately", w.encoding.first))
	}
	ids, mask = w.scratch[:0], w.mask[:0]
	for i, id := range w.ids {
		if attention != nil {
			switch attention[i] {
			case 0:
				continue
			case 1:
			default:
				return nil, nil, unusable(attentionField+" is not 0 or 1 everywhere", fmt.Sprintf(": element %d is %d", i, attention[i]))
			}
		}
		if size := w.encoding.tokenizer.Size(); id < 0 || id >= size {
			return nil, nil, unusable("has an id outside the vocabulary", fmt.Sprintf(
				": element %d of %s is %d, but must be from 0 to %d: correct --vocab-size or --by", i, name, id, size-1))
		}
		ids = append(ids, uint32(id))
		if labels == nil {
			continue
		}
		switch labels[i] {
		case id:
			mask = append(mask, 1)
		case ignoredLabel:
			mask = append(mask, 0)
		default:
			return nil, nil, unusable(fmt.Sprintf("%s differ from %s", labelsField, name), fmt.Sprintf(
				": element %d is %d, but must be %d, like the id there, or %d: remove them if they are something else", i, labels[i], id, ignoredLabel))
		}
	}
	w.scratch, w.mask = ids, mask
	return ids, mask, nil
}

// appendIntegers appends the elements of a list to which a field leads. false and true are 0 and 1;
// null is an empty list.
func appendIntegers(to []int64, list jsontext.Value, name string) ([]int64, error) {
	kind := fmt.Sprintf("field %s is not a list of integers", name)
	switch list.Kind() {
	case jsontext.KindNull:
		return to, nil
	case jsontext.KindBeginArray:
	default:
		return to, unusable(kind, " but "+describe(list))
	}
	for rest, i := bytes.TrimSpace(list[1:len(list)-1]), 0; len(rest) > 0; i++ {
		var element []byte
		element, rest, _ = bytes.Cut(rest, []byte(","))
		element = bytes.TrimSpace(element)
		n, err := strconv.ParseInt(string(element), 10, 64)
		switch {
		case err == nil, string(element) == "false":
		case string(element) == "true":
			n = 1
		case jsontext.Value(element).Kind() == jsontext.KindNumber:
			return to, unusable(kind, fmt.Sprintf(": element %d is %s", i, element))
		default:
			return to, unusable(kind, fmt.Sprintf(": element %d is %s", i, describe(element)))
		}
		to = append(to, n)
	}
	return to, nil
}
