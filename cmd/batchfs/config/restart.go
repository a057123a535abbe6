package config

import (
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"

	"batchfs/internal/failure"
)

// CheckRestart returns an error if a restart cannot apply c to a mount with the configuration old.
// The error names the first difference.
func (c *Config) CheckRestart(old *Config) (err error) {
	defer func() { err = failure.Config.Wrap(err) }()
	const fix = "to change it, unmount and mount again"
	compare := func(table string, configured, mounted map[string]any) error {
		for _, key := range slices.Sorted(maps.Keys(mounted)) {
			if !reflect.DeepEqual(configured[key], mounted[key]) {
				return fmt.Errorf("%s.%s is %v in the mount, and the configuration has %v; %s", table, key, mounted[key], configured[key], fix)
			}
		}
		return nil
	}
	if err := compare("mount", fixed(&c.Mount, &mountTable), fixed(&old.Mount, &mountTable)); err != nil {
		return err
	}
	for _, oldSplit := range old.Splits {
		split, err := c.Named(oldSplit.Name)
		if err != nil {
			return fmt.Errorf("splits.%s is mounted, but the configuration no longer has it; %s", oldSplit.Name, fix)
		}
		for i, source := range oldSplit.Sources {
			now := "but the configuration has no such source"
			if i < len(split.Sources) {
				now = fmt.Sprintf("and %s in the configuration", split.Sources[i].Tokens)
			}
			if i >= len(split.Sources) || !slices.Equal(split.Sources[i].Tokens, source.Tokens) {
				return fmt.Errorf("%s: source %d has the files %s in the mount, %s; sources may only be appended: "+
					"put it back in its place, with weight 0 to retire it, or unmount and mount again", split.MessagePrefix("sources"), i, source.Tokens, now)
			}
			table := fmt.Sprintf("splits.%s.sources[%d]", oldSplit.Name, i)
			if err := compare(table, fixed(&split.Sources[i], &sourceTable), fixed(&source, &sourceTable)); err != nil {
				return err
			}
			if j := split.sourceIndex(source.Name); j >= 0 && j != i {
				return fmt.Errorf("%s: source %d has the name %q, which source %d has in the mount; choose another one",
					split.MessagePrefix("sources"), j, source.Name, i)
			}
		}
		if was, is := oldSplit.Scheduled(), split.Scheduled(); was != is && len(oldSplit.Sources) > 0 {
			how := map[bool]string{false: "neither stages nor max_epochs", true: "stages or max_epochs"}
			return fmt.Errorf("%s: the split has %s in the mount, and %s in the configuration, so states that readers saved would not fit; %s",
				split.MessagePrefix("stages", "sources"), how[was], how[is], fix)
		}
		if err := compare("splits."+oldSplit.Name, fixed(split, &batchTable, &splitTable), fixed(oldSplit, &batchTable, &splitTable)); err != nil {
			return err
		}
	}
	for _, split := range c.Splits {
		if _, err := old.Named(split.Name); err != nil {
			return fmt.Errorf("%s: the mount has no split %s; %s", split.MessagePrefix(), split.Name, fix)
		}
	}
	return nil
}

// fixed returns the values in c of the keys that cannot change while a split is mounted.
func fixed(c any, tables ...*table) map[string]any {
	values := map[string]any{}
	for _, t := range tables {
		for _, k := range t.keys {
			if k.effect != OnNothing && k.effect != OnSchedule {
				values[k.name] = k.get(c)
				if k.initial == nil && isUnset(values[k.name]) {
					values[k.name] = notSet{}
				}
			}
		}
	}
	return values
}

// notSet is the value of a key that is not set. It differs from the text "none".
type notSet struct{}

func (notSet) String() string { return "none" }

// isUnset reports whether the value of a key without a default means that the key is not set.
func isUnset(value any) bool {
	v := reflect.ValueOf(value)
	return v.CanInt() && v.Int() == -1 || !v.CanInt() && !v.CanUint() && v.IsZero()
}

// Rescheduled yields each split whose schedule is not that of the split with the same name in old,
// and that split. CheckRestart must allow a restart from old to c.
func (c *Config) Rescheduled(old *Config) iter.Seq2[*Split, *Split] {
	return func(yield func(split, oldSplit *Split) bool) {
		for _, split := range c.Splits {
			if oldSplit, _ := old.Named(split.Name); !split.HasScheduleOf(oldSplit) && !yield(split, oldSplit) {
				return
			}
		}
	}
}

// HasScheduleOf reports whether s has the schedule of t, if CheckRestart allows a restart from t to
// s. All other settings are fixed.
func (s *Split) HasScheduleOf(t *Split) bool { return reflect.DeepEqual(s.Settings, t.Settings) }
