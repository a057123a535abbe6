package vocabulary

import (
	"bytes"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/internal/testwait"
)

func TestReadsWhatItWrote(t *testing.T) {
	eot := uint32(1)
	for _, v := range []*Vocabulary{
		{Kind: Char, Size: 3, Tokens: []string{"\n", "<", "é"}},
		{Kind: Byte, Size: 256},
		{Kind: IDs, Size: 70000, TokenDType: "uint32"},
		{Kind: BPE, Size: 2, EOT: &eot, TokenBytes: [][]byte{[]byte("\xe9"), []byte("<|endoftext|>")}},
	} {
		m := Manifest{Tokenizer: "x", Splits: map[string]Split{"train": {Tokens: 2, Shards: []Shard{{Name: "train.bin", SHA256: "ab"}}}}, Vocabulary: *v}
		var text bytes.Buffer
		testfiles.NoError(t, m.Write(&text))
		path := filepath.Join(t.TempDir(), FileName)
		testfiles.Write(t, map[string]string{path: text.String()})
		if got, err := Read(path, nil); err != nil || !reflect.DeepEqual(got, &m) {
			t.Errorf("%+v is read as %+v, %v", m, got, err)
		}
	}
}

func TestNoVocabulary(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe") // opening it would block
	testfiles.NoError(t, syscall.Mkfifo(pipe, 0o644))
	for _, path := range []string{filepath.Join(dir, FileName), dir, pipe} {
		testwait.End(t, "Read of "+path, func() {
			if v, err := Read(path, nil); v != nil || err != nil {
				t.Errorf("%s: %+v, %v", path, v, err)
			}
		})
	}
}

func TestOf(t *testing.T) {
	dir := t.TempDir()
	const chars = `{"kind": "char", "vocab_size": 1, "tokens": ["%s"]}`
	for name, text := range map[string]string{"a": fmt.Sprintf(chars, "a"), "again": fmt.Sprintf(chars, "a"), "b": fmt.Sprintf(chars, "b"), "gpt2": `{"a": 0}`} {
		testfiles.Write(t, map[string]string{filepath.Join(dir, name, FileName): text})
	}
	for _, test := range []struct {
		files string
		size  int    // 0 if there is no vocabulary
		err   string // the message after dir
	}{
		{"none/1.bin gpt2/1.bin", 0, ""},
		{"none/1.bin a/1.bin a/2.bin gpt2/1.bin again/1.bin", 1, ""},
		{"a/1.bin b/1.bin", 0, "/b/vocab.json differs from " + dir + "/a/vocab.json"},
	} {
		var files []string
		for file := range strings.FieldsSeq(test.files) {
			files = append(files, filepath.Join(dir, file))
		}
		switch v, _, err := ForFiles(files, nil); {
		case test.err != "" && (err == nil || !strings.HasPrefix(err.Error(), dir+test.err)), test.err == "" && err != nil:
			t.Errorf("%s: error %v, want %s", test.files, err, test.err)
		case err == nil && (v == nil) != (test.size == 0), v != nil && v.Size != test.size:
			t.Errorf("%s: %+v", test.files, v)
		}
	}
}

func TestText(t *testing.T) {
	chars, bytes := &Vocabulary{Kind: Char, Size: 2, Tokens: []string{"a", "é"}}, &Vocabulary{Kind: Byte, Size: 256}
	bpe := &Vocabulary{Kind: BPE, Size: 3, TokenBytes: [][]byte{[]byte("a"), []byte("\xc3")}}
	for _, test := range []struct {
		v     *Vocabulary
		token int
		want  string
	}{
		{chars, 0, "a"}, {chars, 1, "é"}, {chars, 2, "\ufffd2"}, {bytes, 0xe9, "\xe9"}, {bytes, 256, "\ufffd256"},
		{bpe, 1, "\xc3"}, {bpe, 2, "\ufffd2"}, {&Vocabulary{Kind: IDs, Size: 3}, 2, "2 "},
	} {
		if got := test.v.Text(test.token); got != test.want {
			t.Errorf("%s %d is %q, want %q", test.v.Kind, test.token, got, test.want)
		}
	}
}
