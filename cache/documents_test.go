package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cache/format"
	"batchfs/cache/localfile"
	"batchfs/internal/testwait"
)

// writeIndex writes an index with the given ends next to a file.
func writeIndex(t testing.TB, path string, ends ...int64) {
	t.Helper()
	var raw []byte
	for _, end := range ends {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(end))
	}
	must(t, os.WriteFile(path+format.IndexSuffix, raw, 0o600))
	must(t, os.Chtimes(path+format.IndexSuffix, longAgo, longAgo))
}

// indexedFiles writes files with the given numbers of tokens and an index for each. It returns the
// ends of all documents.
func indexedFiles(t testing.TB, r *rand.Rand, lens ...int) (paths []string, ends []int64) {
	t.Helper()
	paths, start := writeFiles(t, 2, lens...), int64(0)
	for i, n := range lens {
		var own []int64
		add := func(end int64) { own, ends = append(own, end), append(ends, start+end) }
		for end := int64(0); end < int64(n); {
			for r.IntN(9) == 0 {
				add(end) // an empty document
			}
			if r.IntN(1000) == 0 {
				for range r.IntN(3000) {
					add(end)
				}
			}
			end = min(int64(n), end+1+r.Int64N(9))
			add(end)
		}
		for range r.IntN(3) {
			add(int64(n))
		}
		writeIndex(t, paths[i], own...)
		start += int64(n)
	}
	return paths, ends
}

func checkDocuments(d *Documents, ends []int64, r *rand.Rand) error {
	if d.Count() != int64(len(ends)) {
		return fmt.Errorf("%d documents, want %d", d.Count(), len(ends))
	}
	for range 30 {
		pos := r.Int64N(ends[len(ends)-1])
		want, _ := slices.BinarySearch(ends, pos+1)
		if got, err := d.NumberAt(pos); err != nil || got != int64(want) {
			return fmt.Errorf("token %d is of document %d, error %v, want %d", pos, got, err, want)
		}
		first := r.IntN(len(ends))
		some := make([]int64, 1+r.IntN(min(len(ends)-first, 50)))
		if err := d.Ends(int64(first), some); err != nil || !slices.Equal(some, ends[first:first+len(some)]) {
			return fmt.Errorf("documents from %d on end at %d, error %v, want %d", first, some, err, ends[first:first+len(some)])
		}
	}
	return nil
}

func TestDocumentsOfAnIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, lens := range [][]int{{1}, {1, 2, 1}, {20_000}, {5000, 1, 70_000, 3}} {
		paths, ends := indexedFiles(t, r, lens...)
		everyAccess(t, func(t *testing.T, o Options) {
			o.Documents = DocumentsIndexed
			a := open(t, paths, o)
			var wg sync.WaitGroup
			for _, d := range []*Documents{a.Documents(), reopened(t, a, o).Documents()} {
				for reader := range uint64(2) {
					wg.Go(func() {
						if err := checkDocuments(d, ends, rand.New(rand.NewPCG(3, reader))); err != nil {
							t.Error(err)
						}
					})
				}
			}
			testwait.End(t, "the goroutines", wg.Wait)
			must(t, a.checkAll())
			if n := len(slices.Collect(a.Blobs())); n != 2*len(lens) {
				t.Errorf("%d files", n)
			}
			if o.Documents = ""; open(t, paths, o).Documents() != nil {
				t.Error("there are documents although nobody asked for them")
			}
		})
	}
}

// Documents have the same ends in the indexes of datatrove and of Megatron-LM.
func TestDocumentsOfLibraries(t *testing.T) {
	var ends []int64
	for _, of := range []struct{ start, tokens int64 }{{0, 100}, {100, 50}} {
		for end := int64(0); end < of.tokens; {
			end = min(end+7, of.tokens)
			ends = append(ends, of.start+end)
		}
	}
	for _, name := range []string{".ds", "_text_document.bin"} {
		everyAccess(t, func(t *testing.T, o Options) {
			o.Documents = DocumentsIndexed
			a := open(t, testdata(name), o)
			must(t, checkDocuments(a.Documents(), ends, rand.New(rand.NewPCG(1, 2))))
			must(t, checkDocuments(reopened(t, a, o).Documents(), ends, rand.New(rand.NewPCG(1, 2))))
		})
	}
}

// writeMegatron writes a file of uint16 tokens in sequences of these lengths, and its index.
func writeMegatron(t testing.TB, lens []int32, documents []int64) (path string) {
	t.Helper()
	index := append([]byte("MMIDIDX\x00\x00"), 1, 0, 0, 0, 0, 0, 0, 0, 8)
	index = binary.LittleEndian.AppendUint64(index, uint64(len(lens)))
	index = binary.LittleEndian.AppendUint64(index, uint64(len(documents)))
	starts, tokens := []int64(nil), 0
	for _, n := range lens {
		starts, tokens = append(starts, int64(2*tokens)), tokens+int(n)
	}
	for _, list := range []any{lens, starts, documents} {
		var err error
		index, err = binary.Append(index, binary.LittleEndian, list)
		must(t, err)
	}
	path = writeFiles(t, 2, tokens)[0]
	must(t, os.WriteFile(format.MegatronIndexOf(path), index, 0o600))
	return path
}

// Sequences and documents of Megatron-LM may be empty: first, in the middle, last, and many in a
// row.
func TestEmptyDocumentsOfMegatron(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	many := slices.Repeat([]int64{2}, 5000)
	type list struct {
		lens      []int32
		documents []int64
	}
	lists := []list{
		{[]int32{5, 7, 9}, []int64{0, 0, 1, 2, 3}}, {[]int32{5, 7, 9}, []int64{0, 1, 1, 2, 3}}, {[]int32{5, 7, 9}, []int64{0, 1, 2, 3, 3}},
		{[]int32{5, 7, 9}, slices.Concat([]int64{0}, many, []int64{3, 3})}, {[]int32{0, 5, 7, 9}, []int64{0, 1, 2, 3, 4}},
		{[]int32{5, 0, 7, 9}, []int64{0, 1, 2, 3, 4}}, {[]int32{5, 7, 9, 0}, []int64{0, 1, 2, 3, 4}}, {[]int32{5, 0, 0, 7, 0, 9}, []int64{0, 2, 3, 3, 5, 6}},
		{append(make([]int32, 3000), 4), []int64{0, 1000, 1000, 3001}},
	}
	for range 30 {
		random := list{documents: []int64{0}}
		for range 1 + r.IntN(3000) {
			random.lens = append(random.lens, int32(max(r.IntN(6)-2, 0)))
		}
		random.lens = append(random.lens, 1)
		for end := int64(0); end < int64(len(random.lens)); {
			end = min(end+max(r.Int64N(5)-1, 0), int64(len(random.lens)))
			random.documents = append(random.documents, end)
		}
		lists = append(lists, random)
	}
	for _, l := range lists {
		var ends []int64
		for _, sequences := range l.documents[1:] {
			tokens := int64(0)
			for _, n := range l.lens[:sequences] {
				tokens += int64(n)
			}
			ends = append(ends, tokens)
		}
		a := open(t, []string{writeMegatron(t, l.lens, l.documents)}, Options{Documents: DocumentsIndexed})
		if err := checkDocuments(a.Documents(), ends, r); err != nil {
			t.Errorf("sequences of %d tokens, documents %d: %v", l.lens, l.documents, err)
		}
	}
}

// Windows do not need the documents of Megatron-LM. If these are not those of the sequences, only
// documents are refused, until there is another index.
func TestWrongDocumentsOfMegatron(t *testing.T) {
	lens := []int32{5, 7, 9}
	for _, test := range []struct {
		documents []int64
		want      string
	}{
		{nil, "lists 0 documents, which end with sequence 0 of 3"},
		{[]int64{0}, "lists 0 documents, which end with sequence 0 of 3"},
		{[]int64{0, 1}, "lists 1 documents, which end with sequence 1 of 3"},
		{[]int64{0, 1, 1, 2}, "lists 3 documents, which end with sequence 2 of 3"},
		{[]int64{0, 1, 2, 3, 1, 2}, "lists 5 documents, which end with sequence 2 of 3"},
		{[]int64{0, 1, 2, 1, 3}, "document 2 ends at 1, and the one before it at 2"},
	} {
		path := writeMegatron(t, lens, test.documents)
		if n := open(t, []string{path}, Options{}).Len(); n != 21 {
			t.Errorf("documents %d: %d tokens", test.documents, n)
		}
		o := Options{Documents: DocumentsIndexed}
		_, err := Open([]string{path}, o)
		if err == nil || !strings.Contains(err.Error(), format.MegatronIndexOf(path)) || !strings.Contains(err.Error(), test.want) ||
			!strings.Contains(err.Error(), "batchfs index ") || !strings.Contains(err.Error(), " --eot N --force") {
			t.Errorf("documents %d: error %v, want %s", test.documents, err, test.want)
		}
		writeIndex(t, path, 2, 2, 21)
		a := open(t, []string{path}, o)
		must(t, checkDocuments(a.Documents(), []int64{2, 2, 21}, rand.New(rand.NewPCG(1, 2))))
		must(t, checkDocuments(reopened(t, a, o).Documents(), []int64{2, 2, 21}, rand.New(rand.NewPCG(1, 2))))
	}
}

func TestFilesAreDocuments(t *testing.T) {
	a := open(t, writeFiles(t, 2, 3, 1, 5), Options{DType: array.Uint16, Documents: FilesAreDocuments})
	must(t, checkDocuments(a.Documents(), []int64{3, 4, 9}, rand.New(rand.NewPCG(1, 2))))
	must(t, checkDocuments(reopened(t, a, Options{Documents: FilesAreDocuments}).Documents(), []int64{3, 4, 9}, rand.New(rand.NewPCG(1, 2))))
}

// Without any index, there are no documents. If only some files have one, Open fails.
func TestDocumentsWithoutIndex(t *testing.T) {
	paths := writeFiles(t, 2, 3, 4)
	o := Options{DType: array.Uint16, Documents: DocumentsIndexed}
	if open(t, paths, o).Documents() != nil {
		t.Error("there are documents without an index")
	}
	writeIndex(t, paths[1], 2, 4)
	_, err := Open(paths, o)
	want := fmt.Sprintf("nothing says where the documents of %s end, but %s.index does for %[2]s; batchfs index %[1]s --eot N", paths[0], paths[1])
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
}

// An index that does not match its file is rejected when it is opened, or when the wrong part is
// read.
func TestWrongIndex(t *testing.T) {
	o := Options{DType: array.Uint16, Documents: DocumentsIndexed}
	rising := func(n int) (ends []int64) {
		for i := range n {
			ends = append(ends, int64(2*i+2))
		}
		return ends
	}
	for _, test := range []struct {
		ends []int64
		want string
	}{
		{nil, "has 0 bytes, which is not a whole number of document ends"},
		{[]int64{3, 9}, "document 1, the last one, ends at 9, but"},
		{[]int64{3, 11}, "document 1, the last one, ends at 11, but"},
		{[]int64{3, 12, 10}, "document 2 ends at 10, and the one before it at 12; batchfs index FILE --eot N --force replaces the index"},
		{[]int64{3, 3, 2, 10}, "document 2 ends at 2, and the one before it at 3"},
	} {
		paths := writeFiles(t, 2, 10)
		writeIndex(t, paths[0], test.ends...)
		if _, err := Open(paths, o); err == nil || !strings.Contains(err.Error(), paths[0]+".index") || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%d: error %v, want %s", test.ends, err, test.want)
		}
	}
	const many = 200_000 // too many for the sample to cover all
	paths := writeFiles(t, 2, 2*many)
	for _, wrong := range []int64{-1, 0, 1 << 40, 2*3001 - 2} {
		ends := rising(many)
		ends[3001] = wrong
		writeIndex(t, paths[0], ends...)
		d := open(t, paths, o).Documents()
		for _, first := range []int64{2990, 3001, 3002} {
			if first == 3002 && (wrong == 2*3001-2 || wrong == 0) {
				continue // the ends do not decrease
			}
			err := d.Ends(first, make([]int64, 20))
			if err == nil || !strings.Contains(err.Error(), paths[0]+".index: document 300") {
				t.Errorf("document 3001 ends at %d, documents from %d on: error %v", wrong, first, err)
			}
		}
		must(t, d.Ends(3010, make([]int64, 20)))
	}
	ends := rising(many)
	writeIndex(t, paths[0], ends...)
	must(t, os.Truncate(paths[0]+".index", 8*many-3))
	if _, err := Open(paths, o); err == nil || !strings.Contains(err.Error(), "which is not a whole number of document ends of 8 bytes") {
		t.Errorf("error %v", err)
	}
}

// If an index changes, reads of documents fail like reads of a changed token file.
func TestChangedIndexIsStale(t *testing.T) {
	for _, change := range []struct {
		do   func(path string) error
		want error
	}{
		{func(path string) error { return os.Truncate(path, 8) }, syscall.ESTALE},
		{func(path string) error { return replace(path, make([]byte, 24)) }, syscall.ESTALE},
		{os.Remove, syscall.ENOENT},
	} {
		paths := writeFiles(t, 2, 10, 10)
		writeIndex(t, paths[0], 10)
		writeIndex(t, paths[1], 2, 3, 10)
		o := Options{DType: array.Uint16, Reading: localfile.Options{Access: localfile.Remap}, Documents: DocumentsIndexed}
		was := open(t, paths, o)
		now := reopened(t, was, o)
		must(t, was.Documents().Ends(0, make([]int64, 4)))
		must(t, change.do(paths[1]+".index"))
		for _, a := range []*Array{was, now} {
			_, of := a.Documents().NumberAt(15)
			for _, err := range []error{of, a.Documents().Ends(0, make([]int64, 4)), a.checkAll()} {
				if !errors.Is(err, change.want) || !strings.Contains(err.Error(), paths[1]+".index") {
					t.Errorf("error %v, want %v", err, change.want)
				}
			}
		}
	}
}

// An index may be replaced by a copy, and must settle after a write, just like a token file.
func TestIndexIsFollowed(t *testing.T) {
	paths := writeFiles(t, 2, 10)
	writeIndex(t, paths[0], 2, 10)
	o := Options{DType: array.Uint16, Documents: DocumentsIndexed}
	a := open(t, paths, o)
	copyOver(t, paths[0]+".index", noChange)
	must(t, a.checkAll())
	f, err := os.OpenFile(paths[0]+".index", os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	unwritten := o
	unwritten.CheckNoWriters = true
	_, err = Open(paths, unwritten)
	if err == nil || !strings.Contains(err.Error(), paths[0]+".index is open for writing") {
		t.Errorf("error %v", err)
	}
	_, err = f.WriteAt([]byte{3}, 0)
	must(t, err)
	o.Previous = a
	if _, err := Open(paths, o); err == nil || !strings.Contains(err.Error(), paths[0]+".index is being overwritten") {
		t.Errorf("error %v", err)
	}
	must(t, f.Close())
	must(t, checkDocuments(open(t, paths, o).Documents(), []int64{3, 10}, rand.New(rand.NewPCG(1, 2))))
}

func TestFingerprintCoversTheIndex(t *testing.T) {
	paths := writeFiles(t, 2, 10)
	sum := func(documents string) string {
		f := NewFingerprint(1)
		open(t, paths, Options{DType: array.Uint16, Documents: documents, Fingerprint: f})
		return f.String()
	}
	without := sum("")
	if sum(DocumentsIndexed) != without {
		t.Error("an index that is not there changes the fingerprint")
	}
	var seen []string
	for _, end := range []int64{3, 4} {
		writeIndex(t, paths[0], end, 10)
		if sum("") != without {
			t.Error("an index that nobody asks for changes the fingerprint")
		}
		seen = append(seen, sum(DocumentsIndexed))
	}
	if seen[0] == seen[1] || seen[0] == without {
		t.Errorf("fingerprints %s, without an index %s", seen, without)
	}
}

// A memoryBlob is a Blob in memory. It visits ranges in reverse order, which a Blob may do.
type memoryBlob struct {
	blob.Blob
	path string
	raw  []byte
}

func (m *memoryBlob) Path() string { return m.path }

func (m *memoryBlob) Read(ranges []localfile.Range, visit func(int, []byte) error) error {
	for _, r := range slices.Backward(ranges) {
		if err := visit(r.Index, m.raw[r.From:r.To]); err != nil {
			return err
		}
	}
	return nil
}

// Documents returns consistent ends or an error, whatever an index contains and whatever Reopen is
// given.
func FuzzIndex(f *testing.F) {
	for _, name := range []string{"a.ds.index", "b.ds.index"} {
		f.Add(readFile(f, "testdata/"+name), int64(100), int64(0), int64(15), int64(0), int64(0), int64(0), int64(7))
	}
	f.Add(readFile(f, "testdata/a_text_document.idx"), int64(100), int64(282), int64(15), int64(114), int64(20), int64(2), int64(7))
	f.Fuzz(func(t *testing.T, raw []byte, tokens, at, count, starts, sequences, width, pos int64) {
		ends := format.Ends{At: at, Count: count, Starts: starts, Sequences: sequences, Width: width}
		if tokens < 1 || tokens > 1<<40 || width > 8 || ends.CheckFits("a.index", int64(len(raw))) != nil {
			return
		}
		x := &documentIndex{blob: &memoryBlob{path: "a.index", raw: raw}, ends: ends, tokens: tokens}
		a := &Array{elementBytes: 1, shards: []shard{{blob: &memoryBlob{path: "a"}, format: format.Format{DType: array.Uint8, Count: tokens}, index: x}}}
		d := newDocuments(a)
		if d.Count() != count {
			t.Errorf("%d documents", d.Count())
		}
		if pos = pos % tokens; pos < 0 {
			return
		}
		document, err := d.NumberAt(pos)
		if err != nil {
			return
		}
		some := make([]int64, min(count-document, 20))
		if d.Ends(document, some) != nil {
			return
		}
		if slices.Max(some) > tokens || !slices.IsSorted(some) || some[0] < 0 {
			t.Errorf("documents from %d on end at %d, of %d tokens", document, some, tokens)
		}
		again := make([]int64, len(some))
		if d.Ends(document, again) != nil || !reflect.DeepEqual(some, again) {
			t.Errorf("%d, and then %d", some, again)
		}
	})
}
