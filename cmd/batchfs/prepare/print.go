package prepare

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"batchfs/cmd/batchfs/prepare/field"
	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/internal/printable"
)

// printLine prints a line. It escapes invisible characters in its arguments, because others may
// have written them.
func (o *options) printLine(format string, args ...any) error {
	_, err := printable.Fprintf(o.stdout, format+"\n", args...)
	return err
}

func (o *options) printTokens(e encoding) {
	switch {
	case e.ids: // printIDs follows
	case e.eot >= 0 && e.eotBegins:
		o.printLine("tokens of %s: %s (%d) begins each document", o.settings.By, e.tokenizer.Bytes(uint32(e.eot)), e.eot)
	case e.eot >= 0:
		o.printLine("tokens of %s: %s (%d) ends each document", o.settings.By, e.tokenizer.Bytes(uint32(e.eot)), e.eot)
	default:
		o.printLine("tokens of %s: no token separates documents", o.settings.By)
	}
}

// printIDs prints what --ids reads.
func (o *options) printIDs(p *plan) {
	if !p.encoding.ids {
		return
	}
	labels := ""
	if p.encoding.masked {
		labels = "; " + field.Labels + " become the mask"
	}
	o.printLine("ids in %s, from 0 to %d, are written as they are%s", o.settings.IDs, p.encoding.tokenizer.Size()-1, labels)
}

// warnField warns if --field has no effect.
func (o *options) warnField() {
	if o.settings.Mask != "" && o.settings.Field != "text" {
		o.printLine("warning: --field %s has no effect, because --mask names all fields with texts", o.settings.Field)
	}
}

// warnMissingEOT warns if no token separates documents although --eot asks for one.
func (o *options) warnMissingEOT(p *plan) {
	if p.encoding.ids || p.encoding.eot >= 0 || o.settings.EOT == "none" || p.isSingleText() {
		return
	}
	remedy := "only the index of each file records where they end"
	if _, ok := p.encoding.tokenizer.(bpeTokenizer); ok {
		remedy = "choose a token with --eot-token"
	}
	o.printLine("warning: %s has no known end-of-text token, so nothing separates documents: %s", o.settings.By, remedy)
}

// warnTokenizer warns about a tokenizer that differs from the one of the model.
func (o *options) warnTokenizer(p *plan) {
	if t, ok := p.encoding.tokenizer.(bpeTokenizer); ok && t.IsWrongMistral() {
		o.printLine("warning: %s splits text like Llama 3, but Mistral trained its models on tokens of tekken.json, which splits it differently: "+
			"give the tekken.json of the same model with --by", o.settings.By)
	}
}

// announceWindows prints how much memory decompressing takes if zstd files need more than usual.
func (o *options) announceWindows(inputs []*input.File) error {
	var largest *input.File
	var files, most int64
	for _, in := range inputs {
		if in.ReadableOnce() || !strings.EqualFold(filepath.Ext(in.Path), ".zst") {
			continue
		}
		s, err := in.Open(0, func(int) {})
		if err != nil {
			return fmt.Errorf("%s: %w", in.Path, err)
		}
		s.Close()
		window := s.UnusualWindow()
		if window > 0 {
			files++
		}
		if window > most {
			largest, most = in, window
		}
	}
	if files > 0 {
		o.printLine("decompressing takes up to %s of memory, because zstd --long compressed %s; the one with the largest window is %s",
			terminal.FormatBytes(most), terminal.Plural(files, "file", "files"), largest.Path)
	}
	return nil
}

// printContinuing prints how much an earlier run has done, if this run continues it.
func (o *options) printContinuing(s *checkpoint, inputs []*input.File) {
	if s.Position != (position{}) {
		all := totalSize(inputs)
		o.printLine("continuing at %d%% of %s", 100*s.Position.Read/max(all, 1), terminal.FormatBytes(all))
	}
}

// A progress shows how much of all inputs has been read.
type progress struct {
	*terminal.Progress
	done int64 // bytes
}

func (o *options) newProgress(what string, inputs []*input.File, from position) *progress {
	all := totalSize(inputs)
	if all == 0 { // the size of a pipe is unknown
		all = -1
	}
	p := &progress{Progress: terminal.NewProgress(o.stderr, what, all, terminal.Bytes)}
	p.advanceTo(from)
	if !terminal.Is(o.stderr) {
		p.WriteLines(o.stdout)
	}
	return p
}

func (p *progress) advanceTo(pos position) {
	p.Add(int(pos.Read - p.done))
	p.done = pos.Read
}

// printResult prints what DIR holds, and the command to run next.
func (o *options) printResult() error {
	m, err := vocabulary.Read(filepath.Join(o.dir, manifestName), nil)
	if err != nil {
		return err
	}
	return o.printManifest(filepath.Clean(o.dir), m)
}

// printManifest prints what m says about the files in dir, and the command to run next.
func (o *options) printManifest(dir string, m *vocabulary.Manifest) error {
	for _, name := range splits {
		switch split := m.Splits[name]; len(split.Shards) {
		case 0:
		case 1:
			o.printLine("%s/%s: %d tokens%s", dir, split.Shards[0].Name, split.Tokens, maskInWords(split))
		default:
			o.printLine("%s/%s to %s: %d tokens in %d shards%s", dir, split.Shards[0].Name, split.Shards[len(split.Shards)-1].Name,
				split.Tokens, len(split.Shards), maskInWords(split))
		}
		if n := m.Splits[name].EOTInside; n > 0 {
			o.printLine("%s: the end-of-text token occurs %s inside documents, so only the index says where they end", name,
				terminal.Plural(n, "time", "times"))
		}
	}
	if train, val := m.Splits[splits[trainSplit]], m.Splits[splits[valSplit]]; val.Tokens > train.Tokens {
		o.printLine("val has more tokens than train, %d and %d; to choose how many, use --val or --val-files", val.Tokens, train.Tokens)
	}
	if left := m.LeftOut; left != nil {
		o.printLine("left out because they are not text in UTF-8: %s; the first is %s", terminal.Plural(left.Documents, "document", "documents"), left.First)
	}
	for _, line := range m.Notes {
		o.printLine("%s", line)
	}
	switch m.Kind {
	case vocabulary.BPE:
		o.printLine("%s/vocab.json: vocabulary of %d tokens, from %s", dir, m.Size, m.Tokenizer)
	case vocabulary.IDs:
		o.printLine("%s/vocab.json: vocabulary of %d ids", dir, m.Size)
	default:
		o.printLine("%s/vocab.json: vocabulary of %d %ss", dir, m.Size, m.Kind)
	}
	return o.printLine("next: batchfs mount --data %s%s MOUNTPOINT", printable.ShellArg(dir), mountOptions(m))
}

// maskInWords says how many tokens have mask 1, if the split has a mask.
func maskInWords(split vocabulary.Split) string {
	if len(split.Shards[0].Arrays) == 0 {
		return ""
	}
	return fmt.Sprintf(", %d with mask 1", maskOnes(split))
}

func maskOnes(split vocabulary.Split) (n int64) {
	for _, shard := range split.Shards {
		n += shard.MaskOnes
	}
	return n
}

// mountOptions returns mount options for files that are too short for the default block_size.
func mountOptions(m *vocabulary.Manifest) (options string) {
	const defaultBlock = 1024
	block := int64(defaultBlock)
	for _, name := range splits {
		split := m.Splits[name]
		if len(split.Shards) > 1 && slices.ContainsFunc(split.Shards, func(s vocabulary.Shard) bool { return s.Tokens <= defaultBlock }) {
			options += " --set splits." + name + ".join=true"
		}
		for split.Tokens > 1 && split.Tokens <= block {
			block /= 2
		}
	}
	if block < defaultBlock {
		options += fmt.Sprintf(" --set batch.block_size=%d", block)
	}
	return options
}

// printLeftOut prints which side files were left out.
func (o *options) printLeftOut(leftOut []string) {
	if len(leftOut) > 0 {
		o.printLine("left out because they describe a dataset, or cache what was computed from it: %s; to read such a file, name it in "+
			"--include", strings.Join(leftOut, ", "))
	}
}
