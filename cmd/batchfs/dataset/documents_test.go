package dataset

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"batchfs/cache/array"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/internal/testfiles"
)

const documentsConfig = `
[batch]
batch_size = 3
block_size = 8
token_dtype = "uint32"
order = "shuffle"
documents = true
[splits.packed]
rows = "packed"
tokens = "a.bin"
[splits.document]
rows = "document"
tokens = "a.bin"
[splits.first]
rows = "document-first"
tokens = "a.bin"
[splits.windows]
tokens = "a.bin"
`

// writeDocuments writes tokens whose values are their positions, and an index of documents of 1, 2,
// 3, … tokens.
func writeDocuments(t *testing.T) (ends []uint64) {
	t.Helper()
	t.Chdir(t.TempDir())
	const count = 40
	testfiles.Positions(t, map[string]int{"a.bin": count * (count + 1) / 2})
	var index []byte
	for i := range uint64(count) {
		ends = append(ends, (i+1)*(i+2)/2)
		index = binary.LittleEndian.AppendUint64(index, ends[i])
	}
	testfiles.Write(t, map[string]string{"a.bin.index": string(index), "config.toml": documentsConfig})
	return ends
}

// Origins of rows made of documents name the first document and the number of segments. inspect
// shows each segment.
func TestOriginsOfDocuments(t *testing.T) {
	ends := writeDocuments(t)
	for _, d := range mustOpenConfig(t) {
		if n := len(originsOf(d, 3)); int64(n) != d.Origins().Len() {
			t.Errorf("%s: %d bytes, want %d", d.Split.Name, n, d.Origins().Len())
		}
		for k := range uint64(40) {
			var got struct {
				Rows []struct {
					Epoch           uint64
					Start, Document uint64
					Segments        int
				}
			}
			must(t, json.Unmarshal(originsOf(d, k), &got))
			var text bytes.Buffer
			must(t, d.Describe(&text, k, 1000, nil))
			x := readBatch(t, d.Sequence.Read, d.Sequence.Batch().MainBytes(), k)
			for j, row := range got.Rows {
				first := uint64(binary.LittleEndian.Uint32(x[4*8*j:]))
				if row.Start != first || first >= ends[row.Document] || row.Document > 0 && first < ends[row.Document-1] {
					t.Fatalf("%s: row %d of batch %d is said to begin at %d in document %d, and begins at %d", d.Split.Name, j, k, row.Start, row.Document, first)
				}
				if words := fmt.Sprintf(" a.bin from token %d on, document %d\n", row.Start, row.Document); !strings.Contains(strings.ReplaceAll(text.String(), abs(t, "a.bin"), "a.bin"), words) {
					t.Errorf("%s: inspect does not say %q:\n%s", d.Split.Name, words, &text)
				}
				if words := fmt.Sprintf("%d segments\n", row.Segments); row.Segments > 1 && !strings.Contains(text.String(), words) {
					t.Errorf("%s: inspect does not say %q:\n%s", d.Split.Name, words, &text)
				}
				if row.Segments != 1 && d.Split.Name != "packed" || row.Segments < 1 {
					t.Errorf("%s: %d segments", d.Split.Name, row.Segments)
				}
				found, err := d.Find(t.Context(), int64(first), row.Epoch, func(int64, int64) {})
				must(t, err)
				if words := fmt.Sprintf(`"batch": %d,`, k); !strings.Contains(string(indentedJSON(found)), words) {
					t.Errorf("%s: token %d of batch %d is found in %s", d.Split.Name, first, k, indentedJSON(found))
				}
			}
		}
	}
}

// With document_numbers, the provenance of a row has the numbers of all of its documents. These are
// the numbers in the batch, and the number of the document that has the last target.
func TestOriginsHaveDocumentNumbers(t *testing.T) {
	writeDocuments(t)
	for _, d := range openFlags(t, config.Flags{Sets: []string{"batch.document_numbers=true"}}) {
		batch := d.Sequence.Batch()
		i := slices.IndexFunc(batch.Arrays, func(a array.Descriptor) bool { return a.Name == "document_numbers" })
		several := false
		for k := range uint64(40) {
			text := originsOf(d, k)
			var got struct{ Rows []struct{ Documents []int64 } }
			must(t, json.Unmarshal(text, &got))
			if int64(len(text)) != d.Origins().Len() {
				t.Fatalf("%s: %d bytes, want %d", d.Split.Name, len(text), d.Origins().Len())
			}
			numbers := readBatch(t, d.Sequence.Read, batch.Bytes(), k)[batch.Arrays[i].Offset:]
			for j, row := range got.Rows {
				var want []int64
				for n := range d.Sequence.BlockSize {
					if number := int64(binary.LittleEndian.Uint64(numbers[8*(j*d.Sequence.BlockSize+n):])); number >= 0 {
						want = append(want, number)
					}
				}
				if n := len(want); n == 0 || len(row.Documents)-n > 1 || !slices.Equal(row.Documents[:n], want) {
					t.Fatalf("%s: row %d of batch %d has documents %d, and the batch %d", d.Split.Name, j, k, row.Documents, want)
				}
				several = several || len(want) > 1
			}
		}
		if want := d.Split.Name == "packed" || d.Split.Name == "windows"; several != want {
			t.Errorf("%s: rows with several documents: %v, want %v", d.Split.Name, several, want)
		}
	}
}

// Provenance says which segments begin with an inserted BOS. A file that does not begin with BOS is
// rejected when it is opened.
func TestOriginsWithBOS(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 26})
	const split = "[splits.train]\ntokens = 'a.bin'\ntoken_dtype = 'uint32'\nbatch_size = 3\nblock_size = 10\norder = 'sequential'\n" +
		"rows = 'packed'\ndocuments = 'files'\n"
	d := mustOpen(t, split+"bos = 0\n")[0]
	var got struct {
		Settings struct{ BOS *int }
		Rows     []struct {
			Start    int
			Inserted bool
		}
	}
	must(t, json.Unmarshal(originsOf(d, 0), &got))
	if want := "[{0 false} {10 true} {20 true}]"; fmt.Sprint(got.Rows) != want || got.Settings.BOS == nil || *got.Settings.BOS != 0 {
		t.Errorf("%+v, want rows %s and bos 0", got, want)
	}
	var text bytes.Buffer
	must(t, d.Describe(&text, 0, 0, nil))
	for _, want := range []string{"epoch 0, 11 tokens of ", "epoch 0, inserted bos, then 10 tokens of ", " from token 11 on, document 0\n", "then 5 tokens of "} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("inspect does not say %q:\n%s", want, &text)
		}
	}
	if n := len(originsOf(d, 0)); !bytes.HasSuffix(originsOf(d, 0), []byte("]\n}\n")) || int64(n) != d.Origins().Len() {
		t.Errorf("%d bytes of provenance, want %d:\n%s", n, d.Origins().Len(), originsOf(d, 0))
	}
	const want = "a.bin: document 0 begins with token 0, at index 0, and every document must begin with bos, which is 3; batchfs prepare --eot begin"
	if _, err := openHere(t, split+"bos = 3\n"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("bos = 3: error %v, want %s", err, want)
	}
}

// info.json and README count the documents that are longer than a row, and inspect --find says why
// no row has a token of one. A process that takes over knows the counts.
func TestLongDocumentsAreCounted(t *testing.T) {
	writeDocuments(t) // of 1 to 40 tokens; a row has 9
	for _, test := range []struct {
		split, tooLong string
		first, last    string // why the first and the last token are in no batch
		note           string
	}{
		{"packed", "cut", "", "", "31 of 40 documents are longer than a row, 9 tokens: they are cut, and continue in other rows"},
		{"packed", "drop", "", `document 39 has 40 tokens, more than a row of 9, so too_long = "drop" leaves it out`,
			"31 of 40 documents are longer than a row, 9 tokens: they are dropped"},
		{"document", "truncate", "", "document 39 has 40 tokens, of which only the first 9 are read",
			"31 of 40 documents are longer than a row, 9 tokens: they are truncated"},
		{"first", "cut", "", "document 39 has 40 tokens, of which only the first 9 are read",
			"31 of 40 documents are longer than a row, 9 tokens: they are truncated"},
		{"windows", "cut", "", "", ""},
	} {
		s := takeWith(t, config.Flags{Sets: []string{"splits." + test.split + ".too_long=" + test.tooLong}})
		d, err := s.OpenPath(test.split)
		must(t, err)
		long, err := s.OpenPath(test.split + "/block_size=39")
		must(t, err)
		for _, check := range []struct {
			d    *Dataset
			note string
			want any
		}{{d, test.note, float64(31)}, {long, "", float64(0)}} {
			if test.note == "" {
				check.want = nil
			}
			var info map[string]any
			must(t, json.Unmarshal(check.d.Info(), &info))
			if spec := check.d.spec(); info["long_documents"] != check.want || spec.Note != check.note {
				t.Errorf("%s, too_long %s: %v long documents and the note %q, want %v and %q", check.d.Split.Path(), test.tooLong, info["long_documents"], spec.Note, check.want, check.note)
			}
		}
		for pos, want := range map[int64]string{0: test.first, d.Len() - 1: test.last} {
			found, err := d.Find(t.Context(), pos, 0, func(int64, int64) {})
			must(t, err)
			var text bytes.Buffer
			found.Print(&text)
			if found.Reason != want || !strings.HasSuffix(text.String(), strings.TrimPrefix(want+"\n", "\n")) || want != "" && len(found.Occurrences) > 0 {
				t.Errorf("%s, too_long %s: token %d: %q, want %q:\n%s", test.split, test.tooLong, pos, found.Reason, want, &text)
			}
		}
	}
}

// A state of rows with cut documents has no too_long. It continues only if nothing else happens to
// long documents.
func TestStateOfLongDocuments(t *testing.T) {
	writeDocuments(t)
	open := func(tooLong string) *Dataset { return openSplitWith(t, "rows = 'packed'\ntoo_long = '"+tooLong+"'") }
	for _, then := range []string{"cut", "drop", "truncate"} {
		for _, now := range []string{"cut", "drop", "truncate"} {
			saved := stateAt(t, open(then), 3)
			if _, ok := saved["too_long"]; ok == (then == "cut") {
				t.Errorf("too_long %s: the state %v", then, saved)
			}
			var want []string
			if then != now {
				want = append(want, fmt.Sprintf("too_long was '%s' and is '%s'", then, now))
			}
			if r := Resume(saved, stateAt(t, open(now), 0)); r.Malformed != "" || !slices.Equal(r.Differences, want) || r.Step != 3 {
				t.Errorf("from %s to %s: %+v, want %q", then, now, r, want)
			}
		}
	}
}

// When a followed file grows, the documents that are longer than a row are counted again, and rows
// are those of the new documents.
func TestLongDocumentsOfFollowed(t *testing.T) {
	for _, tooLong := range []string{"drop", "truncate"} {
		writeDocuments(t)
		flags := config.Flags{Sets: []string{"splits.packed.on_change=follow", "splits.packed.too_long=" + tooLong}}
		s := mountedSequencesOf(t, takeWith(t, flags), func(file *os.File) error { return file.Close() })[0]
		if note := s.Current().Spec().Note; !strings.HasPrefix(note, "31 of 40 documents ") {
			t.Errorf("before: %q", note)
		}
		index := testfiles.Bytes(t, "a.bin.index", 0, 8*40)
		for _, end := range []uint64{829, 838, 848} { // of 9, 9 and 10 tokens
			index = binary.LittleEndian.AppendUint64(index, end)
		}
		testfiles.Positions(t, map[string]int{"a.bin": 848})
		testfiles.Write(t, map[string]string{"a.bin.index": string(index)})
		now := mustCheckAll(t, s)
		if note := s.Current().Spec().Note; now.Version != 1 || !strings.HasPrefix(note, "32 of 43 documents ") {
			t.Errorf("after: version %d, %q", now.Version, note)
		}
		fresh := openFlags(t, flags)[0]
		for k := range uint64(20) {
			size := fresh.Sequence.Batch().Bytes()
			if !bytes.Equal(readBatch(t, now.Read, size, k), readBatch(t, fresh.Sequence.Read, size, k)) {
				t.Errorf("too_long %s: batch %d differs", tooLong, k)
			}
		}
	}
}

// A process that takes over does not count the rows of documents again.
func TestSnapshotKeepsCounts(t *testing.T) {
	writeDocuments(t)
	want := mustOpenConfig(t)
	s := takeSnapshot(t)
	c, err := s.Config()
	must(t, err)
	s.Splits[0].RowCounts[0].Groups[0]--
	d, err := s.open(c.Splits[0], NewOpener(c))
	must(t, err)
	if got, counted := d.Sequence.RowsPerEpoch(), want[0].Sequence.RowsPerEpoch(); got != counted-1 {
		t.Errorf("%d rows, want %d: they were counted again", got, counted-1)
	}
}
