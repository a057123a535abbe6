package dataset

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"batchfs/cache/blob"
	"batchfs/cache/localfile"
	"batchfs/cmd/batchfs/config"
	"batchfs/fs/state"
	"batchfs/internal/failure"
)

// ForRestart reads the configuration again and returns a snapshot with it. It changes the working
// directory to that of the mount command. It returns an error if a setting has changed that is
// fixed while a split is mounted.
//
// If the schedule of a split has changed, the new snapshot has a higher Generation. A
// [ScheduleCheck] must then find that all rows that were read from the mount are the same in it.
func (s *Snapshot) ForRestart() (*Snapshot, error) {
	old, err := s.Config()
	if err != nil {
		return nil, err
	}
	// This process might not be allowed to enter the directory. It needs to unless both names are
	// absolute, or one is and the other is empty.
	f := s.Flags
	isAbs := func(name string) bool { return filepath.IsAbs(name) || blob.IsRemote(name) }
	if err := os.Chdir(s.Dir); err != nil && !(isAbs(cmp.Or(f.Config, f.Data)) && isAbs(cmp.Or(f.Data, f.Config))) {
		return nil, err
	}
	fresh := *s
	if fresh.Raw, err = fresh.Flags.Read(); err != nil {
		return nil, err
	}
	newConfig, err := fresh.Config()
	if err != nil {
		return nil, err
	}
	if err := newConfig.CheckRestart(old); err != nil {
		return nil, err
	}
	fresh.Splits = slices.Clone(s.Splits)
	for split, oldSplit := range newConfig.Rescheduled(old) {
		fresh.Generation = s.Generation + 1
		o := NewOpener(newConfig)
		o.CheckWriters = true
		if err := fresh.changeSchedule(split, oldSplit, o); err != nil {
			return nil, failure.Data.Wrap(err)
		}
	}
	return &fresh, nil
}

// changeSchedule applies the schedule of split, whose sources begin with those of the mount, to
// the snapshot of the split. It opens the files of further sources only: the others stay as the
// mount serves them, even if their globs match other files now. But if there are further sources, a
// vocab.json that rejects files of any source also rejects the restart.
func (s *Snapshot) changeSchedule(split, old *config.Split, o *Opener) error {
	data := s.find(split.Name)
	was, err := data.open(old, o)
	if err != nil {
		return err
	}
	changed := *data
	if changed.Mounted == nil {
		changed.Mounted = &was.Sequence.Settings
	}
	if len(split.Sources) > len(data.Sources) {
		if err := changed.addSources(split, was, o); err != nil {
			return err
		}
	}
	changed.Schedule = nil // open makes it from the new settings
	d, err := changed.open(split, o)
	if err != nil {
		return err
	}
	if err := checkArraysStay(was.Sequence.Batch(), d.Sequence.Batch()); err != nil {
		return failure.Config.Wrap(err)
	}
	*data = d.snapshot()
	return nil
}

// addSources adds the sources of split that data, the snapshot of was, lacks. It returns an error
// if a file of the other sources has changed, because the fingerprint covers those, too.
func (data *splitSnapshot) addSources(split *config.Split, was *Dataset, o *Opener) error {
	_, f, err := o.openFiles(split, was.sources, nil, nil)
	if change, ok := errors.AsType[*localfile.ChangedError](err); ok && was.Split.OnChange == "follow" {
		return fmt.Errorf("splits.%s: %s has changed (%s), and the mount does not serve the new file yet: read a batch of the split, "+
			"and run batchfs restart again when the log says that the new files are served", split.Name, change.Path, change.How)
	}
	if err != nil {
		return err
	}
	known := len(data.Sources)
	data.Sources = slices.Clone(data.Sources)
	for _, arrays := range f.sources[known:] {
		data.Sources = append(data.Sources, manifestsOf(arrays))
		for _, a := range arrays {
			data.Unleased = cmp.Or(data.Unleased, a.Unleased())
		}
	}
	if f.hint.Arrays != nil {
		arrays := make([][]config.AlignedArray, known) // vocab.json may be newer than the mount
		copy(arrays, data.Hint.Arrays)
		data.Hint.Arrays = append(arrays, f.hint.Arrays[known:]...)
	}
	data.Fingerprint, data.SourceFingerprints = f.fingerprint, f.sourceFingerprints
	if err := data.Hint.apply(split).CheckAligned(); err != nil {
		return fmt.Errorf("splits.%s: %w, according to vocab.json next to the tokens when they were opened; "+
			"unmount and mount again to serve other arrays", split.Name, err)
	}
	return nil
}

// A ScheduleCheck checks that a restart does not change rows that were read. Only one goroutine may
// use it.
type ScheduleCheck struct {
	old, fresh *Snapshot
	splits     []*config.Split // splits of fresh whose schedules change
	shared     *state.Shared
	found      map[string]scheduleDifference // keyed by a path with ScheduleSettings
}

// A scheduleDifference is the first difference between two schedules.
type scheduleDifference struct {
	row    uint64 // first row that differs, as sampler.Sequence.ScheduleRow counts rows
	exists bool   // whether there is a difference
	hosts  uint64 // number of hosts; the schedules number the rows of each host from 0
	block  uint64 // number of tokens in a row
}

// NewScheduleCheck returns a check of a restart that replaces old by fresh. shared records which
// rows were read from the mount.
func NewScheduleCheck(old, fresh *Snapshot, shared *state.Shared) (*ScheduleCheck, error) {
	oldConfig, err := old.Config()
	if err != nil {
		return nil, err
	}
	freshConfig, err := fresh.Config()
	if err != nil {
		return nil, err
	}
	c := &ScheduleCheck{old: old, fresh: fresh, shared: shared, found: map[string]scheduleDifference{}}
	for split := range freshConfig.Rescheduled(oldConfig) {
		c.splits = append(c.splits, split)
	}
	return c, nil
}

// Run returns an error if a row that was read from the mount changes. Once no worker serves and
// Shared.ScheduleGeneration has changed, further calls have the same result.
func (c *ScheduleCheck) Run() (err error) {
	defer func() { err = failure.Config.Wrap(err) }()
	const fix = "undo the change, or unmount and mount again"
	for _, split := range c.splits {
		list, complete := c.shared.RowsRecords(split.Name)
		if !complete {
			return fmt.Errorf("%s: the schedule cannot change, because its rows were read with more combinations of block_size, layout, "+
				"shuffle_block and number of hosts than batchfs keeps track of; %s",
				split.MessagePrefix("stages", "sources"), fix)
		}
		for _, f := range list {
			d, err := c.difference(split.Name + "/" + f.Settings())
			if err != nil {
				return err
			}
			if d.exists && d.row < f.Rows() {
				row := d.row * d.hosts
				path, batch, ago := f.Batch()
				where := fmt.Sprintf("token %d", row*d.block)
				if d.block == uint64(split.BlockSize) {
					where += fmt.Sprintf(", batch %d of %s", row/uint64(split.BatchSize*split.World), split.Name)
				}
				return fmt.Errorf("%s: the new schedule changes row %d (%s), but rows up to %d were read, the last %v ago in batch %d of %s; "+
					"change only later rows, or unmount and mount again", split.MessagePrefix("stages", "sources"), row, where,
					(f.Rows()-1)*d.hosts, ago.Round(time.Second), batch, path)
			}
		}
	}
	return nil
}

// difference compares the schedules of a path, each path only once.
func (c *ScheduleCheck) difference(path string) (d scheduleDifference, err error) {
	if d, ok := c.found[path]; ok {
		return d, nil
	}
	old, err := c.old.OpenPath(path)
	if err != nil {
		return d, err
	}
	fresh, err := c.fresh.OpenPath(path)
	if err != nil {
		return d, err
	}
	d.row, d.exists = old.Sequence.DivergesAt(fresh.Sequence)
	d.hosts, d.block = uint64(old.Sequence.Hosts()), uint64(old.Sequence.BlockSize)
	c.found[path] = d
	return d, nil
}
