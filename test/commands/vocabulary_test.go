package commands

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// A batch with a token beyond the vocabulary fails with an error that names the token. A restart
// applies another vocab_size, also to files that were open.
func TestTokenBeyondVocabulary(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config, file := filepath.Join(dir, "config.toml"), filepath.Join(dir, "train.bin")
	raw := make([]byte, 2*300_000)
	for i := range 300_000 {
		binary.LittleEndian.PutUint16(raw[2*i:], uint16(i%65))
	}
	raw[2*3000] = 200 // not in a block that the fingerprint covers
	e2e.Write(t, file, raw)
	e2e.Write(t, filepath.Join(dir, "vocab.json"), []byte(`{"kind": "byte", "vocab_size": 65}`))
	text := "[splits.train]\ntokens = 'train.bin'\norder = 'sequential'\nbatch_size = 2\nblock_size = 1024\n"
	e2e.Write(t, config, []byte(text))
	m := e2e.Mount(t, "-c", config)

	e2e.Equal(t, "vocab_size in info.json", m.Info(t, "train").VocabSize, 65)
	e2e.Read(t, "read", m.Path("train/batch/0"))
	e2e.CheckFails(t, "Input/output error", "cat", m.Path("train/batch/1"))
	want := file + ": token 3000 is 200, and tokens must be below vocab_size, which is 65"
	e2e.CheckLogAndStatus(t, m, want)
	e2e.AwaitDoctor(t, m.Dir, "FIX  requests: train fails, the last time with: "+want, "ok   mounted train: ")

	open := e2e.Must(os.Open(m.Path("train/batch/1")))(t)
	defer open.Close()
	e2e.Write(t, config, []byte(text+"vocab_size = 256\n"))
	e2e.Run(t, e2e.Batchfs, "restart", m.Dir)
	got := make([]byte, 4096)
	if _, err := open.ReadAt(got, 0); err != nil || string(got) != string(raw[4096:][:4096]) {
		t.Errorf("a read with another vocab_size: error %v, or other bytes than those of the file", err)
	}
	e2e.AwaitDoctor(t, m.Dir, "ok   requests: ")
}

// cat, inspect and check apply the settings of the mount to a path in it, not a configuration in
// the working directory.
func TestCommandsTakeAPathInAMount(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config, "--set", "batch.seed=7")
	here := t.TempDir()
	e2e.Write(t, filepath.Join(here, "config.toml"), []byte("[splits.train]\ntokens = 'none.bin'\n"))
	e2e.NoError(t, os.Symlink(m.Path("train"), filepath.Join(here, "link")))
	in := func(dir string, args ...string) string {
		t.Helper()
		return e2e.Run(t, append([]string{"env", "-C", dir, e2e.Batchfs}, args...)...)
	}
	for _, settings := range []string{"", "/rank=1,world=2", "/seed=9/order=shuffle"} {
		bytes, origin := e2e.Run(t, "cat", m.Path("train"+settings+"/batch/17")), e2e.Run(t, "cat", m.Path("train"+settings+"/batch/17.json"))
		for dir, path := range map[string]string{here: m.Path("train") + settings, m.Dir: "train" + settings, "/": filepath.Join(here, "link") + settings} {
			e2e.Equal(t, fmt.Sprintf("cat %s in %s: equal bytes", path, dir), in(dir, "cat", path, "--from", "17") == bytes, true)
			e2e.Equal(t, fmt.Sprintf("inspect %s in %s", path, dir), in(dir, "inspect", path, "17", "--json"), origin)
		}
	}
	e2e.CheckOutput(t, "60000 tokens", "env", "-C", here, e2e.Batchfs, "check", m.Path("train/rank=1,world=2"))
	for _, test := range []struct{ args, want string }{
		{"cat " + m.Path("train") + " -c " + config, "is in a mount, which has its own configuration; leave out -c, --data and --set"},
		{"cat " + m.Dir, "name a split in the mount, as in " + m.Path("train")},
		{"cat " + m.Path("nosuch"), `no split "nosuch"; there are ["train" "val"]`},
		{"inspect " + m.Path("train/sede=7") + " 1", `train/sede=7: unknown setting "sede"`},
		{"inspect " + here + "/train 1", "no batchfs is mounted there"},
		{"env -C / " + e2e.Batchfs + " inspect " + m.Path("train")[1:] + " 1 -c " + config, m.Path("train")[1:] + " is in a mount, which has its own configuration"},
		{"env -C / " + e2e.Batchfs + " inspect none/train 1", "none/train: no batchfs is mounted there"},
		{"seek " + m.Path("train") + " -5", "-5: must be a whole number from 0 on"},
		{"inspect " + m.Path("train/rows=packed") + " 1", "rows cannot be set in a path, but only for a whole mount: --set batch.rows=packed"},
		{"mount --data /none/data " + here, "--data /none/data: no such directory; name one that has train.bin"},
	} {
		args := strings.Fields(test.args)
		if args[0] != "env" {
			args = append([]string{e2e.Batchfs}, args...)
		}
		e2e.CheckFails(t, test.want, args...)
	}
}
