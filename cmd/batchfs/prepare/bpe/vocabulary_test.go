package bpe

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.String("update", "", "make the vocabularies anew from r50k_base.tiktoken, … in this `directory`; "+
	"the module github.com/pkoukk/tiktoken-go-loader has them in assets")

// The vocabularies are the published ones, to the byte.
func TestVocabularies(t *testing.T) {
	for name, file := range map[string]struct {
		name string
		hash string // the expected_hash of tiktoken_ext/openai_public.py
	}{
		"gpt2":   {"r50k_base.tiktoken", "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"},
		"cl100k": {"cl100k_base.tiktoken", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"},
		"o200k":  {"o200k_base.tiktoken", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"},
	} {
		if *update != "" {
			writeVocabulary(t, filepath.Join(*update, file.name), name+".gz") // the next build has it
			continue
		}
		hash := sha256.New()
		if err := named(t, name).WriteRanks(hash); err != nil {
			t.Fatal(err)
		}
		if hash := fmt.Sprintf("%x", hash.Sum(nil)); hash != file.hash {
			t.Errorf("%s: SHA-256 %s, want %s", name, hash, file.hash)
		}
	}
}

func writeVocabulary(t *testing.T, from, to string) {
	t.Helper()
	lines, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	var compressed bytes.Buffer
	z, _ := gzip.NewWriterLevel(&compressed, gzip.BestCompression)
	for line := range bytes.Lines(lines) {
		text, _, _ := bytes.Cut(line, []byte(" "))
		token, err := base64.StdEncoding.DecodeString(string(text))
		if err != nil {
			t.Fatal(err)
		}
		z.Write(append([]byte{byte(len(token))}, token...))
	}
	z.Close()
	if err := os.WriteFile(to, compressed.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
