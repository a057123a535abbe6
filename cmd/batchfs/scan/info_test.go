package scan

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

func survey(t *testing.T, path string, o InfoOptions) (s Survey, text string) {
	t.Helper()
	testfiles.NoError(t, s.AddFile(t.Context(), path, o, io.Discard))
	s.Finish(0)
	var out bytes.Buffer
	s.Print(&out)
	return s, out.String()
}

func TestSurvey(t *testing.T) {
	t.Chdir(t.TempDir())
	saveTokens(t, "a.bin", []uint16{5, 6, 0, 7, 1000, 2, 0, 8})
	var o InfoOptions
	o.Open.DType = "uint16"
	s, text := survey(t, "a.bin", o)
	f := s.Files[0]
	if f.Tokens != 8 || f.Largest != uint64(1000) || f.Read != 16 || f.Format != "headerless" {
		t.Errorf("%+v", f)
	}
	if want := []Bin{{0, 0, 2}, {1, 1, 0}, {2, 3, 1}, {4, 7, 3}, {8, 15, 1}}; !slices.Equal(s.IDs[:5], want) || s.IDs[10] != (Bin{512, 1023, 1}) || len(s.Numbers) != 0 {
		t.Errorf("ids %v, other numbers %v", s.IDs, s.Numbers)
	}
	for _, want := range []string{"8 tokens", "largest id 1000\n", "\ntoken ids\n", "512 to 1023  █████████████▍ 12.5%"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s\nlacks %q", text, want)
		}
	}
	o.Open.DType = "int16"
	saveTokens(t, "signed.bin", []uint16{5, 0xffff, 6})
	if s, _ := survey(t, "signed.bin", o); s.Files[0].Largest != int64(6) || s.IDs[0] != (Bin{math.MinInt64, 0, 1}) {
		t.Errorf("%+v %v", s.Files[0], s.IDs)
	}
}

// The largest unsigned numbers are not taken for negative ones.
func TestSurveyOfLargestNumbers(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Write(t, map[string]string{"a.bin": strings.Repeat("\xff", 16)})
	var o InfoOptions
	o.Open.DType = "uint64"
	s, text := survey(t, "a.bin", o)
	if want := []Bin{{math.MaxInt64, math.MaxUint64, 2}}; s.Files[0].Largest != uint64(math.MaxUint64) || !slices.Equal(s.IDs, want) || strings.Contains(text, "below 0") {
		t.Errorf("%v, %s", s.IDs, text)
	}
}

// An index that is wrong near its end adds no lengths of documents to those of other files.
func TestSurveyOfWrongIndex(t *testing.T) {
	t.Chdir(t.TempDir())
	const documents = 2 * endsPerBlock
	var index []byte
	for end := range uint64(documents) {
		index = binary.LittleEndian.AppendUint64(index, end+1)
	}
	binary.LittleEndian.PutUint64(index[8*(documents-1000):], 1)
	testfiles.Write(t, map[string]string{"a.bin": strings.Repeat("a", 2*documents), "a.bin.index": string(index),
		"b.bin": "abcd", "b.bin.index": "\x02\x00\x00\x00\x00\x00\x00\x00"})
	var s Survey
	var o InfoOptions
	o.Open.DType = "uint16"
	if err := s.AddFile(t.Context(), "a.bin", o, io.Discard); err == nil {
		t.Error("the index is accepted")
	}
	testfiles.NoError(t, s.AddFile(t.Context(), "b.bin", o, io.Discard))
	s.Finish(0)
	var text strings.Builder
	s.Print(&text)
	if len(s.Files) != 2 || s.Files[0].Documents != 0 || s.Lengths.Documents != 1 || strings.Contains(text.String(), "sample") {
		t.Errorf("%+v, %s", s.Lengths, &text)
	}
}

// Documents are counted by the index if there is one. Elements that are not tokens are described
// too.
func TestSurveyOfFormats(t *testing.T) {
	t.Chdir(t.TempDir())
	saveTokens(t, "a.bin", []uint16{5, 6, 0, 7, 0})
	var o InfoOptions
	o.Open.DType = "uint16"
	if _, err := WriteIndex(t.Context(), "a.bin", o.Open, 0, false, io.Discard); err != nil {
		t.Fatal(err)
	}
	header := "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}"
	npy := fmt.Sprintf("\x93NUMPY\x01\x00\x76\x00%-117s\n", header) + strings.Repeat("\x00", 24)
	testfiles.Write(t, map[string]string{"b.npy": npy, "c.bin": "\x01\x00", "c.bin.index": "\x02\x00\x00\x00\x00\x00\x00\x00"})
	s, _ := survey(t, "a.bin", o)
	if f := s.Files[0]; f.Documents != 2 || !slices.Equal(s.Lengths.Bins, []Bin{{2, 3, 2}}) {
		t.Errorf("%+v, lengths %+v", f, s.Lengths)
	}
	o.Open.GuessedDType = true
	s, text := survey(t, "b.npy", o)
	if want := "npy, float32, shape [2 3], 24 bytes\n"; s.Files[0].Tokens != 0 || !strings.Contains(text, want) {
		t.Errorf("%s\nlacks %q", text, want)
	}
	if err := s.AddFile(t.Context(), "c.bin", o, io.Discard); err == nil || len(s.Files) != 2 || s.Files[1].Tokens != 1 {
		t.Errorf("a wrong index: %v, %+v", err, s.Files)
	}
	testfiles.Write(t, map[string]string{"mask.bin": "\x01\x00\x01", "vocab.json": `{"kind": "byte", "vocab_size": 256, "token_dtype": "uint16",
		"splits": {"train": {"shards": [{"name": "a.bin", "arrays": [{"name": "mask", "file": "mask.bin", "dtype": "uint8"}]}]}}}`})
	s, text = survey(t, "mask.bin", o)
	if f := s.Files[0]; f.DType != "uint8" || f.Shape[0] != 3 || f.Tokens != 0 || f.Largest != uint64(1) || !strings.Contains(text, "array mask") ||
		!slices.Equal(s.Numbers, []Bin{{0, 0, 1}, {1, 1, 2}}) || len(s.IDs) != 0 || !strings.Contains(text, "\nnumbers\n") {
		t.Errorf("a mask: %+v, %s", f, text)
	}
}

// The percentiles of lengths over several files are those of their sorted list. Of many documents,
// evenly spaced blocks are read.
func TestLengths(t *testing.T) {
	t.Chdir(t.TempDir())
	var o InfoOptions
	o.Open.DType = "uint8"
	random := rand.New(rand.NewPCG(1, 2))
	var s Survey
	var all []int64
	add := func(name string, documents int, length func() int64) {
		var index []byte
		end := int64(0)
		for range documents {
			n := length()
			all = append(all, n)
			end += n
			index = binary.LittleEndian.AppendUint64(index, uint64(end))
		}
		testfiles.Write(t, map[string]string{name: "", name + ".index": string(index)})
		testfiles.NoError(t, os.Truncate(name, end))
		testfiles.NoError(t, s.AddFile(t.Context(), name, o, io.Discard))
	}
	add("a.bin", 500, func() int64 { return 1 + random.Int64N(1000) })
	add("b.bin", 1, func() int64 { return 5000 })
	add("c.bin", 700, func() int64 { return 1 + random.Int64N(10) })
	slices.Sort(all)
	at := func(p float64) int64 { return all[int(math.Ceil(p*float64(len(all))))-1] }
	s.Finish(699)
	l := s.Lengths
	if got, want := []int64{l.Documents, l.Shortest, l.P10, l.Median, l.P90, l.P99, l.Longest}, []int64{1201, all[0], at(0.1), at(0.5), at(0.9), at(0.99), 5000}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	var out bytes.Buffer
	s.Print(&out)
	if want := fmt.Sprintf("  shortest 1, 10%% up to %d, median %d, 90%% up to", l.P10, l.Median); !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "\ntokens per document\n") {
		t.Errorf("%s\nlacks %q", &out, want)
	}
	long := int64(0)
	for _, n := range all {
		if n > 700 {
			long++
		}
	}
	if want := fmt.Sprintf("\n  %d of 1201 are longer than a row of 700 tokens\n", long); l.Long == nil || *l.Long != long || !strings.Contains(out.String(), want) {
		t.Errorf("%s\nlacks %q", &out, want)
	}
	if testing.Short() {
		return
	}
	const documents = 20 * endsPerBlock
	for _, o.All = range []bool{true, false} {
		s, all = Survey{}, nil
		add("many.bin", documents, func() int64 { return 1 + int64(len(all))*10/documents })
		s.Finish(0)
		want := int64(documents)
		if !o.All {
			want = sampledBlocks * endsPerBlock
		}
		if l := s.Lengths; l.Documents != want || l.Shortest != 1 || l.P10 > 2 || l.Median < 5 || l.Median > 6 || l.P90 < 9 || l.Longest != 10 {
			t.Errorf("all %v: %+v, want %d documents of 1 to 10 tokens", o.All, l, want)
		}
		out.Reset()
		if s.Print(&out); strings.Contains(out.String(), fmt.Sprintf("in a sample of %d documents", want)) == o.All {
			t.Errorf("all %v:\n%s", o.All, &out)
		}
	}
}

// A Survey reads only samples of a large file, unless All is set.
func TestSurveySamples(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	t.Chdir(t.TempDir())
	saveTokens(t, "a.bin", []uint16{7})
	const size = 5 * sampledBlocks * sampledBytes / 4
	testfiles.NoError(t, os.Truncate("a.bin", size))
	var o InfoOptions
	o.Open.DType = "uint64"
	for _, o.All = range []bool{false, true} {
		s, text := survey(t, "a.bin", o)
		want := int64(size)
		if !o.All {
			want = sampledBlocks * sampledBytes
		}
		if s.Files[0].Read != want || s.Files[0].Largest != uint64(7) || strings.Contains(text, "sample") == o.All {
			t.Errorf("all %v: %d bytes\n%s", o.All, s.Files[0].Read, text)
		}
	}
}
