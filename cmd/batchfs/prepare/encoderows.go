package prepare

import "fmt"

// encodeRow encodes a row that is a text.
func (w *encodeWorker) encodeRow(ch *chunk, piece *textPiece) error {
	at := place{"row", piece.start.Offset + 1}
	valid, bad := w.encoding.toValidUTF8(piece.text)
	switch {
	case w.encoding.skipInvalid && bad >= 0:
		addLeftOut(&ch.notes.NotUTF8, 1, at.of(piece.in))
		return nil
	case bad >= 0 && w.encoding.replaceInvalid:
		ch.notes.Replaced.add(at.of(piece.in))
	case bad >= 0:
		return fmt.Errorf("%s: not valid UTF-8 at byte %d: use --invalid replace or skip, or --by byte", at, bad)
	}
	if err := w.encodeDocument(ch, piece.in, at, []maskedText{{valid, w.encoding.fields[0].mask}}); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	return nil
}
