package dataset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/fs"
	"batchfs/fs/state"
	"batchfs/internal/clock"
	"batchfs/internal/testwait"
)

func positions(n int) string {
	var raw []byte
	for i := range uint32(n) {
		raw = binary.LittleEndian.AppendUint32(raw, i)
	}
	return string(raw)
}

const (
	ids = "\x00\x00\x01\x00\x02\x00"
	eot = `{"kind": "char", "vocab_size": 3, "tokens": ["a", "b", "c"], "eot": %d, "eot_at": "end"}`
)

// changes maps names of tests to configurations, and to the files that later have other contents.
var changes = map[string]struct {
	write  func(t *testing.T) // writes the configuration; changes the working directory
	change map[string]string  // new contents, by file
}{
	"many":   {testfiles.WriteManySplits, map[string]string{"a.bin": positions(60), "c.bin": positions(20)}},
	"mask":   {func(t *testing.T) { writeArrays(t, "") }, map[string]string{"b.mask": strings.Repeat("\x00", 30)}},
	"array":  {func(t *testing.T) { writeArrays(t, "") }, map[string]string{"b.top": strings.Repeat("pot4", 30)}},
	"tokens": {func(t *testing.T) { writeArrays(t, "") }, map[string]string{"b.bin": positions(31)[4:]}},
	"documents": {func(t *testing.T) { writeDocuments(t) }, map[string]string{
		"a.bin.index": string(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 100), 820)),
	}},
	"end of text": {func(t *testing.T) {
		t.Chdir(t.TempDir())
		testfiles.Write(t, map[string]string{"a.bin": strings.Repeat(ids, 40), "vocab.json": fmt.Sprintf(eot, 0),
			"config.toml": two + "[splits.a]\ntokens = 'a.bin'\ndocuments = true\n"})
	}, map[string]string{"a.bin": strings.Repeat(ids, 41), "vocab.json": fmt.Sprintf(eot, 2)}},
	"found mask": {func(t *testing.T) {
		writePrepared(t)
		testfiles.Write(t, map[string]string{"config.toml": two + "[splits.a]\ntokens = 'sft/a.bin'"})
	}, map[string]string{"sft/a.mask.bin": strings.Repeat("\x01", 120)}},
}

// A worker that starts from a snapshot serves the same batches as an opened split. After files have
// changed, it serves the new batches, and so does a worker that starts from the published snapshot.
func TestWorkersServeWhatOpens(t *testing.T) {
	for name, test := range changes {
		t.Run(name, func(t *testing.T) {
			test.write(t)
			var flags config.Flags
			for _, d := range mustOpenConfig(t) {
				flags.Sets = append(flags.Sets, "splits."+d.Split.Name+".on_change=follow")
			}
			paths := []string{"", "seed=9", "start=3,steps=4", "dtype=int64/seed=9"}
			want := mountedSequences(t, openFlags(t, flags), paths)
			snapshot := takeWith(t, flags)
			kept := map[string]string{}
			for _, file := range []string{"config.toml", "rng.bin"} { // not needed by workers
				if raw, err := os.ReadFile(file); err == nil {
					kept[file] = string(raw)
					os.Remove(file)
				}
			}
			var published *Snapshot
			worker := mountedSequencesOf(t, snapshot, func(file *os.File) error {
				published = readAndClose(t, file)
				return nil
			})
			got := mountedUnder(t, worker, paths)
			checkAllSame(t, got, want)

			for file, content := range test.change {
				replace(t, file, content)
			}
			testfiles.Write(t, kept)
			changed := openFlags(t, flags)
			for i, d := range changed {
				if d.fingerprint != worker[i].batches().fingerprint {
					d.Version = 1
				}
			}
			if changed[len(changed)-1].Version == 0 {
				t.Fatal("nothing has changed")
			}
			want = mountedSequences(t, changed, paths)
			testfiles.Write(t, map[string]string{"rng.bin": testfiles.TorchState(24, 77, 77)})
			for name, s := range got {
				old, changes := s.Current(), []fs.BatchList{}
				s.OnChange(func(b fs.BatchList) { changes = append(changes, b) })
				now := mustCheckAll(t, s)
				if again := mustCheckAll(t, s); again != now {
					t.Errorf("%s changes without end", name)
				}
				if want := []fs.BatchList{now}; now != old && !slices.Equal(changes, want) || now == old && len(changes) > 0 {
					t.Errorf("%s: OnChange was told %v, want %v", name, changes, want)
				}
			}
			checkAllSame(t, got, want)
			checkAllSame(t, mountedUnder(t, mountedSequencesOf(t, published, nil), paths), want)
		})
	}
}

// mountedSequences returns datasets as a mount serves them, with the settings of each path, keyed
// by split and path.
func mountedSequences(t *testing.T, all []*Dataset, paths []string) map[string]*MountedSequence {
	var served []*MountedSequence
	for _, d := range all {
		served = append(served, newMountedSequence(d, testWatcher(d), "", nil))
	}
	return mountedUnder(t, served, paths)
}

func mountedUnder(t *testing.T, all []*MountedSequence, paths []string) map[string]*MountedSequence {
	found := map[string]*MountedSequence{}
	for _, s := range all {
		for _, path := range paths {
			if in, err := withPath(s, path); err == nil { // not every split accepts all settings
				found[s.batches().Split.Name+"/"+path] = in
			}
		}
	}
	return found
}

func checkAllSame(t *testing.T, got, want map[string]*MountedSequence) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d sequences, want %d", len(got), len(want))
	}
	for name, s := range want {
		if got[name] == nil {
			t.Errorf("%s is not served", name)
		} else {
			checkSame(t, got[name].batches(), s.batches())
		}
	}
}

func withPath(s *MountedSequence, path string) (*MountedSequence, error) {
	for _, settings := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) {
		with, err := s.With(settings)
		if err != nil {
			return nil, err
		}
		s = with.(*MountedSequence)
	}
	return s, nil
}

func (s *MountedSequence) batches() *FileBatches { return s.current.Load() }

// checkAll checks all files, and returns the current batches.
func checkAll(s *MountedSequence) (*FileBatches, error) {
	s.watch.pass()
	_, err := s.LatestWhole(nil)
	return s.batches(), err
}

func mustCheckAll(t *testing.T, s *MountedSequence) *FileBatches {
	t.Helper()
	now, err := checkAll(s)
	if err != nil {
		t.Fatalf("%s: %v", now.Split.Path(), err)
	}
	return now
}

func replace(t *testing.T, file, content string) {
	t.Helper()
	testfiles.Write(t, map[string]string{"new": content})
	must(t, os.Rename("new", file))
}

// The first request of a process checks the files of the snapshot from which the process started.
func TestFirstRequestChecksFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 50})
	s := onlyMountedSequence(t, testfiles.Small+"[splits.train]\ntokens = 'a.bin'")
	replace(t, "a.bin", positions(50))
	if _, err := s.LatestWhole(nil); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("the file was replaced, and LatestWhole returns the error %v", err)
	}
}

// If a split follows changes and one of its files cannot be served, batches of its other files can,
// even if there are so few files that all are checked for each batch.
func TestBatchesOfOtherFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 50, "b.bin": 50})
	s := onlyMountedSequence(t, testfiles.Small+"order = 'sequential'\n[splits.train]\ntokens = ['a.bin', 'b.bin']\non_change = 'follow'")
	must(t, os.Remove("b.bin"))
	b, err := s.LatestFor(0, nil)
	must(t, err)
	must(t, b.Check(0))
	last := b.Spec().EpochBatches - 1
	if err := b.Check(last); err == nil {
		t.Errorf("batch %d, of a file that is gone, can be read", last)
	}
}

// The watcher of an idle split ends. The next request starts another one, which follows changes.
func TestWatcherRests(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 50})
	s := onlyMountedSequence(t, testfiles.Small+"[splits.train]\ntokens = 'a.bin'\non_change = 'follow'")
	for changes := range uint64(3) {
		now, err := s.LatestWhole(nil) // relies on the view alone
		must(t, err)
		if now.Spec().Version != fs.Version(changes) {
			t.Fatalf("version %d after %d changes", now.Spec().Version, changes)
		}
		s.watch.lastRequest.Store(clock.Now() - 2*int64(idleTimeout))
		testwait.Until(t, "the end of the goroutine", func() (any, bool) {
			select {
			case s.watch.checkNow <- struct{}{}:
			default:
			}
			return "awake", !s.watch.awake.Load()
		})
		replace(t, "a.bin", positions(60+int(changes)))
		s.watch.mu.Lock()
		s.watch.lastPass -= int64(3 * checkEvery) // simulates an idle time
		s.watch.mu.Unlock()
	}
}

// The request that notices a change waits while a process has the file open for writing, for longer
// than a few attempts to open it take.
func TestRequestAwaitsTheWriter(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 50})
	s := onlyMountedSequence(t, testfiles.Small+"[splits.train]\ntokens = 'a.bin'\non_change = 'follow'")
	f, err := os.OpenFile("a.bin", os.O_RDWR, 0)
	must(t, err)
	must(t, os.Chtimes("a.bin", time.Time{}, time.Now().Add(time.Hour)))
	closed := make(chan error)
	go func() {
		seen := map[*view]bool{} // views of failed attempts
		for len(seen) < 4 {
			if v := s.watch.view.Load(); v.overwrittenSince > 0 {
				seen[v] = true
			}
			time.Sleep(time.Millisecond)
		}
		closed <- f.Close()
	}()
	now, err := s.LatestFor(0, nil)
	must(t, err)
	must(t, testwait.For(t, "the close", closed))
	if now.Spec().Version != 1 {
		t.Errorf("version %d", now.Spec().Version)
	}
}

// If a file is being overwritten during a pass, its new tokens are served once the writer closes
// it, although closing changes nothing more.
func TestOverwrittenFileIsFollowed(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 50})
	s := onlyMountedSequence(t, testfiles.Small+"[splits.train]\ntokens = 'a.bin'\non_change = 'follow'")
	f, err := os.OpenFile("a.bin", os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteString(positions(51)[4:])
	must(t, err)
	must(t, os.Chtimes("a.bin", time.Time{}, time.Now().Add(time.Hour)))
	for range 2 {
		if _, err := s.LatestFor(0, nil); err == nil || !strings.Contains(err.Error(), "is being overwritten") {
			t.Errorf("while it is overwritten: %v", err)
		}
	}
	must(t, f.Close())
	now, err := s.LatestFor(0, nil)
	must(t, err)
	if now.Spec().Version != 1 {
		t.Errorf("version %d", now.Spec().Version)
	}
}

// The rows of a read are recorded before they are read. Rows beyond the end are not.
func TestReadsAreRecorded(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 50})
	file, shared, err := state.New()
	must(t, err)
	defer shared.Close()
	file.Close()
	shared.Add(shared.NewNumber(), "train", 0, 0)
	d := mustOpen(t, testfiles.Small+"[splits.train]\norder = 'shuffle'\n[[splits.train.sources]]\nname = 'a'\ntokens = 'a.bin'\nweight = 1\nmax_epochs = 1\n")[0]
	b := d.FileBatches(shared)
	check := func(when string, want uint64) {
		t.Helper()
		if list, all := shared.RowsRecords("train"); len(list) != 1 || list[0].Rows() != want || !all {
			t.Errorf("%s: %+v, want %d rows", when, list, want)
		}
	}
	read := make([]byte, 2*b.Spec().Batch.Bytes())
	must(t, b.Read(read, 1, 0))
	check("batches 1 and 2", 3*uint64(d.Sequence.BatchSize))
	if err := b.Read(read, d.Sequence.Batches()-1, 0); !errors.Is(err, syscall.ENODATA) {
		t.Errorf("a read beyond the end: %v", err)
	}
	check("beyond the end", 3*uint64(d.Sequence.BatchSize))
	must(t, os.Remove("a.bin"))
	if err := b.Read(read, 2, 0); err == nil {
		t.Error("a removed file is read")
	}
	check("a read that fails", 4*uint64(d.Sequence.BatchSize))
}
