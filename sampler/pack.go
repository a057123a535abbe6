package sampler

import "math/bits"

// A packer packs segments into rows of equal length by best fit decreasing (Ding et al., "Fewer
// Truncations Improve Language Modeling", 2024): the longest segment first, each into the fullest
// row that has room. The time per segment does not depend on the length of a row. A packer is not
// safe for concurrent use.
type packer struct {
	rowLen  int     // tokens in a row
	lengths shelves // segments to place; key: rowLen minus length, so the longest come first
	rooms   shelves // rows; key: room left
	row     []int32 // row of each segment; rows are numbered as they are begun
	count   []int32 // number of segments in each row
}

func newPacker(rowLen int) *packer {
	return &packer{rowLen: rowLen, lengths: newShelves(rowLen + 1), rooms: newShelves(rowLen + 1)}
}

// pack sets row and count for segments of these lengths, none longer than a row. Of equal segments,
// it takes the first; of rows with equal room, the one it changed last.
func (p *packer) pack(lengths []int32) {
	p.row, p.count = append(p.row[:0], lengths...), p.count[:0]
	if len(lengths) > len(p.lengths.under) {
		p.lengths.under, p.rooms.under = make([]int32, len(lengths)), make([]int32, len(lengths))
	}
	for i := len(lengths) - 1; i >= 0; i-- {
		p.lengths.put(p.rowLen-int(lengths[i]), int32(i))
	}
	for key := p.lengths.next(0); key >= 0; key = p.lengths.next(key) {
		segment, length := p.lengths.take(key), p.rowLen-key
		room := p.rooms.next(length)
		row := int32(len(p.count))
		if room < 0 {
			room = p.rowLen
			p.count = append(p.count, 0)
		} else {
			row = p.rooms.take(room)
		}
		p.row[segment] = row
		p.count[row]++
		if room > length {
			p.rooms.put(room-length, row)
		}
	}
	for room := p.rooms.next(0); room >= 0; room = p.rooms.next(room) {
		p.rooms.take(room)
	}
}

// shelves hold items by small integer keys. Of one key, the last item put is taken first.
type shelves struct {
	top       []int32  // last item of each key, plus one; 0: none
	under     []int32  // item put before each item of the same key, plus one; 0: none
	used      []uint64 // bit set of keys that have items
	usedWords []uint64 // bit set of words of used that are not 0
}

func newShelves(keys int) shelves {
	words := (keys + 63) / 64
	return shelves{top: make([]int32, keys), used: make([]uint64, words), usedWords: make([]uint64, (words+63)/64)}
}

func (s *shelves) put(key int, item int32) {
	s.under[item], s.top[key] = s.top[key], item+1
	s.used[key>>6] |= 1 << (key & 63)
	s.usedWords[key>>12] |= 1 << (key >> 6 & 63)
}

// take removes the last item of a key that has one.
func (s *shelves) take(key int) int32 {
	item := s.top[key] - 1
	if s.top[key] = s.under[item]; s.top[key] == 0 {
		if s.used[key>>6] &^= 1 << (key & 63); s.used[key>>6] == 0 {
			s.usedWords[key>>12] &^= 1 << (key >> 6 & 63)
		}
	}
	return item
}

// next returns the smallest key with an item that is at least key, or -1.
func (s *shelves) next(key int) int {
	word := key >> 6
	if later := s.used[word] >> (key & 63); later != 0 {
		return key + bits.TrailingZeros64(later)
	}
	word++
	for i := word >> 6; i < len(s.usedWords); i++ {
		if later := s.usedWords[i] >> (word & 63); later != 0 {
			word += bits.TrailingZeros64(later)
			return 64*word + bits.TrailingZeros64(s.used[word])
		}
		word = 64 * (i + 1)
	}
	return -1
}
