package prepare

import (
	"fmt"
	"slices"
)

// An encodeWorker encodes chunks. It belongs to one goroutine.
type encodeWorker struct {
	encoding  *encoding
	val       valRule
	encoder   encoder
	scratch   []uint32
	notes     *notes // counts in the current chunk or line
	lineNotes notes  // counts of fieldTexts, whose memory is reused
	joinNames bool   // whether names of fields that are separated by dots may be one key
	id        []byte // id of the document in the current line, as JSON

	ids, attention, labels []int64 // lists in the current row of ids
	mask, raw              []byte  // mask and tokens of that row
}

func newEncodeWorker(p *plan) *encodeWorker {
	return &encodeWorker{encoding: &p.encoding, val: p.val, encoder: p.encoding.tokenizer.NewEncoder()}
}

func (w *encodeWorker) encodeChunks(todo <-chan *chunk) {
	for ch := range todo {
		ch.err = w.encodeChunk(ch)
		close(ch.done)
	}
}

func (w *encodeWorker) encodeChunk(ch *chunk) error {
	w.notes = &ch.notes
	// Most texts have fewer than three tokens in eight bytes.
	train := &ch.encoded[trainSplit]
	train.tokens = slices.Grow(train.tokens, len(ch.text)*w.encoding.width*3/8)
	for i := range ch.pieces {
		piece := &ch.pieces[i]
		if piece.leftOut {
			addLeftOut(&ch.notes.NotUTF8, 1, piece.in.path)
			continue
		}
		var err error
		switch format := piece.in.format; {
		case w.encoding.isJSON(format):
			err = w.encodeLines(ch, piece)
		case format.hasRows():
			err = w.encodeRow(ch, piece)
		default:
			err = w.encodeText(ch, piece)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", piece.in.name(), err)
		}
	}
	return nil
}
