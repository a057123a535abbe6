package bpe

import (
	"crypto/sha256"
	"fmt"
	"testing"
)

// The vocabularies are the published ones, to the byte.
func TestVocabularies(t *testing.T) {
	for name, want := range map[string]string{ // the expected_hash of tiktoken_ext/openai_public.py
		"gpt2":   "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
		"cl100k": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
		"o200k":  "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
	} {
		hash := sha256.New()
		if err := named(t, name).WriteRanks(hash); err != nil {
			t.Fatal(err)
		}
		if hash := fmt.Sprintf("%x", hash.Sum(nil)); hash != want {
			t.Errorf("%s: SHA-256 %s, want %s", name, hash, want)
		}
	}
}
