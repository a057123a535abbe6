package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// An unknownSetting of a path is, to who looks it up, ENOENT.
type unknownSetting string

func (e unknownSetting) Error() string      { return string(e) }
func (unknownSetting) Is(target error) bool { return target == syscall.ENOENT }

// with is the split under the settings of a path: "rank=3,world=8". The error may be an unknownSetting.
func (s *split) with(settings string) (*split, error) {
	n := *s
	if n.base == nil {
		n.base, n.path = s, s.Split
	}
	n.path += "/" + settings
	seen := map[string]bool{}
	for _, setting := range strings.Split(settings, ",") {
		name, text, _ := strings.Cut(setting, "=")
		key, ok := sequenceKeys[name]
		if !ok {
			known := strings.Join(slices.Sorted(maps.Keys(sequenceKeys)), ", ")
			return nil, unknownSetting(fmt.Sprintf("%s: unknown setting %q; must be one of %s", n.path, name, known))
		}
		if seen[name] {
			return nil, fmt.Errorf("%s: %s is set twice", n.path, name)
		}
		seen[name] = true
		var value any = text
		if i, err := strconv.ParseInt(text, 10, 64); err == nil {
			value = i
		}
		if !key.set(&n, value) {
			return nil, fmt.Errorf("%s: %s: must be %s (got %s)", n.path, name, key.must, show(value))
		}
	}
	return &n, n.check()
}

// values are those of all keys of a sequence.
func (s *split) values() map[string]any {
	all := map[string]any{}
	for name, key := range sequenceKeys {
		all[name] = key.get(s)
	}
	return all
}

// name is that of the directory: the split's, and behind it the settings that differ from the split's own, so that equal
// settings have one name however they are written.
func (s *split) name() string {
	if s.base == nil {
		return s.Split
	}
	own := s.base.values()
	differ := s.values()
	maps.DeleteFunc(differ, func(key string, value any) bool { return value == own[key] })
	if len(differ) == 0 {
		return s.Split
	}
	return s.Split + "/" + joinSettings(differ)
}

// joinSettings are settings as they stand in a path.
func joinSettings(settings map[string]any) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		list = append(list, fmt.Sprintf("%s=%v", name, settings[name]))
	}
	return strings.Join(list, ",")
}
