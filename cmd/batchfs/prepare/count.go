package prepare

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"unicode/utf8"

	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/vocabulary"
)

// count reads the inputs once in advance, if necessary, and returns a plan with what this tells:
// with --by char, the characters, and for a single text, where val begins. scratchDir is for
// spooled files of rows.
func (o *options) count(ctx context.Context, p *plan, scratchDir string) (*plan, error) {
	divided := p.isSingleText() && p.settings.Val > 0
	if p.settings.By != vocabulary.Char && !divided {
		return p, nil
	}
	for _, in := range p.inputs {
		if in.ReadableOnce() {
			return nil, fmt.Errorf("%s: is not a regular file, and --by char, or val as the end of a single text, needs to read it twice: "+
				"save it to a file first, or use another --by and --val 0", in.Path)
		}
	}
	progress := o.newProgress("counting", p.inputs, position{})
	defer progress.Finish()
	seen := new(charCollector)
	counting := p.counting(seen)
	_, documents := linesOrRows(p.inputs)
	counter := &tokenCounter{width: counting.encoding.width, documents: documents, progress: progress}
	if err := encodeInputs(ctx, counting, position{}, scratchDir, counter.write); err != nil {
		return nil, err
	}
	counted := *p
	if p.settings.By == vocabulary.Char {
		counted.encoding = p.encoding.withTokenizer(seen.sorted(), p.settings.EOT)
	}
	if divided {
		var err error
		if counted.val.start, err = p.valStart(counter.tokens); err != nil {
			return nil, err
		}
	}
	return &counted, nil
}

// counting returns the plan for counting, in which each character is a token, or each byte with
// --by byte.
func (p *plan) counting(seen *charCollector) *plan {
	c := *p
	if !c.encoding.anyBytes {
		c.encoding = c.encoding.withTokenizer(seen, "none")
	}
	c.val, c.encoding.nameStarts = valRule{}, nil
	return &c
}

// A tokenCounter counts encoded tokens.
type tokenCounter struct {
	width     int
	documents string // what the documents are called, such as lines
	progress  *progress
	tokens    int64
	notes     notes
}

func (t *tokenCounter) write(ch *chunk) error {
	t.tokens += ch.tokens(t.width)
	t.notes.add(&ch.notes)
	t.progress.advanceTo(ch.end)
	return t.notes.checkUnusable(t.documents)
}

// valStart returns the offset at which val begins in a single text with this number of characters,
// or bytes with --by byte.
func (p *plan) valStart(size int64) (int64, error) {
	// This is like nanoGPT's int(n*0.9), because 1-0.1 is exactly 0.9.
	train := int64(float64(size) * (1 - p.settings.Val))
	if train == 0 || train == size {
		unit := "characters"
		if p.encoding.anyBytes {
			unit = "bytes"
		}
		return 0, fmt.Errorf("--val: %v of %d %s leaves %d for train and %d for val: add text or use another fraction", p.settings.Val,
			size, unit, train, size-train)
	}
	in := p.inputs[0]
	start, err := offsetOf(in, train, p.encoding.anyBytes)
	if err != nil {
		err = fmt.Errorf("%s: %w", in.Path, err)
	}
	return start, err
}

// offsetOf returns the offset of character n of a text, or of byte n if each byte counts. A byte
// order mark does not count.
func offsetOf(in *input.File, n int64, bytes bool) (int64, error) {
	s, err := in.Open(0, func(int) {})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	text := bufio.NewReaderSize(s, 1<<16)
	var at int64
	if mark, _ := text.Peek(len(byteOrderMark)); string(mark) == string(byteOrderMark) {
		text.Discard(len(mark))
		at = int64(len(mark))
	}
	if bytes {
		return at + n, nil
	}
	for range n {
		next, err := text.Peek(utf8.UTFMax)
		if len(next) == 0 {
			return 0, cmp.Or(s.CheckUnchanged(), err)
		}
		_, size := decodeRune(next)
		text.Discard(size)
		at += int64(size)
	}
	return at, nil
}
