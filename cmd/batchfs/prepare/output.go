package prepare

import (
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
			for _, name := range outputFormats[o.Format].files(shard) {
				if _, err := os.Stat(filepath.Join(o.dir, name)); err != nil {
					return false
				}
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

// removedFiles returns the files of an earlier run that publish must remove from DIR, because no
// new file has the same name.
func (o *options) removedFiles(work *workDir, inputs []*input) ([]string, error) {
	stale, err := o.staleFiles(inputs)
	if err != nil {
		return nil, err
	}
	names, err := work.finalNames()
	return slices.DeleteFunc(stale, func(name string) bool { return slices.Contains(names, name) }), err
}

// checkSplits returns an error if the splits are not what the options ask for.
func (p *plan) checkSplits(made [len(splits)]vocabulary.Split, n *notes) error {
	switch train, val := made[0], made[1]; {
	case p.ValFiles != "" && (train.Tokens == 0 || val.Tokens == 0):
		return fmt.Errorf("--val-files %s: leaves %d tokens for train and %d for val: use another pattern", p.ValFiles, train.Tokens, val.Tokens)
	case train.Documents+val.Documents == 0:
		found := "name files that have text"
		if lines := n.lines(&p.encoding); len(lines) > 0 {
			found = strings.Join(lines, "; ")
		}
		return fmt.Errorf("the inputs have no documents: %s", found)
	case train.Tokens == 0 || val.Tokens == 0 && p.Val > 0:
		return fmt.Errorf("--val: %v of %d documents leaves %d tokens for train and %d for val, because documents are not divided: "+
			"add documents, or use a larger --val, or --val 0 for no val",
			p.Val, train.Documents+val.Documents, train.Tokens, val.Tokens)
	}
	return p.checkMask(n, maskOnes(made[0]))
}

// manifest returns the content of vocab.json for these splits.
func (p *plan) manifest(made [len(splits)]vocabulary.Split, n *notes) *vocabulary.Manifest {
	m := &vocabulary.Manifest{
		Tokenizer: p.Name(), Format: p.Format, Run: p.digest(), Notes: n.lines(&p.encoding),
		Splits:     map[string]vocabulary.Split{},
		Vocabulary: vocabulary.Vocabulary{Kind: p.Name(), Size: int(p.Size()), TokenDType: "uint" + strconv.Itoa(8*p.width), EOTAt: "none"},
	}
	if n.NotUTF8.Documents > 0 {
		m.LeftOut = &n.NotUTF8
	}
	for i, split := range made {
		if split.Tokens > 0 {
			m.Splits[splits[i]] = split
		}
	}
	if p.eot >= 0 {
		eot := uint32(p.eot)
		m.EOT = &eot
		if made[0].EOTInside == 0 && made[1].EOTInside == 0 {
			m.EOTAt = p.EOT
		}
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
	return m
}
