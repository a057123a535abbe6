package dataset

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"batchfs/cache/array"
	"batchfs/cmd/batchfs/internal/testfiles"
)

// openArrays writes files of a matrix of rows, of tokens with arrays beside them, and of a mixture of such, and opens them.
func openArrays(t *testing.T, more string) []*Dataset {
	t.Helper()
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 50, "b.bin": 30})
	testfiles.Write(t, map[string]string{"a.mask": strings.Repeat("\x00\x01\x01\x01\x00", 10), "a.top": strings.Repeat("top4", 50),
		"b.mask": strings.Repeat("\x01", 30), "b.top": strings.Repeat("4pot", 30)})
	const arrays = `
[[splits.%s.arrays]]
name = "mask"
files = "%[2]s.mask"
dtype = "bool"
[[splits.%[1]s.arrays]]
name = "top"
files = "%[2]s.top"
at = "x"
dtype = "float16"
shape = [2]
`
	source := func(name string) string {
		return fmt.Sprintf("[[splits.mix.sources]]\ntokens = '%s.bin'\nweight = 1\n", name) + fmt.Sprintf(arrays, "mix.sources", name)
	}
	return mustOpen(t, testfiles.Small+more+`
[splits.rows]
tokens = ["a.bin", "b.bin"]
token_dtype = "float32"
dtype = "native"
shape = [5]
layout = "rows"
order = "shuffle"
[splits.beside]
tokens = "a.bin"
`+fmt.Sprintf(arrays, "beside", "a")+source("a")+source("b"))
}

// What names a sequence of any arrays is a path to it, from the split and from its directories; and native is the dtype of the files.
func TestLabelsOfArrays(t *testing.T) {
	for _, d := range openArrays(t, "") {
		for _, path := range []string{"dtype=native", "seed=9,dtype=native", "batch_size=5,order=sequential"} {
			there, err := d.With(path)
			if err != nil {
				t.Fatal(err)
			}
			_, settings, _ := strings.Cut(there.label(), "/")
			back, err := d.With(settings)
			if err != nil {
				t.Errorf("%s/%s has the label %s, of which no directory is made: %v", d.Split.Name(), path, there.label(), err)
				continue
			}
			if !reflect.DeepEqual(back.Sequence.Settings, there.Sequence.Settings) || back.label() != there.label() || back.Split.Name() != there.Split.Name() {
				t.Errorf("%s/%s: %s is %s, want %s", d.Split.Name(), path, settings, back.Split.Name(), there.Split.Name())
			}
			if there, _ := d.With("dtype=native"); there.Sequence.DType == d.Sequence.DType && there.Split.Name() != d.Split.Name() {
				t.Errorf("%s/dtype=native has the name %s", d.Split.Name(), there.Split.Name())
			}
		}
	}
}

// Each row of a matrix is what lies in its file at its start.
func TestOriginsOfRows(t *testing.T) {
	d := openArrays(t, "")[0]
	seen := map[string]bool{}
	for k := range uint64(d.Sequence.BatchesPerEpoch()) {
		batch := batch(t, d.Sequence.Read, d.Sequence.Batch().Bytes(), k)
		for j := range 3 {
			row, err := d.origin(k, j)
			if err != nil {
				t.Fatal(err)
			}
			seen[fmt.Sprint(row.file, row.start)] = true
			if got, want := testfiles.Bytes(t, row.file, 20*row.start, 20), batch[20*j:][:20]; !bytes.Equal(got, want) {
				t.Errorf("row %d of batch %d is % x, but element %d of %s is % x", j, k, want, row.start, row.file, got)
			}
		}
	}
	if len(seen) != 16 {
		t.Errorf("an epoch has %d rows, of 16", len(seen))
	}
}

// Another process serves the same arrays.
func TestSnapshotOfArrays(t *testing.T) {
	want := openArrays(t, "")
	for i, got := range serve(t, take(t), nil) {
		same(t, got, newServed(want[i], &followed{now: want[i]}))
	}
}

// An array beside the tokens is part of the data: where it alone changes, batches are no more, or follow as a whole.
func TestArrayThatChanges(t *testing.T) {
	for _, file := range []string{"b.mask", "b.top", "b.bin"} {
		for _, follow := range []bool{false, true} {
			more := ""
			if follow {
				more = "[splits.mix]\non_change = 'follow'\n"
			}
			d := openArrays(t, more)
			i := len(d) - 1
			if follow {
				i = 0
			}
			mix := newServed(d[i], &followed{now: d[i], log: slog.New(slog.DiscardHandler), changed: func(*Dataset) error { return nil }})
			if mix.Split.Name() != "mix" {
				t.Fatalf("the split is %s", mix.Split.Name())
			}
			size := mix.Sequence.Batch().Bytes()
			was := batch(t, mix.Read, size, 0)
			old, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for n := range old {
				old[n] ^= 1
			}
			testfiles.Write(t, map[string]string{"new": string(old)})
			if err := os.Rename("new", file); err != nil {
				t.Fatal(err)
			}
			now, err := mix.Now(array.AllBatches)
			if !follow {
				if !errors.Is(err, syscall.ESTALE) {
					t.Errorf("%s changed: error %v", file, err)
				}
			} else if err != nil || now == mix || now.Version != 1 || bytes.Equal(batch(t, now.Read, size, 0), was) || now.Metadata()["fingerprint"] == mix.Metadata()["fingerprint"] {
				t.Errorf("%s changed: version %d, %v, %v", file, now.Version, now.Metadata(), err)
			}
			// Not even x of a row that is not of the file.
			for off := range int64(size) {
				if err := mix.Read(make([]byte, 1), 0, off); !errors.Is(err, syscall.ESTALE) {
					t.Fatalf("%s changed: byte %d of the old batch: %v", file, off, err)
				}
			}
			// One of another length is no array beside these tokens.
			testfiles.Write(t, map[string]string{"new": string(old[:len(old)-4])})
			if err := os.Rename("new", file); err != nil {
				t.Fatal(err)
			}
			if _, err := mix.Now(array.AllBatches); !errors.Is(err, syscall.ESTALE) {
				t.Errorf("%s is shorter: error %v", file, err)
			}
		}
	}
}

// The text of a row is that of its tokens, whatever their dtype; rows of numbers have none.
func TestTextOfAnyTokens(t *testing.T) {
	for _, test := range []struct{ keys, want string }{
		{"token_dtype = 'uint8'\nvocab_size = 256", "\n    abc\n"},
		{"token_dtype = 'int64'", "\n    abc\n"},
		{"token_dtype = 'int16'", "\n    abc\n"},
		{"token_dtype = 'float32'\nlayout = 'rows'", ""},
	} {
		t.Run(test.keys, func(t *testing.T) {
			t.Chdir(t.TempDir())
			width := 1
			switch {
			case strings.Contains(test.keys, "64"):
				width = 8
			case strings.Contains(test.keys, "16"):
				width = 2
			case strings.Contains(test.keys, "32"):
				width = 4
			}
			var raw []byte
			for i := range 4 {
				raw = append(raw, append([]byte{byte(i % 3)}, make([]byte, width-1)...)...)
			}
			testfiles.Write(t, map[string]string{"a.bin": string(raw), "vocab.json": chars})
			d := mustOpen(t, "[splits.train]\ntokens = 'a.bin'\nbatch_size = 1\nblock_size = 3\norder = 'sequential'\n"+test.keys)[0]
			var out bytes.Buffer
			if err := d.Describe(&out, 0); err != nil {
				t.Fatal(err)
			}
			if got := out.String(); !strings.Contains(got, "row 0") || strings.Contains(got, "\n    ") != (test.want != "") || !strings.Contains(got, test.want) {
				t.Errorf("%s", got)
			}
		})
	}
}

// Files that do not suit the tokens are refused, and the error names them.
func TestArraysThatDoNotSuit(t *testing.T) {
	for _, test := range []struct{ array, want string }{
		{"files = 'short'\ndtype = 'uint8'", "/short has 49 elements, but there are 50 in "},
		{"files = 'long'\ndtype = 'uint8'", "/long has 51 elements, but there are 50 in "},
		{"files = ['short', 'short']\ndtype = 'uint8'", "/short has 98 elements, but there are 50 in "},
		{"files = 'long'\ndtype = 'uint16'", "/long: 51 bytes are not a whole number of "},
		{"files = 'long'\ndtype = 'uint8'\nshape = [2]", "/long: 51 bytes are not a whole number of elements of 2 bytes, uint8 of shape [2]"},
		{"files = 'gone'\ndtype = 'uint8'", "/gone: no such file or directory"},
		{"files = 'empty'\ndtype = 'uint8'", "/empty is empty"},
	} {
		t.Run(test.array, func(t *testing.T) {
			t.Chdir(t.TempDir())
			testfiles.Positions(t, map[string]int{"a.bin": 50})
			testfiles.Write(t, map[string]string{"short": strings.Repeat("\x01", 49), "long": strings.Repeat("\x01", 51), "empty": ""})
			_, err := openHere(t, testfiles.Small+"[splits.train]\ntokens = 'a.bin'\n[[splits.train.arrays]]\nname = 'mask'\n"+test.array)
			if err == nil || !strings.HasPrefix(err.Error(), "splits.train: ") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
}

// Files keep their sizes while they are open: an array that gets another dtype or shape is not followed.
func TestArrayOfAnotherShape(t *testing.T) {
	for _, now := range []string{"'<f4', 'fortran_order': False, 'shape': (50,)", "'|u1', 'fortran_order': False, 'shape': (50, 2)"} {
		t.Chdir(t.TempDir())
		npy := func(name, dict string, bytes int) {
			testfiles.Write(t, map[string]string{name: fmt.Sprintf("\x93NUMPY\x01\x00\x76\x00%-117s\n", "{'descr': "+dict+"}") + strings.Repeat("\x01", bytes)})
		}
		testfiles.Positions(t, map[string]int{"a.bin": 50})
		npy("mask.npy", "'|u1', 'fortran_order': False, 'shape': (50,)", 50)
		s := follow(t, testfiles.Small+"[splits.train]\ntokens = 'a.bin'\non_change = 'follow'\n[[splits.train.arrays]]\nname = 'mask'\nfiles = 'mask.npy'")
		npy("mask.npy", now, 200/(1+strings.Count(now, "2")))
		if now, err := s.Now(array.AllBatches); now != s || !errors.Is(err, syscall.ESTALE) || !strings.Contains(err.Error(), "mask") {
			t.Errorf("error %v", err)
		}
		npy("mask.npy", "'|u1', 'fortran_order': False, 'shape': (50,)", 50)
		if now, err := s.Now(array.AllBatches); now == s || err != nil {
			t.Errorf("with such a file as before: %v", err)
		}
	}
}
