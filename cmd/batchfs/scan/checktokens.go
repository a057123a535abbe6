package scan

import (
	"fmt"

	"batchfs/cache/array"
	"batchfs/cmd/batchfs/terminal"
)

// minZeros is how many bytes of zeros at the end of a file are a problem: files that were made in their full size and not written
// to the end have them.
const minZeros = 4096

// endingZeros counts the zeros at the end of list, and those before list if it has nothing else.
func endingZeros(list []uint64, before int64) int64 {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i] != 0 {
			return int64(len(list) - 1 - i)
		}
	}
	return before + int64(len(list))
}

// compare counts the tokens of list that are not below a vocabulary's size. at is the position of the first.
func (r *result) compare(list []uint64, at int64, vocab uint64, dtype array.DType) {
	for i, v := range list {
		if v < vocab {
			continue
		}
		if r.Beyond++; r.Beyond == 1 {
			r.First, r.Token = at+int64(i), fmt.Sprint(v)
			if dtype.IsSigned() {
				r.Token = fmt.Sprint(int64(v))
			}
		}
	}
}

func (c *check) judgeTokens(f *checked) {
	p := f.problem(Vocabulary)
	token := ""
	for _, r := range f.results {
		if r.Beyond > 0 && p.Count == 0 {
			p.Index, token = r.First, r.Token
		}
		p.Count += r.Beyond
	}
	if p.Count > 0 {
		c.found(p, "%s: %s not below vocab_size, which is %d; the first is %s, token %d of the file; are the file, token_dtype and vocab_size right?",
			f.path, terminal.Count(p.Count, "token is", "tokens are"), f.splitArray.Options.VocabSize, token, p.Index)
	}
	if f.failed {
		return
	}
	per, zeros := perElement(f.array), int64(0)
	for i, size := len(f.results)-1, c.size/int64(f.array.DType().Size()); i >= 0; i-- {
		zeros += f.results[i].Zeros
		if f.results[i].Zeros < min(size, f.numbers-int64(i)*size) {
			break
		}
	}
	if zeros*int64(f.array.DType().Size()) >= minZeros {
		p := f.problem(Zeros)
		p.Count = zeros / per
		p.Index = f.array.Len() - p.Count
		c.found(p, "%s: the last %d elements are 0, from number %d on; was the file written to its end?", f.path, p.Count, p.Index)
	}
}
