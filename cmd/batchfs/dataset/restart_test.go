package dataset

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// writeSources writes a configuration with a scheduled split, which has a source for each pattern
// of token files.
func writeSources(t *testing.T, onChange string, patterns ...string) {
	t.Helper()
	text := testfiles.Small + fmt.Sprintf("documents = true\nrows = 'packed'\n[splits.train]\non_change = '%s'\n", onChange)
	for i, pattern := range patterns {
		text += fmt.Sprintf("[[splits.train.sources]]\nname = 's%d'\ntokens = '%s'\n", i, pattern)
	}
	text += "[[splits.train.stages]]\nweights = {s0 = 1}\n"
	if len(patterns) > 1 {
		text += "[[splits.train.stages]]\nweights = {s0 = 1, s1 = 1}\nfrom_row = 30\n"
	}
	testfiles.Write(t, map[string]string{"config.toml": text})
}

// mountSource writes token files with indexes, and returns the snapshot of a mount of web-*.bin.
func mountSource(t *testing.T, onChange string) *Snapshot {
	t.Helper()
	t.Chdir(t.TempDir())
	for _, name := range []string{"web-0.bin", "web-1.bin", "code.bin"} {
		writeIndexed(t, name)
	}
	writeSources(t, onChange, "web-*.bin")
	return takeSnapshot(t)
}

// writeIndexed writes a token file and its index. The file is so large that the fingerprint covers
// fewer of its blocks if there are more files.
func writeIndexed(t *testing.T, name string) {
	t.Helper()
	const count = 70_000
	testfiles.Positions(t, map[string]int{name: count})
	var index []byte
	for end := uint64(7); end <= count; end += 7 {
		index = binary.LittleEndian.AppendUint64(index, end)
	}
	testfiles.Write(t, map[string]string{name + ".index": string(index)})
}

// A restart that adds a source leaves the others as they are mounted, even if their globs match
// other files now. The fingerprints are those of the files that are served.
func TestAddedSource(t *testing.T) {
	for _, onChange := range []string{"error", "follow"} {
		s := mountSource(t, onChange)
		writeSources(t, onChange, "web-?.bin", "code.bin")
		want := mustOpenConfig(t)[0]
		writeIndexed(t, "web-2.bin")
		writeSources(t, onChange, "web-*.bin", "code.bin")
		raw, err := os.ReadFile("web-1.bin")
		must(t, err)
		info, err := os.Stat("web-1.bin")
		must(t, err)
		replace(t, "web-1.bin", string(raw)) // with a copy, which counts as the same file
		must(t, os.Chtimes("web-1.bin", info.ModTime(), info.ModTime()))
		fresh, err := s.ForRestart()
		must(t, err)
		got, err := handOver(t, fresh).OpenPath("train")
		must(t, err)
		described := func(d *Dataset) string {
			return fmt.Sprint(d.Files(), d.fingerprint, d.sourceFingerprints, d.Identity())
		}
		if described(got) != described(want) {
			t.Errorf("%s: the restart serves\n%s\nwant\n%s", onChange, described(got), described(want))
		}
		for k := range uint64(20) {
			if !bytes.Equal(originsOf(got, k), originsOf(want, k)) {
				t.Errorf("%s: batch %d has other rows", onChange, k)
			}
		}
	}
}

// If a restart makes a sequence shorter, sequence.bin gets shorter, but paths that could be looked
// up before still can.
func TestShorterSequence(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 1000})
	write := func(maxEpochs int, steps uint64) {
		testfiles.Write(t, map[string]string{"config.toml": testfiles.Small + fmt.Sprintf(
			"[splits.train]\nsteps = %d\n[[splits.train.sources]]\nname = 'a'\ntokens = 'a.bin'\nweight = 1\nmax_epochs = %d\n", steps, maxEpochs)})
	}
	write(2, 1)
	before := mustOpenConfig(t)[0].MaxSteps()
	write(2, before)
	s := takeSnapshot(t)
	write(1, before)
	fresh, err := s.ForRestart()
	must(t, err)
	d, err := handOver(t, fresh).OpenPath("train")
	must(t, err)
	if d.MaxSteps() >= before || d.MaxSteps() != d.Sequence.Batches() || d.Steps != before {
		t.Errorf("sequence.bin has %d batches, and batches.npy %d; both had %d", d.MaxSteps(), d.Steps, before)
	}
	// A file that was opened before fails, too.
	if err := d.FileBatches(nil).ReadBatchJSON(make([]byte, 1), before-1, 0); !errors.Is(err, syscall.ENODATA) {
		t.Errorf("batch/%d.json: error %v, want one that matches ENODATA", before-1, err)
	}
	mustWith(t, d, fmt.Sprintf("steps=%d", before))
	if _, err := d.With(fmt.Sprintf("steps=%d", before+1)); err == nil {
		t.Errorf("steps can be more than %d", before)
	}
}

// A source cannot be added while a file of another source has changed. With follow, it can be added
// once the mount serves the new file.
func TestSourceIsAddedToUnchangedFiles(t *testing.T) {
	for file, change := range map[string]func(t *testing.T, file string){
		"web-0.bin":       func(t *testing.T, file string) { replace(t, file, strings.Repeat("\x07\x00\x00\x00", 70_000)) },
		"web-1.bin":       func(t *testing.T, file string) { must(t, os.Chtimes(file, time.Time{}, time.Unix(1e9, 0))) },
		"web-1.bin.index": func(t *testing.T, file string) { must(t, os.Chtimes(file, time.Time{}, time.Unix(1e9, 0))) },
	} {
		for onChange, want := range map[string]string{
			"error":  "%s has changed since it was opened: ",
			"follow": "%s has changed (",
		} {
			s := mountSource(t, onChange)
			change(t, file)
			writeSources(t, onChange, "web-*.bin", "code.bin")
			path, err := filepath.Abs(file)
			must(t, err)
			want = "splits.train: " + fmt.Sprintf(want, path)
			if _, err := s.ForRestart(); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s, on_change = %s: %v, want %s", file, onChange, err, want)
			}
			if onChange == "error" {
				continue
			}
			mounted := mountedSequencesOf(t, s, (*os.File).Close)[0]
			mustCheckAll(t, mounted)
			fresh, err := s.ForRestart()
			must(t, err)
			got, err := fresh.OpenPath("train")
			must(t, err)
			if now := mustOpenConfig(t)[0]; got.Version != 1 || got.fingerprint != now.fingerprint {
				t.Errorf("%s: version %d with fingerprint %s, want %s", file, got.Version, got.fingerprint, now.fingerprint)
			}
		}
	}
}

// An added source must have the same arrays as the others, as vocab.json lists them next to the
// tokens. They are served.
func TestArraysOfAnAddedSource(t *testing.T) {
	const first, added = "[[splits.a.sources]]\nname = 'a'\ntokens = 'sft/a.bin'\n[[splits.a.stages]]\nweights = {a = 1}\n",
		"[[splits.a.sources]]\nname = 'b'\ntokens = '%s/a.bin'\n[[splits.a.stages]]\nweights = {b = 1}\nfrom_row = 8\n"
	for _, test := range []struct{ dir, mountedWithout, addedWithout, want string }{
		{"again", "", "", ""},
		{"weights", "", "", "source 1 has the arrays [weights at y], source 0 has [mask at y]"},
		{"again", "sft", "", "source 1 has the arrays [mask at y], source 0 has []"},
		{"again", "", "sft", "source 1 has the arrays [mask at y], source 0 has []"},
		{"again", "", "again", "source 1 has the arrays [], source 0 has [mask at y]"},
		{"again", "", "sft again", "source 1 has the arrays [], source 0 has [mask at y]"},
	} {
		writePrepared(t)
		without := func(dirs, name, other string) {
			for _, dir := range strings.Fields(dirs) {
				must(t, os.Rename(dir+"/"+name, dir+"/"+other))
			}
		}
		without(test.mountedWithout, "vocab.json", "moved.json")
		testfiles.Write(t, map[string]string{"config.toml": two + first})
		s := takeSnapshot(t)
		without(test.mountedWithout, "moved.json", "vocab.json")
		without(test.addedWithout, "vocab.json", "moved.json")
		testfiles.Write(t, map[string]string{"config.toml": two + first + fmt.Sprintf(added, test.dir)})
		fresh, err := s.ForRestart()
		if test.want != "" {
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%+v: %v", test, err)
			}
			continue
		}
		must(t, err)
		got, err := fresh.OpenPath("a")
		must(t, err)
		if want := mustOpenConfig(t)[0]; got.Identity() != want.Identity() {
			t.Errorf("%+v: the identity is %s, want %s", test, got.Identity(), want.Identity())
		}
	}
}
