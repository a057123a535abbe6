package scan

import (
	"fmt"
	"slices"

	"batchfs/cache/array"
	"batchfs/cmd/batchfs/terminal"
)

// minZeros is the smallest number of zero bytes at the end of a file that is reported. A program
// that allocates a file in full and then stops leaves such zeros.
const minZeros = 4096

// trailingZeros returns the number of zeros at the end of a stream that ends with list. before is
// the number of zeros directly before list.
func trailingZeros(list []uint64, before int64) int64 {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i] != 0 {
			return int64(len(list) - 1 - i)
		}
	}
	return before + int64(len(list))
}

// count returns how many numbers in list equal v.
func count(list []uint64, v uint64) (n int64) {
	for _, number := range list {
		if number == v {
			n++
		}
	}
	return n
}

// countOutOfVocabulary counts the tokens that are not below vocab. list begins at index at of the
// file.
func (r *result) countOutOfVocabulary(list []uint64, at int64, vocab uint64, dtype array.DType) {
	if slices.Max(list) < vocab {
		return
	}
	for i, v := range list {
		if v < vocab {
			continue
		}
		if r.outOfVocabulary++; r.outOfVocabulary == 1 {
			r.first, r.token = at+int64(i), fmt.Sprint(v)
			if dtype.IsSigned() {
				r.token = fmt.Sprint(int64(v))
			}
		}
	}
}

func (c *check) reportTokens(f *checkedFile) {
	p := f.problem(Vocabulary)
	token := ""
	for _, r := range f.results {
		if r.outOfVocabulary > 0 && p.Count == 0 {
			p.Index, token = r.first, r.token
		}
		p.Count += r.outOfVocabulary
	}
	if p.Count > 0 {
		c.addProblem(p, "%s: %s not below vocab_size (%d); the first is %s, at index %d; are the file, token_dtype and vocab_size right?",
			f.path, terminal.Plural(p.Count, "token is", "tokens are"), f.splitArray.Options.VocabSize, token, p.Index)
	}
	if f.failed {
		return
	}
	per, zeros := numbersPerElement(f.array), int64(0)
	for _, r := range slices.Backward(f.results) {
		zeros += r.zeros
		if r.zeros < r.to-r.from {
			break
		}
	}
	if zeros*int64(f.size) >= minZeros {
		p := f.problem(Zeros)
		p.Count = zeros / per
		p.Index = f.array.Len() - p.Count
		c.addProblem(p, "%s: the last %d elements, from index %d on, are 0; was the file written completely?", f.path, p.Count, p.Index)
	}
}
