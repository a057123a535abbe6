package prepare

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/vocabulary"
)

// isComplete reports whether DIR holds the files of the same run, made after the last change of an
// input.
func (o *options) isComplete(p *plan) bool {
	path := filepath.Join(o.dir, manifestName)
	m, err := vocabulary.Read(path, nil)
	if err != nil || m == nil || m.Run == "" || m.Run != p.digest() {
		return false
	}
	written, err := os.Stat(path)
	if err != nil || slices.ContainsFunc(p.files(), func(in *input.File) bool { return changeTime(in.Info).After(changeTime(written)) }) {
		return false
	}
	for _, split := range m.Splits {
		for _, shard := range split.Shards {
			for _, name := range outputFormats[o.settings.Format].files(shard) {
				if _, err := os.Stat(filepath.Join(o.dir, name)); err != nil {
					return false
				}
			}
		}
	}
	return true
}

// hasChangedSince reports whether an input has changed since digest was computed from all inputs.
func (p *plan) hasChangedSince(digest string) bool {
	var now []*input.File
	for _, in := range p.files() {
		if in.Info != nil {
			info, err := os.Stat(in.Path)
			if err != nil {
				return true
			}
			in = &input.File{Path: in.Path, Format: in.Format, Info: info}
		}
		now = append(now, in)
	}
	return digestInputs(now, true) != digest
}

// changeTime returns when a file was last written or renamed. The modification time of a copy may
// be older.
func changeTime(info os.FileInfo) time.Time {
	return time.Unix(info.Sys().(*syscall.Stat_t).Ctim.Unix())
}

// outputFilePattern matches the files that prepare writes for a split. The first group is the name
// of the shard without suffix.
var outputFilePattern = regexp.MustCompile(
	`^((?:train|val)(?:_\d+)?)(?:\.mask\.bin|\.bin|\.idx|\.npy|\.ds|\.(?:bin|npy|ds)\.(?:index|ids)|\.ds\.metadata)$`)

// outputOf returns a function that reports whether a file with a name belongs to a shard that m
// lists, or is one of its arrays. m may be nil.
func outputOf(m *vocabulary.Manifest) func(name string) bool {
	shards, arrays := map[string]bool{}, m.ArrayFiles()
	if m != nil {
		for _, split := range m.Splits {
			for _, shard := range split.Shards {
				if match := outputFilePattern.FindStringSubmatch(shard.Name); match != nil {
					shards[match[1]] = true
				}
			}
		}
	}
	return func(name string) bool {
		_, isArray := arrays[name]
		match := outputFilePattern.FindStringSubmatch(name)
		return isArray || match != nil && shards[match[1]]
	}
}

// withoutOutput removes the files that an earlier run wrote to DIR, which may be below a directory
// of texts. It keeps those that an argument names.
func (o *options) withoutOutput(inputs []*input.File, args []string) []*input.File {
	dir, err := os.Stat(o.dir)
	if err != nil {
		return inputs
	}
	m, _ := vocabulary.Read(filepath.Join(o.dir, manifestName), nil)
	if m == nil {
		return inputs
	}
	isListed := outputOf(m)
	isNamed := func(path string) bool {
		return slices.ContainsFunc(args, func(arg string) bool { return filepath.Clean(input.ResolveParents(arg)) == path })
	}
	return slices.DeleteFunc(inputs, func(in *input.File) bool {
		if name := filepath.Base(in.Path); name != manifestName && !isListed(name) || isNamed(in.Path) {
			return false
		}
		parent, err := os.Stat(filepath.Dir(in.Path))
		return err == nil && os.SameFile(parent, dir)
	})
}

// staleFiles returns the files of an earlier run in DIR. It returns an error if DIR has a
// file that must not be replaced.
func (o *options) staleFiles(p *plan) ([]string, error) {
	entries, err := os.ReadDir(o.dir)
	if err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	// A manifest that cannot be read lists no files.
	m, _ := vocabulary.Read(filepath.Join(o.dir, manifestName), nil)
	isListed, replaced := outputOf(m), p.singleFiles()
	var stale []string
	for _, e := range entries {
		isOutput := outputFilePattern.MatchString(e.Name())
		if !isOutput && e.Name() != manifestName && !isListed(e.Name()) {
			continue
		}
		path := filepath.Join(o.dir, e.Name())
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("--out: %w", err)
		}
		for _, in := range p.inputs {
			if in.Info != nil && os.SameFile(in.Info, info) {
				return nil, fmt.Errorf("%s: is both a text and an output file: name the texts one by one, or choose another --out", in.Path)
			}
		}
		switch {
		case info.IsDir():
			return nil, fmt.Errorf("%s: is a directory, but a file must be written there: choose another --out", path)
		case isOutput && !isListed(e.Name()) && !slices.Contains(replaced, e.Name()):
			return nil, fmt.Errorf("%s: is not listed in vocab.json, so a mount would mix it with the new files: move it away", path)
		case !o.force:
			return nil, fmt.Errorf("%s: already exists: replace it with --force, or choose another --out", path)
		case isListed(e.Name()):
			stale = append(stale, e.Name())
		}
	}
	return stale, nil
}

// singleFiles returns the names of all files of shards that the plan writes, or none if it writes
// numbered shards.
func (p *plan) singleFiles() (names []string) {
	f := outputFormats[p.settings.Format]
	for i, split := range splits {
		if p.settings.ShardTokens > 0 || i == valSplit && p.settings.Val == 0 && p.settings.ValFiles == "" {
			continue
		}
		shard := vocabulary.Shard{Name: split + f.extension}
		if p.encoding.masked {
			shard.Arrays = []vocabulary.ArrayFile{{File: maskPath(shard.Name)}}
		}
		if p.encoding.id != nil {
			shard.IDs = shard.Name + idsSuffix
		}
		names = append(names, f.files(shard)...)
	}
	return names
}

// filesToRemove returns the files of an earlier run that publish must remove from DIR, because no
// new file has the same name.
func (o *options) filesToRemove(work *workDir, p *plan) ([]string, error) {
	stale, err := o.staleFiles(p)
	if err != nil {
		return nil, err
	}
	names, err := work.finalNames()
	return slices.DeleteFunc(stale, func(name string) bool { return slices.Contains(names, name) }), err
}
