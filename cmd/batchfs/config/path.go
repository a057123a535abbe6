package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"batchfs/fs/state"
	"batchfs/internal/failure"
)

// An unknownSetting is the error for a path with an unknown setting. It matches ENOENT, because no
// such file exists.
type unknownSetting string

func (e unknownSetting) Error() string      { return string(e) }
func (unknownSetting) Is(target error) bool { return target == syscall.ENOENT }

// With returns the split under the settings of a path component, such as "rank=3,world=8". The
// error names the whole path and the rule for the value. It matches syscall.ENOENT if settings has
// a key that cannot be set in a path, and no errno otherwise. Both splits share their slices and
// maps.
func (s *Split) With(settings string) (_ *Split, err error) {
	defer func() { err = failure.Config.Wrap(err) }()
	n := *s
	if n.base == nil {
		n.base, n.path = s, s.Name
	}
	n.path += "/" + settings
	if !strings.Contains(settings, "=") { // perhaps a file, such as train/next
		return nil, unknownSetting(fmt.Sprintf("%s: %q is not a setting, such as seed=1; name the split as %s, or with settings, of %s", n.path, settings,
			strings.TrimSuffix(n.path, "/"+settings), strings.Join(pathKeys(), ", ")))
	}
	seen := map[string]bool{}
	for _, setting := range strings.Split(settings, ",") {
		name, text, _ := strings.Cut(setting, "=")
		key := batchTable.find(name)
		if key != nil && !key.inPath {
			return nil, unknownSetting(fmt.Sprintf("%s: %s cannot be set in a path, but only for a whole mount: "+
				"--set batch.%[2]s=%[3]s, or batchfs.mount(..., %[2]s=...) in Python", n.path, name, text))
		}
		if key == nil {
			known := strings.Join(pathKeys(), ", ")
			return nil, unknownSetting(fmt.Sprintf("%s: unknown setting %q; must be one of %s", n.path, name, known))
		}
		if seen[name] {
			return nil, fmt.Errorf("%s: %s is set twice", n.path, name)
		}
		seen[name] = true
		var value any = text
		if i, err := strconv.ParseInt(text, 10, 64); err == nil && name != "source" {
			value = i
		}
		if !key.set(&n, value) {
			return nil, fmt.Errorf("%s: %s: must be %s (got %s)", n.path, name, key.rule, formatValue(value))
		}
	}
	n.Only = n.sourceIndex(n.Source) + 1
	if err := n.check(); err != nil {
		return nil, err
	}
	if path := n.Path(); len(path) > state.MaxName {
		return nil, fmt.Errorf("%s: the settings make a path of %d bytes, but at most %d are supported; set some of them in the "+
			"configuration", n.path, len(path), state.MaxName)
	}
	return &n, nil
}

func pathKeys() (names []string) {
	for _, key := range batchTable.keys {
		if key.inPath {
			names = append(names, key.name)
		}
	}
	return slices.Sorted(slices.Values(names))
}

// InPath reports whether s is a split under the settings of a path.
func (s *Split) InPath() bool { return s.base != nil }

// Values returns the values of all keys that a path may set, by key. It leaves out source if it is
// not set.
func (s *Split) Values() map[string]any {
	values := map[string]any{}
	for _, key := range batchTable.keys {
		if key.inPath {
			values[key.name] = key.get(s)
		}
	}
	if s.Source == "" {
		delete(values, "source")
	}
	return values
}

// Path returns the canonical path of the split below the mountpoint: its name, followed by a slash
// and the settings that differ from the split's own, if any. Equal settings have the same path,
// however they were written.
func (s *Split) Path() string {
	if s.base == nil {
		return s.Name
	}
	own := s.base.Values()
	differ := s.Values()
	maps.DeleteFunc(differ, func(key string, value any) bool { return value == own[key] })
	if len(differ) == 0 {
		return s.Name
	}
	return s.Name + "/" + JoinSettings(differ)
}

// JoinSettings returns settings as a path component, sorted by key.
func JoinSettings(settings map[string]any) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		list = append(list, fmt.Sprintf("%s=%v", name, settings[name]))
	}
	return strings.Join(list, ",")
}
