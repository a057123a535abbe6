package bpe

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// A class has one bit for each kind of character that the expressions distinguish. Some constants
// combine several.
type class uint8

const (
	other    class = 1 << iota // includes bytes that are not UTF-8
	space                      // \s except \r and \n
	newline                    // \r and \n
	number                     // \p{N}
	upper                      // \p{Lu} \p{Lt}
	lower                      // \p{Ll}
	caseless                   // \p{Lm} \p{Lo}
	mark                       // \p{M}

	spaces  = space | newline
	letters = upper | lower | caseless
	others  = other | mark            // [^\s\p{L}\p{N}]
	uppers  = upper | caseless | mark // o200k's [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
	lowers  = lower | caseless | mark // o200k's [\p{Ll}\p{Lm}\p{Lo}\p{M}]
)

func (c class) isAnyOf(several class) bool { return c&several != 0 }

// classes has the class of each character after a call to fillClasses. Only processes with a
// Tokenizer need this MiB.
var classes [utf8.MaxRune + 1]class

var fillClasses = sync.OnceFunc(func() {
	fill := func(first, last, stride int, c class) {
		for r := first; r <= last; r += stride {
			classes[r] = c
		}
	}
	fill(0, utf8.MaxRune, 1, other)
	for table, c := range map[*unicode.RangeTable]class{
		unicode.White_Space: space, unicode.N: number, unicode.M: mark,
		unicode.Lu: upper, unicode.Lt: upper, unicode.Ll: lower, unicode.Lm: caseless, unicode.Lo: caseless,
	} {
		for _, r := range table.R16 {
			fill(int(r.Lo), int(r.Hi), int(r.Stride), c)
		}
		for _, r := range table.R32 {
			fill(int(r.Lo), int(r.Hi), int(r.Stride), c)
		}
	}
	for _, r := range addedByUnicode16 {
		fill(r.first, r.last, 1, r.class)
	}
	classes['\r'], classes['\n'] = newline, newline
	fillASCIISets()
})

// addedByUnicode16 has the characters added by Unicode 15.1 and 16, which tiktoken and tokenizers
// know but package unicode does not.
var addedByUnicode16 = []struct {
	first, last int
	class       class
}{
	{0x0897, 0x0897, mark}, {0x1c89, 0x1c89, upper}, {0x1c8a, 0x1c8a, lower}, {0xa7cb, 0xa7cc, upper},
	{0xa7cd, 0xa7cd, lower}, {0xa7da, 0xa7da, upper}, {0xa7db, 0xa7db, lower}, {0xa7dc, 0xa7dc, upper},
	{0x105c0, 0x105f3, caseless}, {0x10d40, 0x10d49, number}, {0x10d4a, 0x10d4f, caseless}, {0x10d50, 0x10d65, upper},
	{0x10d69, 0x10d6d, mark}, {0x10d6f, 0x10d6f, caseless}, {0x10d70, 0x10d85, lower}, {0x10ec2, 0x10ec4, caseless},
	{0x10efc, 0x10efc, mark}, {0x11380, 0x11389, caseless}, {0x1138b, 0x1138b, caseless}, {0x1138e, 0x1138e, caseless},
	{0x11390, 0x113b5, caseless}, {0x113b7, 0x113b7, caseless}, {0x113b8, 0x113c0, mark}, {0x113c2, 0x113c2, mark},
	{0x113c5, 0x113c5, mark}, {0x113c7, 0x113ca, mark}, {0x113cc, 0x113d0, mark}, {0x113d1, 0x113d1, caseless},
	{0x113d2, 0x113d2, mark}, {0x113d3, 0x113d3, caseless}, {0x113e1, 0x113e2, mark}, {0x116d0, 0x116e3, number},
	{0x11bc0, 0x11be0, caseless}, {0x11bf0, 0x11bf9, number}, {0x11f5a, 0x11f5a, mark}, {0x13460, 0x143fa, caseless},
	{0x16100, 0x1611d, caseless}, {0x1611e, 0x1612f, mark}, {0x16130, 0x16139, number}, {0x16d40, 0x16d6c, caseless},
	{0x16d70, 0x16d79, number}, {0x18cff, 0x18cff, caseless}, {0x1ccf0, 0x1ccf9, number}, {0x1e5d0, 0x1e5ed, caseless},
	{0x1e5ee, 0x1e5ef, mark}, {0x1e5f0, 0x1e5f0, caseless}, {0x1e5f1, 0x1e5fa, number}, {0x2ebf0, 0x2ee5d, caseless},
}
