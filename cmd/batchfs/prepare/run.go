package prepare

import (
	"bufio"
	"context"
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

// isComplete reports whether DIR holds the files of the same run, made after the last change of an
// input.
func (o *options) isComplete(p *plan) bool {
	path := filepath.Join(o.dir, manifestName)
	m, err := vocabulary.Read(path)
	if err != nil || m == nil || m.Run == "" || m.Run != p.digest() {
		return false
	}
	written, err := os.Stat(path)
	if err != nil || slices.ContainsFunc(p.files(), func(in *input) bool { return changeTime(in.info).After(changeTime(written)) }) {
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

// changeTime returns when a file was last written or renamed. The modification time of a copy may
// be older.
func changeTime(info os.FileInfo) time.Time {
	return time.Unix(info.Sys().(*syscall.Stat_t).Ctim.Unix())
}

// startCheckpoint returns the checkpoint of an unfinished run of the same command, or an empty one.
func (o *options) startCheckpoint(w *workDir, p *plan) (*checkpoint, error) {
	begin := &checkpoint{Settings: p.settings, Inputs: digestInputs(p.files(), true)}
	saved, err := w.load()
	if saved != nil {
		switch {
		case saved.Settings != begin.Settings:
			savedSettings, _ := json.Marshal(saved.Settings)
			err = fmt.Errorf("%s belongs to an unfinished run with other options: use these again, or start over with --force: %s", w.dir.Name(), savedSettings)
		case saved.Inputs != begin.Inputs:
			err = fmt.Errorf("%s belongs to an unfinished run, and since then the texts, or their sizes or modification times, have changed: "+
				"restore them, or start over with --force", w.dir.Name())
		default:
			w.hasCheckpoint = true
			return saved, nil
		}
	}
	if err != nil && !o.force {
		w.hasCheckpoint = true
		return nil, err
	}
	if _, err := o.staleFiles(p.inputs); err != nil {
		return nil, err
	}
	return begin, w.clear()
}

const manifestName = vocabulary.FileName

// tokenFilePattern matches the files that prepare writes for a split. The first group is the name
// of the shard without suffix.
var tokenFilePattern = regexp.MustCompile(`^((?:train|val)(?:_\d+)?)(?:\.mask\.bin|\.bin|\.idx|\.npy|\.ds|\.(?:bin|npy|ds)\.index|\.ds\.metadata)$`)

// staleFiles returns the token files of an earlier run in DIR. It returns an error if DIR has a
// file that must not be replaced.
func (o *options) staleFiles(inputs []*input) ([]string, error) {
	entries, err := os.ReadDir(o.dir)
	if err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	m, _ := vocabulary.Read(filepath.Join(o.dir, manifestName)) // a broken one lists no files
	old, arrays := map[string]bool{}, m.ArrayFiles()
	if m != nil {
		for _, split := range m.Splits {
			for _, shard := range split.Shards {
				if match := tokenFilePattern.FindStringSubmatch(shard.Name); match != nil {
					old[match[1]] = true
				}
			}
		}
	}
	var stale []string
	for _, e := range entries {
		match := tokenFilePattern.FindStringSubmatch(e.Name())
		_, isArray := arrays[e.Name()]
		if match == nil && e.Name() != manifestName && !isArray {
			continue
		}
		path := filepath.Join(o.dir, e.Name())
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("--out: %w", err)
		}
		for _, in := range inputs {
			if in.info != nil && os.SameFile(in.info, info) {
				return nil, fmt.Errorf("%s: is both a text and an output file: name the texts one by one, or choose another --out", in.path)
			}
		}
		switch {
		case info.IsDir():
			return nil, fmt.Errorf("%s: is a directory, but a file must be written there: choose another --out", path)
		case !o.force:
			return nil, fmt.Errorf("%s: already exists: replace it with --force, or choose another --out", path)
		case isArray:
			stale = append(stale, e.Name())
		case match == nil:
		case old[match[1]]:
			stale = append(stale, e.Name())
		case o.ShardTokens > 0 || strings.Contains(match[1], "_"):
			return nil, fmt.Errorf("%s: is not listed in vocab.json, so a mount would mix it with the new files: move it away", path)
		}
	}
	return stale, nil
}

// encodeAll continues from checkpoint s until all files are complete.
func (o *options) encodeAll(ctx context.Context, p *plan, w *workDir, s *checkpoint) error {
	p, err := o.count(ctx, p, w.dir.Name())
	if err != nil {
		return err
	}
	out := &outputOptions{dir: w.dir, format: outputFormats[p.Format], width: p.width, maxTokens: p.ShardTokens, masked: p.masked, tokenizer: p.Name()}
	out.wholeDocuments = p.eotBegins || out.format.finish != nil
	var written [len(splits)]*split
	for i := range splits {
		written[i] = &split{outputOptions: out, name: splits[i], splitState: s.Splits[i]}
		defer written[i].closeFiles()
	}
	save := func(pos position) error {
		if slices.ContainsFunc(p.inputs, (*input).readableOnce) { // resuming is impossible
			return nil
		}
		s.Position = pos
		for i, split := range written {
			if err := split.sync(); err != nil {
				return err
			}
			s.Splits[i] = split.splitState
		}
		return w.save(s)
	}
	if err := o.encode(ctx, p, w, s, written, save); err != nil {
		return err
	}
	var sums [len(splits)]vocabulary.Split
	var ones [len(splits)]int64
	for i, split := range written {
		if err := split.completeShard(); err != nil {
			return err
		}
		sums[i].Shards, sums[i].EOTInside = split.Shards, split.EOTInside
		for _, shard := range split.Shards {
			sums[i].Tokens += shard.Tokens
			sums[i].Documents += shard.Documents
			ones[i] += shard.MaskOnes
		}
	}
	switch train, val := sums[0], sums[1]; {
	case o.ValFiles != "" && (train.Tokens == 0 || val.Tokens == 0):
		w.hasCheckpoint = false
		return fmt.Errorf("--val-files %s: leaves %d tokens for train and %d for val: use another pattern", o.ValFiles, train.Tokens, val.Tokens)
	case train.Tokens == 0 || val.Tokens == 0 && o.Val > 0:
		w.hasCheckpoint = false
		return fmt.Errorf("--val: %v of %d documents leaves %d tokens for train and %d for val, because documents are not divided: "+
			"add documents, or use a larger --val, or --val 0 for no val",
			o.Val, train.Documents+val.Documents, train.Tokens, val.Tokens)
	}
	if err := p.checkMask(&s.Notes, ones[0]); err != nil {
		w.hasCheckpoint = false
		return err
	}
	if err := o.writeManifest(w, p, sums, s); err != nil {
		return err
	}
	stale, err := o.staleFiles(p.inputs)
	if err != nil {
		return err
	}
	names, err := w.finalNames()
	if err != nil {
		return err
	}
	s.Stale = slices.DeleteFunc(stale, func(name string) bool { return slices.Contains(names, name) })
	s.Complete = true
	return save(position{Input: len(p.inputs)})
}

// encode encodes the rest of the inputs. It saves checkpoints after a second, then every ten
// seconds and after each complete shard.
func (o *options) encode(ctx context.Context, p *plan, w *workDir, s *checkpoint, written [len(splits)]*split, save func(position) error) error {
	progress := o.newProgress("encoding", p.inputs, s.Position)
	defer progress.Finish()
	var tokens int64
	began := time.Now()
	next := began.Add(time.Second)
	return encodeInputs(ctx, p, s.Position, w.dir.Name(), func(ch *chunk) error {
		due := time.Now().After(next)
		s.Notes.add(&ch.notes)
		for i, split := range written {
			tokens += int64(len(ch.encoded[i].tokens) / p.width)
			completed, err := split.write(ch.encoded[i])
			if err != nil {
				return err
			}
			due = due || completed
		}
		progress.advanceTo(ch.end)
		progress.Describe(fmt.Sprintf("encoding, %.2f million tokens/s", float64(tokens)/1e6/time.Since(began).Seconds()))
		if !due {
			return nil
		}
		next = time.Now().Add(10 * time.Second)
		return save(ch.end)
	})
}

func (o *options) writeManifest(w *workDir, p *plan, sums [len(splits)]vocabulary.Split, s *checkpoint) error {
	m := vocabulary.Manifest{
		Tokenizer: p.Name(), Format: p.Format, Run: p.digest(), Notes: s.Notes.lines(&p.encoding),
		Splits:     map[string]vocabulary.Split{},
		Vocabulary: vocabulary.Vocabulary{Kind: p.Name(), Size: int(p.Size()), TokenDType: "uint" + strconv.Itoa(8*p.width), EOTAt: "none"},
	}
	if s.Notes.NotUTF8.Documents > 0 {
		m.LeftOut = &s.Notes.NotUTF8
	}
	for i, sum := range sums {
		if sum.Tokens > 0 {
			m.Splits[splits[i]] = sum
		}
	}
	if p.eot >= 0 {
		eot := uint32(p.eot)
		m.EOT, m.EOTAt = &eot, p.EOT
	}
	if m.Kind != vocabulary.Char && m.Kind != vocabulary.Byte {
		m.Kind = vocabulary.BPE
	}
	for token := range uint32(p.Size()) {
		switch m.Kind {
		case vocabulary.Char:
			m.Tokens = append(m.Tokens, string(p.Bytes(token)))
		case vocabulary.BPE:
			m.TokenBytes = append(m.TokenBytes, p.Bytes(token))
		}
	}
	return create(w.dir, manifestName, func(out *bufio.Writer) error { return m.Write(out) })
}
