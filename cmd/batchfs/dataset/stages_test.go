package dataset

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// info.json and batch/<k>.json name the stage of every row, and info.json has the tokens of each
// source before it.
func TestStages(t *testing.T) {
	writeIdentityFiles(t)
	d := openSplitWith(t, strings.Replace(staged, "'b.bin'", "'b.bin', max_epochs = 0.7", 1)+"\n"+shuffle+"\nworld = 2")
	var info struct {
		Batches uint64
		Sources []struct{ Name, Fingerprint string }
		Stages  []struct {
			Row, Batch uint64
			Why        string
			Tokens     map[string]uint64
		}
	}
	must(t, json.Unmarshal(d.Info(), &info))
	if len(info.Stages) != 2 || info.Stages[1].Row != 40 || info.Stages[1].Batch != 7 || info.Batches == 0 || len(info.Sources[0].Fingerprint) != 32 {
		t.Fatalf("info.json has %+v", info)
	}
	rows, last := map[string]uint64{}, 0
	for k := range info.Batches {
		for rank := range 2 {
			text := originsOf(mustWith(t, d, fmt.Sprint("rank=", rank)), k)
			var batch struct {
				Rows []struct {
					Row    uint64
					Source string
					Stage  int
				}
			}
			if must(t, json.Unmarshal(text, &batch)); int64(len(text)) != d.Origins().Len() {
				t.Fatalf("%d bytes, want %d", len(text), d.Origins().Len())
			}
			for _, row := range batch.Rows {
				stage := info.Stages[row.Stage]
				if row.Row < stage.Row || row.Stage > last && (row.Row != stage.Row || stage.Tokens["a"] != 4*rows["a"] || stage.Tokens["b"] != 4*rows["b"]) {
					t.Errorf("row %d is in stage %+v, after %v rows", row.Row, stage, rows)
				}
				rows[row.Source]++
				last = row.Stage
			}
		}
	}
	if err := d.Sequence.Read(nil, info.Batches, 0); last != 1 || uint64(d.Steps) > info.Batches {
		t.Errorf("the last stage is %d, and there are %d steps of %d batches (%v)", last, d.Steps, info.Batches, err)
	}
}

// A stage must not read a source whose max_epochs are used up before it begins.
func TestCapsAreChecked(t *testing.T) {
	writeIdentityFiles(t)
	for lines, want := range map[string]string{
		strings.Replace(staged, "'b.bin'", "'b.bin', max_epochs = 0.01", 1): `reads source "b", whose max_epochs, 0.01, are used up at row `,
		strings.NewReplacer("'b.bin'", "'b.bin', max_epochs = 0.2", "{a = 1, b = 3}", "{b = 1}", "from_row = 40, weights = {b = 2}", "from_row = 4000, weights = {a = 1}").Replace(staged): "never begins, because the max_epochs of all sources",
	} {
		if _, err := openHere(t, "[splits.train]\nblock_size = 4\ntoken_dtype = 'uint32'\n"+lines); err == nil || !strings.Contains(err.Error(), "config.toml:") || !strings.Contains(err.Error(), "splits.train.stages.1: "+want) {
			t.Errorf("%s: got %v, want %s", lines, err, want)
		}
	}
}
