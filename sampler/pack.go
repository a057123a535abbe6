package sampler

import "math/bits"

// A packer packs segments into rows of equal length by best fit decreasing (Ding et al., "Fewer
// Truncations Improve Language Modeling", 2024): the longest segment first, each into the fullest
// row that has room. The time per segment does not depend on the length of a row. A packer is not
// safe for concurrent use.
type packer struct {
	rowLen           int    // tokens in a row
	segmentsByLength stacks // key: rowLen minus length, so the longest come first
	rowsByRoom       stacks
	rowOf            []int32 // row of each segment, numbered as rows are begun
	segmentCounts    []int32 // segments in each row
}

func newPacker(rowLen int) *packer {
	return &packer{rowLen: rowLen, segmentsByLength: newStacks(rowLen + 1), rowsByRoom: newStacks(rowLen + 1)}
}

// pack sets rowOf and segmentCounts for segments of these lengths, none longer than a row. Among
// equal segments, it takes the first; among rows with equal room, the one changed last.
func (p *packer) pack(lengths []int32) {
	p.rowOf, p.segmentCounts = append(p.rowOf[:0], lengths...), p.segmentCounts[:0]
	if len(lengths) > len(p.segmentsByLength.below) {
		p.segmentsByLength.below, p.rowsByRoom.below = make([]int32, len(lengths)), make([]int32, len(lengths))
	}
	for i := len(lengths) - 1; i >= 0; i-- {
		p.segmentsByLength.put(p.rowLen-int(lengths[i]), int32(i))
	}
	for key := p.segmentsByLength.next(0); key >= 0; key = p.segmentsByLength.next(key) {
		segment, length := p.segmentsByLength.take(key), p.rowLen-key
		room := p.rowsByRoom.next(length)
		row := int32(len(p.segmentCounts))
		if room < 0 {
			room = p.rowLen
			p.segmentCounts = append(p.segmentCounts, 0)
		} else {
			row = p.rowsByRoom.take(room)
		}
		p.rowOf[segment] = row
		p.segmentCounts[row]++
		if room > length {
			p.rowsByRoom.put(room-length, row)
		}
	}
	for room := p.rowsByRoom.next(0); room >= 0; room = p.rowsByRoom.next(room) {
		p.rowsByRoom.take(room)
	}
}

// stacks holds a stack of items for each small integer key.
type stacks struct {
	top       []int32  // top item of each stack, plus one; 0: none
	below     []int32  // item below each item, plus one; 0: none
	usedKeys  []uint64 // bit set of keys that have items
	usedWords []uint64 // bit set of the nonzero words of usedKeys
}

func newStacks(keys int) stacks {
	words := (keys + 63) / 64
	return stacks{top: make([]int32, keys), usedKeys: make([]uint64, words), usedWords: make([]uint64, (words+63)/64)}
}

func (s *stacks) put(key int, item int32) {
	s.below[item], s.top[key] = s.top[key], item+1
	s.usedKeys[key>>6] |= 1 << (key & 63)
	s.usedWords[key>>12] |= 1 << (key >> 6 & 63)
}

// take removes and returns the top item of a stack, which must have one.
func (s *stacks) take(key int) int32 {
	item := s.top[key] - 1
	if s.top[key] = s.below[item]; s.top[key] == 0 {
		if s.usedKeys[key>>6] &^= 1 << (key & 63); s.usedKeys[key>>6] == 0 {
			s.usedWords[key>>12] &^= 1 << (key >> 6 & 63)
		}
	}
	return item
}

// next returns the smallest key with an item that is at least key, or -1.
func (s *stacks) next(key int) int {
	word := key >> 6
	if later := s.usedKeys[word] >> (key & 63); later != 0 {
		return key + bits.TrailingZeros64(later)
	}
	word++
	for i := word >> 6; i < len(s.usedWords); i++ {
		if later := s.usedWords[i] >> (word & 63); later != 0 {
			word += bits.TrailingZeros64(later)
			return 64*word + bits.TrailingZeros64(s.usedKeys[word])
		}
		word = 64 * (i + 1)
	}
	return -1
}
