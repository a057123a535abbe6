package main

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/cmd/batchfs/prepare"
	"batchfs/cmd/batchfs/scan"
	"batchfs/internal/failure"
)

// trainedWords is the number of words in the training data of TestAgainst. All of them are single
// tokens of GPT-2, with and without a space in front.
const trainedWords = 300_000

// check --against finds all items that were planted in training data, whatever is around them, and
// no others, even if a long part of them occurs.
func TestAgainst(t *testing.T) {
	t.Chdir(t.TempDir())
	vocabulary := strings.Fields("the of and to in that is was for on he with as his by at it from her had be not are but she this have him one said " +
		"which you my all we their were been has when who will no more if out what up time them so some could then into than other its new " +
		"only these two may do first any such man over our even most me after made also did many must before back see through way where get much " +
		"go well your know should down work year because come people just say each those take day good how long own too little use very great still men here life both")
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.1, 8, uint64(len(vocabulary)-1))
	words := func(n int) (list []string) {
		for range n {
			list = append(list, vocabulary[zipf.Uint64()])
		}
		return list
	}

	type planted struct {
		words  []string
		number int // line of the item
		copies int
	}
	var plants []planted
	var items []string
	addItem := func(list []string, copies int) {
		text, _ := json.Marshal(map[string]any{"q": map[string]string{"text": strings.Join(list, " ")}})
		items = append(items, string(text))
		if copies > 0 {
			plants = append(plants, planted{list, len(items), copies})
		}
	}
	for _, n := range []int{13, 30, 64, 300} {
		for i := range 25 {
			addItem(words(n), []int{1, 1, 1, 3, 17}[i%5])
		}
	}
	addItem(words(12), 1)
	for range 2000 {
		addItem(words(13+rng.IntN(100)), 0)
	}

	file, err := os.Create("train.txt")
	testfiles.NoError(t, err)
	insert := map[int][]string{}
	for _, p := range plants {
		for range p.copies {
			at := rng.IntN(trainedWords / 64)
			before := []string{"\n", ". ", " (", ` "`, ", ", "\t"}[rng.IntN(6)]
			after := []string{"\n", ". ", "?\n\n", `" `, "", ")"}[rng.IntN(6)]
			insert[at] = append(insert[at], before+strings.Join(p.words, " ")+after)
		}
	}
	text := bufio.NewWriter(file)
	var kept []string // parts of the training data
	for i := range trainedWords / 64 {
		list := words(64)
		if i%(trainedWords/64/100) == 0 {
			kept = append(kept, strings.Join(list, " "))
		}
		fmt.Fprint(text, strings.Join(list, " "), strings.Join(insert[i], ""), "\n")
	}
	testfiles.NoError(t, cmp.Or(text.Flush(), file.Close()))
	for _, text := range kept { // all but a token in the middle occurs
		list := strings.Fields(text)
		list[32] = "Zürich"
		addItem(list, 0)
	}
	testfiles.Write(t, map[string]string{"q.jsonl": strings.Join(items, "\n")})

	if _, err := runCommand(t.Context(), prepare.Command(), "train.txt", "--by", "gpt2", "--val", "0", "--out", "data"); err != nil {
		t.Fatal(err)
	}
	out, err := runCommand(t.Context(), checkCommand(), "train", "--data", "data", "--against", "q.jsonl", "--field", "q.text", "--json")
	if status, ok := errors.AsType[command.ExitStatus](err); !ok || status != 1 {
		t.Fatalf("error %v, %s", err, out)
	}
	var r scan.ItemReport
	testfiles.NoError(t, json.Unmarshal([]byte(out), &r))
	var found, frequent, wantFound, wantFrequent []string
	for _, f := range r.Found {
		found = append(found, fmt.Sprintf("%d %d", f.Number, len(f.Places)))
		for _, p := range f.Places {
			if p.Tokens < f.Tokens-1 {
				t.Errorf("line %d: %d of %d tokens at %d", f.Number, p.Tokens, f.Tokens, p.Index)
			}
		}
	}
	for _, f := range r.Frequent {
		frequent = append(frequent, f.ItemName.String())
	}
	for _, p := range plants {
		switch {
		case len(p.words) < 13:
			if fmt.Sprint(r.Short) != fmt.Sprintf("[line %d]", p.number) {
				t.Errorf("not searched for: %v", r.Short)
			}
		case p.copies > 16:
			wantFrequent = append(wantFrequent, fmt.Sprintf("line %d", p.number))
		default:
			wantFound = append(wantFound, fmt.Sprintf("%d %d", p.number, p.copies))
		}
	}
	if !slices.Equal(found, wantFound) || !slices.Equal(frequent, wantFrequent) || r.Items != int64(len(items)) {
		t.Errorf("of %d items, found %q and %q, want %q and %q", r.Items, found, frequent, wantFound, wantFrequent)
	}
	t.Logf("%d tokens, %d items, %d found, %d frequent", r.Tokens, r.Items, len(r.Found), len(r.Frequent))

	// Other texts are not in the training data.
	testfiles.Write(t, map[string]string{"q.txt": strings.Join(words(50), " ")})
	if out, err := runCommand(t.Context(), checkCommand(), "train", "--data", "data", "--against", "q.txt"); err != nil || !strings.HasSuffix(out, "for 1 item: no item occurs\n") {
		t.Errorf("error %v, %s", err, out)
	}
	testfiles.Write(t, map[string]string{"empty.txt": " \n\n", "empty.jsonl": ""})
	for args, want := range map[string]string{
		"--by gpt2":                              "--by: needs --against, the file of texts to search for",
		"--against q.txt --overlap 64":           "[against overlap]",
		"--against q.txt --by cl100k":            `--by cl100k: did not make the tokens, because their vocab.json is of "gpt2"`,
		"--against none.txt":                     "none.txt: ",
		"--against q.jsonl":                      "q.jsonl: line 1: has no field text: ",
		"--against empty.txt":                    "empty.txt: has no text to search for",
		"--against empty.jsonl":                  "empty.jsonl: has no text to search for",
		"--against q.txt --set batch.format=npy": "train.bin: ",
	} {
		_, err := runCommand(t.Context(), checkCommand(), append(strings.Fields(args), "train", "--data", "data")...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", args, err, want)
		}
		if strings.HasPrefix(args, "--against") && strings.Contains(want, ": ") && failure.KindOf(err) == failure.Other {
			t.Errorf("%s: the exit status is that of texts that were found", args)
		}
	}
}

// Tokens that the tokenizer does not have are not its tokens.
func TestAgainstOtherTokens(t *testing.T) {
	t.Chdir(t.TempDir())
	tokens := make([]byte, 0, 6000)
	for i := range 3000 {
		tokens = binary.LittleEndian.AppendUint16(tokens, uint16(i*16))
	}
	tokens = binary.LittleEndian.AppendUint16(tokens, 50257)
	testfiles.Write(t, map[string]string{"train.bin": string(tokens), "q.txt": strings.Repeat("a b ", 10)})
	_, err := runCommand(t.Context(), checkCommand(), "train", "--set", "splits.train.tokens=train.bin", "--against", "q.txt", "--by", "gpt2")
	if err == nil || !strings.Contains(err.Error(), "token 50257, at index 3000, is not among the 50257 tokens of the tokenizer") {
		t.Error(err)
	}
}

// Splits with the same name, as in two mounts, are still different splits.
func TestCheckSplitsWithOneName(t *testing.T) {
	t.Chdir(t.TempDir())
	tokens := make([]byte, 4000)
	rand.NewChaCha8([32]byte{}).Read(tokens)
	testfiles.Write(t, map[string]string{"train.bin": string(tokens)})
	check := func(paths ...string) (out string, err error) {
		args := append(paths, "--set", "splits.train.tokens=train.bin", "--set", "batch.block_size=64")
		return runCommand(t.Context(), checkCommand(), args...)
	}
	out, err := check("train", "train/rank=0")
	if !errors.Is(err, command.ExitStatus(1)) || !strings.Contains(out, "100% of train/rank=0 (2000 tokens) is also in train\n") {
		t.Errorf("error %v, %s", err, out)
	}
	if _, err := check("train", "train"); err == nil || err.Error() != "train: is named twice; name it once" {
		t.Error(err)
	}
}
