package cache

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"batchfs/cache/array"
	"batchfs/cache/format"
	"batchfs/cache/localfile"
)

// reopened returns the array that another process recreates from tokens.
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
	if !reflect.DeepEqual(again.Manifest(), tokens.Manifest()) || !slices.Equal(again.Extents(), tokens.Extents()) {
		t.Errorf("%+v is not %+v", again.Manifest(), tokens.Manifest())
	}
	return again
}

func headerlessFile(path string, size, tokens int64) File {
	return File{Path: []byte(path), Identity: localfile.Stamp{Size: size}, Format: format.Format{Name: "headerless", DType: array.Uint16, Count: tokens}}
}

// The files may be on a file system where even stat would hang.
func TestReopenTouchesNoFile(t *testing.T) {
	m := Manifest{[]File{headerlessFile("/proc/self/no/such/file", 20, 10), headerlessFile("/dev/null/below", 20, 10), headerlessFile("nowhere\xff\"\n", 20, 10)}}
	for i := range m.Files {
		m.Files[i].Index = &Index{[]byte("no/such/index"), localfile.Stamp{Size: 16}, localfile.Sample{}, format.Ends{Count: 2}}
	}
	tokens, err := Reopen(m, Options{})
	must(t, err)
	tokens = reopened(t, tokens, Options{}) // one name is not UTF-8
	if tokens.Documents().Count() != 6 {
		t.Errorf("%d documents", tokens.Documents().Count())
	}
	if tokens.Len() != 30 || tokens.Locate(25) != (array.Location{Path: "nowhere\xff\"\n", Index: 5}) {
		t.Errorf("%d tokens, %+v", tokens.Len(), tokens.Locate(25))
	}
	if err := readOne(tokens); err == nil {
		t.Error("a file that does not exist was read")
	}
}

func TestReopenRejects(t *testing.T) {
	good, other := headerlessFile("good.bin", 20, 10), headerlessFile("train.bin", 20, 5)
	other.Format.DType = array.Uint32
	with := func(change func(*format.Format)) []File {
		f := headerlessFile("train.bin", 20, 10)
		change(&f.Format)
		return []File{good, f}
	}
	indexed := func(e format.Ends) File {
		f := headerlessFile("i", 20, 10)
		f.Index = &Index{[]byte("i.index"), localfile.Stamp{Size: 20}, localfile.Sample{}, e}
		return f
	}
	const outside = "are not within its 20 bytes"
	for _, test := range []struct {
		files []File
		want  string
	}{
		{nil, "no token files"},
		{[]File{}, "no token files"},
		{[]File{good, headerlessFile("a\x00b", 2, 1)}, `"a\x00b": invalid argument`},
		{[]File{good, other}, "train.bin: its numbers are uint32, those of good.bin are uint16"},
		{[]File{good, headerlessFile("train.bin", -2, 1)}, "train.bin: 1 elements"},
		{with(func(f *format.Format) { *f = format.Format{} }), outside},
		{with(func(f *format.Format) { f.Count = 0 }), outside},
		{with(func(f *format.Format) { f.Count = -1 }), outside},
		{with(func(f *format.Format) { f.Count = 11 }), "train.bin: 11 elements of dtype \"uint16\" and shape [] from byte 0 on " + outside},
		{with(func(f *format.Format) { f.Count = 1 << 62 }), outside},
		{with(func(f *format.Format) { f.Offset = 1 }), outside},
		{with(func(f *format.Format) { f.Offset = -2 }), outside},
		{with(func(f *format.Format) { f.Offset, f.Count = 22, 1 }), outside},
		{with(func(f *format.Format) { f.DType = "uint7" }), outside},
		{[]File{indexed(format.Ends{Count: 3})}, "i.index: the ends of 3 documents are not within its 20 bytes"},
		{[]File{indexed(format.Ends{Count: 0})}, "the ends of 0 documents"},
		{[]File{indexed(format.Ends{At: 8, Count: 2})}, "the ends of 2 documents"},
		{[]File{indexed(format.Ends{At: -8, Count: 2})}, "the ends of 2 documents"},
		{[]File{indexed(format.Ends{Count: 1, Starts: 8, Sequences: 2, Width: 2})}, "the ends of 1 documents"},
		{[]File{indexed(format.Ends{Count: 1, Sequences: 2})}, "the ends of 1 documents"},
		{[]File{indexed(format.Ends{Count: 1}), good}, "nothing says where the documents of good.bin end, but i.index does for i; batchfs index good.bin --eot N"},
		{with(func(f *format.Format) { f.Name = "npy" }), "train.bin: its format is npy, that of good.bin is headerless"},
		{with(func(f *format.Format) { f.Axes = []int{2} }), "10 elements of dtype \"uint16\" and shape [2] from byte 0 on " + outside},
		{with(func(f *format.Format) { f.Axes = []int{0} }), outside},
		{with(func(f *format.Format) { f.Axes, f.Count = []int{1 << 31, 1 << 31, 4}, 1 }), outside},
		{with(func(f *format.Format) { f.Axes, f.Count = []int{2, 5}, 1 }), "train.bin: its elements have shape [2 5], those of good.bin have []"},
	} {
		_, err := Reopen(Manifest{test.files}, Options{DType: array.Uint16})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: error %v, want %s", test.files, err, test.want)
		}
	}
}
