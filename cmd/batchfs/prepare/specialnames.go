package prepare

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
)

// A nameStart is a byte with which names of special tokens begin.
type nameStart struct {
	first byte
	names [256][]string // indexed by second byte, longest first
}

// nameStarts returns the beginnings of the names of special tokens, to count them in texts. Names
// of one byte are not counted.
func nameStarts(t tokenizer) (starts []*nameStart) {
	special, _ := t.(bpeTokenizer)
	if special.Tokenizer == nil {
		return nil
	}
	for _, name := range slices.SortedFunc(maps.Keys(special.Special()), func(a, b string) int { return cmp.Compare(len(b), len(a)) }) {
		if len(name) < 2 {
			break
		}
		i := slices.IndexFunc(starts, func(s *nameStart) bool { return s.first == name[0] })
		if i < 0 {
			i, starts = len(starts), append(starts, &nameStart{first: name[0]})
		}
		starts[i].names[name[1]] = append(starts[i].names[name[1]], name)
	}
	return starts
}

// countNames counts the names of special tokens in a text.
func (w *encodeWorker) countNames(t []byte) {
	for _, start := range w.encoding.nameStarts {
		for rest := t; ; {
			i := bytes.IndexByte(rest, start.first)
			if i < 0 || i+1 == len(rest) {
				break
			}
			rest = rest[i:]
			n := 1
			for _, name := range start.names[rest[1]] {
				if len(name) <= len(rest) && string(rest[:len(name)]) == name {
					w.notes.Special.Add(name, 1)
					n = len(name)
					break
				}
			}
			rest = rest[n:]
		}
	}
}
