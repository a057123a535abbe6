package prepare

import (
	"fmt"
)

func (w *encodeWorker) encodeRow(ch *chunk, piece *textPiece) error {
	number := piece.start.Offset + 1
	if !w.encoding.rowsAreTexts() {
		if err := w.encodeLine(ch, piece.in, piece.text, "row", number); err != nil {
			return fmt.Errorf("row %d: %w", number, err)
		}
		return nil
	}
	valid, bad := w.encoding.toValidUTF8(piece.text)
	switch {
	case w.encoding.skipInvalid && bad >= 0:
		addLeftOut(&ch.notes.NotUTF8, 1, location("row", number, piece.in))
		return nil
	case bad >= 0 && w.encoding.replaceInvalid:
		ch.notes.Replaced.add(location("row", number, piece.in))
	case bad >= 0:
		return fmt.Errorf("row %d: not valid UTF-8 at byte %d: use --invalid replace or skip, or --by byte", number, bad)
	}
	if err := w.encodeDocument(ch, piece.in, []maskedText{{valid, w.encoding.fields[0].mask}}, "row", number); err != nil {
		return fmt.Errorf("row %d: %w", number, err)
	}
	return nil
}
