package prepare

import (
	"fmt"
	"strconv"
	"strings"

	"batchfs/cmd/batchfs/vocabulary"
)

const manifestName = vocabulary.FileName

// checkSplits returns an error if the splits are not what the options ask for.
func (p *plan) checkSplits(made [len(splits)]vocabulary.Split, n *notes) error {
	switch train, val := made[trainSplit], made[valSplit]; {
	case p.settings.ValFiles != "" && (train.Tokens == 0 || val.Tokens == 0):
		return fmt.Errorf("--val-files %s: leaves %d tokens for train and %d for val: use another pattern", p.settings.ValFiles, train.Tokens, val.Tokens)
	case train.Documents+val.Documents == 0:
		found := "name files that have text"
		if lines := n.lines(p); len(lines) > 0 {
			found = strings.Join(lines, "; ")
		}
		return fmt.Errorf("the inputs have no documents: %s", found)
	case train.Tokens == 0 || val.Tokens == 0 && p.settings.Val > 0:
		change := "larger"
		if train.Tokens == 0 {
			change = "smaller"
		}
		return fmt.Errorf("--val: %v of %d documents leaves %d tokens for train and %d for val, because documents are not divided: "+
			"add documents, or use a %s --val, or --val 0 for no val",
			p.settings.Val, train.Documents+val.Documents, train.Tokens, val.Tokens, change)
	}
	return p.encoding.checkMask(n, maskOnes(made[trainSplit]))
}

// manifest returns the content of vocab.json for these splits. eotAt is the position of the
// end-of-text token, if no document has others.
func (p *plan) manifest(made [len(splits)]vocabulary.Split, eotAt string, n *notes) *vocabulary.Manifest {
	m := &vocabulary.Manifest{
		Tokenizer: p.encoding.tokenizer.Name(), Format: p.settings.Format, Run: p.digest(), Notes: n.lines(p),
		Splits: map[string]vocabulary.Split{},
		Vocabulary: vocabulary.Vocabulary{Kind: p.encoding.tokenizer.Name(), Size: int(p.encoding.tokenizer.Size()),
			TokenDType: "uint" + strconv.Itoa(8*p.encoding.width), EOTAt: "none"},
	}
	if n.NotUTF8.Documents > 0 {
		m.LeftOut = &n.NotUTF8
	}
	for i, split := range made {
		if split.Tokens > 0 {
			m.Splits[splits[i]] = split
		}
	}
	if p.encoding.eot >= 0 {
		eot := uint32(p.encoding.eot)
		m.EOT = &eot
		if made[trainSplit].EOTInside == 0 && made[valSplit].EOTInside == 0 {
			m.EOTAt = eotAt
		}
	}
	switch {
	case p.settings.VocabSize > 0:
		m.Kind, m.EOTAt = vocabulary.IDs, ""
	case m.Kind != vocabulary.Char && m.Kind != vocabulary.Byte:
		m.Kind = vocabulary.BPE
	}
	if m.Kind == vocabulary.IDs {
		return m
	}
	for token := range uint32(p.encoding.tokenizer.Size()) {
		switch m.Kind {
		case vocabulary.Char:
			m.Tokens = append(m.Tokens, string(p.encoding.tokenizer.Bytes(token)))
		case vocabulary.BPE:
			m.TokenBytes = append(m.TokenBytes, p.encoding.tokenizer.Bytes(token))
		}
	}
	return m
}
