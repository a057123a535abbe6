package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/fs/mount"
	"batchfs/internal/failure"
)

// A splitMount is a mount, together with the split in it that a command's argument names.
type splitMount struct {
	*mount.Mounted
	snapshot *dataset.Snapshot
	path     string // path of the split below the mountpoint
}

// openSplit opens the split that a command's argument names. A path into a mount selects the
// mount's configuration and files, and takes precedence over config.toml. Any other path names a
// split of the configuration from flags, and in is nil.
func openSplit(flags *config.Flags, path string) (d *dataset.Dataset, in *splitMount, err error) {
	if in, err = splitInMount(flags, path); err != nil {
		return nil, nil, err
	}
	if in != nil {
		d, err = in.snapshot.OpenPath(in.path)
		return d, in, failure.Data.Wrap(err)
	}
	c, err := configOf(flags, path)
	if err != nil {
		return nil, nil, err
	}
	d, err = dataset.NewOpener(c).OpenPath(path)
	return d, nil, failure.Data.Wrap(err)
}

// openRecorded opens a split like openSplit, for a command that computes batches in its own
// process. If the split is in a mount, read records there which rows were read, and fails once
// batchfs restart has changed the schedule. The caller must call close after the last read.
func openRecorded(flags *config.Flags, path string) (b *dataset.FileBatches, read readFunc, close func(), err error) {
	d, in, err := openSplit(flags, path)
	if err != nil {
		return nil, nil, nil, err
	}
	if in == nil {
		b = d.FileBatches(nil)
		return b, b.Read, func() {}, nil
	}
	shared, err := in.State()
	if err != nil {
		return nil, nil, nil, err
	}
	b = d.FileBatches(shared)
	return b, func(dst []byte, k uint64, off int64) error {
		err := b.Read(dst, k, off)
		if !keepsSchedule(in.snapshot.Generation, shared.ScheduleGeneration, in.generation) {
			err = fmt.Errorf("%s: batchfs restart has changed the schedule of the mount; start again to continue with the new one", path)
		}
		return err
	}, shared.Close, nil
}

// keepsSchedule reports whether a mount still has the schedules of a generation. now returns that
// of the last worker, and adopted that of the supervisor's snapshot. A new worker sets the next
// generation before it checks which rows were read, so keepsSchedule then waits until the snapshot
// has another generation, too, or until the next worker has set the old one again.
func keepsSchedule(generation uint64, now func() uint64, adopted func() (uint64, error)) bool {
	const limit = time.Minute
	for end := time.Now().Add(limit); now() != generation; time.Sleep(20 * time.Millisecond) {
		if g, err := adopted(); err != nil || g != generation || time.Now().After(end) {
			return false
		}
	}
	return true
}

func (in *splitMount) generation() (uint64, error) {
	s, err := dataset.SnapshotOf(in.Mounted)
	if err != nil {
		return 0, err
	}
	return s.Generation, nil
}

// configOf returns the configuration from flags, which must have the split that path names.
func configOf(flags *config.Flags, path string) (*config.Config, error) {
	c, err := flags.Load()
	if errors.Is(err, config.ErrNothingNamed) && strings.Contains(path, "/") {
		if _, _, err := mount.FindContaining(path); err != nil {
			return nil, err
		}
		return nil, failure.Mountpoint.Wrap(fmt.Errorf("%s: no batchfs is mounted there: %w", path, err))
	}
	if err != nil {
		return nil, err
	}
	name, _, _ := strings.Cut(path, "/")
	if _, err = c.Named(name); err != nil {
		if m, _, _ := mount.FindContaining(path); m != nil {
			return nil, errOwnConfiguration(path)
		}
	}
	return c, err
}

func errOwnConfiguration(path string) error {
	return failure.Config.Wrap(fmt.Errorf("%s is in a mount, which has its own configuration; leave out -c, --data and --set", path))
}

// configuredSplit is like openSplit, but returns an opener for this split alone, and ignores
// settings in the path.
func configuredSplit(flags *config.Flags, path string) (*dataset.Opener, error) {
	in, err := splitInMount(flags, path)
	if err != nil {
		return nil, err
	}
	var c *config.Config
	if in != nil {
		path = in.path
		c, err = in.snapshot.Config()
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

// splitInMount returns the mount that contains a path, or nil if path names a split of the
// configuration.
func splitInMount(flags *config.Flags, path string) (*splitMount, error) {
	configured := flags.Config != "" || flags.Data != "" || len(flags.Sets) > 0
	if configured && !filepath.IsAbs(path) {
		return nil, nil
	}
	m, below, err := mount.FindContaining(path)
	switch {
	case err != nil && filepath.IsAbs(path):
		return nil, err
	case m != nil && configured:
		return nil, errOwnConfiguration(path)
	case m == nil && filepath.IsAbs(path):
		return nil, failure.Mountpoint.Wrap(fmt.Errorf("%s: no batchfs is mounted there; name a split, as in train/rank=3,world=8, or "+
			"its path in a mount", path))
	case m == nil:
		return nil, nil
	}
	snapshot, err := dataset.SnapshotOf(m)
	if err == nil && below == "" {
		err = errors.New("name a split in the mount, as in " + filepath.Join(m.Mountpoint, snapshot.Splits[0].Name))
	}
	return &splitMount{m, snapshot, below}, err
}
