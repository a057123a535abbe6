package dataset

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/sampler"
)

var must = testfiles.NoError

func openHere(t testing.TB, text string) ([]*Dataset, error) {
	t.Helper()
	testfiles.Write(t, map[string]string{"config.toml": text})
	c, err := new(config.Flags).Load()
	must(t, err)
	all, err := NewOpener(c).Open(nil)
	if err == nil {
		checkPrinted(t, c, all)
	}
	return all, err
}

// checkPrinted checks that all, which are the splits of c, have the same identities under the
// configuration that c prints.
func checkPrinted(t testing.TB, c *config.Config, all []*Dataset) {
	t.Helper()
	text, err := c.Text()
	must(t, err)
	const file = "printed.toml"
	testfiles.Write(t, map[string]string{file: text})
	defer os.Remove(file)
	printed, err := (&config.Flags{Config: file}).Load()
	must(t, err)
	again, err := NewOpener(printed).Open(nil)
	must(t, err)
	for i, d := range all {
		if again[i].Identity() != d.Identity() {
			t.Errorf("split %s has another identity under the printed configuration\n%s", d.Split.Name, text)
		}
	}
}

func mustOpen(t testing.TB, text string) []*Dataset {
	t.Helper()
	all, err := openHere(t, text)
	must(t, err)
	return all
}

func mustOpenConfig(t testing.TB) []*Dataset {
	t.Helper()
	return openFlags(t, config.Flags{})
}

func openFlags(t testing.TB, flags config.Flags) []*Dataset {
	t.Helper()
	c, err := flags.Load()
	must(t, err)
	all, err := NewOpener(c).Open(nil)
	must(t, err)
	checkPrinted(t, c, all)
	return all
}

func readBatch(t testing.TB, read func([]byte, uint64, int64) error, size int64, k uint64) []byte {
	t.Helper()
	b := make([]byte, size)
	must(t, read(b, k, 0))
	return b
}

func mustWith(t testing.TB, d *Dataset, path string) *Dataset {
	t.Helper()
	for _, settings := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) {
		var err error
		if d, err = d.With(settings); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func checkSameBatches(t testing.TB, what string, got, want *Dataset, size int64) {
	t.Helper()
	for k := range uint64(12) {
		if !bytes.Equal(readBatch(t, got.Sequence.Read, size, k), readBatch(t, want.Sequence.Read, size, k)) {
			t.Errorf("%s: batch %d is another", what, k)
		}
	}
}

// Each error names the split and the remedy.
func TestOpenErrors(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 50, "b.bin": 50, "short.bin": 4})
	testfiles.Write(t, map[string]string{
		"rng.bin": testfiles.TorchState(0), "zip.bin": "PK\x03\x04", "empty.bin": "", "left.bin": testfiles.TorchState(8, 0), "big.bin": testfiles.TorchState(0) + "x",
	})
	const torchTwo = "splits.train: order torch draws from one array of tokens, here are 2: use one file or join = true"
	const two = testfiles.Small + "[splits.train]\ntokens = ['a.bin', 'b.bin']\n"
	const one = testfiles.Small + "[splits.train]\ntokens = 'a.bin'\n"
	const noState = "splits.train: torch_state: open none.bin: no such file or directory"
	const notState = "splits.train: torch_state: not the 5056 bytes of torch.get_rng_state().numpy().tofile(path): "
	for _, test := range []struct{ text, want string }{
		{two + "order = 'torch'", torchTwo},
		{two + "order = 'torch-2.6'", strings.Replace(torchTwo, "torch", "torch-2.6", 1)},
		{two + "order = 'torch'\njoin = true", ""},
		{testfiles.Small + testfiles.Mixture("weight = 1", "weight = 1e-9"), "splits.mix: weight 1e-09 of source 1: less than a millionth of the sum; " +
			"raise it or drop the source"},

		{one + "order = 'torch'\ntorch_state = 'rng.bin'", ""},
		{one + "order = 'torch'\ntorch_state = 'none.bin'", noState},
		{one + "order = 'random'\ntorch_state = 'none.bin'", noState},
		{one + "order = 'torch'\ntorch_state = '.'", "splits.train: torch_state: read .: is a directory"},
		{one + "order = 'torch'\ntorch_state = 'zip.bin'", notState + "there are 4"},
		{one + "order = 'torch'\ntorch_state = 'empty.bin'", notState + "there are 0"},
		{one + "order = 'torch'\ntorch_state = 'big.bin'", notState + "there are 5057"},
		{one + "order = 'torch'\ntorch_state = 'left.bin'", notState + "bytes 8 to 23 are left = 0, seeded = 1 and next = 0; seeded must not be 0, and left and next must add up to 625"},

		{one + "expect_fingerprint = '0123456789abcdef0123456789abcdef'",
			"splits.train: expect_fingerprint is 0123456789abcdef0123456789abcdef, but the fingerprint of the files is "},
		{one + "block_size = 50", "splits.train: " + abs(t, "a.bin") + ": 50 tokens, need at least block_size+1 = 51"},
		{one + "steps = 1099511627776\nbatch_size = 16777216",
			"splits.train: 1099511627776 batches of 536870912 bytes are more than a file can hold; set steps to at most 8589934591"},
	} {
		_, err := openHere(t, test.text)
		if (err == nil) != (test.want == "") || err != nil && !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s:\n got %v\nwant %s", test.text, err, test.want)
		}
	}
}

func abs(t testing.TB, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	must(t, err)
	return path
}

func openMany(t *testing.T) []*Dataset {
	t.Helper()
	testfiles.WriteManySplits(t)
	return mustOpenConfig(t)
}

// The settings in sequencePath lead to the same sequence from the split and from any settings
// directory.
func TestSequencePath(t *testing.T) {
	for _, d := range append(openMany(t), openArrays(t, "")...) {
		paths := []string{"", "seed=9", "batch_size=5,order=sequential", "start=7,steps=3", "seed=9,dtype=native"}
		if d.Sequence.TorchState == nil {
			paths = append(paths, "rank=2,world=3")
		}
		if d.Sequence.DType.IsInteger() {
			paths = append(paths, "dtype=int64,layout=tokens")
		}
		for _, path := range paths {
			served, err := withPath(newMountedSequence(d, testWatcher(d), "", nil), path)
			if err != nil && d.Split.Order == "torch-2.6" {
				continue // a torch state fits one order only
			}
			must(t, err)
			there := served.batches()
			name, settings, _ := strings.Cut(there.sequencePath(), "/")
			if name != d.Split.Name || len(settings) > 255 {
				t.Errorf("%s/%s: label %s", d.Split.Name, path, there.sequencePath())
			}
			for _, from := range []*Dataset{d, there.Dataset} {
				back := mustWith(t, from, settings)
				if !reflect.DeepEqual(back.Sequence.Settings, there.Sequence.Settings) || back.sequencePath() != there.sequencePath() {
					t.Errorf("%s/%s: %+v, %s, want %+v, %s", d.Split.Name, path, back.Sequence.Settings, back.sequencePath(),
						there.Sequence.Settings, there.sequencePath())
				}
				checkSameBatches(t, there.sequencePath(), back, there.Dataset, there.Sequence.Batch().Bytes())
			}
		}
	}
}

func TestPathThatCannotBeServed(t *testing.T) {
	d := openMany(t)[0]
	for path, want := range map[string]string{
		"block_size=50":      abs(t, "a.bin") + ": 50 tokens, need at least block_size+1 = 51",
		"seed=1/order=torch": "order torch draws from one array of tokens, here are 2: use one file or join = true",
		"batch_size=8388608,steps=1099511627776": "1099511627776 batches of 268435456 bytes are more than a file can hold; " +
			"set steps to at most 17179869183",
	} {
		var err error
		there := d
		for dir := range strings.SplitSeq(path, "/") {
			if err == nil {
				there, err = there.With(dir)
			}
		}
		if want := "random/" + path + ": " + want; fmt.Sprint(err) != want || errors.Is(err, syscall.ENOENT) {
			t.Errorf("%s:\n got %v\nwant %s", path, err, want)
		}
	}
}

// onlyMountedSequence serves a split as a worker does, but publishes nothing.
func onlyMountedSequence(t testing.TB, text string) *MountedSequence {
	t.Helper()
	d := mustOpen(t, text)[0]
	return newMountedSequence(d, testWatcher(d), "", nil)
}

// testWatcher returns a watcher that publishes nothing.
func testWatcher(d *Dataset) *watcher {
	o := NewOpener(&config.Config{Memory: config.Memory{Access: "pread", PageCache: "keep"}})
	return newWatcher(d, o, slog.New(slog.DiscardHandler), func(*Dataset) error { return nil })
}

// Without max_epochs, a sequence ends at the last number of a batch.
func TestReadBeyondTheLastNumber(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 50})
	b := mustOpen(t, testfiles.Small+"[splits.train]\ntokens = 'a.bin'")[0].FileBatches(nil)
	must(t, b.Read(make([]byte, 1), sampler.MaxBatches-1, 0))
	const want = "batch 1099511627776 of train: no batch is left, because batch numbers end at 1099511627775: begin with an earlier one"
	if err := b.Read(make([]byte, 1), sampler.MaxBatches, 0); !errors.Is(err, syscall.ENODATA) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// A split whose first batch lies beyond the end of its sequence fails with the reason.
func TestStartBeyondTheEnd(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 50})
	d := mustOpen(t, testfiles.Small+"[splits.train]\norder = 'shuffle'\nstart = 100\n[[splits.train.sources]]\nname = 'a'\ntokens = 'a.bin'\nweight = 1\nmax_epochs = 1\n")[0]
	const want = "batch 100 of train: no batch is left, because every source has used up its max_epochs: raise it or add a source"
	if err := d.TryRead(); !errors.Is(err, syscall.ENODATA) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// If a change cannot be followed, reads fail with ESTALE and the reason, until the file is
// restored.
func TestCannotFollow(t *testing.T) {
	for _, test := range []struct {
		onChange, path string
		tokens         int // length of the new file
		want           string
	}{
		{"error", "", 60, "has changed since it was opened"},
		{"error", "seed=9", 60, "has changed since it was opened"},
		{"follow", "", 3, "the new ones cannot be served: splits.train: "},
		{"follow", "block_size=40", 30, "these settings do not fit the new ones: train/block_size=40: "},
	} {
		t.Chdir(t.TempDir())
		testfiles.Positions(t, map[string]int{"a.bin": 50})
		s := onlyMountedSequence(t, testfiles.Small+"[splits.train]\ntokens = 'a.bin'\non_change = '"+test.onChange+"'")
		s, err := withPath(s, test.path)
		must(t, err)
		must(t, os.Rename("a.bin", "kept.bin"))
		testfiles.Positions(t, map[string]int{"a.bin": test.tokens})
		if now, err := checkAll(s); now.Version != 0 || !errors.Is(err, syscall.ESTALE) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: error %v", test, err)
		}
		must(t, os.Rename("kept.bin", "a.bin"))
		now := mustCheckAll(t, s)
		readBatch(t, now.Read, now.Sequence.Batch().Bytes(), 3)
	}
}

// rowBytes returns row j of the first array of a batch, which is x or tokens.
func rowBytes(d *Dataset, batch []byte, j int) []byte {
	n := len(batch) / d.Sequence.BatchSize
	if d.Sequence.Layout == sampler.XY {
		n /= 2
	}
	return batch[j*n:][:n]
}

// The origin of each row names the file and index at which its tokens begin, and the current epoch
// of its source.
func TestOrigins(t *testing.T) {
	for _, d := range openMany(t) {
		windows := make([]int, max(1, len(d.Split.Sources))) // disjoint windows, by source
		for i, tokens := range d.sources {
			all := 0
			for _, file := range tokens[0].Files() {
				n := testfiles.Size(t, file) / 4
				if all += n; !d.Split.Join {
					windows[i] += (n - 1) / 4
				}
			}
			if d.Split.Join {
				windows[i] = (all - 1) / 4
			}
		}
		given := make([]int, len(windows)) // rows seen, by source
		next := uint64(0)                  // global row
		for k := range uint64(20) {
			for rank := range d.Sequence.World {
				d := mustWith(t, d, fmt.Sprintf("rank=%d", rank))
				batch := readBatch(t, d.Sequence.Read, d.Sequence.Batch().MainBytes(), k)
				for j := range 3 {
					row, err := d.origin(k, j)
					must(t, err)
					if want := uint64(given[row.source] / windows[row.source]); row.row != next || row.epoch != want {
						t.Errorf("%s: row %d of epoch %d, want row %d of epoch %d", d.sequencePath(), row.row, row.epoch, next, want)
					}
					given[row.source]++
					next++
					want := rowBytes(d, batch, j)
					if got := testfiles.Bytes(t, row.file, 4*row.start, len(want)); !bytes.HasPrefix(want, got) ||
						len(got) < len(want) && !d.Split.Join {
						t.Errorf("%s: row %d of batch %d is % x, but from token %d on %s has % x",
							d.sequencePath(), j, k, want, row.start, row.file, got)
					}
				}
			}
		}
		for i, n := range given {
			if n < 2*windows[i] && d.Split.Order != sampler.Random {
				t.Errorf("%s: source %d came to %d rows of %d an epoch, which shows little", d.sequencePath(), i, n, windows[i])
			}
		}
	}
}

// batch/<k>.json is JSON with the origin of each row. All of these files have the same size, and
// reading a part returns the same bytes as reading the whole file.
func TestOriginsOfAnyBytes(t *testing.T) {
	decoded := func(text []byte) (v any) {
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		must(t, decoder.Decode(&v))
		return v
	}
	for _, d := range openMany(t) {
		origins := d.Origins()
		for _, k := range []uint64{0, 7, 1<<40 - 1} {
			whole := originsOf(d, k)
			want := map[string]any{"batch": k, "sequence": d.sequencePath(), "fingerprint": d.fingerprint, "settings": d.settings()}
			var rows []map[string]any
			for j := range d.Sequence.BatchSize {
				o, err := d.origin(k, j)
				must(t, err)
				rows = append(rows, map[string]any{"row": o.row, "epoch": o.epoch, "file": o.file, "start": o.start})
				if len(d.Split.Sources) > 0 {
					rows[j]["source"] = d.Split.Sources[o.source].Name
				}
			}
			want["rows"] = rows
			if text := indentedJSON(want); !reflect.DeepEqual(decoded(whole), decoded(text)) {
				t.Errorf("%s: batch %d is\n%s, want\n%s", d.sequencePath(), k, whole, text)
			}
			for off := range len(whole) {
				for _, n := range []int{1, 100, len(whole)} {
					n = min(n, len(whole)-off)
					part := make([]byte, n)
					if origins.Read(part, k, int64(off)); !bytes.Equal(part, whole[off:off+n]) {
						t.Fatalf("%s: %d bytes from byte %d on are %q, want %q", d.sequencePath(), n, off, part, whole[off:off+n])
					}
				}
			}
		}
	}
}

// source=NAME reads the rows that the mixture draws from the source, in the same order. A source of
// weight 0 is never read, and its name has no effect.
func TestOnlySource(t *testing.T) {
	writeIdentityFiles(t)
	d := openSplitWith(t, "sources = [{tokens = 'a.bin', weight = 1}, {name = 'b', tokens = 'b.bin', weight = 3}, {name = 'longer-name', tokens = 'c.bin', weight = 0}]\n"+shuffle)
	drawn, size := make([]string, 3), len(rowBytes(d, readBatch(t, d.Sequence.Read, d.Sequence.Batch().MainBytes(), 0), 0))
	rows := func(d *Dataset, batches uint64, add func(source int, row string)) {
		for k := range batches {
			batch := readBatch(t, d.Sequence.Read, d.Sequence.Batch().MainBytes(), k)
			for j := range d.Sequence.BatchSize {
				source, _ := d.Sequence.Start(k, j)
				add(source, string(rowBytes(d, batch, j)))
			}
		}
	}
	rows(d, 600, func(source int, row string) { drawn[source] += row })
	for i, name := range []string{"0", "b"} {
		only := ""
		rows(mustWith(t, d, "rank=0/source="+name), 100, func(_ int, row string) { only += row })
		if len(drawn[i]) < len(only) || len(only) != 300*size || !strings.HasPrefix(drawn[i], only) {
			t.Errorf("source=%s reads other rows than the mixture draws from it", name)
		}
	}
	if drawn[2] != "" || mustWith(t, d, "source=b").Sequence.RowsPerEpoch() != d.Sequence.WindowsOf(1) {
		t.Error("rows come from a source of weight 0, or an epoch has rows of sources that are not read")
	}
}

func originsOf(d *Dataset, k uint64) []byte {
	text := make([]byte, d.Origins().Len())
	d.Origins().Read(text, k, 0)
	return text
}
