package dataset

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// Line n of FILE.ids has the id of document n of FILE, in whatever order they are asked for, if
// vocab.json lists the file. Empty documents count. inspect shows the ids.
func TestDocumentIDs(t *testing.T) {
	t.Chdir(t.TempDir())
	r := rand.New(rand.NewPCG(21, 22))
	var want []string
	var shards []string
	for _, name := range []string{"a.bin", "b.bin", "c.bin"} {
		var index []byte
		end, lines := 0, ""
		for i := range 2500 {
			if i >= 3 { // a file begins with empty documents
				end += r.IntN(4)
			}
			index = binary.LittleEndian.AppendUint64(index, uint64(end))
			switch id := fmt.Sprintf("%s %d é", name, i); {
			case name == "c.bin": // without ids
				want = append(want, "")
			case i%2 == 0:
				want, lines = append(want, id), lines+fmt.Sprintf("%q\n", id)
			default:
				want, lines = append(want, fmt.Sprint(i)), lines+fmt.Sprintln(i)
			}
		}
		testfiles.Positions(t, map[string]int{name: end})
		testfiles.Write(t, map[string]string{name + ".index": string(index), name + ".ids": lines})
		ids := fmt.Sprintf(`, "ids": "%s.ids"`, name)
		if name == "c.bin" {
			ids = ""
		}
		shards = append(shards, fmt.Sprintf(`{"name": %q%s}`, name, ids))
	}
	testfiles.Write(t, map[string]string{"vocab.json": `{"kind": "ids", "vocab_size": 1000000, "splits": {"train": {"shards": [` + strings.Join(shards, ",") + `]}}}`})
	d := mustOpen(t, "[splits.train]\ntokens = ['a.bin', 'b.bin', 'c.bin']\ntoken_dtype = 'uint32'\nblock_size = 8\norder = 'shuffle'\nrows = 'packed'\n")[0]
	ids := d.DocumentIDs()
	for _, number := range append(r.Perm(len(want)), 0, len(want)-1) {
		if got, err := ids.Of(0, int64(number)); err != nil || got != want[number] {
			t.Fatalf("document %d has the id %q, want %q: %v", number, got, want[number], err)
		}
	}
	var text bytes.Buffer
	must(t, d.Describe(&text, 3, 0, nil))
	for j := range d.Sequence.BatchSize {
		_, segments, err := d.Sequence.Segments(3, j)
		must(t, err)
		for _, segment := range segments {
			line := fmt.Sprintf(", document %d, id %s\n", segment.Document, want[segment.Document])
			if want[segment.Document] == "" {
				line = fmt.Sprintf(", document %d\n", segment.Document)
			}
			if !strings.Contains(text.String(), line) {
				t.Errorf("inspect does not say %q:\n%s", line, &text)
			}
		}
	}

	must(t, os.WriteFile("b.bin.ids", []byte("1\n"), 0o644))
	must(t, os.Remove("a.bin.ids"))
	ids = d.DocumentIDs()
	if got, err := ids.Of(0, 0); got != "" || err != nil {
		t.Errorf("without the file: %q, %v", got, err)
	}
	if _, err := ids.Of(0, 2501); err == nil || !strings.Contains(err.Error(), "b.bin.ids: has 1 lines, but document 1 needs one") {
		t.Errorf("with a short file: %v", err)
	}
}
