package processes

import (
	"fmt"
	"time"

	"batchfs/cmd/batchfs/dataset"
	"batchfs/fs/state"
)

// A scheduleCheck compares the schedules of a restart with those of the mount.
type scheduleCheck struct {
	old, fresh *dataset.Snapshot
	shared     *state.Shared
	found      map[string]scheduleDifference // by path of a split and its ScheduleSettings
}

// A scheduleDifference is the first row at which two schedules differ, if any.
type scheduleDifference struct {
	row    uint64
	exists bool
	hosts  uint64 // hosts whose rows the schedules number separately
	block  uint64 // tokens in a row
}

// run returns an error if a row that was read from the mount differs. Its result is final once no
// worker serves and Shared.Schedule has changed.
func (c *scheduleCheck) run() error {
	const fix = "undo the change, or unmount and mount again"
	config, err := c.fresh.Config()
	if err != nil {
		return err
	}
	for _, split := range config.Splits {
		list, complete := c.shared.Furthest(split.Name)
		if !complete {
			return fmt.Errorf("%s: the schedule cannot change, because its rows were read with more block sizes than batchfs keeps track of; %s",
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
				return fmt.Errorf("%s: the new schedule changes row %d (token %d, step %d), but rows up to %d were read, the last %v ago in batch %d of %s; "+
					"change only later rows, or unmount and mount again", split.MessagePrefix("stages", "sources"), row, row*d.block, row/uint64(split.BatchSize*split.World),
					(f.Rows()-1)*d.hosts, ago.Round(time.Second), batch, path)
			}
		}
	}
	return nil
}

func (c *scheduleCheck) difference(path string) (d scheduleDifference, err error) {
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
	d.hosts, d.block = uint64(old.Sequence.World), uint64(old.Sequence.BlockSize)
	c.found[path] = d
	return d, nil
}
