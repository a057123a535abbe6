package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"batchfs/cache"
)

// Flags say where the configuration of a command comes from. Its fields are exported for encoders.
type Flags struct {
	Config string   // the file
	Data   string   // a directory of token files, instead of a file
	Sets   []string // key=value, over the file
}

// ErrNothingNamed is the error of Read where the flags name nothing to serve and the working directory has no config.toml.
var ErrNothingNamed = errors.New("nothing to serve: there is no config.toml here; name one with -c, or a directory with " +
	"train.bin and val.bin with --data")

// Register adds the flags to a command.
func (f *Flags) Register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.Config, "config", "c", "", "configuration `file` (default config.toml, where there is one)")
	cmd.Flags().StringVar(&f.Data, "data", "", "serve train.bin and val.bin of this `directory`, or numbered files, as train_000001.bin; "+
		"needs no configuration file")
	cmd.Flags().StringArrayVar(&f.Sets, "set", nil, "set one key over the file, `key=value`, any number of times")
	cmd.MarkFlagsMutuallyExclusive("config", "data")
	cmd.MarkFlagDirname("data")
	cmd.MarkFlagFilename("config", "toml")
}

// Read reads the configuration as it is written. Where the flags name none, it reads config.toml of the working directory, and
// sets Config to that, so that reading again reads the same file. The error may be ErrNothingNamed.
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
	return readRaw(f.Config, sets)
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
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var strays []string
	for _, name := range []string{"train", "val"} {
		pattern, others, err := dataPattern(name, entries)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		strays = append(strays, others...)
		if pattern != "" {
			sets = append(sets, fmt.Sprintf("splits.%s.tokens=%s", name, filepath.Join(cache.EscapeGlob(dir), pattern)))
		}
	}
	switch {
	case len(sets) > 0:
		return sets, nil
	case len(strays) > 0:
		return nil, fmt.Errorf("%s: %q: %s", dir, strays, dataRule)
	}
	return nil, fmt.Errorf("%s has neither train*.bin nor val*.bin; batchfs prepare TEXT --out %s makes them", dir, dir)
}

const dataRule = "--data takes train.bin, or else train with a number, as in train_000001.bin or train-00001-of-00010.bin, and val the same way; " +
	"name other files with --set splits.train.tokens=..."

var numbered = regexp.MustCompile(`^([-_.]*(of)?[-_.]*[0-9]+)+\.bin$`)

var digits = regexp.MustCompile(`[0-9]+`)

// dataPattern returns a glob for the token files of a split among the files of a directory: NAME.bin where there is one, or else
// NAME with a number. It is "" if there are none; strays are files that only look like them. The error says that the glob would
// match one of those, too.
func dataPattern(name string, entries []os.DirEntry) (glob string, strays []string, err error) {
	const digit = "*[0-9].bin"
	matched, first := "", ""
	for _, entry := range entries {
		rest, ok := strings.CutPrefix(entry.Name(), name)
		switch {
		case !ok || !strings.HasSuffix(rest, ".bin"):
		case rest == ".bin":
			return name + rest, nil, nil
		case numbered.MatchString(rest):
			if first == "" {
				first = entry.Name()
			} else if digits.ReplaceAllString(first, "") != digits.ReplaceAllString(entry.Name(), "") {
				return "", nil, fmt.Errorf("are %s and %s files of one set? %s", first, entry.Name(), dataRule)
			}
			glob = name + digit
		default:
			strays = append(strays, entry.Name())
			if ok, _ := filepath.Match(digit, rest); ok {
				matched = entry.Name()
			}
		}
	}
	if glob != "" && matched != "" {
		return "", nil, fmt.Errorf("is %s to be served, too? %s", matched, dataRule)
	}
	return glob, strays, nil
}
