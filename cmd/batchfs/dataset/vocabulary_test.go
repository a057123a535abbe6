package dataset

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

const chars = `{"kind": "char", "vocab_size": 3, "tokens": ["a", "b", "c"]}`

// writeTokens writes token files for batches of 2×4 tokens, next to different vocabularies or none.
// Token 50 in bad.bin is in no vocabulary. The elements of m.bin are not tokens.
func writeTokens(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	good := strings.Repeat("\x00\x00\x01\x00\x02\x00", 40)
	testfiles.Write(t, map[string]string{
		"plain/a.bin": good, "plain/bad.bin": good + "\x32\x00", "chars/a.bin": good, "chars/bad.bin": good + "\x32\x00",
		"chars/m.bin": strings.Repeat("\x07\xff", 40), "chars/vocab.json": chars, "same/a.bin": good, "same/vocab.json": chars, "other/a.bin": good,
		"other/vocab.json": `{"kind": "char", "vocab_size": 3, "tokens": ["x", "y", "z"]}`, "gpt2/bad.bin": good + "\x32\x00",
		"gpt2/vocab.json": `{"hello": 0, "kind": 1}`, "broken/a.bin": good, "broken/vocab.json": `{"kind": "char", "vocab_size": -3}`,
	})
}

const two = "[batch]\nbatch_size = 2\nblock_size = 4\n"

// The vocab_size of a source takes precedence over that of the split, which takes precedence over
// vocab.json.
func TestVocabSize(t *testing.T) {
	writeTokens(t)
	sources := func(first, second string) string {
		const source = "[[splits.mix.sources]]\nweight = 1\ntokens = "
		return source + first + "\n" + source + second + "\n"
	}
	const beyond = "bad.bin: token 120 is 50, and tokens must be below vocab_size, which is "
	for _, test := range []struct {
		text  string
		want  string // vocab_size in info.json, then that of each source
		error string
	}{
		{"[splits.a]\ntokens = 'plain/bad.bin'", "0 []", ""},
		{"[splits.a]\ntokens = 'gpt2/bad.bin'", "0 []", ""},
		{"[splits.a]\ntokens = 'plain/bad.bin'\nvocab_size = 51", "51 []", ""},
		{"[splits.a]\ntokens = 'plain/bad.bin'\nvocab_size = 50", "", "splits.a: " + abs(t, "plain/") + "/" + beyond + "50; "},
		{"[splits.a]\ntokens = 'chars/a.bin'", "3 []", ""},
		{"[splits.a]\ntokens = 'chars/bad.bin'", "", "splits.a: " + abs(t, "chars/") + "/" + beyond + "3; "},
		{"[splits.a]\ntokens = 'chars/bad.bin'\nvocab_size = 51", "51 []", ""},
		{"[splits.a]\ntokens = ['chars/a.bin', 'same/a.bin']", "3 []", ""},
		{"[splits.a]\ntokens = ['plain/a.bin', 'chars/a.bin']", "3 []", ""},
		{"[splits.a]\ntokens = ['chars/a.bin', 'other/a.bin']", "", "splits.a: " + abs(t, "other/vocab.json") + " differs from " + abs(t, "chars/vocab.json")},
		{"[splits.a]\ntokens = ['chars/a.bin', 'other/a.bin']\nvocab_size = 3", "3 []", ""},
		{"[splits.a]\ntokens = 'broken/a.bin'", "", "splits.a: " + abs(t, "broken/vocab.json") + ": vocab_size must be at least 1 (got -3); run batchfs prepare again"},
		{"[splits.a]\ntokens = 'broken/a.bin'\nvocab_size = 3", "3 []", ""},
		{sources("'chars/a.bin'", "'plain/bad.bin'\nvocab_size = 60"), "60 [3 60]", ""},
		{sources("'plain/a.bin'", "'plain/bad.bin'\nvocab_size = 60"), "0 [0 60]", ""},
		{"splits.mix.vocab_size = 70\n" + sources("'chars/a.bin'", "'plain/bad.bin'\nvocab_size = 60"), "70 [70 60]", ""},
		{"[splits.m]\ntokens = 'chars/m.bin'\nlayout = 'rows'\nshape = [4]\ntoken_dtype = 'uint8'", "0 []", ""},
		{"[splits.m]\ntokens = 'chars/m.bin'\nlayout = 'rows'\nshape = [2, 2]\ntoken_dtype = 'uint8'\nvocab_size = 50257", "0 []", ""},
		{sources("'chars/a.bin'", "'other/a.bin'"), "", "splits.mix: " + abs(t, "other/vocab.json") + " differs from "},
	} {
		text := two + test.text
		if strings.HasPrefix(test.text, "splits.") {
			text = test.text + two // keys outside tables come first
		}
		all, err := openHere(t, text)
		if err != nil || test.error != "" {
			if err == nil || !strings.HasPrefix(err.Error(), test.error) || test.error == "" {
				t.Errorf("%s:\n got %v\nwant %s", test.text, err, test.error)
			}
			continue
		}
		must(t, all[0].TryRead())
		var info struct {
			VocabSize int64 `json:"vocab_size"`
			Sources   []struct {
				VocabSize int64 `json:"vocab_size"`
			}
		}
		must(t, json.Unmarshal(all[0].Info(), &info))
		sizes := []int64{}
		for _, source := range info.Sources {
			sizes = append(sizes, source.VocabSize)
		}
		if got := fmt.Sprint(info.VocabSize, sizes); got != test.want {
			t.Errorf("%s: %s, want %s", test.text, got, test.want)
		}
	}
}

// vocab.json provides the dtype of headerless files and the token that ends a document, unless the
// configuration does. Splits without documents are the same with either.
func TestVocabularyTellsDTypeAndEnds(t *testing.T) {
	t.Chdir(t.TempDir())
	tokens := strings.Repeat("\x01\x00\x00\x00\x02\x00\x00\x00\x09\x00\x00\x00", 40)
	const vocab = `{"kind": "bpe", "vocab_size": 10, "token_dtype": "uint32", "eot": 9, "eot_at": %q}`
	testfiles.Write(t, map[string]string{
		"end/a.bin": tokens, "end/vocab.json": fmt.Sprintf(vocab, "end"), "begin/a.bin": tokens, "begin/vocab.json": fmt.Sprintf(vocab, "begin"),
	})
	for _, test := range []struct{ text, want string }{
		{"tokens = 'end/a.bin'", "uint32 [x y]"},
		{"tokens = 'end/a.bin'\nvocab_size = 64", "uint32 [x y]"},
		{"tokens = 'end/a.bin'\ntoken_dtype = 'uint16'", "uint16 [x y]"},
		{"tokens = 'end/a.bin'\ndocuments = true", "uint32 [x y cu_seqlens positions] 9: 0 3 4 4 4"},
		{"tokens = 'end/a.bin'\ndocuments = true\neot = 1", "uint32 [x y cu_seqlens positions] 1: 0 1 4 4 4"},
		{"tokens = 'begin/a.bin'\ndocuments = true", "nothing says where the documents of " + abs(t, "begin/a.bin") + " end: "},
		{"tokens = 'end/a.bin'\ndocuments = 'files'", "uint32 [x y cu_seqlens positions] 9: 0 4 4 4 4"},
	} {
		text := two + "order = 'sequential'\n[splits.a]\n" + test.text
		testfiles.Write(t, map[string]string{"config.toml": text})
		all, err := openHere(t, text)
		if err != nil {
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v, want %s", test.text, err, test.want)
			}
			continue
		}
		d := all[0]
		var names []string
		for _, a := range d.Sequence.Batch().Arrays {
			names = append(names, a.Name)
		}
		got := fmt.Sprint(d.Sequence.StoredDType(), " ", names)
		if ends := 2; len(names) > ends {
			a := d.Sequence.Batch().Arrays[ends]
			raw := make([]byte, 20)
			must(t, d.Sequence.Read(raw, 0, a.Offset))
			got += fmt.Sprintf(" %d:", d.Split.EndOfText)
			for ; len(raw) > 0; raw = raw[4:] {
				got += fmt.Sprint(" ", raw[0])
			}
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", test.text, got, test.want)
		}
		if there := mountedSequencesOf(t, takeSnapshot(t), nil)[0].batches(); !bytes.Equal(there.Info(), d.Info()) {
			t.Errorf("%s: another process serves\n%s\nnot\n%s", test.text, there.Info(), d.Info())
		}
	}
}
