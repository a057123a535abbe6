package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// WriteCompressedLines writes a .jsonl.zst file of random text of about size bytes.
func WriteCompressedLines(t testing.TB, path string, size int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	var words []string
	for range 5000 {
		word := make([]byte, 2+rng.IntN(9))
		for i := range word {
			word[i] = 'a' + byte(rng.IntN(26))
		}
		words = append(words, string(word))
	}
	f := Must(os.Create(path))(t)
	w := Must(zstd.NewWriter(f, zstd.WithEncoderLevel(zstd.SpeedFastest)))(t)
	for documents, written := 0, 0; written < size; documents++ {
		text := fmt.Appendf(nil, "%d", documents)
		for range rng.IntN(1000) {
			text = append(append(text, " \n\""[rng.IntN(3)]), words[rng.IntN(len(words))]...)
		}
		line := Must(json.Marshal(map[string]string{"text": string(text)}))(t)
		written += Must(w.Write(append(line, '\n')))(t)
	}
	NoError(t, w.Close())
	NoError(t, f.Close())
}

// HashFiles returns a hash of the names and contents of all files in a directory.
func HashFiles(t testing.TB, dir string) string {
	t.Helper()
	entries := Must(os.ReadDir(dir))(t)
	h := sha256.New()
	for _, e := range entries {
		raw := Must(os.ReadFile(filepath.Join(dir, e.Name())))(t)
		fmt.Fprintf(h, "%s %x\n", e.Name(), sha256.Sum256(raw))
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}
