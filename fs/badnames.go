package fs

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// explainBadName returns why no file in dir has this name.
func (t *tree) explainBadName(dir inode, name string) string {
	var names []string
	for _, e := range t.listDir(dir, 0) {
		if e.Name != "" { // the raw file of a batch has nothing after its number
			names = append(names, e.Name)
		}
	}
	existing := strings.Join(names, ", ")
	digits := name[:len(name)-len(strings.TrimLeft(name, "0123456789"))]
	k, err := strconv.ParseUint(digits, 10, 64)
	switch {
	case dir.kind() != batchDir && isSettings(name):
		return fmt.Sprintf("%q are settings, which belong in the directory of a split, as in train/%[1]s", name)
	case dir.kind() == rootDir:
		return fmt.Sprintf("no split or file is called %q: there are %s", name, existing)
	case dir.kind() == splitDir:
		return fmt.Sprintf("no file is called %q: there are %s, and settings such as seed=1", name, existing)
	case digits == "":
		return fmt.Sprintf("%q does not begin with a batch number, as 17 and 17.npy do", name)
	case err != nil || k >= MaxBatches:
		return fmt.Sprintf("%s is not a batch number: batch numbers are below %d", digits, uint64(MaxBatches))
	case len(digits) > 1 && digits[0] == '0':
		return fmt.Sprintf("%s begins with a zero: write %d", digits, k)
	case slices.Contains(names, name[len(digits):]): // see listDir
		return fmt.Sprintf("single arrays have files only for batches below %d; read %d.npy or %[2]d.safetensors", 1<<arrayShift, k)
	}
	return fmt.Sprintf("%q cannot follow a batch number, but %s or nothing can", name[len(digits):], existing)
}

// A BadName is a path that was looked up but does not exist, and the reason.
type BadName struct {
	Path, Why string
	Sequence  int // number of the sequence of its directory, as in inodes; 0 for the mountpoint
}

// recordBadName records a name for status.json. It ignores names such as .git, because programs
// look for them everywhere.
func (t *tree) recordBadName(dir inode, name, why string) {
	if strings.HasPrefix(name, ".") {
		return
	}
	path := name
	if b, _ := t.current(dir); b != nil {
		path = b.Spec().Name + "/" + name
		if dir.kind() == batchDir {
			path = b.Spec().Name + "/batch/" + name
		}
	}
	last := t.badNames.Load()
	if !slices.ContainsFunc(*last, func(b BadName) bool { return b.Path == path }) {
		latest := append([]BadName{{path, why, dir.sequence()}}, (*last)[:min(len(*last), 9)]...)
		t.badNames.CompareAndSwap(last, &latest) // may lose one of two concurrent names
	}
}
