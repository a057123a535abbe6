package cache

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"batchfs/cache/array"
)

// reopened is what another process makes of tokens.
func reopened(t testing.TB, tokens *Array, o Options) *Array {
	t.Helper()
	var m, same Manifest
	var coded bytes.Buffer
	must(t, gob.NewEncoder(&coded).Encode(tokens.Manifest()))
	must(t, gob.NewDecoder(&coded).Decode(&m))
	text, err := json.Marshal(tokens.Manifest())
	must(t, err)
	must(t, json.Unmarshal(text, &same))
	if !reflect.DeepEqual(m, same) {
		t.Errorf("gob has %+v, JSON has %+v", m, same)
	}
	again, err := Reopen(m, o)
	must(t, err)
	return again
}

func TestReopenedIsTheSame(t *testing.T) {
	paths := files(t, 2, 3000, 1, 2, 4, 70_000)
	odd := filepath.Join(filepath.Dir(paths[0]), "a\xff\"\n.bin") // not UTF-8
	must(t, os.Rename(paths[1], odd))
	paths[1] = odd
	for _, join := range []bool{false, true} {
		everyAccess(t, func(t *testing.T, o Options) {
			o.Join = join
			was := open(t, paths, o)
			now := reopened(t, was, o)
			if !reflect.DeepEqual(now.Manifest(), was.Manifest()) || !slices.Equal(now.Files(), paths) ||
				!slices.Equal(now.Runs(), was.Runs()) || now.Len() != was.Len() || now.DType() != was.DType() {
				t.Errorf("%+v is not %+v", now.Manifest(), was.Manifest())
			}
			for pos := range was.Len() {
				if now.Locate(pos) != was.Locate(pos) {
					t.Fatalf("token %d stands at %v, was at %v", pos, now.Locate(pos), was.Locate(pos))
				}
			}
			must(t, now.Check())
			r := rand.New(rand.NewPCG(1, 2))
			for range 25 {
				must(t, readAll(now, anyWindows(r, now.Runs())))
			}
		})
	}
}

// What becomes of a file between the two is seen when it is read, not before.
func TestChangeIsSeenAfterReopen(t *testing.T) {
	const gone = "gone"
	for name, change := range map[string]func(path string) error{
		"truncated": func(path string) error { return os.Truncate(path, 100) },
		"touched":   func(path string) error { return os.Chtimes(path, longAgo, longAgo.Add(1)) },
		"replaced":  func(path string) error { return replace(path, make([]byte, 10_000)) },
		gone:        os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			everyAccess(t, func(t *testing.T, o Options) {
				paths := files(t, 2, 10, 5000)
				was := open(t, paths, o)
				must(t, change(paths[1]))
				now := reopened(t, was, o)
				must(t, readOne(now))
				want := error(syscall.ESTALE)
				if name == gone {
					want = syscall.ENOENT
				}
				for _, err := range []error{readAll(now, []array.Window{{Start: 5000, Len: 10}}), reopened(t, was, o).Check()} {
					if !errors.Is(err, want) || !strings.Contains(err.Error(), paths[1]) {
						t.Errorf("error %v, want %v of %s", err, want, paths[1])
					}
				}
			})
		})
	}
}

// A fileOf is one that nobody looked at.
func fileOf(path string, size, tokens int64) File {
	return File{[]byte(path), Identity{Size: size}, Sample{}, Format{Name: "headerless", DType: array.Uint16, Count: tokens}, nil}
}

// The files may be where even to ask for them would hang.
func TestReopenTouchesNoFile(t *testing.T) {
	m := Manifest{[]File{fileOf("/proc/self/no/such/file", 20, 10), fileOf("/dev/null/below", 20, 10), fileOf("nowhere", 20, 10)}}
	for i := range m.Files {
		m.Files[i].Index = &Index{[]byte("no/such/index"), Identity{Size: 16}, Sample{}, Ends{Count: 2}}
	}
	tokens, err := Reopen(m, Options{})
	must(t, err)
	if tokens.Documents().Count() != 6 {
		t.Errorf("%d documents", tokens.Documents().Count())
	}
	if tokens.Len() != 30 || tokens.Locate(25) != (array.Place{Path: "nowhere", Index: 5}) {
		t.Errorf("%d tokens, %+v", tokens.Len(), tokens.Locate(25))
	}
	if err := readOne(tokens); err == nil {
		t.Error("a file that does not exist was read")
	}
}

func TestReopenRefuses(t *testing.T) {
	good, other := fileOf("good.bin", 20, 10), fileOf("train.bin", 20, 5)
	other.Format.DType = array.Uint32
	with := func(change func(*Format)) []File {
		f := fileOf("train.bin", 20, 10)
		change(&f.Format)
		return []File{good, f}
	}
	indexed := func(e Ends) File {
		f := fileOf("i", 20, 10)
		f.Index = &Index{[]byte("i.index"), Identity{Size: 20}, Sample{}, e}
		return f
	}
	const outside = "are not within its 20 bytes"
	for _, test := range []struct {
		files []File
		want  string
	}{
		{nil, "no token files"},
		{[]File{}, "no token files"},
		{[]File{good, fileOf("a\x00b", 2, 1)}, `"a\x00b": invalid argument`},
		{[]File{good, other}, "train.bin: its numbers are uint32, those of good.bin are uint16"},
		{[]File{good, fileOf("train.bin", -2, 1)}, "train.bin: 1 elements"},
		{with(func(f *Format) { *f = Format{} }), outside},
		{with(func(f *Format) { f.Count = 0 }), outside},
		{with(func(f *Format) { f.Count = -1 }), outside},
		{with(func(f *Format) { f.Count = 11 }), "train.bin: 11 elements of dtype \"uint16\" from byte 0 on " + outside},
		{with(func(f *Format) { f.Count = 1 << 62 }), outside},
		{with(func(f *Format) { f.Offset = 1 }), outside},
		{with(func(f *Format) { f.Offset = -2 }), outside},
		{with(func(f *Format) { f.Offset, f.Count = 22, 1 }), outside},
		{with(func(f *Format) { f.DType = "uint7" }), outside},
		{[]File{indexed(Ends{Count: 3})}, "i.index: the ends of 3 documents are not within its 20 bytes"},
		{[]File{indexed(Ends{Count: 0})}, "the ends of 0 documents"},
		{[]File{indexed(Ends{At: 8, Count: 2})}, "the ends of 2 documents"},
		{[]File{indexed(Ends{At: -8, Count: 2})}, "the ends of 2 documents"},
		{[]File{indexed(Ends{Count: 1, Starts: 8, Sequences: 2, Width: 2})}, "the ends of 1 documents"},
		{[]File{indexed(Ends{Count: 1, Sequences: 2})}, "the ends of 1 documents"},
		{[]File{indexed(Ends{Count: 1}), good}, "nothing says where the documents of good.bin end, but i.index says it of i; batchfs index good.bin --eot N"},
		{with(func(f *Format) { f.Name = "npy" }), "train.bin: its format is npy, that of good.bin is headerless"},
		{with(func(f *Format) { f.Axes = []int{2} }), "10 elements of dtype \"uint16\" and shape [2] from byte 0 on " + outside},
		{with(func(f *Format) { f.Axes = []int{0} }), outside},
		{with(func(f *Format) { f.Axes, f.Count = []int{1 << 31, 1 << 31, 4}, 1 }), outside},
		{with(func(f *Format) { f.Axes, f.Count = []int{2, 5}, 1 }), "train.bin: its elements have shape [2 5], those of good.bin []"},
	} {
		_, err := Reopen(Manifest{test.files}, Options{DType: array.Uint16})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: error %v, want %s", test.files, err, test.want)
		}
	}
}

// The tokens of a format may lie anywhere in their files, also at an odd byte and with something behind them.
func TestFormatSaysWhereTheTokensLie(t *testing.T) {
	const n, size = 20_000, 2
	for _, test := range []struct{ offset, behind int }{{0, 0}, {256 * 4, 0}, {1, 3}, {4096, 4096}, {100_003, 1}} {
		dir, m := t.TempDir(), Manifest{}
		for i := range 3 {
			path := filepath.Join(dir, string(rune('a'+i)))
			raw := slices.Concat(bytes.Repeat([]byte{0xee}, test.offset), count(i*n, n, size), bytes.Repeat([]byte{0xdd}, test.behind))
			must(t, os.WriteFile(path, raw, 0o600))
			id, content, err := openBlob(path, nil, Remote{})
			must(t, err)
			must(t, content.Close())
			m.Files = append(m.Files, File{[]byte(path), id, Sample{}, Format{"made-up", int64(test.offset), array.Uint16, nil, n}, nil})
		}
		everyAccess(t, func(t *testing.T, o Options) {
			for _, o.Join = range []bool{false, true} {
				tokens, err := Reopen(m, o)
				must(t, err)
				if got := reopened(t, tokens, o).Manifest(); !reflect.DeepEqual(got, m) {
					t.Errorf("manifest %+v, want %+v", got, m)
				}
				r := rand.New(rand.NewPCG(1, 2))
				for range 10 {
					must(t, readAll(tokens, anyWindows(r, tokens.Runs())))
				}
				if o.Join {
					must(t, readAll(tokens, []array.Window{{Start: n - 1, Len: 2}, {Start: n / 2, Len: 2 * n}}))
				}
			}
		})
	}
}
