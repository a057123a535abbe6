package dataset

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/fs/state"
	"batchfs/sampler"
)

// A scheduleTest is a mount of the splits train and val, mixtures of the same two sources.
type scheduleTest struct {
	snapshot *Snapshot
	shared   *state.Shared
}

func newScheduleTest(t *testing.T) *scheduleTest {
	t.Helper()
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 500, "b.bin": 500})
	file, shared, err := state.New()
	must(t, err)
	t.Cleanup(func() { shared.Close() })
	file.Close()
	for _, split := range []string{"train", "val"} {
		shared.Add(shared.NewNumber(), split, 0, 0)
	}
	writeSchedules(t, 0, 0)
	return &scheduleTest{takeSnapshot(t), shared}
}

// writeSchedules writes a configuration in which each split gets another mixture at a row, unless
// the row is 0.
func writeSchedules(t *testing.T, trainRow, valRow int) {
	t.Helper()
	text := testfiles.Small
	for split, row := range map[string]int{"train": trainRow, "val": valRow} {
		text += fmt.Sprintf("[[splits.%[1]s.sources]]\nname = 'a'\ntokens = 'a.bin'\n[[splits.%[1]s.sources]]\nname = 'b'\ntokens = 'b.bin'\n"+
			"[[splits.%[1]s.stages]]\nweights = {a = 1, b = 1}\n", split)
		if row > 0 {
			text += fmt.Sprintf("[[splits.%s.stages]]\nweights = {b = 1}\nfrom_row = %d\n", split, row)
		}
	}
	testfiles.Write(t, map[string]string{"config.toml": text})
}

// check checks whether a restart with other mixtures from these rows on is rejected.
func (s *scheduleTest) check(t *testing.T, trainRow, valRow int, want string) {
	t.Helper()
	writeSchedules(t, trainRow, valRow)
	fresh, err := s.snapshot.ForRestart()
	must(t, err)
	c, err := NewScheduleCheck(s.snapshot, fresh, s.shared)
	must(t, err)
	err = c.Run()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("changes at row %d of train and %d of val: %v, want %q", trainRow, valRow, err, want)
	}
}

// The rows that were read from a split fix only its own schedule, even if they were read with more
// settings than can be recorded. Settings that change no row's source need no record of their own.
func TestRestartOfOneSplit(t *testing.T) {
	s := newScheduleTest(t)
	read := func(path string) {
		t.Helper()
		d, err := s.snapshot.OpenPath(path)
		must(t, err)
		d.FileBatches(s.shared).rowsRecord().Record(100, "val", 1)
	}
	for n := range 4 {
		for _, layout := range []string{"xy", "tokens"} {
			read(fmt.Sprintf("val/block_size=%d,layout=%s", 4+n, layout))
			read(fmt.Sprintf("val/batch_size=%d,block_size=%d,layout=%s,order=sequential,rank=1,seed=2,world=2", 5+n, 4+n, layout))
		}
	}
	s.check(t, 0, 1000, "")
	read("val/block_size=8")
	s.check(t, 1, 0, "")
	s.check(t, 0, 1000, "splits.val.stages: the schedule cannot change, because its rows were read with more combinations of block_size, layout, shuffle_block and number of hosts than")
	s.check(t, 1, 1000, "splits.val.stages: the schedule cannot change, because its rows were read with more combinations of block_size, layout, shuffle_block and number of hosts than")
}

// Row numbers end after the last batch.
func TestRestartAfterTheLastBatch(t *testing.T) {
	s := newScheduleTest(t)
	d, err := s.snapshot.OpenPath(fmt.Sprintf("val/block_size=4,batch_size=%d", sampler.MaxRows))
	must(t, err)
	must(t, d.FileBatches(s.shared).Read(make([]byte, 1), sampler.MaxBatches-1, 0))
	s.check(t, 0, 1000, "splits.val.stages: ")
}

// Whatever was read of a single source, a restart may end it earlier, but changes none of its rows.
func TestRestartOfASingleSource(t *testing.T) {
	s := newScheduleTest(t)
	write := func(maxEpochs int) {
		testfiles.Write(t, map[string]string{"config.toml": testfiles.Small + "order = 'shuffle'\n" +
			"[[splits.train.sources]]\nname = 'a'\ntokens = 'a.bin'\nweight = 2\nmax_epochs = " + fmt.Sprint(maxEpochs) +
			"\n[[splits.train.sources]]\nname = 'b'\ntokens = 'b.bin'\nweight = 1\n"})
	}
	write(2)
	s.snapshot = takeSnapshot(t)
	old, err := s.snapshot.OpenPath("train/source=a")
	must(t, err)
	size, last := old.Sequence.Batch().Bytes(), old.Sequence.Batches()-1
	must(t, old.FileBatches(s.shared).Read(make([]byte, size), last, 0))
	write(1)
	fresh, err := s.snapshot.ForRestart()
	must(t, err)
	c, err := NewScheduleCheck(s.snapshot, fresh, s.shared)
	must(t, err)
	must(t, c.Run())
	now, err := fresh.OpenPath("train/source=a")
	must(t, err)
	for k := range now.Sequence.Batches() {
		if !bytes.Equal(readBatch(t, now.Sequence.Read, size, k), readBatch(t, old.Sequence.Read, size, k)) {
			t.Errorf("batch %d has other rows", k)
		}
	}
	if err := now.FileBatches(s.shared).Read(make([]byte, size), last, 0); now.Sequence.Batches() == 0 || !errors.Is(err, syscall.ENODATA) {
		t.Errorf("%d batches are left; batch %d: %v", now.Sequence.Batches(), last, err)
	}
}
