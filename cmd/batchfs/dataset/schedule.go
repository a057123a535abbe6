package dataset

import (
	"fmt"

	"batchfs/cmd/batchfs/config"
)

// checkMaxEpochs returns an error if max_epochs contradict the configured stages: if a stage reads
// a source that is used up before the stage begins, or if a stage never begins because all sources
// of the stages before it are used up.
func (d *Dataset) checkMaxEpochs() error {
	phases, configured := d.Sequence.Phases(), d.Sequence.Stages
	if d.Sequence.Only > 0 {
		return nil
	}
	usedUp := make([]uint64, len(d.sources)) // row at which each source is used up; 0 if it is not
	refuse := func(stage, source int) error {
		return fmt.Errorf("%s: reads source %q, whose max_epochs, %g, are used up at row %d; leave it out of the stage, or raise its max_epochs",
			d.Split.StagePrefix(stage), d.Split.Sources[source].Name, d.Sequence.MaxEpochs[source], usedUp[source]*uint64(d.Sequence.Hosts()))
	}
	for i, at := range phases[1:] {
		for source, rows := range at.Rows {
			if rows > 0 || len(configured) == 0 || configured[at.Configured].Weights[source] == 0 {
				continue
			}
			if phases[i].Rows[source] > 0 {
				usedUp[source] = at.Row
			}
			if at.Configured > phases[i].Configured {
				return refuse(at.Configured, source)
			}
		}
	}
	if last := phases[len(phases)-1].Configured; last+1 < len(configured) {
		for source, weight := range configured[last+1].Weights {
			if weight > 0 && usedUp[source] > 0 {
				return refuse(last+1, source)
			}
		}
		return fmt.Errorf("%s: never begins, because the max_epochs of all sources of the stages before it are used up; raise one of "+
			"them, or begin the stage earlier",
			d.Split.StagePrefix(last+1))
	}
	return nil
}

// ScheduleSettings returns the settings of a sequence of the split that has the same schedule as d.
// They are equal for all sequences with the same block_size, layout, shuffle_block and number of
// hosts, and empty for a sequence of a single source (source=NAME): a restart that changes its
// max_epochs can change only where it ends.
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
	// A single rank reads all rows of its host. Their order and dtype make no difference.
	settings["batch_size"], settings["rank"], settings["world"], settings["local_world"] = 1, 0, d.Sequence.Hosts(), 1
	settings["shuffle_block"] = s.ShuffleBlock
	delete(settings, "seed")
	delete(settings, "dtype")
	if s.ShuffleBlock == 0 { // shuffle_block needs order = "shuffle"
		delete(settings, "order")
	}
	return config.JoinSettings(settings)
}
