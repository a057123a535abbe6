package prepare

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"batchfs/cmd/batchfs/vocabulary"
)

// sources are the texts, and the tokenizer's file if there is one.
func (o *options) sources(inputs []*input) []*input {
	if info, err := os.Stat(o.By); err == nil {
		return append(slices.Clip(inputs), &input{path: o.By, info: info})
	}
	return inputs
}

// run stands for a run, so that the same command knows its files; it is empty where the texts can be read only once. It is the same on
// all hosts, so that vocab.json is.
func (o *options) run(inputs []*input) string {
	if slices.ContainsFunc(inputs, (*input).once) {
		return ""
	}
	settings, _ := json.Marshal(o.settings)
	return fmt.Sprintf("%x", sha256.Sum256(append(settings, digest(o.sources(inputs), false)...)))
}

// finished reports whether DIR holds the files of the same run, and no text was written or replaced since.
func (o *options) finished(inputs []*input) bool {
	path := filepath.Join(o.dir, manifestName)
	m, err := vocabulary.Read(path)
	if err != nil || m == nil || m.Run == "" || m.Run != o.run(inputs) {
		return false
	}
	written, err := os.Stat(path)
	if err != nil || slices.ContainsFunc(o.sources(inputs), func(in *input) bool { return changed(in.info).After(changed(written)) }) {
		return false
	}
	for _, split := range m.Splits {
		for _, shard := range split.Shards {
			if _, err := os.Stat(filepath.Join(o.dir, shard.Name)); err != nil {
				return false
			}
		}
	}
	return true
}

// changed returns when a file was written, renamed or given other rights: a copy may have an older modification time.
func changed(info os.FileInfo) time.Time { return time.Unix(info.Sys().(*syscall.Stat_t).Ctim.Unix()) }

// begin returns where to begin: at the last checkpoint, if there is one of the same command.
func (o *options) begin(w *workDir, inputs []*input) (*checkpoint, error) {
	begin := &checkpoint{Settings: o.settings, Inputs: digest(o.sources(inputs), true)}
	s, err := w.load()
	if s != nil {
		switch {
		case s.Settings != begin.Settings:
			then, _ := json.Marshal(s.Settings)
			err = fmt.Errorf("%s is of an unfinished run with other options: repeat those, or give --force to begin again: %s", w.dir.Name(), then)
		case s.Inputs != begin.Inputs:
			err = fmt.Errorf("%s is of an unfinished run, and since then the texts, or their sizes or modification times, are others: "+
				"restore them, or give --force to begin again", w.dir.Name())
		default:
			w.hasCheckpoint = true
			return s, nil
		}
	}
	if err != nil && !o.force {
		w.hasCheckpoint = true
		return nil, err
	}
	if _, err := o.stale(inputs); err != nil {
		return nil, err
	}
	return begin, w.clear()
}

const manifestName = vocabulary.FileName

// tokenFile matches the names of files that prepare writes for a split; its first group is the name of the shard without suffix.
var tokenFile = regexp.MustCompile(`^((?:train|val)(?:_\d+)?)(?:\.mask\.bin|\.bin|\.idx|\.npy|\.ds|\.(?:bin|npy|ds)\.index|\.ds\.metadata)$`)

// stale returns the token files of an earlier run in DIR. It fails if there is anything that may not be replaced.
func (o *options) stale(inputs []*input) ([]string, error) {
	entries, err := os.ReadDir(o.dir)
	if err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	old := map[string]bool{}
	if m, err := vocabulary.Read(filepath.Join(o.dir, manifestName)); err == nil && m != nil {
		for _, split := range m.Splits {
			for _, shard := range split.Shards {
				if match := tokenFile.FindStringSubmatch(shard.Name); match != nil {
					old[match[1]] = true
				}
			}
		}
	}
	var stale []string
	for _, e := range entries {
		match := tokenFile.FindStringSubmatch(e.Name())
		if match == nil && e.Name() != manifestName {
			continue
		}
		path := filepath.Join(o.dir, e.Name())
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("--out: %w", err)
		}
		for _, in := range inputs {
			if in.info != nil && os.SameFile(in.info, info) {
				return nil, fmt.Errorf("%s: is a text and would be written too: name the texts one by one, or choose another --out", in.path)
			}
		}
		switch {
		case info.IsDir():
			return nil, fmt.Errorf("%s: is a directory, where a file will be written: choose another --out", path)
		case !o.force:
			return nil, fmt.Errorf("%s: exists: give --force to replace it, or choose another --out", path)
		case match == nil:
		case old[match[1]]:
			stale = append(stale, e.Name())
		case o.ShardTokens > 0 || strings.Contains(match[1], "_"):
			return nil, fmt.Errorf("%s: is no file of the vocab.json there, and would be mixed with the new ones: move it away", path)
		}
	}
	return stale, nil
}

// complete goes from a checkpoint to a complete one.
func (o *options) complete(ctx context.Context, w *workDir, s *checkpoint, inputs []*input, c *encodeOptions) error {
	r := newReader(inputs, c)
	r.stdin, r.scratch = o.stdin, w.dir.Name()
	if err := o.count(ctx, r, c); err != nil {
		return err
	}
	out := &output{dir: w.dir, format: outputFormats[o.Format], width: c.width, most: o.ShardTokens, masked: c.masked, tokenizer: c.Name()}
	var written [len(splits)]*split
	for i := range splits {
		written[i] = &split{output: out, name: splits[i], splitState: s.Splits[i]}
		defer written[i].close()
	}
	save := func(at position) error {
		if slices.ContainsFunc(inputs, (*input).once) { // it has other text the next time
			return nil
		}
		s.Position = at
		for i, split := range written {
			if err := split.sync(); err != nil {
				return err
			}
			s.Splits[i] = split.splitState
		}
		return w.save(s)
	}
	if err := o.encode(ctx, r, s, c, written, save); err != nil {
		return err
	}
	var sums [len(splits)]vocabulary.Split
	for i, split := range written {
		if err := split.complete(); err != nil {
			return err
		}
		sums[i].Shards = split.Shards
		for _, shard := range split.Shards {
			sums[i].Tokens += shard.Tokens
			sums[i].Documents += shard.Documents
		}
	}
	if train, val := sums[0], sums[1]; train.Tokens == 0 || val.Tokens == 0 && o.Val > 0 {
		w.hasCheckpoint = false
		return fmt.Errorf("--val: %v of %d documents leaves %d tokens for train and %d for val, as documents are not divided: give more of them, a larger --val, or --val 0 for none",
			o.Val, train.Documents+val.Documents, train.Tokens, val.Tokens)
	}
	if err := o.manifest(w, c, sums, s, inputs); err != nil {
		return err
	}
	stale, err := o.stale(inputs)
	if err != nil {
		return err
	}
	names, err := w.files()
	if err != nil {
		return err
	}
	s.Stale = slices.DeleteFunc(stale, func(name string) bool { return slices.Contains(names, name) })
	s.Complete = true
	return save(position{Input: len(inputs)})
}

// encode writes the tokens of what r reads from the position of a checkpoint on, and checkpoints: the first after a second, and then every ten.
func (o *options) encode(ctx context.Context, r *reader, s *checkpoint, c *encodeOptions, written [len(splits)]*split, save func(position) error) error {
	progress := o.progress("encoding", r.inputs, s.Position)
	defer progress.Finish()
	var tokens int64
	began := time.Now()
	next := began.Add(time.Second)
	return pipeline(ctx, r, s.Position, c.run, func(b *chunk) error {
		due := time.Now().After(next)
		s.leaveOut(b.leftOut)
		for i, split := range written {
			tokens += int64(len(b.out[i].tokens) / c.width)
			completed, err := split.write(b.out[i])
			if err != nil {
				return err
			}
			due = due || completed
		}
		progress.upTo(b.end)
		progress.Describe(fmt.Sprintf("encoding, %.2f million tokens/s", float64(tokens)/1e6/time.Since(began).Seconds()))
		if !due {
			return nil
		}
		next = time.Now().Add(10 * time.Second)
		return save(b.end)
	})
}

// count goes through the inputs once before they are encoded where that is needed: for the characters that there are, and for where
// val begins in a single text.
func (o *options) count(ctx context.Context, r *reader, c *encodeOptions) error {
	single := len(r.inputs) == 1 && r.inputs[0].format == text && o.Val > 0
	if o.By != vocabulary.Char && !single {
		return nil
	}
	for _, in := range r.inputs {
		if in.once() {
			return fmt.Errorf("%s: is not a regular file, and --by char, or val at the end of a single text, reads it twice: save it to a file first, or give another --by and --val 0", in.path)
		}
	}
	progress := o.progress("counting", r.inputs, position{})
	defer progress.Finish()
	counting := *c
	seen := new(counter)
	if !c.any {
		counting.use(seen, "none")
	}
	counting.val = 0
	var tokens int64
	r.inVal, r.cut = counting.inVal, counting.Cut
	err := pipeline(ctx, r, position{}, counting.run, func(b *chunk) error {
		tokens += int64(len(b.out[0].tokens) / counting.width)
		progress.upTo(b.end)
		return nil
	})
	if err != nil {
		return err
	}
	r.inVal, r.cut = c.inVal, c.Cut
	if o.By == vocabulary.Char {
		c.use(seen.characters(), o.EOT)
	}
	if !single {
		return nil
	}
	train := int64(float64(tokens) * (1 - o.Val)) // nanoGPT's int(n*0.9): 1-0.1 is 0.9 to the last bit
	if train == 0 || train == tokens {
		return fmt.Errorf("--val: %v of %d leaves %d for train and %d for val: give more text or another fraction", o.Val, tokens, train, tokens-train)
	}
	if r.tail, err = o.offset(r.inputs[0], c, train); err != nil {
		return fmt.Errorf("%s: %w", r.inputs[0].path, err)
	}
	return nil
}

// offset is where a text has so many characters, or bytes, before it.
func (o *options) offset(in *input, c *encodeOptions, n int64) (int64, error) {
	s, err := in.open(o.stdin, 0, func(int) {})
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
	if c.any {
		return at + n, nil
	}
	for range n {
		_, size, err := text.ReadRune()
		if err != nil {
			return 0, cmp.Or(s.unchanged(), err)
		}
		at += int64(size)
	}
	return at, nil
}

func (o *options) manifest(w *workDir, c *encodeOptions, sums [len(splits)]vocabulary.Split, s *checkpoint, inputs []*input) error {
	m := vocabulary.Manifest{
		Tokenizer: c.Name(), Format: o.Format, Run: o.run(inputs), LeftOut: s.LeftOut,
		Splits:     map[string]vocabulary.Split{},
		Vocabulary: vocabulary.Vocabulary{Kind: c.Name(), Size: int(c.Size()), TokenDType: "uint" + strconv.Itoa(8*c.width), EOTAt: "none"},
	}
	for i, sum := range sums {
		if sum.Tokens > 0 {
			m.Splits[splits[i]] = sum
		}
	}
	if c.eot >= 0 {
		eot := uint32(c.eot)
		m.EOT, m.EOTAt = &eot, o.EOT
	}
	if m.Kind != vocabulary.Char && m.Kind != vocabulary.Byte {
		m.Kind = vocabulary.BPE
	}
	for token := range uint32(c.Size()) {
		switch m.Kind {
		case vocabulary.Char:
			m.Tokens = append(m.Tokens, string(c.Bytes(token)))
		case vocabulary.BPE:
			m.TokenBytes = append(m.TokenBytes, c.Bytes(token))
		}
	}
	return create(w.dir, manifestName, func(out *bufio.Writer) error { return m.Write(out) })
}
