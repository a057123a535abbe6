package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"batchfs/cache/blob"
	"batchfs/cache/store"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/internal/failure"
	"batchfs/internal/printable"
)

// Flags holds the flags that say where the configuration of a command comes from.
type Flags struct {
	Config string   // path of the configuration file
	Data   string   // directory or folder of token files, which overrides the file
	Sets   []string // key=value arguments, which override the file
}

// A nameFlag is the value of a flag that names a file. If a variable in a script is not set, the
// flag must not have the same effect as if it were left out.
type nameFlag string

func (n *nameFlag) String() string { return string(*n) }

func (n *nameFlag) Type() string { return "string" }

func (n *nameFlag) Set(name string) error {
	if name == "" {
		return errors.New("the name is empty, perhaps because a variable is not set")
	}
	*n = nameFlag(name)
	return nil
}

// ErrNothingNamed means that the flags name nothing and that there is no config.toml.
var ErrNothingNamed = errors.New("nothing to serve: there is no config.toml in this directory; name a configuration file with -c, " +
	"or a directory that has train.bin and val.bin with --data")

// RegisterStore adds the flags with which a command that reads no splits takes the table [store].
func (f *Flags) RegisterStore(cmd *cobra.Command) {
	cmd.Flags().VarP((*nameFlag)(&f.Config), "config", "c", "configuration `file` whose table [store] says how to access s3:// names")
	cmd.Flags().StringArrayVar(&f.Sets, "set", nil, "override a key of [store] with `key=value`, such as "+
		"store.endpoint=https://minio.example.com; can be repeated")
	cmd.MarkFlagFilename("config", "toml")
}

// LoadStore reads the table [store] of the configuration, which need not exist.
func (f *Flags) LoadStore() (s Store, err error) {
	defer func() { err = failure.Config.Wrap(err) }()
	raw := RawConfig{File: f.Config, Sets: f.Sets}
	if f.Config != "" {
		text, err := os.ReadFile(f.Config)
		if err != nil {
			return s, err
		}
		raw.Text = string(text)
	}
	c, err := raw.decode("")
	if err != nil {
		return s, err
	}
	return c.Store, nil
}

// Register adds the flags to a command.
func (f *Flags) Register(cmd *cobra.Command) {
	cmd.Flags().VarP((*nameFlag)(&f.Config), "config", "c", "configuration `file` (default: config.toml, if it exists and --data is not given)")
	cmd.Flags().Var((*nameFlag)(&f.Data), "data", "`directory` of token files to serve, or folder of a store such as "+
		"s3://bucket/tokens: train.bin and val.bin, or sets such as fineweb_train_000001.bin, train_text_document.bin or "+
		"train_000001.npy; overrides the tokens of the configuration file, if there is one")
	cmd.Flags().StringArrayVar(&f.Sets, "set", nil, "override a key of the configuration file with `key=value`; can be repeated")
	cmd.MarkFlagDirname("data")
	cmd.MarkFlagFilename("config", "toml")
}

// KeyNamed returns the key for --set that an unknown flag seems to mean, such as batch.block_size
// for block-size or block_size, or "".
func KeyNamed(flag string) string {
	name := strings.ReplaceAll(flag, "-", "_")
	for _, t := range []*table{&batchTable, &memoryTable, &mountTable, &storeTable, &logTable} {
		if t.find(name) != nil {
			return strings.Trim(t.name, "[]") + "." + name
		}
	}
	return ""
}

// Read reads the configuration without decoding it. If Config and Data are empty, it reads
// config.toml in the working directory and sets Config, so that another Read reads the same file.
// Without such a file, the error is ErrNothingNamed, unless Sets defines a split.
func (f *Flags) Read() (raw RawConfig, err error) {
	defer func() { err = failure.Config.Wrap(err) }()
	if f.Data == "" && f.Config == "" {
		if _, err := os.Stat("config.toml"); err == nil {
			f.Config = "config.toml"
		} else if !slices.ContainsFunc(f.Sets, func(set string) bool { return strings.HasPrefix(set, "splits.") }) {
			return RawConfig{}, ErrNothingNamed
		}
	}
	raw = RawConfig{File: f.Config, Sets: f.Sets}
	if f.Config != "" {
		text, err := os.ReadFile(f.Config)
		if err != nil {
			return raw, err
		}
		raw.Text = string(text)
	}
	if f.Data == "" {
		return raw, nil
	}
	if err := CheckPath(f.Data); err != nil {
		return raw, fmt.Errorf("--data: %w", err)
	}
	var remote *blob.Remote
	if blob.IsRemote(f.Data) {
		if remote, err = raw.remote(); err != nil {
			return raw, err
		}
	}
	data, err := setArgsForData(f.Data, remote)
	raw.Sets = slices.Concat(data, f.Sets)
	return raw, err
}

// remote returns access to the stores of the configuration, whatever its splits are.
func (r RawConfig) remote() (*blob.Remote, error) {
	docs, err := r.documents()
	c := Default()
	for _, d := range docs {
		for _, k := range d.keys {
			if k[0] == "store" || k[0] == "mount" {
				err = cmp.Or(err, c.decodeKey(d, k, nil))
			}
		}
	}
	return &blob.Remote{Store: c.Store.Options(c.Mount.Timeout)}, err
}

// Load reads and decodes the configuration.
func (f *Flags) Load() (*Config, error) {
	raw, err := f.Read()
	if err != nil {
		return nil, err
	}
	return raw.Decode()
}

// LoadSplit is like Load, but the configuration it returns has only the split called name. The
// other splits need not be valid.
func (f *Flags) LoadSplit(name string) (*Config, error) {
	raw, err := f.Read()
	if err != nil {
		return nil, err
	}
	c, err := raw.decode(name)
	return c, failure.Config.Wrap(err)
}

// setArgsForData returns --set arguments that define splits for the token files in a directory, or
// in a folder of a store. remote may be nil for a directory.
func setArgsForData(dir string, remote *blob.Remote) (sets []string, err error) {
	names, err := dataNames(dir, remote)
	if err != nil {
		return nil, err
	}
	inDir := func(name string) string { return blob.Sibling(strings.TrimRight(dir, "/")+"/", name) }
	// If the manifest is broken, opening the files reports that.
	manifest, err := vocabulary.Read(inDir(vocabulary.FileName), remote)
	if errors.As(err, new(vocabulary.UnavailableError)) {
		return nil, err
	}
	if name := unlistedShard(names, manifest); name != "" {
		return nil, fmt.Errorf("%s: %s does not list it, so the tasks of batchfs prepare that write to this directory are not finished: "+
			"run batchfs prepare --finish after them", inDir(name), vocabulary.FileName)
	}
	arrays := manifest.ArrayFiles()
	files := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return arrays[name].File != "" })
	for _, name := range []string{"train", "val"} {
		pattern, err := dataGlob(name, files)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		if pattern != "" {
			sets = append(sets, fmt.Sprintf("splits.%s.tokens=%s", name, blob.Sibling(blob.EscapeGlob(strings.TrimRight(dir, "/"))+"/", pattern)))
		} else if manifest != nil && len(manifest.Splits[name].Shards) > 0 {
			return nil, fmt.Errorf("%s has no files of %s, but vocab.json lists %s: run the interrupted batchfs prepare again, continue the batchfs.writer "+
				"with resume=True or call batchfs.finish again, or name the files to serve with --set instead of --data", dir, name, manifest.Splits[name].Shards[0].Name)
		}
	}
	if len(sets) == 0 && slices.Contains(names, ".prepare") {
		return nil, fmt.Errorf("%s has only unfinished token files: run the interrupted batchfs prepare again, continue the batchfs.writer with resume=True "+
			"or call batchfs.finish again", dir)
	}
	if len(sets) == 0 {
		return nil, fmt.Errorf("%s has neither train*.bin nor val*.bin: %s, or create them with batchfs prepare TEXT --out %s", dir,
			dataRule, printable.ShellArg(dir))
	}
	return sets, nil
}

// dataNames returns the sorted names of what is in a directory, or in a folder of a store. For
// remote, see setArgsForData.
func dataNames(dir string, remote *blob.Remote) (names []string, err error) {
	setTokens := printable.ShellArg("splits.train.tokens=" + dir)
	if o, ok := store.Parse(dir); ok {
		if o.Bucket == "" {
			return nil, fmt.Errorf("--data %s: must name a bucket, as in %s://bucket/tokens", dir, o.Scheme)
		}
		found, err := remote.List(strings.TrimRight(dir, "/") + "/")
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("--data %s: no object is in this folder; name one that has train.bin; if this is a token file, use "+
				"--set %s instead of --data", dir, setTokens)
		}
		for name := range found {
			names = append(names, strings.TrimSuffix(name, "/"))
		}
		slices.Sort(names)
		return names, err
	}
	entries, err := os.ReadDir(dir)
	if info, statErr := os.Stat(dir); statErr == nil && !info.IsDir() {
		return nil, fmt.Errorf("--data %s: must be a directory of token files (got a file); if this is a token file, use "+
			"--set %s instead of --data; if it is text, create token files with batchfs prepare %s --out DIR; "+
			"if it is Parquet, also name the column with --field", dir, setTokens, printable.ShellArg(dir))
	}
	if errors.Is(err, os.ErrNotExist) {
		if blob.IsURL(dir) {
			return nil, fmt.Errorf("--data %s: URLs must begin with s3:// or gs://; download other files, and name their directory", dir)
		}
		return nil, fmt.Errorf("--data %s: no such directory; name one that has train.bin, or create it from text with batchfs prepare "+
			"TEXT --out %s", dir, printable.ShellArg(dir))
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

var taskShard = regexp.MustCompile(`^(train|val)_[0-9]{6}\.(bin|npy|ds)$`)

// unlistedShard returns a shard among the files of a directory that a task of batchfs prepare has
// written and that the manifest, which may be nil, does not list, or "".
func unlistedShard(names []string, manifest *vocabulary.Manifest) string {
	if !slices.Contains(names, vocabulary.UnitsDir) {
		return ""
	}
	listed := map[string]bool{}
	if manifest != nil {
		for _, split := range manifest.Splits {
			for _, shard := range split.Shards {
				listed[shard.Name] = true
			}
		}
	}
	for _, name := range names {
		if taskShard.MatchString(name) && !listed[name] {
			return name
		}
	}
	return ""
}

const dataRule = "--data takes train.bin, or numbered files such as train_000001.bin or fineweb_train_000001.bin, or files of " +
	"Megatron-LM such as train_text_document.bin, each also as .npy or .ds, and the same for val; name other files with " +
	"--set splits.train.tokens=... instead of --data"

// dataFilePattern is a pattern for the names of a split's token files, with the name of the split
// as %s. The name of the dataset may come before it, and numbers and Megatron-LM's suffixes after
// it.
const dataFilePattern = `^((?:.*[-_.])?%s)((?:[-_.]*(?:of)?[-_.]*[0-9]+)*)((?:_text|_content)?_(?:document|sentence))?(\.bin|\.npy|\.ds)$`

// numberInName matches a number in the name of a file. With "of" before it, it counts the files.
var numberInName = regexp.MustCompile(`(of[-_.]*)?[0-9]+`)

// countInName matches the numbers in the name of a file that is one of a known number of files.
var countInName = regexp.MustCompile(`^[-_.]?[0-9]+[-_.]*of[-_.]*([0-9]+)$`)

// withoutNumbers returns the numbers in a name without their digits, but keeps the count of files,
// which is equal for all files of a set.
func withoutNumbers(numbers string) string {
	return numberInName.ReplaceAllStringFunc(numbers, func(n string) string {
		if strings.HasPrefix(n, "of") {
			return n
		}
		return ""
	})
}

// dataGlob returns a glob for a split's token files among the files of a directory: NAME.bin,
// NAME.npy or NAME.ds if one exists, or else the set of files that dataFilePattern matches. The
// glob is empty if there is none. It is an error if there are two such files or sets, if files are
// missing in a set, or if the glob would match other files too.
func dataGlob(name string, files []string) (glob string, err error) {
	shape := regexp.MustCompile(fmt.Sprintf(dataFilePattern, name))
	var exact, setKind string // setKind is equal for all files of one set
	var set, others []string
	for _, file := range files {
		if strings.HasPrefix(file, ".") { // such as ._train.bin, which macOS adds to train.bin
			continue
		}
		parts := shape.FindStringSubmatch(file)
		if parts == nil {
			others = append(others, file)
			continue
		}
		if name+parts[4] == file {
			if exact != "" {
				return "", fmt.Errorf("both %s and %s exist; %s", exact, file, dataRule)
			}
			exact = file
			continue
		}
		kind := strings.Join([]string{parts[1], withoutNumbers(parts[2]), parts[3], parts[4]}, "/")
		if set = append(set, file); len(set) == 1 {
			setKind, glob = kind, blob.EscapeGlob(parts[1])
			if parts[2] != "" {
				glob += "*[0-9]"
			}
			glob += parts[3] + parts[4]
		} else if setKind != kind {
			err = cmp.Or(err, fmt.Errorf("%s and %s are not files of one set; %s", set[0], file, dataRule))
		}
	}
	switch {
	case exact != "" && len(set) > 0:
		return "", fmt.Errorf("both %s and %s exist; %s", exact, set[0], dataRule)
	case exact != "":
		return blob.EscapeGlob(exact), nil
	}
	if len(set) > 0 {
		count := countInName.FindStringSubmatch(shape.FindStringSubmatch(set[0])[2])
		if count != nil && strconv.Itoa(len(set)) != strings.TrimLeft(count[1], "0") {
			err = cmp.Or(err, fmt.Errorf("%s is one of %s files, but there are %d; complete them, or, to read only these, name them with "+
				"--set splits.%s.tokens=... instead of --data", set[0], strings.TrimLeft(count[1], "0"), len(set), name))
		}
	}
	for _, file := range others {
		if ok, _ := filepath.Match(glob, file); ok {
			err = cmp.Or(err, fmt.Errorf("unclear whether %s belongs to the split; %s", file, dataRule))
		}
	}
	return glob, err
}
