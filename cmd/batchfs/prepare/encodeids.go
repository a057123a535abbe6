package prepare

import (
	"cmp"
	"fmt"

	"batchfs/cmd/batchfs/prepare/field"
	"batchfs/cmd/batchfs/prepare/input"
)

// ignoredLabel is the label of a token that a trainer does not learn to predict.
const ignoredLabel = -100

// encodeIDs adds the ids of a line as a document, unless there are none. Nothing is appended to
// them.
func (w *encodeWorker) encodeIDs(ch *chunk, in *input.File, at place, line []byte) error {
	row, err := w.encoding.fields[0].IDRow(line)
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
			out.eot.EOTTokens++
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
func (w *encodeWorker) decodeIDs(row field.IDRow) (ids []uint32, mask []byte, err error) {
	if err := w.readLists(row); err != nil {
		return nil, nil, err
	}
	name, size := w.encoding.fields[0].String(), w.encoding.tokenizer.Size()
	ids, mask = w.scratch[:0], w.mask[:0]
	for i, id := range w.ids {
		if row.Attention != nil && w.attention[i] == 0 {
			continue
		}
		switch {
		case row.Attention != nil && w.attention[i] != 1:
			return nil, nil, field.Unusable(field.Attention+" is not 0 or 1 everywhere", fmt.Sprintf(": element %d is %d", i, w.attention[i]))
		case id < 0 || id >= size:
			return nil, nil, field.Unusable("has an id outside the vocabulary", fmt.Sprintf(
				": element %d of %s is %d, but must be from 0 to %d: correct --vocab-size or --by", i, name, id, size-1))
		case row.Labels != nil && w.labels[i] != id && w.labels[i] != ignoredLabel:
			return nil, nil, field.Unusable(fmt.Sprintf("%s differ from %s", field.Labels, name), fmt.Sprintf(
				": element %d is %d, but must be %d, like the id there, or %d: remove them if they are something else", i, w.labels[i], id, ignoredLabel))
		}
		ids, mask = append(ids, uint32(id)), append(mask, 0)
		if row.Labels != nil && w.labels[i] == id {
			mask[len(mask)-1] = 1
		}
	}
	w.scratch, w.mask = ids, mask
	return ids, mask, nil
}

// readLists reads the lists of a row into w.ids, w.attention and w.labels. It returns an error if
// their lengths differ, or if the first row decided otherwise about labels.
func (w *encodeWorker) readLists(row field.IDRow) (err error) {
	name := w.encoding.fields[0].String()
	if w.ids, err = field.AppendIntegers(w.ids[:0], row.IDs, name); err != nil {
		return err
	}
	aligned := func(to *[]int64, value []byte, other string) (err error) {
		if value == nil {
			return nil
		}
		*to, err = field.AppendIntegers((*to)[:0], value, other)
		switch fault, ok := err.(field.UnusableError); {
		case ok:
			fault.Err = fmt.Errorf("%w: remove it if it is something else", fault.Err)
			return fault
		case len(*to) != len(w.ids):
			return field.Unusable(fmt.Sprintf("%s and %s differ in length", name, other), fmt.Sprintf(": %d and %d", len(w.ids), len(*to)))
		}
		return nil
	}
	err = cmp.Or(aligned(&w.attention, row.Attention, field.Attention), aligned(&w.labels, row.Labels, field.Labels))
	const separately = ": prepare rows with and without them separately"
	switch {
	case err != nil || len(w.ids) == 0:
		return err
	case row.Labels == nil && w.encoding.masked:
		return field.Unusable("has no "+field.Labels, fmt.Sprintf(", but %s has", w.encoding.first)+separately)
	case row.Labels != nil && !w.encoding.masked:
		return field.Unusable("has "+field.Labels, fmt.Sprintf(", but %s has none", w.encoding.first)+separately)
	}
	return nil
}
