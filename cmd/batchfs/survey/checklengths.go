package survey

import "batchfs/internal/jsontext"

// judgeLengths compares the arrays beside the tokens with the tokens.
func (c *check) judgeLengths() {
	var main *part
	for _, p := range c.parts {
		if p.main() {
			main = p
			continue
		}
		mains, known := main.elements()
		here, knownHere := p.elements()
		if !known || !knownHere || mains == here {
			continue
		}
		f, of, rest := p.files[0], main.files[0], " and the files after it"
		if len(p.files) == len(main.files) { // the first that differs says more than the sums
			i := 0
			for p.files[i].array.Len() == main.files[i].array.Len() {
				i++
			}
			f, of, rest = p.files[i], main.files[i], ""
			here, mains = f.array.Len(), of.array.Len()
		}
		problem := f.problem(Length)
		problem.Count, problem.Other = here-mains, jsontext.String(of.path)
		c.found(problem, "%s%s: array %s has %d elements, but there are %d in %s%[2]s: it must have one for each of them", f.path, rest, p.Name, here, mains, of.path)
	}
}

func (p *part) elements() (n int64, known bool) {
	for _, f := range p.files {
		if f.array == nil {
			return 0, false
		}
		n += f.array.Len()
	}
	return n, true
}
