package prepare

import "fmt"

func (w *encodeWorker) encodeText(ch *chunk, piece *textPiece) error {
	valid, bad := w.encoding.toValidUTF8(piece.text)
	switch {
	case w.encoding.skipInvalid && bad >= 0:
		addLeftOut(&ch.notes.NotUTF8, 1, piece.in.path)
		return nil
	case bad >= 0 && w.encoding.replaceInvalid:
		ch.notes.Replaced.add(piece.in.path)
	case bad >= 0:
		return fmt.Errorf("not valid UTF-8 at byte %d: convert it to UTF-8, or use --invalid replace or skip, or --by byte", piece.start.Offset+int64(bad))
	}
	out := ch.split(piece.start.Val)
	before := len(out.tokens)
	if piece.startsDocument {
		w.beginDocument(out)
	}
	const mask = 0 // with --mask, there is no text
	switch err := w.appendText(out, valid, mask, piece.startsDocument); {
	case err == errChanged:
		return err
	case err != nil:
		return fmt.Errorf("the text from byte %d on %w", piece.start.Offset, err)
	}
	if piece.startsDocument && piece.endsDocument && w.lacksTokens(out, before) {
		addLeftOut(&ch.notes.Empty, 1, piece.in.path)
		return nil
	}
	if piece.endsDocument {
		w.endDocument(out, 0)
	}
	return nil
}
