package sampler

import "math/bits"

// A packer lays segments of documents into rows of equal length, by best fit decreasing (Ding et al., "Fewer Truncations Improve
// Language Modeling", 2024): the longest segment first, each into the fullest row that has room for it. The time for a segment does not
// depend on the length of a row. It is not safe for concurrent use.
type packer struct {
	slots   int     // of a row
	lengths shelves // segments that are not in a row yet, longest first: by how much shorter than a row they are
	rooms   shelves // rows by their room
	row     []int32 // of each segment, in the order in which rows were begun
	count   []int32 // of each row: its segments
}

func newPacker(slots int) *packer {
	return &packer{slots: slots, lengths: newShelves(slots + 1), rooms: newShelves(slots + 1)}
}

// pack sets row and count for segments of these lengths, none of which is longer than a row. Of segments of one length the first is
// laid first. Of rows with equal room, that which a segment was laid into last takes the next.
func (p *packer) pack(lengths []int32) {
	p.row, p.count = append(p.row[:0], lengths...), p.count[:0]
	if len(lengths) > len(p.lengths.below) {
		p.lengths.below, p.rooms.below = make([]int32, len(lengths)), make([]int32, len(lengths))
	}
	for i := len(lengths) - 1; i >= 0; i-- {
		p.lengths.put(p.slots-int(lengths[i]), int32(i))
	}
	for key := p.lengths.from(0); key >= 0; key = p.lengths.from(key) {
		segment, length := p.lengths.take(key), p.slots-key
		room := p.rooms.from(length)
		row := int32(len(p.count))
		if room < 0 {
			room = p.slots
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
	for room := p.rooms.from(0); room >= 0; room = p.rooms.from(room) {
		p.rooms.take(room)
	}
}

// Shelves hold items at keys. Of one key, the item that was put there last is taken first.
type shelves struct {
	top    []int32    // of each key, one more than its last item; 0: none
	below  []int32    // of each item, one more than the item that was put at its key before; 0: none
	levels [][]uint64 // bit i of the first level: key i has an item; bit i of another: word i of the level before is not 0
}

func newShelves(keys int) shelves {
	s := shelves{top: make([]int32, keys)}
	for n := keys; n > 1 || len(s.levels) == 0; {
		n = (n + 63) / 64
		s.levels = append(s.levels, make([]uint64, n))
	}
	return s
}

func (s *shelves) put(key int, item int32) {
	s.below[item], s.top[key] = s.top[key], item+1
	for i := range s.levels {
		word, bit := key>>6, uint64(1)<<(key&63)
		had := s.levels[i][word]
		s.levels[i][word] = had | bit
		if had != 0 {
			return
		}
		key = word
	}
}

// take takes the last item at a key that has one.
func (s *shelves) take(key int) int32 {
	item := s.top[key] - 1
	s.top[key] = s.below[item]
	for i := range s.levels {
		if i == 0 && s.top[key] != 0 {
			return item
		}
		word, bit := key>>6, uint64(1)<<(key&63)
		s.levels[i][word] &^= bit
		if s.levels[i][word] != 0 {
			return item
		}
		key = word
	}
	return item
}

// from is the least key, from one on, that has an item, or -1.
func (s *shelves) from(key int) int {
	for i := range s.levels {
		word := key >> 6
		if word >= len(s.levels[i]) {
			return -1
		}
		if later := s.levels[i][word] >> (key & 63); later != 0 {
			key += bits.TrailingZeros64(later)
			for ; i > 0; i-- {
				key = key<<6 | bits.TrailingZeros64(s.levels[i-1][key])
			}
			return key
		}
		key = word + 1
	}
	return -1
}
