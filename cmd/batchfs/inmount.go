package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/fs/mount"
)

// openSplit opens a split for a command: one in a mount with the settings and files of that mount, or one of the configuration
// that flags name. A path in a mount is absolute, or leads there from the working directory, and goes before config.toml.
func openSplit(flags *config.Flags, path string) (*dataset.Dataset, error) {
	configured := flags.Config != "" || flags.Data != "" || len(flags.Sets) > 0
	if !configured || filepath.IsAbs(path) {
		m, below, err := findMount(path)
		switch {
		case err != nil:
			return nil, err
		case m != nil && configured:
			return nil, fmt.Errorf("%s lies in a mount, which has its own configuration; leave out -c, --data and --set", path)
		case m != nil:
			return openMounted(m, below)
		case filepath.IsAbs(path):
			return nil, fmt.Errorf("%s: no batchfs is mounted there; name a split, as in train/rank=3,world=8, or a path of it in a mount", path)
		}
	}
	c, err := flags.Load()
	if err != nil {
		return nil, err
	}
	return dataset.OpenPath(c, path)
}

// openMounted opens a split of a mount, by its path there, without touching the mount.
func openMounted(m *mount.Mounted, path string) (*dataset.Dataset, error) {
	snapshot, err := snapshotOf(m)
	if err != nil {
		return nil, err
	}
	if path == "" {
		return nil, errors.New("name a split in the mount, as in " + filepath.Join(m.Mountpoint, snapshot.Splits[0].Name))
	}
	return snapshot.OpenPath(path)
}

// snapshotOf reads the snapshot that the supervisor of a mount holds.
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
