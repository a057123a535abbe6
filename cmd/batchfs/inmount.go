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

// openSplit opens the split that a command's argument names. A path into a mount selects the
// mount's configuration and files, and takes precedence over config.toml. Any other path names a
// split of the configuration from flags.
func openSplit(flags *config.Flags, path string) (*dataset.Dataset, error) {
	snapshot, below, err := splitInMount(flags, path)
	switch {
	case err != nil:
		return nil, err
	case snapshot != nil:
		return snapshot.OpenPath(below)
	}
	c, err := configOf(flags, path)
	if err != nil {
		return nil, err
	}
	return dataset.NewOpener(c).OpenPath(path)
}

// openRecorded is like openSplit. recorded returns the method Read of a sequence for a process that
// does not read through the mount that path is in, if any: the mount learns which rows were read,
// and the method fails once it has another schedule.
func openRecorded(flags *config.Flags, path string) (d *dataset.Dataset, recorded func(*dataset.Served) readFunc, err error) {
	recorded = func(s *dataset.Served) readFunc { return s.Read }
	snapshot, below, err := splitInMount(flags, path)
	if err != nil || snapshot == nil {
		if err == nil {
			d, err = openSplit(flags, path)
		}
		return d, recorded, err
	}
	m, _, err := findMount(path)
	if err != nil {
		return nil, nil, err
	}
	shared, err := m.State()
	if err != nil {
		return nil, nil, err
	}
	recorded = func(s *dataset.Served) readFunc {
		q := newSequence(s, shared)
		return func(dst []byte, k uint64, off int64) error {
			if q.record(dst, k, off); shared.Schedule() != snapshot.Generation {
				return fmt.Errorf("%s: batchfs restart has changed the schedule of the mount; start again to continue with the new one", path)
			}
			return s.Read(dst, k, off)
		}
	}
	d, err = snapshot.OpenPath(below)
	return d, recorded, err
}

// configOf returns the configuration from flags, which must have the split that path names.
func configOf(flags *config.Flags, path string) (*config.Config, error) {
	c, err := flags.Load()
	if errors.Is(err, config.ErrNothingNamed) && strings.Contains(path, "/") {
		return nil, fmt.Errorf("%s: no batchfs is mounted there: %w", path, err)
	}
	if err != nil {
		return nil, err
	}
	name, _, _ := strings.Cut(path, "/")
	if _, err = c.Named(name); err != nil {
		if m, _, _ := findMount(path); m != nil {
			return nil, errOwnConfiguration(path)
		}
	}
	return c, err
}

func errOwnConfiguration(path string) error {
	return fmt.Errorf("%s is in a mount, which has its own configuration; leave out -c, --data and --set", path)
}

// configuredSplit is like openSplit, but returns an opener for this split alone, and ignores
// settings in the path.
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
		c, err = configOf(flags, path)
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

// splitInMount returns the snapshot of the mount that contains a path, and the path below its root.
// The snapshot is nil if path names a split of the configuration.
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
		return nil, "", errOwnConfiguration(path)
	case m == nil && filepath.IsAbs(path):
		return nil, "", fmt.Errorf("%s: no batchfs is mounted there; name a split, as in train/rank=3,world=8, or its path in a mount", path)
	case m == nil:
		return nil, "", nil
	}
	snapshot, err := snapshotOf(m)
	if err == nil && below == "" {
		err = errors.New("name a split in the mount, as in " + filepath.Join(m.Mountpoint, snapshot.Splits[0].Name))
	}
	return snapshot, below, err
}

// snapshotOf returns the snapshot that a mount's supervisor holds.
func snapshotOf(m *mount.Mounted) (*dataset.Snapshot, error) {
	file, err := m.Snapshot()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.Mountpoint, err)
	}
	defer file.Close()
	snapshot, err := dataset.ReadSnapshot(file)
	if err != nil {
		return nil, fmt.Errorf("%s: another version of batchfs serves the mount: %w; replace it with: batchfs restart %[1]s", m.Mountpoint, err)
	}
	return snapshot, nil
}
