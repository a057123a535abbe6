package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/fs/mount"
)

// openSplit opens a split for a command: one in a mount with its settings and files, or one of the configuration that flags name. A
// path in a mount is absolute, or leads there from the working directory, and overrides config.toml.
func openSplit(flags *config.Flags, path string) (*dataset.Dataset, error) {
	snapshot, below, err := splitInMount(flags, path)
	switch {
	case err != nil:
		return nil, err
	case snapshot != nil:
		return snapshot.OpenPath(below)
	}
	c, err := flags.Load()
	if err != nil {
		return nil, err
	}
	return dataset.NewOpener(c).OpenPath(path)
}

// configuredSplit returns an opener for nothing but the split that a path names, as for openSplit.
// It leaves out the settings of the path.
func configuredSplit(flags *config.Flags, path string) (*dataset.Opener, error) {
	snapshot, below, err := splitInMount(flags, path)
	if err != nil {
		return nil, err
	}
	var c *config.Config
	if snapshot != nil {
		path = below
		c, err = snapshot.Config()
	} else {
		c, err = flags.Load()
	}
	if err != nil {
		return nil, err
	}
	name, _, _ := strings.Cut(path, "/")
	s, err := c.Named(name)
	if err != nil {
		return nil, err
	}
	c.Splits = []*config.Split{s}
	return dataset.NewOpener(c), nil
}

// splitInMount returns the snapshot of the mount that a path leads into, and the path there, or nil for a path of the configuration.
func splitInMount(flags *config.Flags, path string) (_ *dataset.Snapshot, below string, err error) {
	configured := flags.Config != "" || flags.Data != "" || len(flags.Sets) > 0
	if configured && !filepath.IsAbs(path) {
		return nil, "", nil
	}
	m, below, err := findMount(path)
	switch {
	case err != nil:
		return nil, "", err
	case m != nil && configured:
		return nil, "", fmt.Errorf("%s lies in a mount, which has its own configuration; leave out -c, --data and --set", path)
	case m == nil && filepath.IsAbs(path):
		return nil, "", fmt.Errorf("%s: no batchfs is mounted there; name a split, as in train/rank=3,world=8, or a path of it in a mount", path)
	case m == nil:
		return nil, "", nil
	}
	snapshot, err := snapshotOf(m)
	if err == nil && below == "" {
		err = errors.New("name a split in the mount, as in " + filepath.Join(m.Mountpoint, snapshot.Splits[0].Name))
	}
	return snapshot, below, err
}

func snapshotOf(m *mount.Mounted) (*dataset.Snapshot, error) {
	file, err := m.Snapshot()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.Mountpoint, err)
	}
	defer file.Close()
	snapshot, err := dataset.ReadSnapshot(file)
	if err != nil {
		return nil, fmt.Errorf("%s: the mount is of another version of batchfs: %w; batchfs restart %[1]s", m.Mountpoint, err)
	}
	return snapshot, nil
}
