package prepare

import (
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/vocabulary"
)

// progress shows how much of all inputs is done, from a position on.
func (o *options) progress(what string, inputs []*input, from position) *terminal.Progress {
	var all, done int64
	for i, in := range inputs {
		all += in.size()
		if i < from.Input {
			done += in.size()
		}
	}
	p := terminal.NewProgress(o.err, what, all, terminal.Bytes)
	p.Add(int(done))
	return p
}

func (o *options) report(out io.Writer) error {
	dir := filepath.Clean(o.out)
	m, err := vocabulary.Read(filepath.Join(dir, manifestName))
	if err != nil {
		return err
	}
	for _, name := range splits {
		switch split := m.Splits[name]; len(split.Shards) {
		case 0:
		case 1:
			fmt.Fprintf(out, "%s/%s: %d tokens\n", dir, split.Shards[0].Name, split.Tokens)
		default:
			fmt.Fprintf(out, "%s/%s to %s: %d tokens in %d shards\n", dir, split.Shards[0].Name, split.Shards[len(split.Shards)-1].Name,
				split.Tokens, len(split.Shards))
		}
	}
	if m.Kind == vocabulary.BPE {
		fmt.Fprintf(out, "%s/vocab.json: vocabulary of %d tokens of %s\n", dir, m.Size, m.Tokenizer)
	} else {
		fmt.Fprintf(out, "%s/vocab.json: vocabulary of %d %ss\n", dir, m.Size, m.Kind)
	}
	if !regexp.MustCompile(`^[\w./-]+$`).MatchString(dir) {
		dir = "'" + strings.ReplaceAll(dir, "'", `'\''`) + "'"
	}
	_, err = fmt.Fprintf(out, "next: batchfs mount --data %s%s MOUNTPOINT\n", dir, suiting(m))
	return err
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
