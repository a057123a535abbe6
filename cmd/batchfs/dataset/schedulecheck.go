package dataset

import (
	"fmt"
	"time"

	"batchfs/cmd/batchfs/config"
	"batchfs/fs/state"
)

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
	hosts  uint64 // number of hosts whose rows the schedules count separately
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
func (c *ScheduleCheck) Run() error {
	const fix = "undo the change, or unmount and mount again"
	for _, split := range c.splits {
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

// ScheduleSettings returns settings that lead from the split to a sequence with the same schedule.
// They are equal for all sequences whose rows come from the same sources in the same order. With
// source, there is only one order, so that they are empty.
func (d *Dataset) ScheduleSettings() string {
	s := d.Split
	if s.Only > 0 {
		return ""
	}
	settings, inPath := map[string]any{}, s.Values()
	for _, key := range config.KeysOn(config.OnRows, config.OnBytes) {
		if value, ok := inPath[key]; ok {
			settings[key] = value
		}
	}
	// One rank reads all rows of its host, in whatever order and dtype.
	settings["batch_size"], settings["rank"], settings["world"], settings["local_world"] = 1, 0, d.Sequence.Hosts(), 1
	settings["shuffle_block"] = s.ShuffleBlock
	delete(settings, "seed")
	delete(settings, "dtype")
	if s.ShuffleBlock == 0 { // which needs order = "shuffle"
		delete(settings, "order")
	}
	return config.JoinSettings(settings)
}

// difference compares the schedules of a path. It opens the token files only once.
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
