package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"batchfs/fs"
)

// writeArray writes files of so many tokens of 4 bytes, which are their own positions in all of them together.
func writeArray(t testing.TB, files map[string]int) {
	t.Helper()
	next := uint32(0)
	texts := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		var raw []byte
		for range files[name] {
			raw, next = binary.LittleEndian.AppendUint32(raw, next), next+1
		}
		texts[name] = string(raw)
	}
	writeTexts(t, texts)
}

// small are settings of batches that one can look through.
const small = "[batch]\nbatch_size = 3\nblock_size = 4\ntoken_dtype = 'uint32'\ndtype = 'uint32'\n"

// openHere opens the splits of a configuration file of this text in the working directory.
func openHere(t testing.TB, text string, sets ...string) ([]opened, error) {
	t.Helper()
	writeTexts(t, map[string]string{"config.toml": text})
	c, err := load("config.toml", sets)
	if err != nil {
		t.Fatal(err)
	}
	return c.open()
}

func mustOpen(t testing.TB, text string, sets ...string) []opened {
	t.Helper()
	all, err := openHere(t, text, sets...)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func batch(t testing.TB, read func([]byte, uint64, int64) error, size int64, k uint64) []byte {
	t.Helper()
	b := make([]byte, size)
	if err := read(b, k, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

// state is what torch.get_rng_state() gives after torch.manual_seed, with these bytes in place of some.
func state(at int, b ...byte) string {
	raw := make([]byte, 5056)
	raw[8], raw[12] = 1, 1
	for i := range 624 {
		binary.LittleEndian.PutUint64(raw[24+8*i:], uint64(i+1))
	}
	copy(raw[at:], b)
	return string(raw)
}

// Each error names the split, and what to do.
func TestOpenErrors(t *testing.T) {
	t.Chdir(t.TempDir())
	writeArray(t, map[string]int{"a.bin": 50, "b.bin": 50, "short.bin": 4})
	writeTexts(t, map[string]string{
		"rng.bin": state(0), "zip.bin": "PK\x03\x04", "empty.bin": "", "left.bin": state(8, 0), "big.bin": state(0) + "x",
	})
	const torchTwo = "splits.train: order torch draws from one array of tokens, here are 2: use one file or join = true"
	const two = small + "[splits.train]\ntokens = ['a.bin', 'b.bin']\n"
	const one = small + "[splits.train]\ntokens = 'a.bin'\n"
	const noState = "splits.train: torch_state: open none.bin: no such file or directory"
	const notState = "splits.train: torch_state: not the 5056 bytes of torch.get_rng_state().numpy().tofile(path): "
	for _, test := range []struct{ text, want string }{
		{two + "order = 'torch'", torchTwo},
		{two + "order = 'torch-2.6'", strings.Replace(torchTwo, "torch", "torch-2.6", 1)},
		{two + "order = 'torch'\njoin = true", ""},
		{small + "[splits.mix]\norder = 'torch'\n" + mixed("weight = 1", "weight = 2"),
			"splits.mix: order torch draws from one array of tokens and cannot mix sources; choose another order"},
		{small + mixed("weight = 1", "weight = 1e-9"), "splits.mix: weight 1e-09 of source 1: less than a millionth of the sum; " +
			"raise it or drop the source"},

		{one + "order = 'torch'\ntorch_state = 'rng.bin'", ""},
		{one + "order = 'torch'\ntorch_state = 'none.bin'", noState},
		{one + "order = 'random'\ntorch_state = 'none.bin'", noState},
		{one + "order = 'torch'\ntorch_state = '.'", "splits.train: torch_state: read .: is a directory"},
		{one + "order = 'torch'\ntorch_state = 'zip.bin'", notState + "there are 4"},
		{one + "order = 'torch'\ntorch_state = 'empty.bin'", notState + "there are 0"},
		{one + "order = 'torch'\ntorch_state = 'big.bin'", notState + "there are 5057"},
		{one + "order = 'torch'\ntorch_state = 'left.bin'", notState + "bytes 8 to 11 (left) are 0, not 1 to 624"},
		{one + "order = 'torch'\ntorch_state = 'rng.bin'\nworld = 2",
			"splits.train: torch_state is that of one rank: set rank = 0 and world = 1, or leave it out (got rank 0 of 2)"},

		{one + "expect_fingerprint = '0123456789abcdef0123456789abcdef'",
			"splits.train: expect_fingerprint is 0123456789abcdef0123456789abcdef, but that of the files is "},
		{one + "block_size = 50", "splits.train: " + abs(t, "a.bin") + ": 50 tokens, need at least block_size+1 = 51"},
		{one + "steps = 1099511627776\nbatch_size = 16777216",
			"splits.train: 1099511627776 batches of 536870912 bytes are more than a file can hold; set steps to fewer"},
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
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// manyOrders is a configuration of splits of every kind.
const manyOrders = small + `
[splits.random]
tokens = ["a.bin", "b.bin"]
world = 2
[splits.shuffle]
tokens = "[ab].bin"
order = "shuffle"
rank = 1
world = 2
[splits.sequential]
tokens = ["b.bin", "a.bin"]
order = "sequential"
layout = "tokens"
join = true
[splits.native]
tokens = "a.bin"
dtype = "native"
[splits.torch]
tokens = ["a.bin", "b.bin"]
join = true
order = "torch"
rank = 1
world = 2
[splits.state]
tokens = "a.bin"
order = "torch-2.6"
torch_state = "rng.bin"
[splits.mix]
order = "shuffle"
[[splits.mix.sources]]
tokens = ["a.bin", "b.bin"]
weight = 3
[[splits.mix.sources]]
tokens = "c.bin"
weight = 1
`

func openMany(t testing.TB) []opened {
	t.Helper()
	t.Chdir(t.TempDir())
	writeArray(t, map[string]int{"a.bin": 50, "b.bin": 33, "c.bin": 17})
	writeTexts(t, map[string]string{"rng.bin": state(0)})
	return mustOpen(t, manyOrders)
}

// What names a sequence is a path to it, from the split and from its directories.
func TestLabelIsAPath(t *testing.T) {
	for _, o := range openMany(t) {
		paths := []string{"", "seed=9", "batch_size=5,dtype=int64,layout=tokens", "start=7,steps=3"}
		if o.sequence.TorchState == nil {
			paths = append(paths, "rank=2,world=3")
		}
		for _, path := range paths {
			there := o
			if path != "" {
				var err error
				if there, err = o.with(path); err != nil {
					t.Fatal(err)
				}
			}
			name, settings, _ := strings.Cut(there.label(), "/")
			if name != o.split.Split || len(settings) > 255 {
				t.Errorf("%s/%s: label %s", o.split.Split, path, there.label())
			}
			for _, from := range []opened{o, there} {
				back, err := from.with(settings)
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(back.sequence.Settings, there.sequence.Settings) || back.label() != there.label() {
					t.Errorf("%s/%s: %+v, %s, want %+v, %s", o.split.Split, path, back.sequence.Settings, back.label(),
						there.sequence.Settings, there.label())
				}
				for k := range uint64(3) {
					size := there.sequence.BatchBytes()
					if !bytes.Equal(batch(t, back.sequence.Read, size, k), batch(t, there.sequence.Read, size, k)) {
						t.Errorf("%s/%s: batch %d differs", o.split.Split, path, k)
					}
				}
			}
		}
	}
}

func TestPathThatCannotBeServed(t *testing.T) {
	o := openMany(t)[0]
	for path, want := range map[string]string{
		"block_size=50":      abs(t, "a.bin") + ": 50 tokens, need at least block_size+1 = 51",
		"seed=1/order=torch": "order torch draws from one array of tokens, here are 2: use one file or join = true",
		"batch_size=8388608,steps=1099511627776": "1099511627776 batches of 268435456 bytes are more than a file can hold; " +
			"set steps to fewer",
	} {
		var err error
		there := o
		for dir := range strings.SplitSeq(path, "/") {
			if err == nil {
				there, err = there.with(dir)
			}
		}
		if want := "random/" + path + ": " + want; fmt.Sprint(err) != want || errors.Is(err, syscall.ENOENT) {
			t.Errorf("%s:\n got %v\nwant %s", path, err, want)
		}
	}
}

// follow is the directory of a split, as a mount has it.
func follow(t testing.TB, text string) *fs.Sequence {
	t.Helper()
	o := mustOpen(t, text)[0]
	l := &live{memory: memory{Access: "pread", PageCache: "keep"}, log: slog.New(slog.DiscardHandler),
		changed: func(opened) error { return nil }, now: o}
	return l.directory(o)
}

// When token files change, a split and its directories of settings go on with the new ones, as if mounted anew.
func TestFollow(t *testing.T) {
	for _, settings := range []string{
		"", "steps = 9", "order = 'shuffle'\nworld = 2", "order = 'torch'\ntorch_state = 'rng.bin'",
	} {
		for _, path := range []string{"", "seed=9", "start=3,steps=4", "dtype=int64/seed=9"} {
			t.Chdir(t.TempDir())
			text := small + "[splits.train]\ntokens = '[ab].bin'\njoin = true\non_change = 'follow'\n" + settings
			writeArray(t, map[string]int{"a.bin": 50})
			writeTexts(t, map[string]string{"rng.bin": state(0)})
			s := follow(t, text)
			for _, settings := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) {
				var err error
				if s, err = s.With(settings); err != nil {
					t.Fatal(err)
				}
			}
			if now, err := s.Now(); now != s || err != nil {
				t.Fatalf("%q, %q: before anything changed: %v", settings, path, err)
			}

			writeArray(t, map[string]int{"a.bin": 60, "b.bin": 30})
			now, err := s.Now()
			if err != nil {
				t.Errorf("%q, %q: %v", settings, path, err)
				continue
			}
			want := mustOpen(t, text)[0]
			for _, settings := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) {
				if want, err = want.with(settings); err != nil {
					t.Fatal(err)
				}
			}
			for k := range uint64(5) {
				if !bytes.Equal(batch(t, now.Read, now.BatchBytes, k), batch(t, want.sequence.Read, want.sequence.BatchBytes(), k)) {
					t.Errorf("%q, %q: batch %d is not that of the new files", settings, path, k)
				}
			}
			if now.Changes != 1 || now.Steps != want.steps || now.Name != s.Name || now.Start != s.Start {
				t.Errorf("%q, %q: %+v", settings, path, now)
			}
			if again, err := now.Now(); again != now || err != nil {
				t.Errorf("%q, %q: and once more: %v", settings, path, err)
			}
		}
	}
}

// A trainer may write its state to the file that the mount began with.
func TestFollowKeepsTheState(t *testing.T) {
	t.Chdir(t.TempDir())
	text := small + "[splits.train]\ntokens = 'a.bin'\non_change = 'follow'\norder = 'torch'\ntorch_state = 'rng.bin'"
	writeArray(t, map[string]int{"a.bin": 50})
	writeTexts(t, map[string]string{"rng.bin": state(0)})
	s := follow(t, text)
	writeArray(t, map[string]int{"a.bin": 60})
	want := mustOpen(t, text)[0]
	writeTexts(t, map[string]string{"rng.bin": state(24, 77, 77)})
	now, err := s.Now()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(batch(t, now.Read, now.BatchBytes, 3), batch(t, want.sequence.Read, now.BatchBytes, 3)) {
		t.Error("the batches are those of another state")
	}
}

// What cannot be followed is ESTALE, says why, and is served again when it is back.
func TestCannotFollow(t *testing.T) {
	for _, test := range []struct {
		onChange, path string
		tokens         int // that the file has then
		want           string
	}{
		{"error", "", 60, "has changed since it was opened"},
		{"error", "seed=9", 60, "has changed since it was opened"},
		{"follow", "", 3, "what is there now cannot be served: splits.train: "},
		{"follow", "block_size=40", 30, "these settings do not suit the new ones: train/block_size=40: "},
	} {
		t.Chdir(t.TempDir())
		writeArray(t, map[string]int{"a.bin": 50})
		s := follow(t, small+"[splits.train]\ntokens = 'a.bin'\non_change = '"+test.onChange+"'")
		if test.path != "" {
			var err error
			if s, err = s.With(test.path); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Rename("a.bin", "kept.bin"); err != nil {
			t.Fatal(err)
		}
		writeArray(t, map[string]int{"a.bin": test.tokens})
		if now, err := s.Now(); now != s || !errors.Is(err, syscall.ESTALE) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: error %v", test, err)
		}
		if err := os.Rename("kept.bin", "a.bin"); err != nil {
			t.Fatal(err)
		}
		now, err := s.Now()
		if err != nil {
			t.Fatalf("%+v: with the file back: %v", test, err)
		}
		batch(t, now.Read, now.BatchBytes, 3)
	}
}
