package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// CanReplace returns an error if a restart cannot apply c to a mount with the configuration old.
// The error names the first difference.
func (c *Config) CanReplace(old *Config) error {
	const fix = "to change it, unmount and mount again"
	for _, k := range mountTable.keys {
		if v, mounted := k.get(&c.Mount), k.get(&old.Mount); !k.restart && v != mounted {
			return fmt.Errorf("mount.%s is %v in the mount, and the configuration has %v; %s", k.name, mounted, v, fix)
		}
	}
	for _, oldSplit := range old.Splits {
		split, err := c.Named(oldSplit.Name)
		if err != nil {
			return fmt.Errorf("splits.%s is mounted, but the configuration no longer has it; %s", oldSplit.Name, fix)
		}
		for i, source := range oldSplit.Sources {
			if i >= len(split.Sources) || !slices.Equal(source.Tokens, split.Sources[i].Tokens) || !reflect.DeepEqual(source.Aligned, split.Sources[i].Aligned) {
				return fmt.Errorf("%s: source %d has the files %s in the mount, but not in the configuration; sources may only be appended: "+
					"put it back in its place, with weight 0 to retire it, or unmount and mount again", split.MessagePrefix("sources"), i, source.Tokens)
			}
			if j := split.sourceIndex(source.Name); j >= 0 && j != i {
				return fmt.Errorf("%s: source %d has the name %q, which source %d has in the mount; choose another one", split.MessagePrefix("sources"), j, source.Name, i)
			}
		}
		settings, mounted := split.fixedByMount(), oldSplit.fixedByMount()
		for _, key := range slices.Sorted(maps.Keys(mounted)) {
			if !reflect.DeepEqual(settings[key], mounted[key]) {
				return fmt.Errorf("splits.%s.%s is %v in the mount, and the configuration has %v; %s", oldSplit.Name, key, mounted[key], settings[key], fix)
			}
		}
	}
	if len(c.Splits) > len(old.Splits) {
		return fmt.Errorf("the configuration has splits that are not mounted; %s", fix)
	}
	return nil
}

// fixedByMount returns the settings that cannot change while a split is mounted, besides the files
// of its sources.
func (s *Split) fixedByMount() map[string]any {
	settings := map[string]any{"arrays": s.Aligned, "sources": len(s.Sources) > 0}
	for _, k := range slices.Concat(batchTable.keys, splitTable.keys) {
		if k.get != nil && !k.restart {
			settings[k.name] = k.get(s)
		}
	}
	return settings
}

// HasScheduleOf reports whether s, which must be able to replace t, has the same schedule: the same
// number of sources, and the same weights, stages and max_epochs.
func (s *Split) HasScheduleOf(t *Split) bool {
	return len(s.Sources) == len(t.Sources) && slices.Equal(s.Weights, t.Weights) && slices.Equal(s.MaxEpochs, t.MaxEpochs) &&
		reflect.DeepEqual(s.Settings.Stages, t.Settings.Stages)
}
