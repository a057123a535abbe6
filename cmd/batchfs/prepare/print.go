package prepare

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/internal/printable"
)

// say prints a line. It escapes invisible characters in its arguments, because names of files and
// texts of tokens may come from others.
func (o *options) say(format string, args ...any) error {
	_, err := printable.Fprintf(o.out, format+"\n", args...)
	return err
}

// sayTokens is the first line of a run: it is printed before anything is looked for or read.
func (o *options) sayTokens(c *encodeOptions) {
	switch {
	case c.eot >= 0 && c.eotFirst:
		o.say("tokens of %s: %s (%d) begins each document", o.By, c.Bytes(uint32(c.eot)), c.eot)
	case c.eot >= 0:
		o.say("tokens of %s: %s (%d) ends each document", o.By, c.Bytes(uint32(c.eot)), c.eot)
	default:
		o.say("tokens of %s: no token separates documents", o.By)
	}
}

// warnOfNoEOT warns where documents run into one another, and --eot does not say so.
func (o *options) warnOfNoEOT(inputs []*input, c *encodeOptions) {
	if c.eot >= 0 || o.EOT == "none" || len(inputs) == 1 && inputs[0].format == text {
		return
	}
	way := "only the index beside a file says where they end"
	if _, ok := c.tokenizer.(bpeTokenizer); ok {
		way = "name one with --eot-token"
	}
	o.say("warning: %s has no end-of-text token that is known, so documents run into one another: %s", o.By, way)
}

// sayContinuing tells a run that continues from one that begins.
func (o *options) sayContinuing(s *checkpoint, inputs []*input) {
	if s.Position != (position{}) {
		all := sizes(inputs)
		o.say("continuing at %d%% of %s", 100*s.Position.Read/max(all, 1), terminal.Size(all))
	}
}

// A progress shows how much of all inputs is done.
type progress struct {
	*terminal.Progress
	done int64
}

func (o *options) progress(what string, inputs []*input, from position) *progress {
	all := sizes(inputs)
	if all == 0 { // a pipe
		all = -1
	}
	p := &progress{Progress: terminal.NewProgress(o.err, what, all, terminal.Bytes)}
	p.upTo(from)
	if !terminal.Is(o.err) {
		p.Lines(o.out)
	}
	return p
}

func (p *progress) upTo(at position) {
	p.Add(int(at.Read - p.done))
	p.done = at.Read
}

func (o *options) report() error {
	dir := filepath.Clean(o.dir)
	m, err := vocabulary.Read(filepath.Join(dir, manifestName))
	if err != nil {
		return err
	}
	for _, name := range splits {
		switch split := m.Splits[name]; len(split.Shards) {
		case 0:
		case 1:
			o.say("%s/%s: %d tokens%s", dir, split.Shards[0].Name, split.Tokens, maskInWords(split))
		default:
			o.say("%s/%s to %s: %d tokens in %d shards%s", dir, split.Shards[0].Name, split.Shards[len(split.Shards)-1].Name,
				split.Tokens, len(split.Shards), maskInWords(split))
		}
	}
	if left := m.LeftOut; left != nil {
		o.say("left out, as not UTF-8: %s; the first is %s", terminal.Count(left.Documents, "document", "documents"), left.First)
	}
	if m.Kind == vocabulary.BPE {
		o.say("%s/vocab.json: vocabulary of %d tokens of %s", dir, m.Size, m.Tokenizer)
	} else {
		o.say("%s/vocab.json: vocabulary of %d %ss", dir, m.Size, m.Kind)
	}
	if !regexp.MustCompile(`^[\w./-]+$`).MatchString(dir) {
		dir = "'" + strings.ReplaceAll(dir, "'", `'\''`) + "'"
	}
	return o.say("next: batchfs mount --data %s%s MOUNTPOINT", dir, suiting(m))
}

// maskInWords is how many tokens of a split a trainer should learn, if there is a mask.
func maskInWords(split vocabulary.Split) string {
	ones := int64(0)
	for _, shard := range split.Shards {
		if len(shard.Arrays) == 0 {
			return ""
		}
		ones += shard.MaskOnes
	}
	return fmt.Sprintf(", %d with mask 1", ones)
}

// suiting are the options of mount for files that are too short for the default block_size.
func suiting(m *vocabulary.Manifest) (options string) {
	const most = 1024
	block := int64(most)
	for _, name := range splits {
		split := m.Splits[name]
		if len(split.Shards) > 1 && slices.ContainsFunc(split.Shards, func(s vocabulary.Shard) bool { return s.Tokens <= most }) {
			options += " --set splits." + name + ".join=true"
		}
		for split.Tokens > 1 && split.Tokens <= block {
			block /= 2
		}
	}
	if block < most {
		options += fmt.Sprintf(" --set batch.block_size=%d", block)
	}
	return options
}
