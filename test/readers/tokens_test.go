package readers

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"batchfs/test/e2e"
)

// tokens.bin in every directory of a split has the tokens of all its files in order, however it is
// read.
func TestTokens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	inDir := func(name string) string { return filepath.Join(dir, name) }
	contents := map[string][]byte{"a": e2e.TokensOfVersion(0, 700_001), "b": e2e.TokensOfVersion(1, 5_000), "c": e2e.TokensOfVersion(2, 900_003)}
	for name, content := range contents {
		e2e.Write(t, inDir(name+".bin"), content)
	}
	e2e.NoError(t, os.Symlink(inDir("a.bin"), inDir("link.bin")))
	config := inDir("config.toml")
	e2e.Write(t, config, fmt.Appendf(nil, `
[batch]
batch_size = 4
block_size = 32
[splits.train]
tokens = %q
[splits.link]
tokens = %q
on_change = "follow"
dtype = "int64"
[splits.shards]
tokens = [%[1]q, %[3]q, %[4]q]
[splits.joined]
tokens = [%[1]q, %[3]q, %[4]q]
join = true
[splits.mixed]
[[splits.mixed.sources]]
tokens = %[4]q
weight = 1
[[splits.mixed.sources]]
tokens = [%[3]q, %[1]q]
weight = 2
`, inDir("a.bin"), inDir("link.bin"), inDir("b.bin"), inDir("c.bin")))
	m := e2e.Mount(t, "-c", config)
	r := reads{}
	for _, test := range []struct{ split, files string }{
		{"train", "a"},
		{"link", "a"},
		{"shards", "abc"},
		{"joined", "abc"},
		{"mixed", "cba"},
	} {
		var want []byte
		for _, name := range test.files {
			want = append(want, contents[string(name)]...)
		}
		for _, path := range []string{"/tokens.bin", "/rank=1,world=2,dtype=int32/tokens.bin"} {
			r.add(test.split+path, e2e.Digest(want), "readinto", "pread", "sendfile", "copyfile", "mmap_shared", "mmap_private")
		}
	}
	r.check(t, m.Dir)
}
