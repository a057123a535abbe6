package dataset

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/internal/testfiles"
)

func takeSnapshot(t testing.TB) *Snapshot {
	t.Helper()
	return takeWith(t, config.Flags{})
}

func takeWith(t testing.TB, flags config.Flags) *Snapshot {
	t.Helper()
	raw, err := flags.Read()
	must(t, err)
	s, err := NewSnapshot("/mnt", flags, raw, openFlags(t, flags))
	must(t, err)
	return handOver(t, s)
}

// handOver returns the snapshot as another process would read it.
func handOver(t testing.TB, s *Snapshot) *Snapshot {
	t.Helper()
	file, err := s.File()
	must(t, err)
	return readAndClose(t, file)
}

func readAndClose(t testing.TB, file *os.File) *Snapshot {
	t.Helper()
	defer file.Close()
	s, err := ReadSnapshot(file)
	must(t, err)
	return s
}

func mountedSequencesOf(t testing.TB, s *Snapshot, publish func(*os.File) error) []*MountedSequence {
	t.Helper()
	c, err := s.Config()
	must(t, err)
	splits, err := s.MountedSequences(NewOpener(c), slog.New(slog.DiscardHandler), nil, publish)
	must(t, err)
	var all []*MountedSequence
	for _, split := range splits {
		all = append(all, split.(*MountedSequence))
	}
	return all
}

func checkSame(t testing.TB, a, b *FileBatches) {
	t.Helper()
	if a.Split.Path() != b.Split.Path() || a.Version != b.Version || fmt.Sprint(a.Metadata()) != fmt.Sprint(b.Metadata()) || !bytes.Equal(a.Info(), b.Info()) {
		t.Errorf("version %d, %v, %s\nis not version %d, %v, %s", a.Version, a.Metadata(), a.Info(), b.Version, b.Metadata(), b.Info())
	}
	for k := range uint64(5) {
		if !bytes.Equal(readBatch(t, a.Read, a.Sequence.Batch().Bytes(), k), readBatch(t, b.Read, b.Sequence.Batch().Bytes(), k)) {
			t.Errorf("%s: batch %d differs", a.Split.Path(), k)
		}
	}
}

// A worker starts even if token files are gone. Reading them fails.
func TestSnapshotWithoutFiles(t *testing.T) {
	openMany(t)
	s := takeSnapshot(t)
	must(t, os.Rename("a.bin", "moved.bin"))
	q := mountedSequencesOf(t, s, nil)[0]
	if err := q.batches().Read(make([]byte, 10), 0, 0); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a read: %v", err)
	}
	if now, err := checkAll(q); now.Version != 0 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a look: %v", err)
	}
}

// New tokens of any source are read only after their snapshot was published.
func TestChangeIsPublished(t *testing.T) {
	for _, file := range []string{"a.bin", "c.bin"} {
		openMany(t)
		full := errors.New("full")
		fail := full
		s := takeWith(t, config.Flags{Sets: []string{"splits.mix.on_change=follow"}})
		all := mountedSequencesOf(t, s, func(file *os.File) error {
			file.Close()
			return fail
		})
		mix := all[len(all)-1]
		old := mix.batches()
		testfiles.Positions(t, map[string]int{file: 77})
		if now, err := checkAll(mix); now != old || !errors.Is(err, full) || !errors.Is(err, syscall.ESTALE) {
			t.Errorf("%s: not published: %v", file, err)
		}
		if now := s.find("mix"); now.Version != 0 || now.Fingerprint != old.fingerprint {
			t.Errorf("%s: a snapshot that was not published is kept: version %d", file, now.Version)
		}
		fail = nil
		v := *mix.watch.view.Load()
		v.retryAt, v.restUntil = 0, 0 // skip the backoff
		mix.watch.view.Store(&v)
		if now := mustCheckAll(t, mix); now.Version != 1 || now.fingerprint == old.fingerprint {
			t.Errorf("%s: version %d, fingerprint %s", file, now.Version, now.fingerprint)
		} else if kept := s.find("mix"); kept.Version != 1 || kept.Fingerprint != now.fingerprint {
			t.Errorf("%s: the snapshot that was published is not kept: version %d", file, kept.Version)
		}
		if err := old.Read(make([]byte, 1<<7), 0, 0); !errors.Is(err, syscall.ESTALE) {
			t.Errorf("%s: the old tokens are read: %v", file, err)
		}
	}
}

// A path in a mount leads to the batches of that mount, even if the configuration has changed
// since.
func TestSnapshotOpenPath(t *testing.T) {
	want := openMany(t)
	s := takeSnapshot(t)
	must(t, os.Remove("config.toml"))
	for i, path := range []string{"random", "shuffle/seed=9,rank=0"} {
		if i == 1 {
			want[1] = mustWith(t, want[1], "seed=9,rank=0")
		}
		d, err := s.OpenPath(path)
		must(t, err)
		for k := range uint64(5) {
			if got, want := originsOf(d, k), originsOf(want[i], k); !bytes.Equal(got, want) {
				t.Errorf("%s: batch %d is\n%s, want\n%s", path, k, got, want)
			}
		}
	}
	testfiles.Positions(t, map[string]int{"a.bin": 60})
	d, err := s.OpenPath("random")
	must(t, err)
	if err := d.TryRead(); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("after a change: %v", err)
	}
	if _, err := s.OpenPath("nosuch"); err == nil || !strings.Contains(err.Error(), `no split "nosuch"; there are ["random"`) {
		t.Errorf("no such split: %v", err)
	}
}

// A restart applies changes that a mount allows and rejects the others.
func TestReload(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"memory.ahead = 7\n[splits.train]\ntokens = 'a.bin'", ""},
		{"[splits.train]\ntokens = 'a.bin'\nseed = 7", "splits.train.seed is 1337 in the mount, and the configuration has 7; "},
		{"[splits.train]\ntokens = 'a.bin'\nsede = 7", "config.toml:3: splits.train.sede: unknown key; "},
	} {
		dir := t.TempDir()
		t.Chdir(dir)
		testfiles.Write(t, map[string]string{"a.bin": strings.Repeat("\x07\x00", 5000), "config.toml": "[splits.train]\ntokens = 'a.bin'"})
		s := takeSnapshot(t)
		testfiles.Write(t, map[string]string{"config.toml": test.text})
		t.Chdir("/")
		fresh, err := s.ForRestart()
		if test.want != "" {
			if err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("%s: %v, want %s", test.text, err, test.want)
			}
			continue
		}
		c, err := fresh.Config()
		if err != nil || c.Memory.PrefetchBatches != 7 {
			t.Errorf("%s: %+v, %v", test.text, c, err)
		}
		mountedSequencesOf(t, fresh, nil)
	}
}

// Snapshots of earlier versions are read with the same meaning, because a worker of another version
// may take over a mount. testdata/snapshot.gob has a value in every field, and the text lists them.
// If a line is missing, mend the code instead of the files. Only fields may be added: -update then
// writes the files again.
func TestSnapshotOfAnEarlierVersion(t *testing.T) {
	const gobFile, textFile = "testdata/snapshot.gob", "testdata/snapshot.txt"
	file, err := os.Open(gobFile)
	must(t, err)
	earlier := valuesIn(readAndClose(t, file))
	text, err := os.ReadFile(textFile)
	must(t, err)
	listed := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for _, value := range listed {
		if !slices.Contains(earlier, value) {
			t.Errorf("a snapshot of an earlier version is read without %s", value)
		}
	}
	full := new(Snapshot)
	eachValue("", reflect.ValueOf(full).Elem(), func(path string, v reflect.Value) {
		hash := fnv.New32a()
		hash.Write([]byte(path))
		number := 1 + hash.Sum32()%100
		switch {
		case v.Kind() == reflect.Bool:
			v.SetBool(true)
		case v.Kind() == reflect.Array:
			v.Index(0).SetUint(uint64(number))
		case v.Kind() == reflect.String || v.Kind() == reflect.Slice:
			v.Set(reflect.ValueOf(fmt.Sprint("text ", number)).Convert(v.Type()))
		default:
			v.Set(reflect.ValueOf(number).Convert(v.Type()))
		}
	})
	now := valuesIn(full)
	if slices.Equal(now, listed) || t.Failed() {
		return
	}
	if !*update {
		t.Fatalf("snapshots have other fields than %s: run the test with -update, which adds them", textFile)
	}
	encoded, err := full.File()
	must(t, err)
	defer encoded.Close()
	raw := testfiles.Bytes(t, fmt.Sprintf("/proc/self/fd/%d", encoded.Fd()), 0, 1<<20)
	testfiles.Write(t, map[string]string{gobFile: string(raw), textFile: strings.Join(now, "\n") + "\n"})
}

// valuesIn returns all values in a snapshot, with the names of their fields.
func valuesIn(s *Snapshot) (list []string) {
	eachValue("", reflect.ValueOf(s).Elem(), func(path string, v reflect.Value) {
		list = append(list, fmt.Sprintf("%s: %s %v", path[1:], v.Kind(), v))
	})
	return list
}

// eachValue visits all values in v that have no parts. It gives lists an element and pointers a
// target, if they have none.
func eachValue(path string, v reflect.Value, visit func(path string, v reflect.Value)) {
	switch kind := v.Kind(); {
	case kind == reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				eachValue(path+"."+f.Name, v.Field(i), visit)
			}
		}
	case kind == reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		eachValue(path, v.Elem(), visit)
	case kind == reflect.Slice && v.Type().Elem().Kind() != reflect.Uint8:
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		for i := range v.Len() {
			eachValue(fmt.Sprintf("%s[%d]", path, i), v.Index(i), visit)
		}
	default:
		visit(path, v)
	}
}
