package dataset

import (
	"fmt"
	"time"

	"batchfs/fs/state"
)

// A ScheduleCheck compares the schedules of a restart with those of the mount. It belongs to one
// goroutine.
type ScheduleCheck struct {
	old, fresh *Snapshot
	shared     *state.Shared
	found      map[string]scheduleDifference // by path of a split and its ScheduleSettings
}

// A scheduleDifference is the first row at which two schedules differ, if any.
type scheduleDifference struct {
	row    uint64 // see sampler.Sequence.ScheduleRow
	exists bool
	hosts  uint64 // hosts whose rows the schedules number separately
	block  uint64 // tokens in a row
}

// NewScheduleCheck returns the check of a restart from old to fresh. shared has the rows that were
// read from the mount.
func NewScheduleCheck(old, fresh *Snapshot, shared *state.Shared) *ScheduleCheck {
	return &ScheduleCheck{old, fresh, shared, map[string]scheduleDifference{}}
}

// Run returns an error if a row that was read from the mount differs. It skips splits whose
// schedule is configured as before. Its result is final once no worker serves and
// Shared.ScheduleGeneration has changed.
func (c *ScheduleCheck) Run() error {
	const fix = "undo the change, or unmount and mount again"
	old, err := c.old.Config()
	if err != nil {
		return err
	}
	fresh, err := c.fresh.Config()
	if err != nil {
		return err
	}
	for _, split := range fresh.Splits {
		if oldSplit, _ := old.Named(split.Name); split.HasScheduleOf(oldSplit) {
			continue
		}
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
				return fmt.Errorf("%s: the new schedule changes row %d (token %d, batch %d of %s), but rows up to %d were read, the last %v ago in batch %d of %s; "+
					"change only later rows, or unmount and mount again", split.MessagePrefix("stages", "sources"), row, row*d.block, row/uint64(split.BatchSize*split.World), split.Name,
					(f.Rows()-1)*d.hosts, ago.Round(time.Second), batch, path)
			}
		}
	}
	return nil
}

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
