package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"batchfs/fs/guard"
	"batchfs/fs/state"
)

// whyNot says what is wrong with a name that a directory of this kind lacks. Of arrays and splits it has names.
func whyNot(dir kind, name string, names []string) string {
	there := "there are " + strings.Join(names, ", ")
	if dir != batchDir {
		switch {
		case isSettings(name):
			return fmt.Sprintf("%q are settings, which belong in the directory of a split, as in train/%[1]s", name)
		case dir == rootDir:
			return fmt.Sprintf("no split and no file is called %q: %s", name, there)
		}
		return fmt.Sprintf("no file is called %q: %s, and settings, as in seed=1", name, there)
	}
	digits := name[:len(name)-len(strings.TrimLeft(name, "0123456789"))]
	k, err := strconv.ParseUint(digits, 10, 64)
	switch {
	case digits == "":
		return fmt.Sprintf("%q does not begin with the number of a batch, as in 17 or 17.npy", name)
	case err != nil || k >= MaxBatches:
		return fmt.Sprintf("%s is no number of a batch: they are below %d", digits, uint64(MaxBatches))
	case len(digits) > 1 && digits[0] == '0':
		return fmt.Sprintf("%s begins with a zero: say %d", digits, k)
	}
	return fmt.Sprintf("%q does not follow the number of a batch: %s do, or nothing", name[len(digits):], strings.Join(names, ", "))
}

// whyNot says what is wrong with a name that dir lacks.
func (t *tree) whyNot(dir inode, name string) string {
	var names []string
	for _, e := range t.entries(dir, 0) {
		names = append(names, e.Name)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	return whyNot(dir.kind(), name, names)
}

// noteBadName notes a name that was looked up, for status.json. Names that begin with a dot are those of programs that look for their own
// files, such as .git.
func (t *tree) noteBadName(dir inode, name, why string) {
	if strings.HasPrefix(name, ".") {
		return
	}
	path := name
	if s := t.sequence(dir); s != nil {
		path = s.Spec().Name + "/" + name
		if dir.kind() == batchDir {
			path = s.Spec().Name + "/batch/" + name
		}
	}
	t.sequences.mu.Lock()
	defer t.sequences.mu.Unlock()
	t.shared.NoteBadName(state.BadName{Path: path, Why: why})
}

// Why returns what is wrong with a path in a mount of splits, or nil: a name that is not there, or, of a file of batches, what a reader of its
// first batch would meet.
func Why(path string, splits []Sequence) error {
	file, shared, err := state.New()
	if err != nil {
		return err
	}
	defer shared.Close()
	defer file.Close()
	log := slog.New(slog.DiscardHandler)
	t, err := newTree("", splits, shared, guard.NewLimits(len(splits), 0), newLimitedLog(log), Options{Log: log, Timeout: time.Minute})
	if err != nil {
		return err
	}
	i := rootInode
	for name := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' }) {
		if !i.kind().isDir() {
			return fmt.Errorf("%s is below a file", name)
		}
		if i.kind() == splitDir && isSettings(name) {
			s, err := t.sequence(i).With(name)
			if err != nil {
				return err
			}
			number, errno := t.sequences.acquire(s, state.Name{Name: name}, 0)
			if errno != 0 {
				return errno
			}
			i = settingsDir(number, i, name)
			continue
		}
		found := t.lookup(i, name)
		if found == noSuchInode {
			return errors.New(t.whyNot(i, name))
		}
		i = found
	}
	return t.tryBatch(i)
}

// tryBatch reads the first batch of a file of batches.
func (t *tree) tryBatch(i inode) error {
	if i.kind().batches().which == 0 {
		return nil
	}
	s, err := t.sequences.now(i.sequence(), i.batches())
	if err != nil {
		return err
	}
	return readInParts(s, make([]byte, s.Spec().Batch.Bytes()), i.firstBatch())
}
