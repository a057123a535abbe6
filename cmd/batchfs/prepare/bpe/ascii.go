package bpe

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// asciiSets says of each byte in the four quarters of a number whether it is a letter, a digit, white space, and " ".
var asciiSets [256]uint64

// fillASCII fills asciiSets from classes.
func fillASCII() {
	for b := range utf8.RuneSelf {
		for quarter, in := range []bool{classes[b].in(letters), classes[b] == number, classes[b].in(spaces), b == ' '} {
			if in {
				asciiSets[b] |= 1 << (16 * quarter)
			}
		}
	}
}

// eightSets returns the sets of eight bytes, the first in the lowest bit of each quarter. A loop would take half as long again.
func eightSets(b uint64) uint64 {
	return asciiSets[byte(b)] | asciiSets[byte(b>>8)]<<1 | asciiSets[byte(b>>16)]<<2 | asciiSets[byte(b>>24)]<<3 |
		asciiSets[byte(b>>32)]<<4 | asciiSets[byte(b>>40)]<<5 | asciiSets[byte(b>>48)]<<6 | asciiSets[byte(b>>56)]<<7
}

// startsGPT2 returns the set of bytes, among the next 64 or up to what is not ASCII, at which a piece begins, as bits. A piece begins at
// text[0], which is not in the set. Contractions count as other pieces do.
func startsGPT2(text []byte) uint64 {
	const notASCII = 0x8080808080808080
	var letter, digit, space, blank uint64
	n := 0
	for ; n < 64 && n+16 <= len(text); n += 16 {
		low, high := binary.LittleEndian.Uint64(text[n:]), binary.LittleEndian.Uint64(text[n+8:])
		if (low|high)&notASCII != 0 {
			break
		}
		sets := eightSets(low) | eightSets(high)<<8
		letter |= sets & 0xffff << n
		digit |= sets >> 16 & 0xffff << n
		space |= sets >> 32 & 0xffff << n
		blank |= sets >> 48 << n
	}
	if n == 0 {
		return 0
	}
	other := ^(letter | digit | space)
	same := letter&(letter<<1) | digit&(digit<<1) | other&(other<<1) // as the byte before
	words := ^space &^ same &^ (blank << 1)                          // a " " before a word is the word's
	gaps := space & (^(space << 1) | ^(space >> 1))                  // the first byte of white space, and the last, which can be the word's
	return (words | gaps) & (1<<(n-1) - 1) &^ 1                      // of the last byte, only the one after it tells
}

// splitGPT2 splits as nextGPT2 does. It has no branch for each byte, as the processor cannot predict where words end.
func splitGPT2(text []byte, i int, ends []int) int {
	n := 0
	for n < len(ends) && i < len(text) {
		starts, first := startsGPT2(text[i:]), i
		if starts == 0 {
			i = nextGPT2(text, i)
			ends[n] = i
			n++
		}
		for ; starts != 0 && n < len(ends); n++ {
			end := first + bits.TrailingZeros64(starts)
			starts &= starts - 1
			if text[i] == '\'' {
				if m := contraction(text, i, false); m > 0 {
					end, starts = i+m, 0
				}
			}
			ends[n], i = end, end
		}
	}
	return n
}
