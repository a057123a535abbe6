// Package testfiles writes files for tests of the commands, in the working directory, and reads
// them.
package testfiles

import (
	"encoding/binary"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"batchfs/internal/require"
)

// NoError ends the test if there is an error.
var NoError = require.NoError

// CheckGenerated checks that a file has the generated text. If update is true, it writes the text
// to the file instead. regenerate is the command for that.
func CheckGenerated(t testing.TB, file, text, regenerate string, update bool) {
	t.Helper()
	if update {
		NoError(t, os.WriteFile(file, []byte(text), 0o644))
		return
	}
	got, err := os.ReadFile(file)
	NoError(t, err)
	if string(got) != text {
		t.Errorf("%s differs from its source; regenerate it with: %s", file, regenerate)
	}
}

// Write writes files, keyed by name, and creates their directories.
func Write(t testing.TB, files map[string]string) {
	t.Helper()
	for name, content := range files {
		NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		NoError(t, os.WriteFile(name, []byte(content), 0o644))
	}
}

// WriteHere makes a new directory the working directory, and writes files there.
func WriteHere(t testing.TB, files map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	Write(t, files)
}

// ZstdFrame returns a file of zstd with an uncompressed block. descriptor holds the window, as in
// RFC 8878, section 3.1.1.1.2.
func ZstdFrame(descriptor byte, content string) string {
	n := len(content)<<3 | 1
	return string([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, descriptor, byte(n), byte(n >> 8), byte(n >> 16)}) + content
}

// Positions writes token files with the given numbers of tokens. A token has 4 bytes; its value is
// its position in all files together, sorted by name.
func Positions(t testing.TB, files map[string]int) {
	t.Helper()
	next := uint32(0)
	contents := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		var raw []byte
		for range files[name] {
			raw, next = binary.LittleEndian.AppendUint32(raw, next), next+1
		}
		contents[name] = string(raw)
	}
	Write(t, contents)
}

// Small is the beginning of a configuration with small batches of tokens from Positions.
const Small = "[batch]\nbatch_size = 3\nblock_size = 4\ntoken_dtype = 'uint32'\ndtype = 'uint32'\n"

// Mixture returns the configuration of a split, mix, with two sources, both of a.bin, and further
// lines in their tables, which begin on lines 1 and 4.
func Mixture(first, second string) string {
	const source = "[[splits.mix.sources]]\ntokens = 'a.bin'\n"
	return source + first + "\n" + source + second
}

// TorchState returns the torch.get_rng_state() of a seeded generator, in which b replaces the bytes
// that begin at index at.
func TorchState(at int, b ...byte) string {
	raw := make([]byte, 5056)
	raw[8], raw[12] = 1, 1
	for i := range 624 {
		binary.LittleEndian.PutUint64(raw[24+8*i:], uint64(i+1))
	}
	copy(raw[at:], b)
	return string(raw)
}

// WriteManySplits changes to an empty directory, and writes a config.toml with splits of every kind
// and their files.
func WriteManySplits(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	Positions(t, map[string]int{"a.bin": 50, "b.bin": 33, "c.bin": 17})
	Write(t, map[string]string{"rng.bin": TorchState(0), "config.toml": manySplits})
}

const manySplits = Small + `
[splits.random]
tokens = ["a.bin", "b.bin"]
world = 2
[splits.shuffle]
tokens = "[ab].bin"
order = "shuffle"
rank = 1
world = 2
[splits.sequential]
tokens = ["b.bin", "a.bin"]
order = "sequential"
layout = "tokens"
join = true
[splits.native]
tokens = "a.bin"
dtype = "native"
[splits.torch]
tokens = ["a.bin", "b.bin"]
join = true
order = "torch"
rank = 1
world = 2
[splits.state]
tokens = "a.bin"
order = "torch-2.6"
torch_state = "rng.bin"
[splits.mix]
order = "shuffle"
[[splits.mix.sources]]
tokens = ["a.bin", "b.bin"]
weight = 3
[[splits.mix.sources]]
tokens = "c.bin"
weight = 1
`

// Size returns the size of a file in bytes.
func Size(t testing.TB, path string) int {
	t.Helper()
	info, err := os.Stat(path)
	NoError(t, err)
	return int(info.Size())
}

// Bytes returns up to n bytes of a file, beginning at byte at.
func Bytes(t testing.TB, path string, at int64, n int) []byte {
	t.Helper()
	f, err := os.Open(path)
	NoError(t, err)
	defer f.Close()
	b := make([]byte, n)
	n, err = f.ReadAt(b, at)
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return b[:n]
}
