package dataset

import (
	"fmt"
	"slices"
	"syscall"

	"batchfs/cmd/batchfs/config"
	"batchfs/sampler"
)

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

// CheckEnd returns an error, which matches syscall.ENODATA, if the sequence ends before batch k.
func (d *Dataset) CheckEnd(k uint64) error {
	if n := d.Sequence.Batches(); k < n || n == sampler.MaxBatches {
		return nil
	}
	return fmt.Errorf("%s has no batch %d, because every source has used up its max_epochs: raise it, or add a source (%w)", d.Split.Path(), k, syscall.ENODATA)
}

// keepSizes makes batches.* and tokens.bin as long as under the settings of the mount, because the
// kernel and readers remember the sizes of files. mounted is nil if no schedule has changed.
func (d *Dataset) keepSizes(mounted *sampler.Settings) (err error) {
	if mounted == nil {
		return nil
	}
	if d.mounted, err = d.newSequence(sourcesIn(mounted), *mounted, nil); err == nil {
		err = d.countSteps()
	}
	return err
}

// sourcesIn returns the number of sources for which a sequence has settings.
func sourcesIn(s *sampler.Settings) int {
	if s.Stages != nil {
		return len(s.Stages[0].Weights)
	}
	return len(s.Weights)
}

// changeSchedule applies the schedule of split, whose sources begin with those of the mount, to
// the snapshot of the split. It opens the files of further sources only.
func (s *Snapshot) changeSchedule(split, old *config.Split, o *Opener) error {
	data := s.find(split.Name)
	was, err := s.open(old, o)
	if err != nil {
		return err
	}
	changed := *data
	if changed.Mounted == nil {
		changed.Mounted = &was.Sequence.Settings
	}
	if len(split.Sources) > len(data.Sources) || split.Scheduled() && data.SourceFingerprints == nil {
		if err := changed.addSources(split, o); err != nil {
			return err
		}
	}
	changed.Schedule = nil
	*data = changed
	d, err := s.open(split, o)
	if err == nil {
		err = checkSameArrays(was.Sequence.Batch(), d.Sequence.Batch())
	}
	if err == nil {
		*data = d.snapshot()
	}
	return err
}

// addSources adds the sources of split that data lacks. It reads samples of all files for the
// fingerprints, but the other sources stay as they were opened.
func (data *splitSnapshot) addSources(split *config.Split, o *Opener) error {
	_, f, err := o.openFiles(split, nil, new(Progress))
	if err != nil {
		return err
	}
	known := len(data.Sources)
	data.Sources = slices.Clone(data.Sources)
	for _, arrays := range f.sources[known:] {
		data.Sources = append(data.Sources, manifestsOf(arrays))
	}
	if f.hint.Arrays != nil {
		data.Hint.Arrays = slices.Concat(data.Hint.Arrays, f.hint.Arrays[known:])
	}
	data.Fingerprint, data.SourceFingerprints = f.fingerprint, f.sourceFingerprints
	return nil
}
