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

// fixedByMount returns the settings that cannot change while a split is mounted. It leaves out the
// name and vocab_size of a source, which do not affect the contents of a batch.
func (s *Split) fixedByMount() map[string]any {
	sources := slices.Clone(s.Sources)
	for i := range sources {
		sources[i].Name, sources[i].VocabSize = "", 0
	}
	settings := map[string]any{"sources": sources, "arrays": s.Aligned}
	for _, k := range slices.Concat(batchTable.keys, splitTable.keys) {
		if k.get != nil && !k.restart {
			settings[k.name] = k.get(s)
		}
	}
	return settings
}
