package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/cmd/batchfs/prepare"
)

func runCommand(ctx context.Context, cmd *cobra.Command, args ...string) (string, error) {
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
	out, err := runCommand(t.Context(), inspectCommand(), args...)
	if err != nil {
		t.Fatalf("inspect %q: %v", args, err)
	}
	return out
}

// rowTexts returns the text of each row in the output of inspect, without its indentation.
func rowTexts(out string) (all []string) {
	for _, row := range strings.Split(strings.TrimSuffix(out, "\n"), "\n\nrow ")[1:] {
		_, text, _ := strings.Cut(row, "\n    ")
		all = append(all, strings.ReplaceAll(text, "\n    ", "\n"))
	}
	return all
}

func TestInspectShowsTheText(t *testing.T) {
	const line = "Größe, ≤ 125 columns:\n\n  \"𝄞\" <&>\t"
	for _, test := range []struct{ by, text string }{
		{"char", strings.Repeat(line, 20)}, {"byte", strings.Repeat(line, 20)}, {"byte", strings.Repeat("\x00\xff\xfe ab\n", 50)},
	} {
		t.Chdir(t.TempDir())
		testfiles.Write(t, map[string]string{"text": test.text})
		if _, err := runCommand(t.Context(), prepare.Command(), "text", "--as", "text", "--out", "data", "--by", test.by); err != nil {
			t.Fatal(err)
		}
		tokens := make([]string, 0, len(test.text))
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
				got := rowTexts(inspect(t, args...))
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
	const broken = "vocab.json: unexpected end of JSON input; run batchfs prepare again, move the file away, or set vocab_size"
	for vocab, want := range map[string]string{
		"":                                "",
		`{"hello": 0, "world": 1}`:        "", // the format of GPT-2's vocab.json
		`{"kind": 11031, "tokens": 77}`:   "", // the same, with tokens that are named like our keys
		`["a", "b"]`:                      "",
		`{"kind": "char", "tokens": ["a"`: broken,
		"\xff":                            "vocab.json: invalid character",
	} {
		dir := t.TempDir()
		t.Chdir(dir)
		testfiles.Positions(t, map[string]int{"train.bin": 50})
		if vocab != "" {
			testfiles.Write(t, map[string]string{"vocab.json": vocab})
		}
		args := []string{"train", "3", "--data", ".", "--set", "batch.block_size=4"}
		out, err := runCommand(t.Context(), inspectCommand(), args...)
		switch {
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), "splits.train: "+dir+"/"+want)):
			t.Errorf("%q: error %v, want %s", vocab, err, want)
		case want == "" && (err != nil || strings.Contains(out, "\n    ") || strings.Count(out, "\nrow ") != 12):
			t.Errorf("%q: %v, and\n%s", vocab, err, out)
		}
		// The JSON contains no text, so it does not need the vocabulary.
		inspect(t, append(args, "--json", "--set", "batch.vocab_size=60000")...)
	}
}

// Tokens outside the vocabulary are shown as numbers.
func TestInspectOfForeignTokens(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"train.bin": 5}) // 0 to 4, each read as two 2-byte tokens
	testfiles.Write(t, map[string]string{"vocab.json": `{"kind": "char", "vocab_size": 2, "tokens": ["a", "b"]}`})
	args := []string{"--data", ".", "--set", "batch.block_size=9", "--set", "batch.batch_size=1", "--set", "batch.vocab_size=5"}
	if got := rowTexts(inspect(t, append(args, "train", "0")...)); len(got) != 1 || got[0] != "aaba\ufffd2a\ufffd3a\ufffd4" {
		t.Errorf("%q", got)
	}
	if got := inspect(t, append(args, "train", "--find", "3", "--json")...); !strings.Contains(got, `"index": 3,`) {
		t.Errorf("%s", got)
	}
}

// --by decodes tokens without a vocab.json, and warns once if they, here "!" and 50261, are not in
// its vocabulary.
func TestInspectBy(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Write(t, map[string]string{"a.bin": strings.Repeat("\x00\x00\x55\xc4", 200)})
	cmd, stderr := inspectCommand(), new(bytes.Buffer)
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(stderr)
	cmd.SetArgs(strings.Fields("train 0 --by gpt2 --set splits.train.tokens=a.bin --set splits.train.token_dtype=uint16 --set batch.block_size=2"))
	testfiles.NoError(t, cmd.ExecuteContext(t.Context()))
	if got := stderr.String(); strings.Count(out.String(), "\ufffd50261") != 12 || got != "warning: token 50261 is not among the 50257 tokens of --by gpt2, so another tokenizer made these tokens\n" {
		t.Errorf("%s%s", out.String(), got)
	}
}

func TestInspectErrors(t *testing.T) {
	testfiles.WriteManySplits(t)
	const which = "name a batch, as in batchfs inspect train 17, or a token, as in batchfs inspect train --find 1000"
	const number = "batch number: must be a whole number from 0 to 1099511627775 (got "
	for _, test := range []struct{ args, want string }{
		{"random", which},
		{"random 3 --find 7", which},
		{"random --epoch 3", which},
		{"random 3 --epoch 3", "--epoch needs --find; the number of a batch already determines its epoch"},
		{"random x", number + `"x")`},
		{"random 1099511627776", number + `"1099511627776")`},
		{"random -- -1", number + `"-1")`},
		{"random --find 83", "--find: must be from 0 to 82, the last token of the split (got 83)"},
		{"mix --find 100", "--find: must be from 0 to 99, the last token of the split (got 100)"},
		{"none 3", `no split "none"; there are ["random" "shuffle" "sequential" "native" "torch" "state" "mix"]`},
	} {
		for _, format := range []string{"", "--json "} {
			out, err := runCommand(t.Context(), inspectCommand(), strings.Fields(format+test.args)...)
			if err == nil || !strings.HasPrefix(err.Error(), test.want) || out != "" {
				t.Errorf("inspect %s: %v, want %s; %s", test.args, err, test.want, out)
			}
		}
	}
}

func TestInspectShowsTheBeginning(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Write(t, map[string]string{"a.bin": strings.Repeat("e\x00", 4000), "vocab.json": `{"kind": "byte", "vocab_size": 256, "token_dtype": "uint16"}`})
	for chars, want := range map[string]string{"": "    " + strings.Repeat("e", 200) + "…\n", "--chars=3": "    eee…\n", "--chars=300": "    " + strings.Repeat("e", 300) + "\n"} {
		args := strings.Fields("train 0 --set splits.train.tokens=a.bin --set batch.block_size=300 " + chars)
		if out := inspect(t, args...); strings.Count(out, want) != 12 {
			t.Errorf("%s: %s", chars, out)
		}
	}
}

// A batch after the end of a sequence has no rows.
func TestInspectAfterTheEnd(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Write(t, map[string]string{"a.bin": strings.Repeat("a", 130), "config.toml": "[batch]\nblock_size = 8\nbatch_size = 2\n" +
		"[[splits.train.sources]]\ntokens = 'a.bin'\nweight = 1\nmax_epochs = 1\n"}) // 8 rows
	inspect(t, "train", "3")
	for _, flag := range []string{"--chars=1", "--json"} {
		out, err := runCommand(t.Context(), inspectCommand(), "train", "4", flag)
		if !errors.Is(err, syscall.ENODATA) || out != "" {
			t.Errorf("%s: error %v, %s", flag, err, out)
		}
	}
}
