package prepare

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	parquetgo "github.com/parquet-go/parquet-go"
	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/internal/testwait"
)

func TestPrepareEOTAndMask(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{
		"a.jsonl": `{"text": "AB", "m": {"p": "Q", "c": "XY"}}` + "\n" + `{"text": "", "m": {"p": "", "c": null}}` + "\n" + `{"text": "C", "m": {"p": "", "c": "Z"}}`,
	})
	const e = pairsEOT
	for args, want := range map[string]struct {
		tokens []uint16
		mask   string
	}{
		"--eot end":                           {[]uint16{'A', 'B', e, 'C', e}, ""},
		"--eot begin":                         {[]uint16{e, 'A', 'B', e, 'C'}, ""},
		"--eot none":                          {[]uint16{'A', 'B', 'C'}, ""},
		"--mask m.p:0,m.c:1":                  {[]uint16{'Q', 'X', 'Y', e, 'Z', e}, "\x00\x01\x01\x01\x01\x01"},
		"--mask m.c:1,m.p:0 --eot begin":      {[]uint16{e, 'X', 'Y', 'Q', e, 'Z'}, "\x00\x01\x01\x00\x00\x01"},
		"--mask m.p:0,m.c:1 --shard-tokens 4": {[]uint16{'Q', 'X', 'Y', e}, "\x00\x01\x01\x01"},
	} {
		os.RemoveAll("out")
		prepared(t, "a.jsonl --by pairs --val 0 --out out "+args)
		name := "out/train"
		if strings.Contains(args, "shard") {
			name += "_000001"
		}
		if got := readTokens(t, name+".bin"); !slices.Equal(got, want.tokens) {
			t.Errorf("%s: tokens %v, want %v", args, got, want.tokens)
		}
		if got, _ := os.ReadFile(name + ".mask.bin"); string(got) != want.mask {
			t.Errorf("%s: mask %x, want %x", args, got, want.mask)
		}
		var arrays []vocabulary.ArrayFile
		if want.mask != "" {
			arrays = []vocabulary.ArrayFile{{Name: "mask", File: filepath.Base(name) + ".mask.bin", DType: "uint8"}}
		}
		if got := readManifest(t).Splits["train"].Shards[0].Arrays; !reflect.DeepEqual(got, arrays) {
			t.Errorf("%s: vocab.json has arrays %v, want %v", args, got, arrays)
		}
	}
	prepared(t, "a.jsonl --by pairs --val 0 --out out --force")
	prepared(t, "a.jsonl --by pairs --val 0 --out out --force --mask m.p:0,m.c:1")
	prepared(t, "a.jsonl --by pairs --val 0 --out out --force")
	wantOnlyFiles(t, "train.bin", "train.bin.index", "vocab.json")
	if got := readManifest(t).Splits["train"].Shards[0].Arrays; got != nil {
		t.Errorf("without a mask, vocab.json has %v", got)
	}
}

// Adding or moving files moves no document between train and val.
func TestPrepareMovesNoDocument(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	documents := someDocuments(300, 200)
	testfiles.WriteHere(t, map[string]string{"few.jsonl": lines(documents[:100]), "new/most.jsonl.gz": gzipped(lines(documents))})
	inVal := func(args string) []string {
		prepared(t, args+" --by pairs --val 0.2 --force --out out")
		text := decoded(readManifest(t), readTokens(t, "out/val.bin"))
		return strings.Split(strings.TrimSuffix(text, "<|endoftext|>"), "<|endoftext|>")
	}
	few, all := inVal("few.jsonl"), inVal("new")
	for _, d := range documents[:100] {
		if slices.Contains(few, d) != slices.Contains(all, d) {
			t.Errorf("%.20q... moved", d)
		}
	}
	if len(few) < 5 || len(all) < 30 {
		t.Errorf("val has %d documents of 100, and %d of 300", len(few), len(all))
	}
}

// golden returns the files, by format, of the documents "A", "B" and "CC". Each document ends with
// token 256, and each token has width bytes.
func golden(width int) map[string]map[string]string {
	number := func(width int, numbers ...int) (s string) {
		for _, n := range numbers {
			s += string(binary.LittleEndian.AppendUint64(nil, uint64(n))[:width])
		}
		return s
	}
	tokens := number(width, 'A', 256, 'B', 256, 'C', 'C', 256)
	magic, version, code := 20240520, 1, "\x08"
	if width == 4 {
		magic, version, code = 20240801, 7, "\x04"
	}
	index := number(8, 2, 4, 7)
	dict := fmt.Sprintf("{'descr': '<u%d', 'fortran_order': False, 'shape': (7,), }", width)
	return map[string]map[string]string{
		"headerless": {"train.bin": tokens, "train.bin.index": index},
		"llm.c":      {"train_000001.bin": number(4, magic, version, 7) + strings.Repeat("\x00", 4*253) + tokens, "train_000001.bin.index": index},
		"npy":        {"train.npy": fmt.Sprintf("\x93NUMPY\x01\x00\x76\x00%-117s\n", dict) + tokens, "train.npy.index": index},
		"megatron": {"train.bin": tokens, "train.idx": "MMIDIDX\x00\x00" + number(8, 1) + code + number(8, 3, 4) +
			number(4, 2, 2, 3) + number(8, 0, 2*width, 4*width) + number(8, 0, 1, 2, 3)},
		"datatrove": {"train.ds": tokens, "train.ds.index": index, "train.ds.metadata": fmt.Sprintf("pairs|%d\n7\n7 tokens", width)},
	}
}

func TestPrepareFormats(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	documents := someDocuments(100, 300)
	testfiles.WriteHere(t, map[string]string{"a.jsonl": lines(documents), "few.jsonl": lines([]string{"A", "B", "CC"})})
	var want []byte
	for _, d := range documents {
		for _, token := range append(pairTokenizer{}.Append(nil, []byte(d)), pairsEOT) {
			want = binary.LittleEndian.AppendUint16(want, uint16(token))
		}
	}
	headers := map[string]int{"llm.c": 1024, "npy": 128}
	for format := range golden(2) {
		for by, width := range map[string]int{"pairs": 2, "large": 4} {
			os.RemoveAll("out")
			prepared(t, fmt.Sprintf("few.jsonl --by %s --val 0 --format %s --out out", by, format))
			got := filesOf(t, "out")
			delete(got, "vocab.json")
			wantSame(t, got, golden(width)[format])
		}
		os.RemoveAll("out")
		prepared(t, "a.jsonl --by pairs --val 0 --shard-tokens 4000 --out out --format "+format)
		files, split := filesOf(t, "out"), readManifest(t).Splits["train"]
		var got []byte
		var tokens, ends int64
		for i, shard := range split.Shards {
			raw := files[shard.Name]
			if !strings.HasPrefix(shard.Name, fmt.Sprintf("train_%06d.", i+1)) || fmt.Sprintf("%x", sha(raw)) != shard.SHA256 {
				t.Errorf("%s: shard %d is %s, with another SHA-256 or name", format, i, shard.Name)
			}
			if whole := format == "megatron" || format == "datatrove"; !whole && i+1 < len(split.Shards) && shard.Tokens != 4000 {
				t.Errorf("%s: %s has %d tokens", format, shard.Name, shard.Tokens)
			}
			got = append(got, raw[headers[format]:]...)
			tokens, ends = tokens+shard.Tokens, ends+shard.Documents
		}
		if !bytes.Equal(got, want) || tokens != int64(len(want)/2) || split.Tokens != tokens || ends != int64(len(documents)) || split.Documents != ends || len(split.Shards) < 2 {
			t.Errorf("%s: %d bytes, %d tokens, %d documents in %d shards, want %d bytes", format, len(got), tokens, ends, len(split.Shards), len(want))
		}
	}
}

// With --eot begin, each shard begins with the token.
func TestPrepareShardsBeginDocuments(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	testfiles.WriteHere(t, map[string]string{"a.jsonl": lines(someDocuments(100, 300))})
	for format, header := range map[string]int{"headerless": 0, "llm.c": 1024, "npy": 128, "megatron": 0, "datatrove": 0} {
		prepared(t, "a.jsonl --by pairs --val 0 --eot begin --shard-tokens 4000 --force --out out --format "+format)
		shards := readManifest(t).Splits["train"].Shards
		for _, shard := range shards {
			if begin := filesOf(t, "out")[shard.Name][header:][:2]; begin != "\x00\x01" {
				t.Errorf("%s: %s begins with %x", format, shard.Name, begin)
			}
		}
		if len(shards) < 2 {
			t.Errorf("%s: %d shards", format, len(shards))
		}
	}
}

// val has exactly the documents of the files that --val-files matches.
func TestPrepareValFiles(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"d/a.jsonl": lines([]string{"A", "B"}), "d/b.parquet": parquetOf(t, []string{"C", "D"}), "d/c": "E", "e/c": "F", "empty": ""})
	for pattern, want := range map[string][2]string{
		"c":            {"A|B|C|D|", "E|F|"},
		"d/c":          {"A|B|C|D|F|", "E|"},
		"*.{jsonl,p*}": {"E|F|", "A|B|C|D|"},
		"b.parquet":    {"A|B|E|F|", "C|D|"},
	} {
		prepared(t, "d e --by pairs --force --out out --val-files "+pattern)
		for i, name := range splits {
			if got := strings.ReplaceAll(decoded(readManifest(t), readTokens(t, "out/"+name+".bin")), "<|endoftext|>", "|"); got != want[i] {
				t.Errorf("%s: %s has %s, want %s", pattern, name, got, want[i])
			}
		}
	}
	for args, want := range map[string]string{
		"--val-files a.json":        "--val-files a.json: matches no input",
		"--val-files **":            "--val-files **: matches all inputs and leaves none for train",
		"--val-files [":             "--val-files [: syntax error in pattern",
		"--val-files c --val 0.1":   "[val val-files] were all set",
		"--val-files empty --force": "--val-files empty: leaves 12 tokens for train and 0 for val",
	} {
		wantError(t, "d e empty --by pairs --out out "+args, want)
	}
	prepared(t, "d e --by pairs --force --out out --val-files c")
	wantError(t, "d e --by pairs --out out --val-files b.parquet", ": already exists")
}

// A run that is repeatedly interrupted and continued writes the same files as an uninterrupted one,
// with any number of processors.
func TestPrepareGoesOn(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	documents := someDocuments(1000, 300)
	testfiles.WriteHere(t, map[string]string{
		"a.jsonl.zst": zstandard(lines(documents[:350])), "b.parquet": parquetOf(t, documents[350:700]), "c": strings.Join(documents, "\n"), "d/a": "x", "d/b": "", "e.jsonl": lines(documents[700:]), "chats.jsonl": chats(documents),
		"ids.jsonl": linesWithIDs(documents),
	})
	for _, args := range []string{
		"a.jsonl.zst b.parquet c d e.jsonl --shard-tokens 20000 --by pairs", "a.jsonl.zst b.parquet e.jsonl --shard-tokens 20000 --by char --format megatron --val-files b.parquet",
		"chats.jsonl --shard-tokens 30000 --by large --format llm.c --mask m[role=user].text:1 --eot begin", "c --shard-tokens 30000 --by pairs --format npy",
		"e.jsonl --shard-tokens 20000 --by special", "ids.jsonl --shard-tokens 20000 --by pairs --id meta.id",
	} {
		os.RemoveAll("want")
		os.RemoveAll("out")
		runtime.GOMAXPROCS(1)
		prepared(t, args+" --out want")
		runtime.GOMAXPROCS(5)
		rng := rand.New(rand.NewPCG(7, 8))
		interrupted := 0
		for {
			ctx, cancel := context.WithCancel(t.Context())
			stop := time.AfterFunc(time.Duration(rng.IntN(1+20*interrupted))*time.Millisecond, cancel)
			_, err := runPrepare(ctx, append(strings.Fields(args), "--out", "out")...)
			stop.Stop()
			cancel()
			if err == nil {
				break
			}
			if !strings.HasPrefix(err.Error(), "interrupted") {
				t.Fatalf("%s: %v", args, err)
			}
			interrupted++
		}
		wantSame(t, filesOf(t, "out"), filesOf(t, "want"))
	}
}

// chats returns JSON lines with notes of all kinds.
func chats(documents []string) string {
	var b strings.Builder
	for _, d := range documents {
		fmt.Fprintf(&b, "{\"m\": [{\"role\": \"user\", \"text\": %q}, {\"role\": \"tool\", \"text\": \"T\", \"call\": 1}]}\n{\"m\": []}\n", d)
	}
	return b.String()
}

func sha(s string) [32]byte { return sha256.Sum256([]byte(s)) }

func TestPrepareGoesOnOnlyWithTheSame(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	documents := someDocuments(300, 300)
	testfiles.WriteHere(t, map[string]string{"a.jsonl": lines(documents), "b.jsonl": lines(documents[:200]) + "no JSON\n", "c.jsonl": lines(documents[:10])})
	const args = " --by pairs --shard-tokens 5000 --out out"
	unfinished := func() {
		t.Helper()
		testfiles.Write(t, map[string]string{"b.jsonl": lines(documents[:200]) + "no JSON\n"})
		os.RemoveAll("out")
		wantError(t, "b.jsonl"+args, "; run the same command again to continue")
		wantOnlyFiles(t, ".prepare")
	}
	for other, want := range map[string]string{
		"b.jsonl --eot begin":    "out/.prepare belongs to an unfinished run with other options: use these again, or start over with --force: {\"by\":\"pairs\",",
		"c.jsonl":                "out/.prepare belongs to an unfinished run, and since then the texts, or their sizes or modification times, have changed",
		"b.jsonl --include *.md": "line 201: not a JSON object",
	} {
		unfinished()
		wantError(t, other+args, want)
		wantOnlyFiles(t, ".prepare")
	}

	// A run that fails before it replaces anything leaves the unfinished run alone.
	unfinished()
	testfiles.NoError(t, os.Mkdir("out/train_000001.bin", 0o777))
	wantError(t, "c.jsonl --force"+args, "out/train_000001.bin: is a directory")
	testfiles.NoError(t, os.Remove("out/train_000001.bin"))
	if said, err := runPrepare(t.Context(), strings.Fields("b.jsonl"+args)...); err == nil || !strings.Contains(said, "\ncontinuing at ") {
		t.Errorf("%v; said %q, want that it continues", err, said)
	}

	prepared(t, "c.jsonl --val 0 --force"+args)
	os.RemoveAll("want")
	prepared(t, "c.jsonl --val 0 --by pairs --shard-tokens 5000 --out want")
	wantSame(t, filesOf(t, "out"), filesOf(t, "want"))

	w, err := openWorkDir("out")
	testfiles.NoError(t, err)
	defer w.close()
	wantError(t, "a.jsonl --force"+args, "out/.prepare: another batchfs prepare or batchfs.writer is running there")
}

// A run that fails because it may not replace files leaves the working directory of a killed run as
// it is. A run whose text comes from a pipe has no checkpoint, even while it moves its files to
// DIR.
func TestPrepareKeepsUnmovedFiles(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.jsonl": lines(someDocuments(20, 100)), "b.jsonl": lines(someDocuments(10, 100))})
	prepared(t, "a.jsonl --by byte --out out")
	testfiles.NoError(t, os.Mkdir("out/.prepare", 0o700))
	testfiles.NoError(t, os.Rename("out/train.bin", "out/.prepare/train.bin"))
	wantError(t, "b.jsonl --by byte --out out", "already exists")
	if _, err := os.Stat("out/.prepare/train.bin"); err != nil {
		t.Error(err)
	}
}

// A run is complete only if all of its files are there.
func TestPrepareMissesFiles(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.jsonl": lines(someDocuments(20, 100))})
	for _, format := range []string{"headerless", "npy", "megatron", "datatrove"} {
		args := "a.jsonl --by pairs --mask text:1 --out " + format + " --format " + format
		prepared(t, args)
		for name := range filesOf(t, format) {
			if name == manifestName {
				continue
			}
			path := filepath.Join(format, name)
			testfiles.NoError(t, os.Rename(path, "hidden"))
			wantError(t, args, "already exists")
			testfiles.NoError(t, os.Rename("hidden", path))
		}
		if said := prepared(t, args); !strings.Contains(said, "is already complete") {
			t.Errorf("%s with all files: said %q, want that it is complete", format, said)
		}
	}
}

// While another run ends and removes the working directory, a run gets one of its own or an error.
func TestWorkDirIsNotRemoved(t *testing.T) {
	t.Chdir(t.TempDir())
	var runs sync.WaitGroup
	for range 4 {
		runs.Go(func() {
			for range 2000 {
				w, err := openWorkDir("out")
				if err != nil {
					if !strings.Contains(err.Error(), "is running there") {
						t.Errorf("error %v, want that another run has the directory", err)
					}
					continue
				}
				if err := w.dir.WriteFile("vocab.json", nil, 0o600); err != nil {
					t.Error(err)
				}
				w.close()
			}
		})
	}
	runs.Wait()
}

// If complete files cannot be moved to DIR, they stay, even if their text can be read only once.
func TestPrepareKeepsCompleteFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.NoError(t, unix.Mkfifo("pipe.txt", 0o600))
	failed := make(chan error, 1)
	go func() {
		_, err := runPrepare(context.Background(), strings.Fields("pipe.txt --as text --by byte --val 0 --out out")...)
		failed <- err
	}()
	pipe, err := os.OpenFile("pipe.txt", os.O_WRONLY, 0)
	testfiles.NoError(t, err)
	text := strings.Repeat("abc ", 2*chunkSize)
	pipe.WriteString(text)
	testwait.Success(t, "tokens of the first chunk", func() error {
		_, err := os.Stat("out/.prepare/train.bin")
		return err
	})
	testfiles.NoError(t, os.MkdirAll("out/train.bin/in the way", 0o700))
	pipe.Close()
	if err := testwait.For(t, "the error of prepare", failed); err == nil || !strings.Contains(err.Error(), "; the complete files are in out/.prepare: move them away") {
		t.Errorf("error %v, want one that names the complete files", err)
	}
	removePublished("out") // the next command calls it if the files in DIR are complete
	if got := readTokens(t, "out/.prepare/train.bin"); len(got) != len(text) {
		t.Errorf("%d tokens, want %d", len(got), len(text))
	}
}

// prepare neither replaces nor removes unfinished work of the Python package.
func TestPrepareLeavesTheWriterAlone(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.jsonl": lines([]string{"A"})})
	for _, file := range []string{".writer.json", ".finish.json", "shard_00000_of_00002/.writer.json"} {
		testfiles.Write(t, map[string]string{"out/.prepare/" + file: "{}", "out/.prepare/train.bin": "AB"})
		wantError(t, "a.jsonl --val 0 --force --out out", "out/.prepare: belongs to an unfinished batchfs.writer: continue it in Python")
		testfiles.Size(t, "out/.prepare/train.bin")
		testfiles.NoError(t, os.RemoveAll("out"))
	}
}

// An overwritingTokenizer overwrites the text when it encodes the first one.
type overwritingTokenizer struct{ byteTokenizer }

func (o overwritingTokenizer) NewEncoder() encoder { return o }

func (overwritingTokenizer) Append(tokens []uint32, text []byte) []uint32 {
	os.WriteFile("a.jsonl", []byte(lines([]string{"new"})), 0o644)
	return byteTokenizer{}.Append(tokens, text)
}

// A run is not complete for a text that was changed during the run, after it had been read.
func TestPrepareIsNotCompleteForNewTexts(t *testing.T) {
	tokenizers["overwriting"] = func() (tokenizer, error) { return overwritingTokenizer{}, nil }
	defer delete(tokenizers, "overwriting")
	testfiles.WriteHere(t, map[string]string{"a.jsonl": lines([]string{"old"})})
	long := time.Now().Add(-time.Hour)
	testfiles.NoError(t, os.Chtimes("a.jsonl", long, long))
	const args = "a.jsonl --by overwriting --val 0 --out out"
	prepared(t, args)
	wantError(t, args, "out/train.bin: already exists: replace it with --force")
	prepared(t, args+" --force")
	if got := filesOf(t, "out")["train.bin"]; got != "n\x00e\x00w\x00" {
		t.Errorf("tokens %q, want those of new", got)
	}
}

// --force refuses token files that it neither writes nor finds in vocab.json, because a mount would
// serve them together with the new ones.
func TestPrepareForceMixesNoFiles(t *testing.T) {
	for args, files := range map[string]string{
		"--val 0":                           "val.bin val.bin.index val.mask.bin train.npy",
		"--val 0.1":                         "train.mask.bin val.bin.ids val.ds",
		"--val 0.1 --format megatron":       "train.bin.index train_1.bin",
		"--val 0.1 --shard-tokens 100":      "train.bin val.bin train_000001.bin",
		"--val 0.1 --mask text:1 --id text": "train.ds",
	} {
		for name := range strings.FieldsSeq(files) {
			testfiles.WriteHere(t, map[string]string{"a.jsonl": lines(someDocuments(20, 30)), "out/" + name: "mine"})
			wantError(t, "a.jsonl --by byte --out out "+args, "out/"+name+": is not listed in vocab.json")
			wantError(t, "a.jsonl --by byte --force --out out "+args, "out/"+name+": is not listed in vocab.json, so a mount would mix it with the new files: move it away")
			wantSame(t, filesOf(t, "out"), map[string]string{name: "mine"})
		}
	}
	const args = "a.jsonl --by byte --mask text:1 --id text --out out"
	testfiles.WriteHere(t, map[string]string{"a.jsonl": lines(someDocuments(20, 30))})
	prepared(t, args)
	want := filesOf(t, "out")
	testfiles.NoError(t, os.Remove("out/vocab.json")) // all files are written again
	prepared(t, args+" --force")
	wantSame(t, filesOf(t, "out"), want)
}

// A mount never sees shards of two runs as one split.
func TestPrepareForceRemovesOldShards(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	documents := someDocuments(100, 300)
	testfiles.WriteHere(t, map[string]string{"many.jsonl": lines(documents), "few.jsonl": lines(documents[:50])})
	prepared(t, "many.jsonl --by pairs --shard-tokens 2000 --format megatron --mask text:1 --out out")
	made, err := os.ReadFile("out/vocab.json")
	testfiles.NoError(t, err)
	made = bytes.Replace(made, []byte(`"arrays": [`), []byte(`"arrays": [{"name": "logits", "file": "train_000001.logits.bin", "dtype": "float16", "shape": [3]},`), 1)
	testfiles.Write(t, map[string]string{"out/notes": "mine", "out/vocab.json": string(made), "out/train_000001.logits.bin": ""})
	prepared(t, "few.jsonl --by pairs --shard-tokens 2000 --out out --force")
	prepared(t, "few.jsonl --by pairs --shard-tokens 2000 --out want")
	want := filesOf(t, "want")
	want["notes"] = "mine"
	wantSame(t, filesOf(t, "out"), want)
	prepared(t, "few.jsonl --by pairs --out out --force")
	wantOnlyFiles(t, "notes", "train.bin", "train.bin.index", "val.bin", "val.bin.index", "vocab.json")

	testfiles.Write(t, map[string]string{"out/train_000009.bin": "mine"})
	wantError(t, "few.jsonl --by pairs --out out --force",
		"out/train_000009.bin: is not listed in vocab.json, so a mount would mix it with the new files: move it away")
	wantOnlyFiles(t, "notes", "train.bin", "train.bin.index", "train_000009.bin", "val.bin", "val.bin.index", "vocab.json")
}

// The estimate of --dry-run is close, even if the end of a file is unlike its beginning.
func TestPrepareDryRun(t *testing.T) {
	useSmallChunks(t, 16<<10, 1<<20)
	even := lines(someDocuments(1500, 300))
	documents := someDocuments(6000, 300)
	for i := range documents[2000:] {
		documents[2000+i] = fmt.Sprint(i) + strings.Repeat(" 1234 é ü", 40)
	}
	type row struct {
		Text string `parquet:"text,dict,zstd"`
	}
	var same bytes.Buffer // a row takes much less than a byte
	w := parquetgo.NewGenericWriter[row](&same)
	_, err := w.Write(slices.Repeat([]row{{"the same"}}, 20_000))
	testfiles.NoError(t, err)
	testfiles.NoError(t, w.Close())
	testfiles.WriteHere(t, map[string]string{"a.jsonl": lines(documents), "small.jsonl": lines(documents[:112]), "a.txt": strings.Join(documents, "\n"), "b/short.txt": "a few words",
		"a.jsonl.zst": zstandard(even), "a.jsonl.gz": gzipped(even), "a.parquet": parquetOf(t, someDocuments(1500, 300)), "a.parquet.gz": gzipped(parquetOf(t, someDocuments(3000, 300))), "empty.parquet": parquetOf(t, nil),
		"same.parquet": same.String(), "a.arrow": arrowOfTexts(t, someDocuments(1500, 300))})
	for _, args := range []string{"a.jsonl", "small.jsonl", "a.txt", "b a.txt", "a.txt --eot begin", "a.jsonl.zst", "a.jsonl.gz", "a.parquet", "a.parquet.gz", "a.parquet empty.parquet", "same.parquet", "a.arrow"} {
		var got, n float64
		os.RemoveAll("out")
		said := prepared(t, args+" --by pairs --dry-run")
		_, about, _ := strings.Cut(said, "\nabout ")
		fmt.Sscanf(about, "%g tokens in %g documents", &got, &n)
		wantOnlyFiles(t)
		prepared(t, args+" --by pairs --val 0 --out out")
		split := readManifest(t).Splits["train"]
		var sampled float64
		if fmt.Sscanf(said[strings.LastIndex(said, ", ")+2:], "%g%% sampled", &sampled); sampled <= 0 || sampled > 100 {
			t.Errorf("%s: said %q, want more than 0 and at most 100%%", args, said)
		}
		if tokens, documents := float64(split.Tokens), float64(split.Documents); got < 0.8*tokens || got > 1.2*tokens || n < 0.8*documents || n > 1.2*documents {
			t.Errorf("%s: said %q, want about %g tokens and %g documents", args, said, tokens, documents)
		}
	}
}
