package localfile

import "iter"

// A Piece is a file or a block that holds a stretch of a longer string of bytes.
type Piece struct {
	Index int64
	Start int64 // position in the string of the piece's byte 0
	End   int64 // position in the string behind the stretch
}

// Parts returns what each piece holds of r, as bytes of the piece. The Index of a part is where in r
// it begins. pieceAt returns the piece that holds a position of the string.
func (r Range) Parts(pieceAt func(at int64) Piece) iter.Seq2[Piece, Range] {
	return func(yield func(Piece, Range) bool) {
		for at := r.From; at < r.To; {
			p := pieceAt(at)
			end := min(p.End, r.To)
			if !yield(p, Range{at - p.Start, end - p.Start, int(at - r.From)}) {
				return
			}
			at = end
		}
	}
}

// ReadPieces reads ranges of a string of bytes in pieces, and calls visit for each of them. It calls
// read once for the ranges within one piece, as bytes of the piece, and puts together a range that
// lies in several. The ranges must be sorted unless one piece holds all of them.
func ReadPieces(ranges []Range, pieceAt func(at int64) Piece, read func(piece int64, ranges []Range, visit func(int, []byte) error) error,
	visit func(int, []byte) error) error {
	for len(ranges) > 0 {
		p, n := pieceAt(ranges[0].From), 0
		for ; n < len(ranges) && ranges[n].To <= p.End; n++ {
			ranges[n].From -= p.Start
			ranges[n].To -= p.Start
		}
		if n > 0 {
			if err := read(p.Index, ranges[:n], visit); err != nil {
				return err
			}
			ranges = ranges[n:]
			continue
		}
		whole, one := make([]byte, ranges[0].To-ranges[0].From), make([]Range, 1)
		join := func(at int, raw []byte) error {
			copy(whole[at:], raw)
			return nil
		}
		for p, one[0] = range ranges[0].Parts(pieceAt) {
			if err := read(p.Index, one, join); err != nil {
				return err
			}
		}
		if err := visit(ranges[0].Index, whole); err != nil {
			return err
		}
		ranges = ranges[1:]
	}
	return nil
}
