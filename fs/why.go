package fs

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/guard"
	"batchfs/fs/state"
)

// whyNot says what is wrong with a name that a directory lacks.
func (t *tree) whyNot(dir inode, name string) string {
	var names []string
	for _, e := range t.entries(dir, 0) {
		if e.Name != "" { // as a batch has behind its number
			names = append(names, e.Name)
		}
	}
	there := strings.Join(names, ", ")
	digits := name[:len(name)-len(strings.TrimLeft(name, "0123456789"))]
	k, err := strconv.ParseUint(digits, 10, 64)
	switch {
	case dir.kind() != batchDir && isSettings(name):
		return fmt.Sprintf("%q are settings, which belong in the directory of a split, as in train/%[1]s", name)
	case dir.kind() == rootDir:
		return fmt.Sprintf("no split and no file is called %q: there are %s", name, there)
	case dir.kind() == splitDir:
		return fmt.Sprintf("no file is called %q: there are %s, and settings, as in seed=1", name, there)
	case dir.kind() != batchDir:
		return fmt.Sprintf("%q stands below a file", name)
	case digits == "":
		return fmt.Sprintf("%q does not begin with the number of a batch, as in 17 or 17.npy", name)
	case err != nil || k >= MaxBatches:
		return fmt.Sprintf("%s is no number of a batch: they are below %d", digits, uint64(MaxBatches))
	case len(digits) > 1 && digits[0] == '0':
		return fmt.Sprintf("%s begins with a zero: say %d", digits, k)
	}
	return fmt.Sprintf("%q does not follow the number of a batch: %s do, or nothing", name[len(digits):], there)
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
	t, err := newTree("", splits, shared, guard.NewLimits(len(splits), 0), newLimitedLog(log), Options{
		Log: log, Timeout: time.Minute, // and what makes status.json and metrics, which are not shown
		TableBytes: func() int64 { return 0 }, Remaps: func() (int64, int64) { return 0, 0 },
		Store: func() *StoreUse { return nil }, Metrics: func(*state.Shared) []byte { return nil },
	})
	if err != nil {
		return err
	}
	node := uint64(rootInode)
	for name := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' }) {
		var found fuse.EntryOut
		status := t.Lookup(nil, &fuse.InHeader{NodeId: node}, name, &found)
		if status.Ok() && found.NodeId != 0 {
			node = found.NodeId
			continue
		}
		if bad := shared.BadNames(); len(bad) > 0 {
			return errors.New(bad[0].Why)
		}
		return fmt.Errorf("%s: %w", name, cmp.Or(syscall.Errno(status), syscall.ENOENT))
	}
	return t.tryBatch(inode(node))
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
