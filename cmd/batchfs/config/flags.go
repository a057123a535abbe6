package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"batchfs/cache/blob"
)

// Flags say where the configuration of a command comes from.
type Flags struct {
	Config string   // the file
	Data   string   // a directory of token files, over the file
	Sets   []string // key=value, over the file
}

// ErrNothingNamed is an error of Read.
var ErrNothingNamed = errors.New("nothing to serve: there is no config.toml here; name one with -c, or a directory with " +
	"train.bin and val.bin with --data")

// Register adds the flags to a command.
func (f *Flags) Register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.Config, "config", "c", "", "configuration `file` (default config.toml, where there is one)")
	cmd.Flags().StringVar(&f.Data, "data", "", "serve train.bin and val.bin of this `directory`, or sets of files, as fineweb_train_000001.bin, "+
		"train_text_document.bin or train_000001.npy; needs no configuration file, and goes before the tokens of one")
	cmd.Flags().StringArrayVar(&f.Sets, "set", nil, "set one key over the file, `key=value`, any number of times")
	cmd.MarkFlagDirname("data")
	cmd.MarkFlagFilename("config", "toml")
}

// Read reads the configuration as it is written. Where the flags name nothing, it reads config.toml of the working directory, and
// sets Config, so that reading again reads the same file; without such a file the error is ErrNothingNamed.
func (f *Flags) Read() (RawConfig, error) {
	sets := f.Sets
	switch {
	case f.Data != "":
		data, err := dataSets(f.Data)
		if err != nil {
			return RawConfig{}, err
		}
		sets = append(data, sets...)
	case f.Config == "":
		if _, err := os.Stat("config.toml"); err == nil {
			f.Config = "config.toml"
		} else if !slices.ContainsFunc(sets, func(set string) bool { return strings.HasPrefix(set, "splits.") }) {
			return RawConfig{}, ErrNothingNamed
		}
	}
	raw := RawConfig{File: f.Config, Sets: sets}
	if f.Config == "" {
		return raw, nil
	}
	text, err := os.ReadFile(f.Config)
	raw.Text = string(text)
	return raw, err
}

// Load is Read and Decode.
func (f *Flags) Load() (*Config, error) {
	raw, err := f.Read()
	if err != nil {
		return nil, err
	}
	return raw.Decode()
}

// dataSets returns the --set arguments that make splits of the token files in a directory.
func dataSets(dir string) (sets []string, err error) {
	if blob.IsRemote(dir) {
		return nil, fmt.Errorf("--data %s: name a directory of this machine; objects are named one by one, or by globs, as in "+
			"--set splits.train.tokens=%s/train*.bin", dir, strings.TrimSuffix(dir, "/"))
	}
	entries, err := os.ReadDir(dir)
	if info, statErr := os.Stat(dir); statErr == nil && !info.IsDir() {
		return nil, fmt.Errorf("--data %s: is a file: name the directory of token files; one file of tokens is mounted with "+
			"--set splits.train.tokens=%[1]s in place of --data; of text, batchfs prepare %[1]s --out DIR makes some, "+
			"and of a column of Parquet if --field names it", dir)
	}
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"train", "val"} {
		pattern, err := dataPattern(name, entries)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		if pattern != "" {
			sets = append(sets, fmt.Sprintf("splits.%s.tokens=%s", name, filepath.Join(blob.EscapeGlob(dir), pattern)))
		}
	}
	if len(sets) == 0 {
		return nil, fmt.Errorf("%s has neither train*.bin nor val*.bin: %s, or make them with batchfs prepare TEXT --out %s", dir, dataRule, dir)
	}
	return sets, nil
}

const dataRule = "--data takes train.bin, or else train with a number, as in train_000001.bin or fineweb_train_000001.bin, or with what " +
	"Megatron-LM adds, as in train_text_document.bin, .npy and .ds as .bin, and val the same way; name other files with " +
	"--set splits.train.tokens=... in place of --data"

// dataName matches the names of token files of a split, given its name: before it may stand a name of the data, and behind it numbers
// and what Megatron-LM adds.
const dataName = `^((?:.*[-_.])?%s)((?:[-_.]*(?:of)?[-_.]*[0-9]+)*)((?:_text|_content)?_(?:document|sentence))?(\.bin|\.npy|\.ds)$`

var digits = regexp.MustCompile(`[0-9]+`)

// dataPattern returns a glob for the token files of a split among the files of a directory: NAME.bin, .npy or .ds where there is one,
// or else the set of files with the name, or "". The error says that there are two sets, or that the glob would match another file.
func dataPattern(name string, entries []os.DirEntry) (glob string, err error) {
	shape := regexp.MustCompile(fmt.Sprintf(dataName, name))
	var exact, kind string // kind is what the files of one set have in common
	var set, others []string
	for _, entry := range entries {
		file := entry.Name()
		parts := shape.FindStringSubmatch(file)
		if parts == nil {
			others = append(others, file)
			continue
		}
		if name+parts[4] == file {
			if exact != "" {
				return "", fmt.Errorf("is it %s or %s? %s", exact, file, dataRule)
			}
			exact = file
			continue
		}
		of := strings.Join([]string{parts[1], digits.ReplaceAllString(parts[2], ""), parts[3], parts[4]}, "/")
		if set = append(set, file); len(set) == 1 {
			kind, glob = of, blob.EscapeGlob(parts[1])
			if parts[2] != "" {
				glob += "*[0-9]"
			}
			glob += parts[3] + parts[4]
		} else if kind != of {
			err = cmp.Or(err, fmt.Errorf("are %s and %s files of one set? %s", set[0], file, dataRule))
		}
	}
	if exact != "" {
		return blob.EscapeGlob(exact), nil
	}
	for _, file := range others {
		if ok, _ := filepath.Match(glob, file); ok {
			err = cmp.Or(err, fmt.Errorf("is %s to be served, too? %s", file, dataRule))
		}
	}
	return glob, err
}
