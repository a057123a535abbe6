package bpe

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// asciiSets says what each byte is: the lowest bits of the four quarters of a number are set for a
// letter, a digit, white space, and " ".
var asciiSets [256]uint64

func fillASCIISets() {
	for b := range utf8.RuneSelf {
		for quarter, in := range []bool{classes[b].isAnyOf(letters), classes[b] == number, classes[b].isAnyOf(spaces), b == ' '} {
			if in {
				asciiSets[b] |= 1 << (16 * quarter)
			}
		}
	}
}

// setsOf8Bytes combines the sets of eight bytes, with the first byte in the lowest bit of each
// quarter. A loop would take 50% longer.
func setsOf8Bytes(b uint64) uint64 {
	return asciiSets[byte(b)] | asciiSets[byte(b>>8)]<<1 | asciiSets[byte(b>>16)]<<2 | asciiSets[byte(b>>24)]<<3 |
		asciiSets[byte(b>>32)]<<4 | asciiSets[byte(b>>40)]<<5 | asciiSets[byte(b>>48)]<<6 | asciiSets[byte(b>>56)]<<7
}

// pieceStartsGPT2 returns the positions at which pieces begin, as bits, in up to 64 ASCII bytes at
// the beginning of text. It leaves out position 0, and ignores contractions.
func pieceStartsGPT2(text []byte) uint64 {
	const notASCII = 0x8080808080808080
	var letter, digit, space, blank uint64
	n := 0
	for ; n < 64 && n+16 <= len(text); n += 16 {
		low, high := binary.LittleEndian.Uint64(text[n:]), binary.LittleEndian.Uint64(text[n+8:])
		if (low|high)&notASCII != 0 {
			break
		}
		sets := setsOf8Bytes(low) | setsOf8Bytes(high)<<8
		letter |= sets & 0xffff << n
		digit |= sets >> 16 & 0xffff << n
		space |= sets >> 32 & 0xffff << n
		blank |= sets >> 48 << n
	}
	if n == 0 {
		return 0
	}
	other := ^(letter | digit | space)
	same := letter&(letter<<1) | digit&(digit<<1) | other&(other<<1)
	words := ^space &^ same &^ (blank << 1)
	gaps := space & (^(space << 1) | ^(space >> 1))
	// A space before a word belongs to it. In longer white space, the last byte may belong to a
	// word, so it begins a piece. The last of the n bytes is left out, because it depends on the
	// next byte.
	return (words | gaps) & (1<<(n-1) - 1) &^ 1
}

// splitGPT2 splits like nextGPT2, but without a branch for each byte, because processors cannot
// predict the ends of words.
func splitGPT2(text []byte, i int, ends []int) int {
	n := 0
	for n < len(ends) && i < len(text) {
		starts, first := pieceStartsGPT2(text[i:]), i
		if starts == 0 {
			i = nextGPT2(text, i)
			ends[n] = i
			n++
		}
		for ; starts != 0 && n < len(ends); n++ {
			end := first + bits.TrailingZeros64(starts)
			starts &= starts - 1
			if text[i] == '\'' {
				if m := contractionLen(text, i, false); m > 0 {
					end, starts = i+m, 0
				}
			}
			ends[n], i = end, end
		}
	}
	return n
}
