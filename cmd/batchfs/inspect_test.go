package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/cmd/batchfs/prepare"
	"batchfs/sampler"
)

// runHere runs a command in the working directory and returns its standard output.
func runHere(ctx context.Context, cmd *cobra.Command, args ...string) (string, error) {
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

func inspect(t testing.TB, args ...string) string {
	t.Helper()
	out, err := runHere(t.Context(), inspectCommand(), args...)
	if err != nil {
		t.Fatalf("inspect %q: %v", args, err)
	}
	return out
}

// openMany opens the splits of every kind that testfiles writes.
func openMany(t *testing.T) []*dataset.Dataset {
	t.Helper()
	testfiles.WriteManySplits(t)
	c, err := new(config.Flags).Load()
	testfiles.NoError(t, err)
	all, err := dataset.Open(c)
	testfiles.NoError(t, err)
	return all
}

// batchOf is the bytes of batch k.
func batchOf(t testing.TB, d *dataset.Dataset, k uint64) []byte {
	t.Helper()
	b := make([]byte, d.Sequence.Batch().MainBytes())
	testfiles.NoError(t, d.Sequence.Read(b, k, 0))
	return b
}

// rowBytes are the bytes of row j of a batch: of x and then y, or of the layout tokens.
func rowBytes(d *dataset.Dataset, batch []byte, j int) []byte {
	n := len(batch) / d.Sequence.BatchSize
	if d.Sequence.Layout == sampler.XY {
		n /= 2
	}
	return batch[j*n:][:n]
}

// texts are the parts of an output that are indented, one for each row.
func texts(out string) (all []string) {
	for _, row := range strings.Split(strings.TrimSuffix(out, "\n"), "\n\nrow ")[1:] {
		_, text, _ := strings.Cut(row, "\n    ")
		all = append(all, strings.ReplaceAll(text, "\n    ", "\n"))
	}
	return all
}

// What prepare made tokens of, inspect makes text of again.
func TestInspectShowsTheText(t *testing.T) {
	const line = "Größe, ≤ 125 columns:\n\n  \"𝄞\" <&>\t"
	for _, test := range []struct{ by, text string }{
		{"char", strings.Repeat(line, 20)}, {"byte", strings.Repeat(line, 20)}, {"byte", strings.Repeat("\x00\xff\xfe ab\n", 50)},
	} {
		t.Chdir(t.TempDir())
		testfiles.Write(t, map[string]string{"text": test.text})
		if _, err := runHere(t.Context(), prepare.Command(), "text", "--out", "data", "--by", test.by); err != nil {
			t.Fatal(err)
		}
		tokens := make([]string, 0, len(test.text)) // the text of each
		for rest := test.text; rest != ""; {
			n := 1
			if test.by == "char" {
				_, n = utf8.DecodeRuneInString(rest)
			}
			tokens, rest = append(tokens, rest[:n]), rest[n:]
		}
		trained := testfiles.Size(t, "data/train.bin") / 2
		for split, first := range map[string]int{"train": 0, "val": trained} {
			for k := range 10 {
				args := []string{split, fmt.Sprint(k), "--data", "data", "--set", "batch.block_size=15"}
				var p struct{ Rows []struct{ Start int64 } }
				testfiles.NoError(t, json.Unmarshal([]byte(inspect(t, append(args, "--json")...)), &p))
				got := texts(inspect(t, args...))
				for j, row := range p.Rows {
					want := strings.Join(tokens[first+int(row.Start):][:15], "")
					if want = strings.TrimSuffix(want, "\n"); got[j] != want {
						t.Errorf("row %d of batch %d of %s is %q, want %q", j, k, split, got[j], want)
					}
				}
			}
		}
	}
}

func TestInspectWithoutText(t *testing.T) {
	const broken = "vocab.json: unexpected end of JSON input; make it again with batchfs prepare, move it away, or set vocab_size"
	for vocab, want := range map[string]string{
		"":                                "",
		`{"hello": 0, "world": 1}`:        "", // as of GPT-2
		`{"kind": 11031, "tokens": 77}`:   "", // which has these words too
		`["a", "b"]`:                      "",
		`{"kind": "char", "tokens": ["a"`: broken,
		"\xff":                            "vocab.json: invalid character",
	} {
		here := t.TempDir()
		t.Chdir(here)
		testfiles.Positions(t, map[string]int{"train.bin": 50})
		if vocab != "" {
			testfiles.Write(t, map[string]string{"vocab.json": vocab})
		}
		args := []string{"train", "3", "--data", ".", "--set", "batch.block_size=4"}
		out, err := runHere(t.Context(), inspectCommand(), args...)
		switch {
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), "splits.train: "+here+"/"+want)):
			t.Errorf("%q: error %v, want %s", vocab, err, want)
		case want == "" && (err != nil || strings.Contains(out, "\n    ") || strings.Count(out, "\nrow ") != 12):
			t.Errorf("%q: %v, and\n%s", vocab, err, out)
		}
		inspect(t, append(args, "--json", "--set", "batch.vocab_size=60000")...) // which needs none
	}
}

// Tokens beyond the vocabulary are shown as what they are.
func TestInspectOfForeignTokens(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"train.bin": 5}) // 0 to 4, as two tokens of 2 bytes each
	testfiles.Write(t, map[string]string{"vocab.json": `{"kind": "char", "vocab_size": 2, "tokens": ["a", "b"]}`})
	out := inspect(t, "train", "0", "--data", ".", "--set", "batch.block_size=9", "--set", "batch.batch_size=1", "--set", "batch.vocab_size=5")
	if got := texts(out); len(got) != 1 || got[0] != "aaba\ufffd2a\ufffd3a\ufffd4" {
		t.Errorf("%q", got)
	}
}

func TestInspectErrors(t *testing.T) {
	openMany(t)
	const which = "name a batch, as in batchfs inspect train 17, or a token, as in batchfs inspect train --find 1000"
	const number = "batch number: must be a whole number from 0 to 1099511627775 (got "
	for _, test := range []struct{ args, want string }{
		{"random", which},
		{"random 3 --find 7", which},
		{"random --epoch 3", which},
		{"random 3 --epoch 3", "--epoch is for --find: a batch's number says its epoch"},
		{"random x", number + `"x")`},
		{"random 1099511627776", number + `"1099511627776")`},
		{"random -- -1", number + `"-1")`},
		{"random --find 83", "--find: must be from 0 to 82, the last token of the split (got 83)"},
		{"mix --find 100", "--find: must be from 0 to 99, the last token of the split (got 100)"},
		{"none 3", `no split "none"; there are ["random" "shuffle" "sequential" "native" "torch" "state" "mix"]`},
	} {
		for _, format := range []string{"", "--json "} {
			out, err := runHere(t.Context(), inspectCommand(), strings.Fields(format+test.args)...)
			if err == nil || !strings.HasPrefix(err.Error(), test.want) || out != "" {
				t.Errorf("inspect %s: %v, want %s; %s", test.args, err, test.want, out)
			}
		}
	}
}

// found is what --find prints with --json.
type found struct {
	File  string
	Index int64
	Epoch uint64
	Finds []struct {
		Batch uint64
		Rank  int
		J     int
		Row   uint64
		Index int
	}
}

// locate is the file of the token at a position in a split, and its index there.
func locate(t testing.TB, d *dataset.Dataset, pos int64) (file string, index int64) {
	for _, file := range d.Files() {
		n := int64(testfiles.Size(t, file) / 4)
		if pos < n {
			return file, pos
		}
		pos -= n
	}
	t.Fatalf("no token is %d behind the last file", pos)
	return "", 0
}

// Where --find says that a token is, it is.
func TestInspectFind(t *testing.T) {
	for _, d := range openMany(t) {
		last := inspect(t, d.Split.Split, "--find", "3", "--epoch", "18446744073709551615") // an epoch that no batch is in
		if !strings.HasSuffix(last, ":\n  in no batch\n") {
			t.Errorf("%s: %s", d.Split.Split, last)
		}
		for pos := int64(0); pos < d.Len(); pos += 4 { // the borders of windows, and of some files
			file, index := locate(t, d, pos)
			for epoch := range uint64(2) {
				args := []string{d.Split.Split, "--find", fmt.Sprint(pos), "--epoch", fmt.Sprint(epoch)}
				var f found
				testfiles.NoError(t, json.Unmarshal([]byte(inspect(t, append(args, "--json")...)), &f))
				token := testfiles.Bytes(t, f.File, 4*f.Index, 4)
				if f.File != file || f.Index != index || f.Epoch != epoch || f.Finds == nil {
					t.Fatalf("inspect %q: %+v", args, f)
				}
				lines := strings.Split(inspect(t, args...), "\n")
				want := fmt.Sprintf("token %d of %s, number %d of split %s, in epoch %d:", f.Index, f.File, pos, d.Split.Split, epoch)
				if lines[0] != want {
					t.Errorf("inspect %q: %s, want %s", args, lines[0], want)
				}
				if len(f.Finds) == 0 && lines[1] != "  in no batch" || len(lines) != 2+max(1, len(f.Finds)) {
					t.Errorf("inspect %q: %q", args, lines)
				}
				for i, find := range f.Finds {
					d, err := d.With(fmt.Sprintf("rank=%d", find.Rank))
					testfiles.NoError(t, err)
					batch := batchOf(t, d, find.Batch)
					// The token's place in each array: of layout tokens there is one, in others x and y.
					places := map[string]int{"tokens": find.Index}
					if d.Sequence.Layout == sampler.XY {
						places = map[string]int{"x": find.Index, "y": find.Index - 1}
					}
					var where []string
					for i, name := range slices.Sorted(maps.Keys(places)) {
						row := rowBytes(d, batch, find.J+i*d.Sequence.BatchSize)
						if at := places[name]; at >= 0 && 4*at < len(row) {
							where = append(where, fmt.Sprintf("%s[%d, %d]", name, find.J, at))
							if !bytes.Equal(row[4*at:][:4], token) {
								t.Errorf("inspect %q: %s of %+v is % x", args, name, find, row)
							}
						}
					}
					want := fmt.Sprintf("  batch %d of rank %d: %s, row number %d",
						find.Batch, find.Rank, strings.Join(where, " and "), find.Row)
					if d.Sequence.Row(find.Batch, find.J) != find.Row || lines[1+i] != want {
						t.Errorf("inspect %q: %s, want %s", args, lines[1+i], want)
					}
				}
			}
		}
	}
}

// A search that is stopped says so, and not that there is nothing.
func TestFindInterrupted(t *testing.T) {
	openMany(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, split := range []string{"random", "torch", "mix"} {
		out, err := runHere(ctx, inspectCommand(), split, "--find", "3")
		if out != "" || err == nil || err.Error() != "interrupted" {
			t.Errorf("%s: %v, %s", split, err, out)
		}
	}
}
