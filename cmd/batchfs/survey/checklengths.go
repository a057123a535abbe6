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
		// Where the files correspond, the first that differs says more than the sum.
		for i, f := range p.files {
			if of := main.files[min(i, len(main.files)-1)]; len(p.files) == len(main.files) && f.array.Len() != of.array.Len() {
				problem := f.problem(Length)
				problem.Count, problem.Other = f.array.Len()-of.array.Len(), jsontext.String(of.path)
				c.found(problem, "%s: array %s has %d elements, but there are %d in %s: it must have one for each of them",
					f.path, p.Name, f.array.Len(), of.array.Len(), of.path)
				here = mains
			}
		}
		if here != mains {
			problem := p.files[0].problem(Length)
			problem.Count, problem.Other = here-mains, jsontext.String(main.files[0].path)
			c.found(problem, "splits.%s: array %s has %d elements in all its files, but there are %d in those that it lies beside: it must have one for each of them",
				p.split, p.Name, here, mains)
		}
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
