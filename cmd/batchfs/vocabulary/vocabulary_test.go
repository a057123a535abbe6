package vocabulary

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestReadsWhatItWrote(t *testing.T) {
	for _, v := range []*Vocabulary{
		{Kind: Char, Size: 3, Tokens: []string{"\n", "<", "é"}},
		{Kind: Byte, Size: 256},
	} {
		var text bytes.Buffer
		if err := v.Write(&text); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), FileName)
		if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(path); err != nil || !reflect.DeepEqual(got, v) {
			t.Errorf("%+v is read as %+v, %v", v, got, err)
		}
	}
}

func TestNoVocabulary(t *testing.T) {
	if v, err := Read(filepath.Join(t.TempDir(), FileName)); v != nil || err != nil {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestText(t *testing.T) {
	chars, bytes := &Vocabulary{Kind: Char, Size: 2, Tokens: []string{"a", "é"}}, &Vocabulary{Kind: Byte, Size: 256}
	for _, test := range []struct {
		v     *Vocabulary
		token int
		want  string
	}{
		{chars, 0, "a"}, {chars, 1, "é"}, {chars, 2, "\ufffd2"}, {bytes, 0xe9, "\xe9"}, {bytes, 256, "\ufffd256"},
	} {
		if got := test.v.Text(test.token); got != test.want {
			t.Errorf("%s %d is %q, want %q", test.v.Kind, test.token, got, test.want)
		}
	}
}
