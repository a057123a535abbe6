package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	cmd.Flags().StringVar(&f.Data, "data", "", "serve train*.bin and val*.bin of this `directory`; needs no configuration file")
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
	for _, name := range []string{"train", "val"} {
		pattern := filepath.Join(cache.EscapeGlob(dir), name+"*.bin")
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		if len(files) > 0 {
			sets = append(sets, fmt.Sprintf("splits.%s.tokens=%s", name, pattern))
		}
	}
	if len(sets) == 0 {
		if _, err := os.ReadDir(dir); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%s has neither train*.bin nor val*.bin; batchfs prepare TEXT --out %s makes them", dir, dir)
	}
	return sets, nil
}
