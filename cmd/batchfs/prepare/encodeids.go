package prepare

import (
	"bytes"
	"cmp"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"batchfs/cmd/batchfs/prepare/input"
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

// idRow returns the ids to which --ids leads in a line.
func (e *encoding) idRow(line jsontext.Value) (idRow, error) {
	return readField(e.fields[0], line, field.idRow)
}

func (f field) idRow(line jsontext.Value) (row idRow, err error) {
	last := len(f.path) - 1
	parent := f
	parent.path = f.path[:last]
	in, err := parent.valueIn(line)
	if err != nil {
		return idRow{}, err
	}
	row.ids, err = f.follow(in, last, func(name []byte, value jsontext.Value) {
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
func (w *encodeWorker) encodeIDs(ch *chunk, in *input.File, at place, line jsontext.Value) error {
	row, err := w.encoding.idRow(line)
	if err != nil {
		return err
	}
	ids, mask, err := w.decodeIDs(row)
	switch {
	case err != nil:
		return err
	case len(ids) == 0:
		addLeftOut(&ch.notes.Empty, 1, at.of(in))
		return nil
	}
	w.raw = appendLittleEndian(w.raw[:0], ids, w.encoding.width)
	out := ch.split(w.val.hasIDs(in, w.raw))
	out.tokens = append(out.tokens, w.raw...)
	if w.encoding.masked {
		out.mask = append(out.mask, mask...)
	}
	w.appendEnd(out)
	for i, id := range ids {
		if int64(id) == w.encoding.eot {
			out.eot.EOTInside++
			if i == 0 {
				out.eot.EOTBegins++
			}
			if i == len(ids)-1 {
				out.eot.EOTEnds++
			}
		}
	}
	return nil
}

// decodeIDs returns the ids to which the model attends, and their mask: 1 if a label is the id. The
// next call overwrites both.
func (w *encodeWorker) decodeIDs(row idRow) (ids []uint32, mask []byte, err error) {
	if err := w.readLists(row); err != nil {
		return nil, nil, err
	}
	name, size := w.encoding.fields[0].String(), w.encoding.tokenizer.Size()
	ids, mask = w.scratch[:0], w.mask[:0]
	for i, id := range w.ids {
		if row.attention != nil && w.attention[i] == 0 {
			continue
		}
		switch {
		case row.attention != nil && w.attention[i] != 1:
			return nil, nil, unusable(attentionField+" is not 0 or 1 everywhere", fmt.Sprintf(": element %d is %d", i, w.attention[i]))
		case id < 0 || id >= size:
			return nil, nil, unusable("has an id outside the vocabulary", fmt.Sprintf(
				": element %d of %s is %d, but must be from 0 to %d: correct --vocab-size or --by", i, name, id, size-1))
		case row.labels != nil && w.labels[i] != id && w.labels[i] != ignoredLabel:
			return nil, nil, unusable(fmt.Sprintf("%s differ from %s", labelsField, name), fmt.Sprintf(
				": element %d is %d, but must be %d, like the id there, or %d: remove them if they are something else", i, w.labels[i], id, ignoredLabel))
		}
		ids, mask = append(ids, uint32(id)), append(mask, 0)
		if row.labels != nil && w.labels[i] == id {
			mask[len(mask)-1] = 1
		}
	}
	w.scratch, w.mask = ids, mask
	return ids, mask, nil
}

// readLists reads the lists of a row into w.ids, w.attention and w.labels. It returns an error if
// their lengths differ, or if the first row decided otherwise about labels.
func (w *encodeWorker) readLists(row idRow) (err error) {
	name := w.encoding.fields[0].String()
	if w.ids, err = appendIntegers(w.ids[:0], row.ids, name); err != nil {
		return err
	}
	aligned := func(to *[]int64, value jsontext.Value, other string) (err error) {
		if value == nil {
			return nil
		}
		*to, err = appendIntegers((*to)[:0], value, other)
		switch fault, ok := err.(unusableError); {
		case ok:
			fault.error = fmt.Errorf("%w: remove it if it is something else", fault.error)
			return fault
		case len(*to) != len(w.ids):
			return unusable(fmt.Sprintf("%s and %s differ in length", name, other), fmt.Sprintf(": %d and %d", len(w.ids), len(*to)))
		}
		return nil
	}
	err = cmp.Or(aligned(&w.attention, row.attention, attentionField), aligned(&w.labels, row.labels, labelsField))
	const separately = ": prepare rows with and without them separately"
	switch {
	case err != nil || len(w.ids) == 0:
		return err
	case row.labels == nil && w.encoding.masked:
		return unusable("has no "+labelsField, fmt.Sprintf(", but %s has", w.encoding.first)+separately)
	case row.labels != nil && !w.encoding.masked:
		return unusable("has "+labelsField, fmt.Sprintf(", but %s has none", w.encoding.first)+separately)
	}
	return nil
}

// appendIntegers appends the elements of a list to which a field leads. false and true are 0 and 1;
// null is an empty list.
func appendIntegers(to []int64, list jsontext.Value, name string) ([]int64, error) {
	wrong := func(details string) error {
		return unusable(fmt.Sprintf("field %s is not a list of integers", name), details)
	}
	switch list.Kind() {
	case jsontext.KindNull:
		return to, nil
	case jsontext.KindBeginArray:
	default:
		return to, wrong(" but " + describe(list))
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
			return to, wrong(fmt.Sprintf(": element %d is %s", i, element))
		default:
			return to, wrong(fmt.Sprintf(": element %d is %s", i, describe(element)))
		}
		to = append(to, n)
	}
	return to, nil
}
