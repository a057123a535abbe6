package dataset

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/sampler"
)

func TestFind(t *testing.T) {
	for _, d := range openMany(t) {
		if _, words := findIn(t, d, 3, math.MaxUint64); !strings.HasSuffix(words, ":\n  in no batch\n") {
			t.Errorf("%s: %s", d.Split.Name, words)
		}
		file, index := 0, int64(0)
		for pos := range d.Len() {
			if 4*index == int64(testfiles.Size(t, d.Files()[file])) {
				file, index = file+1, 0
			}
			for epoch := range uint64(2) {
				f, words := findIn(t, d, pos, epoch)
				wantWords := fmt.Sprintf("token %d of %s, number %d of split %s, in epoch %d:\n", index, d.Files()[file], pos, d.Split.Name, epoch)
				var finds []string
				for _, at := range f.Occurrences {
					finds = append(finds, fmt.Sprintf(`{"batch":%d,"rank":%d,"j":%d,"row":%d,"index":%d}`, at.Batch, at.Rank, at.J, at.Row, at.Index))
					wantWords += fmt.Sprintf("  batch %d of rank %d: %s, row number %d\n", at.Batch, at.Rank, placesOf(t, d, at, testfiles.Bytes(t, d.Files()[file], 4*index, 4)), at.Row)
				}
				if len(finds) == 0 {
					wantWords += "  in no batch\n"
				}
				if words != wantWords {
					t.Errorf("%s, want %s", words, wantWords)
				}
				var compact bytes.Buffer
				must(t, json.Compact(&compact, indentedJSON(f)))
				if want := fmt.Sprintf(`{"file":%q,"index":%d,"epoch":%d,"occurrences":[%s]}`, d.Files()[file], index, epoch, strings.Join(finds, ",")); strings.TrimSpace(compact.String()) != want {
					t.Errorf("%s, want %s", &compact, want)
				}
			}
			index++
		}
	}
}

func findIn(t *testing.T, d *Dataset, pos int64, epoch uint64) (f *FoundToken, words string) {
	t.Helper()
	f, err := d.Find(t.Context(), pos, epoch, func(int64, int64) {})
	must(t, err)
	var out bytes.Buffer
	f.Print(&out)
	return f, out.String()
}

// placesOf returns the positions of a token in the arrays of a batch, and checks them.
func placesOf(t *testing.T, d *Dataset, at occurrence, token []byte) string {
	t.Helper()
	d = mustWith(t, d, fmt.Sprintf("rank=%d", at.Rank))
	if d.Sequence.Row(at.Batch, at.J) != at.Row {
		t.Errorf("%+v: the row is %d", at, d.Sequence.Row(at.Batch, at.J))
	}
	names, begin := []string{"tokens"}, at.Index
	if d.Sequence.Layout == sampler.XY {
		names = []string{"x", "y"} // y begins one token later
	}
	var places []string
	raw := readBatch(t, d.Sequence.Read, d.Sequence.Batch().MainBytes(), at.Batch)
	for i, name := range names {
		row := rowBytes(d, raw, at.J+i*d.Sequence.BatchSize)
		if in := begin - i; in >= 0 && 4*in < len(row) {
			places = append(places, fmt.Sprintf("%s[%d, %d]", name, at.J, in))
			if !bytes.Equal(row[4*in:][:4], token) {
				t.Errorf("%s of %+v is % x, and has no % x there", name, at, row, token)
			}
		}
	}
	return strings.Join(places, " and ")
}

// An interrupted search returns an error instead of an empty result.
func TestFindInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, d := range openMany(t) {
		if f, err := d.Find(ctx, 3, 0, func(int64, int64) {}); f != nil || fmt.Sprint(err) != "interrupted" {
			t.Errorf("%s: %+v, %v", d.Split.Name, f, err)
		}
	}
}
