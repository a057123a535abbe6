package localfile

import "iter"

// A Piece is a file or a cache block that holds one stretch of a longer string of bytes.
type Piece struct {
	Index int64
	// Start is the position in the string at which byte 0 of the piece would lie.
	Start int64
	End   int64 // end of the stretch in the string
}

// Parts splits r by the pieces that hold it. Each part is a range of its piece, and its Index is
// its offset in r. pieceAt returns the piece that holds a position.
func (r Range) Parts(pieceAt func(pos int64) Piece) iter.Seq2[Piece, Range] {
	return func(yield func(Piece, Range) bool) {
		for pos := r.From; pos < r.To; {
			p := pieceAt(pos)
			end := min(p.End, r.To)
			if !yield(p, Range{pos - p.Start, end - p.Start, int(pos - r.From)}) {
				return
			}
			pos = end
		}
	}
}

// ReadPieces calls visit for each range of the string. It calls read once for consecutive ranges
// within one piece, as ranges of that piece, and assembles a range that spans pieces. The ranges,
// which it changes, must be sorted by From unless one piece holds all of them.
func ReadPieces(
	ranges []Range, pieceAt func(pos int64) Piece,
	read func(piece int64, ranges []Range, visit func(int, []byte) error) error,
	visit func(int, []byte) error,
) error {
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
		whole := make([]byte, ranges[0].To-ranges[0].From)
		join := func(pos int, raw []byte) error {
			copy(whole[pos:], raw)
			return nil
		}
		for p, part := range ranges[0].Parts(pieceAt) {
			if err := read(p.Index, []Range{part}, join); err != nil {
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
