package fs

import (
	"fmt"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/failpoint"
	"batchfs/fs/state"
)

// Where tokens.bin is one token file as it stands, the kernel reads that file itself (FUSE passthrough). It knows the file by an id that
// it gives when the file is registered. Ids belong to the connection, which outlives workers, and are in the shared state. All
// directories of a split share the id of a version of the tokens.

// A backer is the kernel, as far as it registers files.
type backer interface {
	RegisterBackingFd(*fuse.BackingMap) (id int32, errno syscall.Errno)
	UnregisterBackingFd(id int32) syscall.Errno
}

// backing returns who reads tokens.bin, i, of which s is the sequence that now returned.
func (t *tree) backing(i inode, s *Sequence) (state.Backing, error) {
	entry := &t.shared.Sequences[t.sequences.splitOf(i.sequence())]
	if b := entry.Backing(s.Version); b != 0 {
		return b, nil
	}
	b, err := t.register(i, s)
	if err != nil {
		return 0, err
	}
	failpoint.Hit("registered")
	entry.EndBackings(s.Version-1, t.unregister) // where this one goes, if that is not done yet
	chosen := entry.ChooseBacking(s.Version, b)
	if b > 0 && chosen != b { // another open was faster
		t.unregister(int32(b))
	}
	if chosen == 0 {
		return 0, state.ErrOutdated
	}
	return chosen, nil
}

// register asks the kernel to read the token file of s itself.
func (t *tree) register(i inode, s *Sequence) (state.Backing, error) {
	if s.OpenTokens == nil {
		return state.SeveralFiles, nil
	}
	file, err := s.OpenTokens()
	if err != nil {
		return 0, err
	}
	defer file.Close()
	id, errno := t.kernel.RegisterBackingFd(&fuse.BackingMap{Fd: int32(file.Fd())})
	switch {
	case errno != 0 && t.leaving.Load(): // it was not the kernel's answer
		return 0, fmt.Errorf("another process serves: %w", errno)
	case errno != 0:
		return -state.Backing(errno), nil
	}
	now, err := t.sequences.now(i.sequence(), AllBatches)
	if err == nil && now.Version != s.Version {
		err = state.ErrOutdated
	}
	if err != nil {
		t.unregister(id)
		return 0, err
	}
	return state.Backing(id), nil
}

// unregister lets go of a file. Its readers read on. It returns whether the kernel no longer knows the id.
func (t *tree) unregister(id int32) bool {
	errno := t.kernel.UnregisterBackingFd(id)
	return errno == 0 || errno == syscall.ENOENT
}

// backingLasts is how long the id of old tokens is kept, for answers to open that are under way.
const backingLasts = time.Second

// endBackings lets go of the token files of a sequence's split before version v. Otherwise they would take space after they were deleted.
func (t *tree) endBackings(number int, v Version) {
	entry := &t.shared.Sequences[t.sequences.splitOf(number)]
	time.AfterFunc(backingLasts, func() {
		if !t.leaving.Load() { // then the next worker does, and the shared state is no longer this one's
			entry.EndBackings(v, t.unregister)
		}
	})
}

// resumeBackings lets go of what an earlier worker had no time to. No answer of its own is under way any more.
func (t *tree) resumeBackings() {
	for number := 1; number <= t.sequences.splits; number++ {
		t.shared.Sequences[number].EndBackings(t.sequences.get(number).Version, t.unregister)
	}
	t.sequences.changed = t.endBackings
}
