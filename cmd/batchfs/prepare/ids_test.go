package prepare

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/cmd/batchfs/prepare/field"
	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/vocabulary"
)

// val is chosen with the same hash as in Python: hashlib.blake2b(tokens, digest_size=8), in
// little-endian order.
func TestIDsInVal(t *testing.T) {
	all := make([]byte, 200)
	for i := range all {
		all[i] = byte(i)
	}
	for tokens, hash := range map[string]uint64{"": 13020603013274838756, "\x01\x00\x02\x00": 12465180308423176084, string(all): 13661839535123069531} {
		above, below := math.Nextafter(float64(hash), math.Inf(1)), math.Nextafter(float64(hash), 0)
		for fraction, want := range map[float64]bool{above / 0x1p64: true, below / 0x1p64: false, 0: false} {
			if got := (valRule{fraction: fraction}).hasIDs(new(input.File), []byte(tokens)); got != want {
				t.Errorf("%x with fraction %v: %v, want %v", tokens, fraction, got, want)
			}
		}
	}
}

// Ids are found wherever --ids leads, without those that a model does not attend to.
func TestPrepareIDs(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "a.b", Type: arrow.StructOf(
		arrow.Field{Name: "ids", Type: arrow.ListOf(arrow.PrimitiveTypes.Uint8)},
		arrow.Field{Name: "attention_mask", Type: arrow.ListOf(arrow.FixedWidthTypes.Boolean)},
	)}}, nil)
	const rows = `{"a.b": {"ids": [1, 2, 3], "attention_mask": [false, true, true]}}` + "\n" + `{"a.b": {"ids": [255], "attention_mask": [true]}}` + "\n"
	testfiles.WriteHere(t, map[string]string{
		"plain.jsonl":  "\ufeff\n{\"input_ids\": [], \"score\": NaN}\n {\"score\": -Infinity, \"input_ids\" : [ 2,3 ]}\r\n{\"input_ids\":null}\n{\"input_ids\":[255]}",
		"nested.jsonl": rows,
		"dotted.jsonl": strings.ReplaceAll(strings.ReplaceAll(rows, `{"a.b": `, ""), "}}", "}"),
		"nested.arrow": arrowOf(t, schema, rows, true),
	})
	for args, field := range map[string]string{"plain.jsonl": "input_ids", "nested.jsonl": "a.b.ids", "dotted.jsonl": "ids", "nested.arrow": "a.b.ids"} {
		said := prepared(t, args+" --vocab-size 256 --val 0 --force --out out --ids "+field)
		if got := readTokens(t, "out/train.bin"); !slices.Equal(got, []uint16{2, 3, 255}) {
			t.Errorf("%s: tokens %v", args, got)
		}
		if empty := "left out because they have no ids: 2 documents"; strings.Contains(said, empty) != (args == "plain.jsonl") {
			t.Errorf("%s: said %q", args, said)
		}
		if said := prepared(t, args+" --vocab-size 256 --dry-run --ids "+field); !strings.Contains(said, "about 3 tokens in 2 documents") {
			t.Errorf("%s --dry-run said %q", args, said)
		}
	}
	prepared(t, "nested.jsonl --vocab-size 256 --val 0 --force --out out --ids a.b.ids")
	for name, as := range map[string]string{"nested.jsonl": "jsonl", "nested.arrow": "arrow"} {
		content, err := os.Open(name)
		testfiles.NoError(t, err)
		defer content.Close()
		cmd := Command()
		cmd.SetIn(content)
		cmd.SetOut(io.Discard)
		cmd.SetArgs(strings.Fields("- --ids a.b.ids --vocab-size 256 --val 0 --force --out piped --as " + as))
		testfiles.NoError(t, cmd.Execute())
		wantSame(t, filesOf(t, "piped"), filesOf(t, "out"))
	}
}

// Rows that do not fit are refused by file and row, or left out and counted.
func TestPrepareUnusableIDs(t *testing.T) {
	const good = `{"input_ids": [1, 2], "labels": [-100, 2]}` + "\n"
	t.Chdir(t.TempDir())
	for line, want := range map[string]string{
		`{"ids": [1]}`:                                                `has no field input_ids: choose one with --ids; there are ["ids"]`,
		`{"input_ids": "1 2", "labels": []}`:                          "field input_ids is not a list of integers but a text",
		`{"input_ids": [[1, 2]], "labels": [[]]}`:                     "field input_ids is not a list of integers: element 0 is a list",
		`{"input_ids": [1, 2.0], "labels": []}`:                       "field input_ids is not a list of integers: element 1 is 2.0",
		`{"input_ids": [1, null], "labels": []}`:                      "field input_ids is not a list of integers: element 1 is null",
		`{"input_ids": [1, NaN], "labels": []}`:                       "field input_ids is not a list of integers: element 1 is null",
		`{"input_ids": [1], "labels": [-Infinity]}`:                   "field labels is not a list of integers: element 0 is null",
		`{"input_ids": [10], "labels": [10]}`:                         "has an id outside the vocabulary: element 0 of input_ids is 10, but must be from 0 to 9: correct --vocab-size or --by",
		`{"input_ids": [1, -1], "labels": [1, 1]}`:                    "has an id outside the vocabulary: element 1 of input_ids is -1",
		`{"input_ids": [99999999999999999999]}`:                       "field input_ids is not a list of integers: element 0 is 99999999999999999999",
		`{"input_ids": [1, 2], "labels": [2, 3]}`:                     "labels differ from input_ids: element 0 is 2, but must be 1, like the id there, or -100: remove them if they are something else",
		`{"input_ids": [1], "labels": 1}`:                             "field labels is not a list of integers but a number: remove it if it is something else",
		`{"input_ids": [1, 2], "labels": [1]}`:                        "input_ids and labels differ in length: 2 and 1",
		`{"input_ids": [1, 2]}`:                                       "has no labels, but line 1 of a.jsonl has: prepare rows with and without them separately",
		`{"input_ids": [1, 2], "labels": null}`:                       "has no labels, but line 1 of a.jsonl has",
		`{"input_ids": [1], "labels": [1], "attention_mask": [1, 1]}`: "input_ids and attention_mask differ in length: 1 and 2",
		`{"input_ids": [1], "labels": [1], "attention_mask": [2]}`:    "attention_mask is not 0 or 1 everywhere: element 0 is 2",
		`{"input_ids": [1, 2]`:                                        "not a JSON object",
	} {
		os.RemoveAll("out")
		testfiles.Write(t, map[string]string{"a.jsonl": good, "b.jsonl": good + line + "\n" + good})
		const args = "a.jsonl b.jsonl --ids input_ids --vocab-size 10 --val 0 --out out"
		wantError(t, args, "b.jsonl: line 2: "+want)
		said := prepared(t, args+" --invalid skip")
		if got := readTokens(t, "out/train.bin"); !slices.Equal(got, []uint16{1, 2, 1, 2, 1, 2}) {
			t.Errorf("%s: tokens %v", line, got)
		}
		if left := "left out because they cannot be used: 1 line: "; !strings.Contains(said, left) || !strings.Contains(said, "the first is line 2 of b.jsonl") {
			t.Errorf("%s: said %q", line, said)
		}
	}
	os.RemoveAll("out")
	testfiles.Write(t, map[string]string{"a.jsonl": `{"input_ids": [1]}` + "\n", "b.jsonl": good})
	wantError(t, "a.jsonl b.jsonl --ids input_ids --vocab-size 10 --val 0 --out out", "b.jsonl: line 1: has labels, but line 1 of a.jsonl has none")
}

func TestPrepareIDsErrors(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "floats", Type: arrow.ListOf(arrow.PrimitiveTypes.Float64)}, {Name: "id", Type: arrow.PrimitiveTypes.Int64},
	}, nil)
	testfiles.WriteHere(t, map[string]string{
		"a.jsonl": `{"input_ids": [1], "labels": [-100]}` + "\n", "a.txt": "1 2", "a.arrow": arrowOf(t, schema, `{"floats": [1.0], "id": 1}`, false),
	})
	const size = " --vocab-size 10 --val 0 --out out"
	for args, want := range map[string]string{
		"a.jsonl --ids input_ids --out out":                         "--ids: say what the ids mean, with either --by FILE",
		"a.jsonl --ids input_ids --by gpt2" + size:                  "--ids: say what the ids mean, with either --by FILE",
		"a.jsonl --ids input_ids --val 0 --out out --vocab-size -1": "--vocab-size: must be from 1 to 4294967296 (got -1)",
		"a.jsonl" + size: "--vocab-size: is only for --ids",
		"a.jsonl --ids input_ids --field x" + size:               "--field: is for texts, but --ids reads ids",
		"a.jsonl --ids input_ids --mask x:1" + size:              "--mask: is for texts",
		"a.jsonl --ids input_ids --special --by gpt2 --out out":  "--special: is for texts",
		"a.jsonl --ids input_ids --eot none --by gpt2 --out out": "--eot: is for texts",
		"a.jsonl --ids input_ids --eot-token x" + size:           "--eot-token: needs the tokenizer",
		"a.jsonl --ids x.*.input_ids" + size:                     "--ids: must lead to one list of ids in each line or row, and not through another list",
		"a.txt --ids input_ids" + size:                           "a.txt: is read as text, which has no ids",
		"a.arrow --ids floats" + size:                            "a.arrow: column floats does not have a list of integers for each row: choose another one with --ids",
		"a.arrow --ids id" + size:                                "a.arrow: column id does not have a list of integers for each row",
		"a.arrow --ids input_ids" + size:                         "a.arrow: has no column input_ids, only floats.*, id: choose one with --ids",
		"a.jsonl --ids input_ids" + size:                         "labels is -100 for all tokens of train, so there is nothing to learn",
	} {
		wantError(t, args, want)
	}
}

// Looking for labels ends at a row that stops the run anyway, and otherwise after 10,000 rows.
func TestLookForLabelsEnds(t *testing.T) {
	useSmallChunks(t, 1<<10, 1<<20)
	testfiles.WriteHere(t, map[string]string{"a.jsonl": strings.Repeat("{\"ids\": []}\n", 3*minLines), "b.jsonl": `{"ids": [1], "labels": [1]}`})
	for skip, most := range map[bool]int64{false: 4 << 10, true: 2 * 12 * minLines} {
		e := encoding{ids: true, fields: []field.Field{field.New("ids", 1)}, skipInvalid: skip}
		if !skip {
			e.fields[0] = field.New("input_ids", 1)
		}
		inputs, _, err := input.Find([]string{"a.jsonl", "b.jsonl"}, nil, "", nil, nil)
		testfiles.NoError(t, err)
		var read int64
		p := &plan{inputs: inputs, encoding: e}
		looked := 0
		err = newReader(p, "", func(ch *chunk) error {
			read = ch.end.Offset
			return p.lookIntoChunk(ch, &looked)
		}).read(position{})
		if err != errEnough || read > most || p.encoding.masked {
			t.Errorf("skipping %v: read %d bytes, found labels %v: %v", skip, read, p.encoding.masked, err)
		}
	}
}

// An interrupted run continues, also without rows that cannot be used.
func TestPrepareIDsContinues(t *testing.T) {
	useSmallChunks(t, 1<<10, 1<<20)
	rng := rand.New(rand.NewPCG(7, 8))
	var good strings.Builder
	for range 500 {
		ids := strings.ReplaceAll(fmt.Sprint(rng.Perm(1+rng.IntN(40))), " ", ",")
		fmt.Fprintf(&good, "{\"input_ids\": %s, \"labels\": %[1]s}\n", ids)
	}
	testfiles.WriteHere(t, map[string]string{"good/a.jsonl": good.String(), "bad/a.jsonl": good.String(),
		"bad/b.jsonl": `{"input_ids": [40], "labels": [40]}` + "\n"})
	// A checkpoint is saved after each shard.
	const args = " --ids input_ids --vocab-size 40 --val 0.1 --shard-tokens 2000 --out "
	wantError(t, "bad"+args+"out", "bad/b.jsonl: line 1: has an id outside the vocabulary")
	wantError(t, "bad --vocab-size 41"+strings.Replace(args, "--vocab-size 40", "", 1)+"out", "belongs to an unfinished run with other options")
	if said := prepared(t, "bad --invalid skip"+args+"out"); !strings.Contains(said, "continuing at ") {
		t.Errorf("the run did not continue; said %q", said)
	}
	prepared(t, "good"+args+"want")
	got, want := filesOf(t, "out"), filesOf(t, "want")
	delete(got, "vocab.json")
	delete(want, "vocab.json")
	wantSame(t, got, want)
}

// idRowsOf returns lines of JSON with random ids, and labels if labeled is set. eotAt says where
// they have an end-of-text token.
func idRowsOf(rng *rand.Rand, n int, eotAt string, labeled bool) string {
	var b strings.Builder
	b.WriteString("{\"input_ids\": [], \"labels\": []}\n")
	for range n {
		ids := rng.Perm(1 + rng.IntN(40))
		switch eotAt {
		case "end":
			ids = append(ids, pairsEOT)
		case "begin":
			ids = append([]int{pairsEOT}, ids...)
		}
		labels := "null"
		if labeled {
			labels = strings.ReplaceAll(fmt.Sprint(ids), " ", ", ")
			if len(ids) > 1 {
				_, rest, _ := strings.Cut(labels, ", ")
				labels = fmt.Sprintf("[%d, %s", ignoredLabel, rest)
			}
		}
		fmt.Fprintf(&b, "{\"input_ids\": %s, \"labels\": %s}\n", strings.ReplaceAll(fmt.Sprint(ids), " ", ", "), labels)
	}
	return b.String()
}

// Tasks write the ids, masks and ends of documents that one process writes without a plan, and the
// same vocab.json apart from the names of shards.
func TestTasksOfIDs(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "input_ids", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32)}, {Name: "labels", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64), Nullable: true},
	}, nil)
	for _, test := range []struct {
		name, args string
		eotAt      [3]string // of each file
		labeled    bool
		want       string // eot_at in vocab.json
	}{
		{"labels", "--by pairs --val 0.2", [3]string{"end", "end", "end"}, true, "end"},
		{"no labels", "--by pairs --val-files c.arrow", [3]string{"begin", "begin", "begin"}, false, "begin"},
		{"mixed", "--by pairs --val 0.2", [3]string{"begin", "end", "end"}, true, "none"},
		{"none", "--by pairs --val 0", [3]string{"end", "", "end"}, false, "none"},
		{"ids", "--vocab-size 2000 --val 0.2", [3]string{"end", "end", "end"}, true, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			rows := func(i, n int) string { return idRowsOf(rng, n, test.eotAt[i], test.labeled) }
			testfiles.WriteHere(t, map[string]string{"in/a.jsonl": rows(0, 300), "in/b.jsonl.gz": gzipped(rows(1, 100)), "in/c.arrow": arrowOf(t, schema, rows(2, 100), true)})
			args := " in --ids input_ids " + test.args
			prepared(t, "--out whole"+args)
			said := prepared(t, "--plan plan.json --unit-bytes 10000"+args)
			if strings.Contains(said, "; labels become the mask") != test.labeled {
				t.Errorf("prepare said %q", said)
			}
			runTasks(t, 1, "out1")
			runTasks(t, 3, "out3")
			wantSame(t, taskFiles(t, "out3"), taskFiles(t, "out1"))
			if _, err := os.Stat("out1/train_000003.bin"); err != nil {
				t.Error(err) // there should be several units
			}
			whole, ends := joinShards(t, "whole")
			tasks, taskEnds := joinShards(t, "out1")
			if whole.EOTAt != test.want || !reflect.DeepEqual(tasks, whole) {
				t.Errorf("vocab.json is %+v, but one process writes %+v", tasks, whole)
			}
			wantSame(t, taskEnds, ends)
		})
	}
}

// joinShards returns vocab.json with one shard for all of a split, and the bytes of the shards'
// tokens, masks and ends of documents.
func joinShards(t testing.TB, dir string) (*vocabulary.Manifest, map[string]string) {
	t.Helper()
	m, err := vocabulary.Read(filepath.Join(dir, "vocab.json"), nil)
	testfiles.NoError(t, err)
	files, joined := filesOf(t, dir), map[string]string{}
	for name, split := range m.Splits {
		all := vocabulary.Shard{}
		for _, shard := range split.Shards {
			joined[name] += files[shard.Name]
			joined[name+" mask"] += files[maskPath(shard.Name)]
			var end uint64
			for raw := []byte(files[shard.Name+".index"]); len(raw) > 0; raw = raw[8:] {
				end = binary.LittleEndian.Uint64(raw)
				joined[name+" ends"] += fmt.Sprintln(uint64(all.Tokens) + end)
			}
			if end != uint64(shard.Tokens) {
				t.Errorf("%s/%s ends within a document", dir, shard.Name)
			}
			all.Tokens += shard.Tokens
			all.Documents += shard.Documents
			all.MaskOnes += shard.MaskOnes
		}
		split.Shards = []vocabulary.Shard{all}
		m.Splits[name] = split
	}
	m.Run = ""
	return m, joined
}

// The rows of the first plan decide whether there are labels. What differs is refused when it is
// added to the plan, or fails its unit.
func TestPlanDecidesAboutLabels(t *testing.T) {
	const with, without, broken = `{"input_ids": [1], "labels": [1]}` + "\n", `{"input_ids": [1]}` + "\n", `{"input_ids": "1"}` + "\n"
	const empty, options = `{"input_ids": []}` + "\n", " --ids input_ids --vocab-size 10 --val 0"
	for _, test := range []struct{ first, other, refused, failed string }{
		{with, without, "line 2 of b.jsonl has no labels, but the rows of the plan have some: write another plan",
			"unit 000001 (b.jsonl): b.jsonl: line 2: has no labels, but the first row of the plan has: prepare rows with and without them separately"},
		{without, with, "line 2 of b.jsonl has labels, but the rows of the plan have none: write another plan",
			"unit 000001 (b.jsonl): b.jsonl: line 2: has labels, but the first row of the plan has none: prepare rows with and without them separately"},
	} {
		testfiles.WriteHere(t, map[string]string{"a.jsonl": empty + broken + test.first, "b.jsonl": empty + test.other, "c.jsonl": empty, "d.jsonl": test.first})
		prepared(t, "--plan plan.json a.jsonl"+options)
		before := filesOf(t, ".")["plan.json"]
		wantError(t, "--plan plan.json a.jsonl b.jsonl"+options, "--plan plan.json: "+test.refused)
		wantError(t, "--plan plan.json a.jsonl"+options+" --eot-token x", "--eot-token: needs the tokenizer")
		if filesOf(t, ".")["plan.json"] != before {
			t.Error("a plan that could not be extended was changed")
		}
		prepared(t, "--plan plan.json c.jsonl d.jsonl"+options)
		wantError(t, "--plan plan.json --task 0/1 --out out", "unit 000000 (a.jsonl): a.jsonl: line 2: field input_ids is not a list of integers")
		prepared(t, "--plan plan.json a.jsonl --invalid skip"+options)
		prepared(t, "--plan plan.json --task 0/1 --out out")
		prepared(t, "--plan plan.json --finish --out out")
		if m := readManifest(t).Splits["train"]; m.Documents != 2 || len(m.Shards) != 2 {
			t.Errorf("train has %d documents in %d shards, want 2", m.Documents, len(m.Shards))
		}
		prepared(t, "--plan both.json d.jsonl b.jsonl --unit-bytes 60"+options)
		wantError(t, "--plan both.json --task 1/2 --out both", test.failed)
	}
}
