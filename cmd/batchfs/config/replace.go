package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// CanReplace returns an error that names the first difference that would change a file or a batch of the mount of old.
func (c *Config) CanReplace(old *Config) error {
	const fix = "unmount, and mount again, to change it"
	for _, k := range mountTable.keys {
		if now, then := k.get(&c.Mount), k.get(&old.Mount); !k.restart && now != then {
			return fmt.Errorf("mount.%s is %v, and the configuration has %v; %s", k.name, then, now, fix)
		}
	}
	for _, oldSplit := range old.Splits {
		split, err := c.Named(oldSplit.Name)
		if err != nil {
			return fmt.Errorf("splits.%s is mounted, and the configuration has it no more; %s", oldSplit.Name, fix)
		}
		now, then := split.fixedByMount(), oldSplit.fixedByMount()
		for _, key := range slices.Sorted(maps.Keys(then)) {
			if !reflect.DeepEqual(now[key], then[key]) {
				return fmt.Errorf("splits.%s.%s is %v in the mount, and the configuration has %v; %s", oldSplit.Name, key, then[key], now[key], fix)
			}
		}
	}
	if len(c.Splits) > len(old.Splits) {
		return fmt.Errorf("the configuration has splits that the mount has not; %s", fix)
	}
	return nil
}

// fixedByMount returns the settings that cannot change while a split is mounted. vocab_size can: it decides whether a batch is an
// error, not what is in it.
func (s *Split) fixedByMount() map[string]any {
	sources := slices.Clone(s.Sources)
	for i := range sources {
		sources[i].VocabSize = 0
	}
	all := map[string]any{"sources": sources, "arrays": s.Aligned}
	for _, k := range slices.Concat(batchTable.keys, splitTable.keys) {
		if k.get != nil && !k.restart {
			all[k.name] = k.get(s)
		}
	}
	return all
}
