package dataset

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

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

// A process that takes over does not count the rows of documents again.
func TestSnapshotKeepsCounts(t *testing.T) {
	writeDocuments(t)
	want := mustOpenConfig(t)
	s := takeSnapshot(t)
	c, err := s.Config()
	must(t, err)
	s.Splits[0].Groups[0][0]--
	d, err := s.open(c.Splits[0], NewOpener(c))
	must(t, err)
	if got, counted := d.Sequence.RowsPerEpoch(), want[0].Sequence.RowsPerEpoch(); got != counted-1 {
		t.Errorf("%d rows, want %d: they were counted again", got, counted-1)
	}
}
