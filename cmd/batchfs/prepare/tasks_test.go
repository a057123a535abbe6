package prepare

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	parquetgo "github.com/parquet-go/parquet-go"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/prepare/rows"
	"batchfs/cmd/batchfs/vocabulary"
)

// Wherever a parquet file is divided, each row is in exactly one part, under its own number.
func TestRowGroupsAreDividedAtEveryBorder(t *testing.T) {
	var file bytes.Buffer
	type row struct {
		Text string `parquet:"text"`
	}
	w := parquetgo.NewGenericWriter[row](&file)
	total := 0
	for _, n := range []int{3, 1, 40, 2, 7} {
		for range n {
			w.Write([]row{{fmt.Sprint("row ", total)}})
			total++
		}
		testfiles.NoError(t, w.Flush())
	}
	testfiles.NoError(t, w.Close())
	testfiles.WriteHere(t, map[string]string{"a.parquet": file.String()})
	in := &input.File{Path: "a.parquet", Format: input.Parquet}
	sizes, err := rows.GroupSizes(in)
	if err != nil || len(sizes) != 5 {
		t.Fatalf("row groups %d, %v", sizes, err)
	}
	in.Info, err = os.Stat("a.parquet")
	testfiles.NoError(t, err)
	for _, flags := range []string{"", "text:1"} {
		for first := range int64(6) {
			for second := first; second <= 5; second++ {
				var got []string
				for _, border := range [][2]int64{{0, first}, {first, second}, {second, 5}} {
					piece := *in
					piece.Part = &input.Part{Begin: border[0], End: border[1]}
					s := settings{By: vocabulary.Byte, Field: "text", Mask: flags}
					e, err := newEncoding(&s, nil)
					testfiles.NoError(t, err)
					r := newReader(&plan{settings: s, inputs: []*input.File{&piece}, encoding: e}, t.TempDir(), func(ch *chunk) error {
						for _, p := range ch.pieces {
							got = append(got, fmt.Sprintf("%d %s", p.start.Offset, p.text))
						}
						return nil
					})
					testfiles.NoError(t, r.read(position{}))
				}
				for i, text := range got {
					if want := fmt.Sprintf("row %d", i); len(got) != total || !strings.HasPrefix(text, fmt.Sprint(i, " ")) || !strings.Contains(text, want) {
						t.Fatalf("divided at %d and %d: row %d is %q of %d rows", first, second, i, text, len(got))
					}
				}
			}
		}
	}
}

// writeTaskInputs writes inputs of each format, of which some are divided into several units.
func writeTaskInputs(t testing.TB) {
	t.Helper()
	documents := someDocuments(400, 200)
	testfiles.WriteHere(t, map[string]string{
		"in/a.jsonl": lines(documents[:150]), "in/b.jsonl.gz": gzipped(lines(documents[150:200])), "in/c.parquet": parquetOf(t, documents[200:300], parquetgo.MaxRowsPerRowGroup(17)),
		"in/d.jsonl": lines(documents[300:302]), "in/e.jsonl": "", "in/f.jsonl": lines(documents[302:303]), "in/g.parquet.zst": zstandard(parquetOf(t, documents[303:390])),
		"in/h.jsonl": lines(documents[390:]),
	})
}

// runTasks does tasks in random order, some of them twice, and finishes.
func runTasks(t testing.TB, n int, out string) string {
	t.Helper()
	order := rand.New(rand.NewPCG(uint64(n), 1)).Perm(n)
	for _, i := range append(order, order[:n/2]...) {
		prepared(t, fmt.Sprintf("--plan plan.json --task %d/%d --out %s", i, n, out))
	}
	return prepared(t, "--plan plan.json --finish --verify --out "+out)
}

func taskFiles(t testing.TB, out string) map[string]string {
	t.Helper()
	files := filesOf(t, out)
	delete(files, ".units")
	return files
}

// The files do not depend on the number and the order of tasks, and have the documents that prepare
// gives in one process, in the same order and splits.
func TestTasksMakeTheSameFiles(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	for _, args := range []string{
		"--by pairs --val 0.2", "--by pairs --format megatron --val-files d.jsonl", "--by large --format llm.c --eot begin --val 0",
		"--by pairs --format npy --val 0.2", "--by pairs --format datatrove --val 0.2", "--by pairs --mask text:0,meta.body:1 --val 0.2", "--by pairs --id id --val 0.2",
	} {
		t.Run(args, func(t *testing.T) {
			writeTaskInputs(t)
			said := prepared(t, "--plan plan.json in --unit-bytes 15000 "+args)
			if !strings.Contains(said, "plan.json: 8 inputs of ") {
				t.Errorf("prepare said %q", said)
			}
			runTasks(t, 1, "out1")
			want := taskFiles(t, "out1")
			numbers := []int{3}
			if strings.Contains(args, "--mask") {
				numbers = []int{3, 16}
			}
			for _, n := range numbers {
				out := fmt.Sprint("out", n)
				runTasks(t, n, out)
				wantSame(t, taskFiles(t, out), want)
				first, err := os.ReadFile("out1/vocab.json") // with the digest of the run
				testfiles.NoError(t, err)
				other, err := os.ReadFile(out + "/vocab.json")
				if testfiles.NoError(t, err); !bytes.Equal(first, other) {
					t.Errorf("%d tasks make another vocab.json", n)
				}
			}
			if len(want) < 15 {
				t.Errorf("there are only %d files, %q", len(want), slices.Sorted(maps.Keys(want)))
			}
			if !strings.Contains(args, "--format") {
				prepared(t, "in --out whole "+args)
				for _, split := range []string{"train", "val"} {
					for _, suffix := range []string{".bin", ".mask.bin", ".bin.ids"} {
						all := ""
						shards, err := filepath.Glob("out1/" + split + "_[0-9]*[0-9]" + suffix)
						testfiles.NoError(t, err)
						for _, shard := range shards {
							text, err := os.ReadFile(shard)
							testfiles.NoError(t, err)
							all += string(text)
						}
						if whole, _ := os.ReadFile("whole/" + split + suffix); string(whole) != all {
							t.Errorf("%s%s: %d bytes, but one process writes %d", split, suffix, len(all), len(whole))
						}
					}
				}
			}
		})
	}
}

// The notes of all units are added up, and what they tell about all of them is decided at the end.
func TestTasksSumUp(t *testing.T) {
	texts := map[string]string{
		"a.jsonl": `{"turns": [{"role": "user", "text": "a"}, {"role": "tool", "text": "b"}]}` + "\n",
		"b.jsonl": `{"turns": [{"role": "assistant", "text": "c"}]}` + "\n" + `{"turns": []}` + "\n",
	}
	const args = " --by byte --val 0 --mask turns[role=user].text:0,turns[role=assistant].text:1"
	testfiles.WriteHere(t, texts)
	prepared(t, "a.jsonl b.jsonl --out whole"+args)
	prepared(t, "--plan plan.json a.jsonl b.jsonl --unit-bytes 10"+args)
	runTasks(t, 2, "out")
	whole, err := vocabulary.Read("whole/vocab.json", nil)
	testfiles.NoError(t, err)
	tasks, err := vocabulary.Read("out/vocab.json", nil)
	whole.Notes[0] = strings.Replace(whole.Notes[0], "line 2 of b.jsonl", "line 1 of b.jsonl from byte 44 on", 1)
	if err != nil || !slices.Equal(tasks.Notes, whole.Notes) || len(tasks.Notes) != 2 || tasks.Splits["train"].Documents != 2 {
		t.Errorf("notes %q, %v, want %q", tasks.Notes, err, whole.Notes)
	}
	for args, want := range map[string]string{
		"a.jsonl --by byte --val 0 --mask turns[role=none].text:1":                                         "--mask: part turns[role=none].text:1 matches 0 texts",
		"a.jsonl b.jsonl --by byte --val 0.001 --field turns.*.text":                                       "--val: 0.001 of 2 documents leaves",
		"b.jsonl --by byte --val 0 --as jsonl --mask turns[role=assistant].text:0,turns[role=user].text:1": "matches 0 texts",
	} {
		os.RemoveAll("out")
		os.Remove("plan.json")
		prepared(t, "--plan plan.json "+args)
		prepared(t, "--plan plan.json --task 0/1 --out out")
		wantError(t, "--plan plan.json --finish --out out", want)
	}
}

// A unit that fails does not keep the others from being done, and the error has the file and the
// line. With --invalid skip, what is done stays done.
func TestTaskGoesOnAfterAFailure(t *testing.T) {
	good := lines(someDocuments(10, 20))
	testfiles.WriteHere(t, map[string]string{"a.jsonl": good, "b.jsonl": good + "broken\n", "c.jsonl": good, "d.jsonl": strings.Repeat(good, 3) + "broken\n"})
	const args = "--plan plan.json a.jsonl b.jsonl c.jsonl d.jsonl --by byte --val 0 "
	prepared(t, args+"--unit-bytes "+fmt.Sprint(len(good)+20))
	said, err := runPrepare(t.Context(), "--plan", "plan.json", "--task", "0/1", "--out", "out")
	for _, want := range []string{"2 of 6 units failed, 1,5; the first is unit 000001 (b.jsonl): b.jsonl: line 11: not a JSON object"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	for _, want := range []string{"unit 000005 (d.jsonl, bytes ", ": d.jsonl from byte ", ": line 10: not a JSON object", "4 units done"} {
		if !strings.Contains(said, want) && !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("prepare said %q, %v, want %q", said, err, want)
		}
	}
	wantError(t, "--plan plan.json --finish --out out", "2 of 6 units are missing, 1,5: run all tasks again, which skips what is done, or only --task UNIT/6")
	if left, _ := filepath.Glob("out/.units/tmp-*"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	wantError(t, args+"--invalid skip --field Text", `"field":"text"`)
	prepared(t, args+"--invalid skip")
	if said := prepared(t, "--plan plan.json --task 0/1 --out out"); !strings.Contains(said, "of which 4 are done") {
		t.Errorf("with --invalid skip, prepare said %q", said)
	}
	prepared(t, "--plan plan.json --finish --out out")
	if m := readManifest(t); len(m.Notes) != 1 || !strings.Contains(m.Notes[0], "left out because they cannot be used: 2 lines") {
		t.Errorf("notes %q", m.Notes)
	}
	wantError(t, args, "other options")
}

// Everything that is not as it was planned is refused, with the name of the unit.
func TestTasksRefuse(t *testing.T) {
	good := lines(someDocuments(10, 20))
	const task, finish = "--plan plan.json --task 0/1 --out out", "--plan plan.json --finish --verify --out out"
	for name, test := range map[string]struct {
		change  func() error
		command string
		want    string
	}{
		"an input that changed": {func() error { return os.WriteFile("b.jsonl", []byte(good+"\n"), 0o644) }, "--plan plan.json --task 0/1 --out other",
			"unit 000001 (b.jsonl): b.jsonl: has changed since it was planned"},
		"an input with another time": {func() error { return os.Chtimes("b.jsonl", time.Time{}, time.Now().Add(time.Hour)) }, "--plan plan.json --task 0/1 --out other",
			"unit 000001 (b.jsonl): b.jsonl: has changed since it was planned"},
		"an input that is gone":    {func() error { return os.Remove("b.jsonl") }, "--plan plan.json --task 0/1 --out other", "unit 000001 (b.jsonl): stat b.jsonl: no such file"},
		"a changed input, planned": {func() error { return os.WriteFile("b.jsonl", []byte(good+"\n"), 0o644) }, "--plan plan.json a.jsonl b.jsonl --by byte --val 0", "b.jsonl: has changed since it was planned"},
		"a missing unit": {func() error {
			names, err := filepath.Glob("out/.units/000001-*")
			return firstError(err, os.Remove(names[0]))
		}, finish, "1 of 2 units are missing, 1, which is unit 000001 (b.jsonl): run"},
		"other bytes": {func() error {
			info, err := os.Stat("out/train_000001.bin")
			return firstError(err, flipFirstByte("out/train_000001.bin"), os.Chtimes("out/train_000001.bin", time.Time{}, info.ModTime()))
		}, finish, "unit 000001: out/train_000001.bin has other bytes than the task wrote: remove out/.units/000001-"},
		"other bytes and time": {func() error { return flipFirstByte("out/train_000001.bin.index") }, "--plan plan.json --finish --out out", "unit 000001: out/train_000001.bin.index has other bytes than the task wrote: remove"},
		"a missing file":       {func() error { return os.Remove("out/train_000001.bin.index") }, finish, "unit 000001: out/train_000001.bin.index is missing: remove"},
		"a short file":         {func() error { return os.Truncate("out/train_000001.bin", 2) }, finish, "unit 000001: out/train_000001.bin has 2 bytes, but had"},
		"another shard":        {func() error { return os.WriteFile("out/train_000009.bin", nil, 0o644) }, finish, "out/train_000009.bin: belongs to no unit of the plan"},
		"another option": {func() error {
			_, err := runPrepare(t.Context(), strings.Fields("--plan other.json a.jsonl b.jsonl --by byte --val 0.5 --unit-bytes 100")...)
			return err
		},
			"--plan other.json --task 0/1 --out out", "unit 000000: .units/000000-"},
		"another option, planned": {nil, "--plan plan.json a.jsonl --by byte --val 0 --eot none", `was made with other options, {"by":"byte"`},
		"other units":             {nil, "--plan plan.json a.jsonl --by byte --val 0 --unit-bytes 77", "was made with --unit-bytes 100"},
		"another tokenizer":       {nil, "--plan plan.json a.jsonl --by gpt2 --val 0", "was made with other options"},
		"files of another run": {func() error {
			_, err := runPrepare(t.Context(), strings.Fields("a.jsonl --by byte --val 0 --out whole")...)
			return err
		},
			"--plan plan.json --task 0/1 --out whole", "already exists, and no task of a plan wrote it: choose another --out"},
		"a plan that was changed": {func() error {
			text, err := os.ReadFile("plan.json")
			return firstError(err, os.WriteFile("plan.json", bytes.Replace(text, []byte(`"first":1`), []byte(`"first":0`), 1), 0o644))
		}, task, "--plan plan.json: unit 000001 does not begin where the one before it ends"},
	} {
		t.Run(name, func(t *testing.T) {
			testfiles.WriteHere(t, map[string]string{"a.jsonl": good, "b.jsonl": good})
			prepared(t, "--plan plan.json a.jsonl b.jsonl --by byte --val 0 --unit-bytes 100000000")
			os.Remove("plan.json")
			prepared(t, "--plan plan.json a.jsonl b.jsonl --by byte --val 0 --unit-bytes "+fmt.Sprint(len(good)))
			test.want = strings.ReplaceAll(test.want, "--unit-bytes 100", fmt.Sprint("--unit-bytes ", len(good)))
			prepared(t, task)
			prepared(t, finish)
			if test.change != nil {
				testfiles.NoError(t, test.change())
			}
			wantError(t, test.command, test.want)
		})
	}
}

// A task that refuses a directory leaves nothing in it, because a mount takes shards in a directory
// of tasks for unfinished ones.
func TestTaskLeavesOtherFilesAlone(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.jsonl": lines(someDocuments(3, 20)), "data/train_000001.bin": "ab"})
	prepared(t, "--plan plan.json a.jsonl --by byte --val 0")
	wantError(t, "--plan plan.json --task 0/1 --out data", "data/train_000001.bin: already exists, and no task of a plan wrote it")
	wantSame(t, filesOf(t, "data"), map[string]string{"train_000001.bin": "ab"})
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func flipFirstByte(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text[0] ^= 1
	return os.WriteFile(path, text, 0o644)
}

// A changingTokenizer changes an input when it encodes the first text.
type changingTokenizer struct{ byteTokenizer }

func (c changingTokenizer) NewEncoder() encoder { return c }

func (changingTokenizer) Append(tokens []uint32, text []byte) []uint32 {
	now := time.Now().Add(time.Hour)
	os.Chtimes("b.jsonl", now, now)
	return byteTokenizer{}.Append(tokens, text)
}

// An input that changes while a task reads it fails its unit.
func TestInputChangesDuringATask(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	tokenizers["changing"] = func() (tokenizer, error) { return changingTokenizer{}, nil }
	defer delete(tokenizers, "changing")
	testfiles.WriteHere(t, map[string]string{"b.jsonl": strings.Repeat(lines(someDocuments(100, 200)), 20)})
	prepared(t, "--plan plan.json b.jsonl --by changing --val 0")
	wantError(t, "--plan plan.json --task 0/1 --out out", "unit 000000 (b.jsonl): b.jsonl: changed while prepare read it")
	wantError(t, "--plan plan.json --finish --out out", "1 of 1 units are missing, 0, which is unit 000000 (b.jsonl)")
}

// A task does again what is not as its sidecar says.
func TestTaskRepairs(t *testing.T) {
	good := lines(someDocuments(10, 20))
	testfiles.WriteHere(t, map[string]string{"a.jsonl": good, "b.jsonl": good})
	prepared(t, "--plan plan.json a.jsonl b.jsonl --by byte --val 0 --unit-bytes "+fmt.Sprint(len(good)))
	runTasks(t, 1, "out")
	want := taskFiles(t, "out")
	testfiles.NoError(t, flipFirstByte("out/train_000001.bin"))
	said := prepared(t, "--plan plan.json --task 0/1 --out out")
	if !strings.Contains(said, "unit 000001: out/train_000001.bin has other bytes than the task wrote: this task does it again") || strings.Contains(said, "unit 000000: ") {
		t.Errorf("prepare said %q", said)
	}
	prepared(t, "--plan plan.json --finish --verify --out out")
	wantSame(t, taskFiles(t, "out"), want)
}

// New inputs are added to a plan as new units, after which only these are missing.
func TestPlanIsExtended(t *testing.T) {
	good := lines(someDocuments(10, 20))
	testfiles.WriteHere(t, map[string]string{"in/b.jsonl": good, "in/c.jsonl": good})
	const args = "--plan plan.json in --by byte --val 0"
	prepared(t, args)
	runTasks(t, 1, "out")
	before := taskFiles(t, "out")
	testfiles.Write(t, map[string]string{"in/a.jsonl": good})
	if said := prepared(t, args); !strings.Contains(said, "plan.json: 3 inputs of ") || !strings.Contains(said, "in 2 units; 1 input and 1 unit are new") {
		t.Errorf("prepare said %q", said)
	}
	wantError(t, "--plan plan.json --finish --out out", "1 of 2 units are missing, 1, which is unit 000001 (in/a.jsonl)")
	if said := prepared(t, "--plan plan.json --status --out out"); !strings.Contains(said, "1 of 2 units done, ") || !strings.Contains(said, "missing units: 1\n") {
		t.Errorf("--status said %q", said)
	}
	runTasks(t, 2, "out")
	after := taskFiles(t, "out")
	if len(after) != len(before)+2 || after["train_000000.bin"] != before["train_000000.bin"] {
		t.Errorf("files %q, before %q", slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)))
	}
	if said := prepared(t, "--plan plan.json --status --out out"); !strings.Contains(said, "2 of 2 units done, ") || !strings.Contains(said, "next: batchfs prepare --finish") {
		t.Errorf("--status said %q", said)
	}
}

// The plan has the tokenizer, so tasks do not need its file.
func TestPlanHasTheTokenizer(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.jsonl": lines(someDocuments(10, 20))})
	writeTokenizers(t)
	const args = "--plan plan.json a.jsonl --by llama.json --val 0"
	prepared(t, args)
	prepared(t, "a.jsonl --by llama.json --val 0 --out whole")
	content, err := os.ReadFile("llama.json")
	testfiles.NoError(t, err)
	pipe, in, err := os.Pipe()
	testfiles.NoError(t, err)
	go func() { in.Write(content); in.Close() }()
	prepared(t, fmt.Sprintf("--plan piped.json a.jsonl --by /dev/fd/%d --val 0", pipe.Fd()))
	testfiles.NoError(t, pipe.Close())
	testfiles.NoError(t, os.Rename("llama.json", "away.json"))
	runTasks(t, 1, "out")
	prepared(t, "--plan piped.json --task 0/1 --out piped")
	for _, dir := range []string{"out", "piped"} {
		if got, want := taskFiles(t, dir), taskFiles(t, "whole"); got["train_000000.bin"] != want["train.bin"] || dir == "out" && got["vocab.json"] == "" {
			t.Errorf("%s: %d bytes of tokens, want %d", dir, len(got["train_000000.bin"]), len(want["train.bin"]))
		}
	}
	testfiles.NoError(t, os.Rename("qwen.json", "llama.json"))
	wantError(t, args, "--plan plan.json: was made with another tokenizer in llama.json")
}

// What cannot be done by tasks is refused, with the reason.
func TestPlanRefuses(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.txt": "text", "b.txt": "text", "a.jsonl": lines(someDocuments(3, 20)), "plan.json": "{}", "\xff.jsonl": ""})
	for args, want := range map[string]string{
		"--plan p.json \xff.jsonl --by byte":                     "\xff.jsonl: has a name that is not UTF-8, which the JSON of a plan cannot hold: rename it",
		"--plan p.json a.jsonl":                                  "--by char: does not go with --plan, because its tokens depend on all texts, and no task reads them all: choose another tokenizer with --by; to add texts to a plan, give its options again",
		"--plan p.json a.txt --by byte":                          "a.txt: is a single text, whose end would be val",
		"--plan p.json a.jsonl --by byte --shard-tokens 100":     "--shard-tokens: does not go with --plan",
		"--plan p.json a.jsonl --by byte --out out":              "--out: does not go with making a plan",
		"--plan p.json a.jsonl --by byte --dry-run":              "--dry-run: does not go with --plan",
		"--plan p.json a.jsonl --by byte --task 0/1":             "--task: leave out the texts",
		"--plan p.json a.jsonl --by byte --unit-bytes 0":         "--unit-bytes: must be at least 1",
		"--plan p.json https://example.org/a.jsonl --by byte":    "https://example.org/a.jsonl: is not in a store that speaks S3, whose URLs begin with s3:// or gs://: download it",
		"--plan hdfs://name/p.json a.jsonl --by byte":            "--plan: hdfs://name/: is not in a store that speaks S3",
		"--plan p.json - --by byte":                              "-: is not a regular file, so tasks cannot read it",
		"--plan p.json a.jsonl a.txt --by byte --val-files none": "--val-files none: matches no input",
		"--plan plan.json a.jsonl --by byte":                     "--plan plan.json: has version 0",
		"--plan a.jsonl a.jsonl --by byte":                       "--plan a.jsonl: cannot be read as a plan of prepare: ",
		"--plan none.json --task 0/1 --out out":                  "--plan: open none.json: no such file",
		"--plan p.json --task 1/1 --out out":                     "--task: must be I/N",
		"--plan p.json --task 0/1":                               "--out: give the directory that all tasks write to",
		"--plan p.json --task 0/1 --out out --by gpt2":           "--by: is for making a plan",
		"--plan p.json --task 0/1 --out out --force":             "--force: does not go with --plan",
		"--plan p.json --task 0/1 --out out --shard-tokens 5":    "--shard-tokens: does not go with --plan",
		"--plan p.json --finish --status --out out":              "[finish status] were all set",
		"--plan p.json --verify --out out":                       "--verify: goes with --finish",
		"--task 0/1 --out out":                                   "--task: works on a plan",
		"a.jsonl --by byte --out out --unit-bytes 5":             "--unit-bytes: works on a plan",
		"--out out": "name the texts to read",
	} {
		wantError(t, args, want)
	}
	if _, err := os.Stat("p.json"); err == nil {
		t.Error("a plan that was refused was written")
	}

	// An option of a later version may decide tokens.
	prepared(t, "--plan p.json a.jsonl --by byte")
	wantError(t, "--plan p.json --task 0/1 --out hdfs://name/dir", "--out: hdfs://name/dir: is not in a store that speaks S3, whose URLs begin with s3:// or gs://")
	if _, err := os.Stat("hdfs:"); err == nil {
		t.Error("a URL became a directory")
	}
	text, err := os.ReadFile("p.json")
	testfiles.NoError(t, err)
	testfiles.NoError(t, os.WriteFile("later.json", bytes.Replace(text, []byte(`"by":`), []byte(`"from":1,"by":`), 1), 0o644))
	wantError(t, "--plan later.json --task 0/1 --out out", `unknown field "from"`)
	wantError(t, "--plan later.json a.jsonl --by byte", `unknown field "from"`)
}

// Planning 100,000 inputs takes less than a minute.
func TestPlanManyInputs(t *testing.T) {
	if testing.Short() {
		t.Skip("takes several seconds")
	}
	testfiles.WriteHere(t, nil)
	text := []byte(lines([]string{"a"}))
	for i := range 100_000 {
		if i%1000 == 0 {
			testfiles.NoError(t, os.MkdirAll(fmt.Sprintf("in/%d", i/1000), 0o755))
		}
		testfiles.NoError(t, os.WriteFile(fmt.Sprintf("in/%d/%d.jsonl", i/1000, i), text, 0o644))
	}
	began := time.Now()
	said := prepared(t, "--plan plan.json in --by byte --unit-bytes 100000")
	if took := time.Since(began); took > time.Minute || !strings.Contains(said, "100000 inputs") {
		t.Errorf("planning took %v: %s", took, said)
	}
}
