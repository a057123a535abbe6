package dataset

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/internal/testfiles"
)

const maskPattern = "\x00\x01\x01\x01\x00\x01"

// writePrepared writes 120 tokens, their mask and a vocab.json into each of several directories,
// like prepare.
func writePrepared(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	for dir, array := range map[string]string{
		"sft":     `{"name": "mask", "file": "a.mask.bin", "dtype": "uint8"}`,
		"again":   `{"name": "mask", "file": "a.mask.bin", "dtype": "uint8"}`,
		"weights": `{"name": "weights", "file": "a.mask.bin", "dtype": "uint8"}`,
		"gone":    `{"name": "mask", "file": "none.bin", "dtype": "uint8"}`,
		"short":   `{"name": "mask", "file": "few.bin", "dtype": "uint8"}`,
		"outside": `{"name": "../mask", "file": "a.mask.bin", "dtype": "uint8"}`,
		"pairs":   `{"name": "mask", "file": "a.bin", "dtype": "uint8", "shape": [2]}`,
		"plain":   "",
	} {
		testfiles.Write(t, map[string]string{
			dir + "/a.bin": strings.Repeat("\x00\x00\x01\x00\x02\x00", 40), dir + "/a.mask.bin": strings.Repeat(maskPattern, 20),
			dir + "/vocab.json": fmt.Sprintf(`{"splits": {"train": {"shards": [{"name": "a.bin", "arrays": [%s]}]}}, %s`, array, chars[1:]),
		})
	}
	testfiles.Write(t, map[string]string{"ones.bin": strings.Repeat("\x01", 120), "short/few.bin": "\x01"})
}

func mask(files string) string {
	return "arrays = [{name = 'mask', files = " + files + ", dtype = 'uint8'}]\n"
}

func mixture(first, second string) string {
	const source = "[[splits.a.sources]]\nweight = 1\ntokens = "
	return source + first + source + second
}

// Arrays listed in vocab.json are served like configured ones; x and y do not change.
func TestArraysNextToTokens(t *testing.T) {
	writePrepared(t)
	for _, test := range []struct{ found, same, none string }{
		{"[splits.a]\ntokens = 'sft/a.bin'\n", "[splits.a]\ntokens = 'sft/a.bin'\n" + mask("'sft/a.mask.bin'"), "[splits.a]\ntokens = 'sft/a.bin'\narrays = []"},
		{"[splits.a]\ntokens = 'pairs/a.bin'\n", "[splits.a]\ntokens = 'pairs/a.bin'\narrays = [{name = 'mask', files = 'pairs/a.bin', dtype = 'uint8', shape = [2]}]",
			"[splits.a]\ntokens = 'pairs/a.bin'\narrays = []"},
		{"[splits.a]\njoin = true\ntokens = ['sft/a.bin', 'again/a.bin']\n", "[splits.a]\njoin = true\ntokens = ['sft/a.bin', 'again/a.bin']\n" +
			mask("['sft/a.mask.bin', 'again/a.mask.bin']"), "[splits.a]\njoin = true\ntokens = ['sft/a.bin', 'again/a.bin']\narrays = []"},
		// The glob matches the mask, too.
		{"[splits.a]\ntokens = 'sft/a.*'\n", "[splits.a]\ntokens = 'sft/a.bin'\n" + mask("'sft/a.mask.bin'"), "[splits.a]\ntokens = 'sft/a.*'\narrays = []"},
		{mixture("'sft/a.bin'\n", "'again/a.bin'\n"), mixture("'sft/a.bin'\n"+mask("'sft/a.mask.bin'"), "'again/a.bin'\n"+mask("'again/a.mask.bin'")),
			mixture("'sft/a.bin'\narrays = []\n", "'again/a.bin'\n")},
	} {
		want, none, found := mustOpen(t, two+test.same)[0], mustOpen(t, two+test.none)[0], mustOpen(t, two+test.found)[0]
		if found.fingerprint == none.fingerprint || len(none.Sequence.Batch().Arrays) >= len(found.Sequence.Batch().Arrays) {
			t.Errorf("%s: the fingerprint is that without a mask", test.found)
		}
		if !strings.Contains(found.Summary(), ", array mask: ") {
			t.Error(found.Summary())
		}
		checkSame(t, found.FileBatches(nil), want.FileBatches(nil))
		checkSameBatches(t, test.found, found, none, none.Sequence.Batch().MainBytes())
	}
}

// If prepare was killed while it published its files, a split is not served without the missing
// ones.
func TestShardsOfTheManifestThatAreMissing(t *testing.T) {
	t.Chdir(t.TempDir())
	raw := strings.Repeat("\x00\x00", 120)
	testfiles.Write(t, map[string]string{"data/train_2.bin": raw, "data/val.bin": raw, "data/vocab.json": `{"kind": "ids", "vocab_size": 9, "splits": {
		"train": {"shards": [{"name": "train_1.bin"}, {"name": "train_2.bin"}]}, "val": {"shards": [{"name": "val.bin"}]}}}`})
	for text, want := range map[string]string{
		"[splits.train]\ntokens = 'data/train_*.bin'":                 abs(t, "data/train_1.bin") + " is missing, but vocab.json lists it: ",
		"[splits.train]\ntokens = 'data/train_*.bin'\nvocab_size = 9": abs(t, "data/train_1.bin") + " is missing, but vocab.json lists it: ",
		"[splits.val]\ntokens = 'data/val.bin'":                       "",
	} {
		if _, err := openHere(t, two+text); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	must(t, os.Remove("data/train_2.bin"))
	_, err := (&config.Flags{Data: "data"}).Load()
	if want := "data has no files of train, but vocab.json lists train_1.bin: "; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("--data: %v, want %s", err, want)
	}
}

// Arrays of the configuration take precedence over vocab.json. Their paths are relative to the
// configuration file, even if --data names the tokens.
func TestConfiguredArraysGoBeforeFoundOnes(t *testing.T) {
	writePrepared(t)
	must(t, os.Mkdir("config", 0o755))
	testfiles.Write(t, map[string]string{"config/c.toml": two + "[splits.train]\n" + mask("'../ones.bin'")})
	must(t, os.Rename("sft/a.bin", "sft/train.bin"))
	c, err := (&config.Flags{Config: "config/c.toml", Data: "sft"}).Load()
	must(t, err)
	all, err := NewOpener(c).Open(nil)
	must(t, err)
	b := all[0].Sequence.Batch()
	got := readBatch(t, all[0].Sequence.Read, b.Bytes(), 0)
	if a := b.Arrays[len(b.Arrays)-1]; a.Name != "mask" || !bytes.Equal(got[a.Offset:], bytes.Repeat([]byte{1}, 8)) {
		t.Errorf("%+v: % x", b.Arrays, got)
	}
}

func TestArraysNextToTokensThatDoNotSuit(t *testing.T) {
	writePrepared(t)
	const fix = arraysAdvice
	for text, want := range map[string][]string{
		"tokens = 'gone/a.bin'":                              {abs(t, "gone/none.bin"), "no such file"},
		"tokens = 'short/a.bin'":                             {abs(t, "short/few.bin") + " has ", " elements, but there are 120 in " + abs(t, "short/a.bin")},
		"join = true\ntokens = ['sft/a.bin', 'short/a.bin']": {abs(t, "short/few.bin") + " has ", " elements, but there are 120 in " + abs(t, "short/a.bin")},
		"tokens = 'outside/a.bin'":                           {"vocab.json next to " + abs(t, "outside/a.bin"), `"../mask of uint8" that no split can have`},
		"tokens = ['sft/a.bin', 'plain/a.bin']":              {`["mask of uint8"] next to ` + abs(t, "sft/a.bin"), "[] next to " + abs(t, "plain/a.bin")},
		"tokens = ['plain/a.bin', 'sft/a.bin']":              {"[] next to " + abs(t, "plain/a.bin"), `["mask of uint8"] next to ` + abs(t, "sft/a.bin")},
		mixture("'sft/a.bin'\n", "'plain/a.bin'\n"):          {"source 1 has the arrays [], source 0 has [mask at y]"},
		mixture("'sft/a.bin'\n", "'weights/a.bin'\n"):        {"source 1 has the arrays [weights at y], source 0 has [mask at y]"},
	} {
		_, err := openHere(t, two+strings.Replace("[splits.a]\n"+text, "[splits.a]\n[[", "[[", 1))
		for _, part := range append(want, "splits.a: ", fix) {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s:\n got %v\nwant %s", text, err, part)
			}
		}
	}
}

// New tokens are not served if their vocab.json lists other arrays, or no longer says which token
// ends a document.
func TestFollowOtherVocabulary(t *testing.T) {
	for _, test := range []struct{ from, to, keys, want string }{
		{"sft", "plain", "", `the arrays of a batch were ["x uint16 [2 4]" "y uint16 [2 4]" "mask uint8 [2 4]"] and are now ["x uint16 [2 4]" "y uint16 [2 4]"];`},
		{"plain", "sft", "", `are now ["x uint16 [2 4]" "y uint16 [2 4]" "mask uint8 [2 4]"];`},
		{"sft", "gone", "", "none.bin: no such file"},
		{"ends", "plain", "documents = true\n", "nothing says where the documents of "},
	} {
		writePrepared(t)
		testfiles.Write(t, map[string]string{
			"ends/a.bin": strings.Repeat("\x00\x00\x01\x00\x02\x00", 40), "ends/vocab.json": `{"eot": 1, "eot_at": "end", ` + chars[1:],
		})
		must(t, os.Rename(test.from, "data"))
		s := onlyMountedSequence(t, two+"[splits.a]\ntokens = 'data/a.bin'\non_change = 'follow'\n"+test.keys)
		// With an unchanged modification time, the new file would be taken for a copy of the old
		// one.
		must(t, os.Chtimes(test.to+"/a.bin", time.Time{}, time.Now().Add(time.Hour)))
		for _, name := range []string{"vocab.json", "a.bin", "a.mask.bin"} {
			must(t, os.Rename(test.to+"/"+name, "data/"+name))
		}
		if _, err := s.LatestFor(0, nil); !errors.Is(err, syscall.ESTALE) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s for %s: error %v, want %s", test.to, test.from, err, test.want)
		}
	}
}
