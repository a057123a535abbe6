package prepare

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// unusableLines are lines without the field text, by what is wrong with them.
var unusableLines = map[string][]string{
	"not a JSON object": {
		`{"text": "cut o`, `{"text": "x"}{"text": "y"}`, `["x"]`, `null`, `"x"`, `5`, strings.Repeat("\x00", 40), "{\"text\": \"a\tb\"}", `{"text": "a"`, `{"text" "a"}`,
		`{"text": "a", "n": nan}`, `{"text": "a", "n": NaNa}`, `{"text": "a", "n": +Infinity}`, `{"text": "a", "n": -NaN}`, `{"text": "a", "n": 1NaN}`, `text`,
	},
	"has no field text":        {`{"txet": "z"}`, `{}`, `{"Text": "z"}`, `{"a": {"text": "b"}}`},
	"field text is not a text": {`{"text": 5}`, `{"text": true}`, `{"text": ["a"]}`, `{"text": {"a": "b"}}`},
	"too long":                 {`{"text": "` + strings.Repeat("long ", 5000) + `"}`},
}

func textLine(text string) string { return `{"text": "` + text + "\"}\n" }

// Every kind of unusable line stops a run unless --invalid is skip. Then such lines are counted by
// kind, and the files equal those of inputs that do not have them.
func TestPrepareUnusableLines(t *testing.T) {
	useSmallChunks(t, 1<<10, 16<<10)
	rng := rand.New(rand.NewPCG(1, 2))
	var usable, all strings.Builder
	number := 0
	first, counts := map[string]string{}, map[string]int{}
	add := func(line string) { all.WriteString(line); number++ }
	for _, kind := range slices.Sorted(maps.Keys(unusableLines)) {
		for _, line := range unusableLines[kind] {
			for range 1 + rng.IntN(40) {
				text := lines([]string{words(rng, 1+rng.IntN(50))})
				usable.WriteString(text)
				add(text)
			}
			testfiles.WriteHere(t, map[string]string{"a.jsonl": textLine("first") + line + "\n" + textLine("last")})
			wantError(t, "a.jsonl --by pairs --val 0 --out out", "a.jsonl: line 2")
			wantError(t, "a.jsonl --by pairs --val 0 --out out", "--invalid skip")
			prepared(t, "a.jsonl --by pairs --val 0 --out out --invalid skip")
			if text := decoded(readManifest(t), readTokens(t, "out/train.bin")); text != "first<|endoftext|>last<|endoftext|>" {
				t.Errorf("%.60q is left out: tokens say %q", line, text)
			}
			add(line + "\n")
			if counts[kind]++; first[kind] == "" {
				first[kind] = fmt.Sprintf("line %d of d/a.jsonl", number)
			}
		}
	}
	for _, ending := range []string{"", "\n"} {
		testfiles.WriteHere(t, map[string]string{"b/a.jsonl": usable.String(), "d/a.jsonl": strings.TrimSuffix(all.String(), "\n") + ending})
		prepared(t, "b --by pairs --val 0.2 --out want")
		said := prepared(t, "d --by pairs --val 0.2 --out out --invalid skip")
		got, want := filesOf(t, "out"), filesOf(t, "want")
		delete(got, "vocab.json")
		delete(want, "vocab.json")
		wantSame(t, got, want)
		for kind, n := range counts {
			if note := fmt.Sprintf("%s (%d, the first is %s)", kind, n, first[kind]); !strings.Contains(said, note) {
				t.Errorf("said %q, want %q", said, note)
			}
		}
	}
}

// Leaving out lines continues an interrupted run.
func TestPrepareContinuesWithoutUnusableLines(t *testing.T) {
	useSmallChunks(t, 1<<10, 1<<20)
	usable := lines(someDocuments(300, 300))
	all := usable + "{\"txet\": 1}\n" + textLine("last")
	testfiles.WriteHere(t, map[string]string{"a.jsonl": all, "b.jsonl": usable + textLine("last")})
	// A checkpoint is saved after each shard.
	const args = " --by pairs --val 0.1 --shard-tokens 2000 --out "
	wantError(t, "a.jsonl"+args+"out", "has no field text: choose one with --field or --mask; there are [\"txet\"]; to leave such lines out, use --invalid skip; run the same command again to continue")
	wantError(t, "a.jsonl --field a"+args+"out --invalid skip", "belongs to an unfinished run with other options")
	if said := prepared(t, "a.jsonl"+args+"out --invalid skip"); !strings.Contains(said, "continuing at ") {
		t.Errorf("the run did not continue; said %q", said)
	}
	prepared(t, "b.jsonl"+args+"want")
	got, want := filesOf(t, "out"), filesOf(t, "want")
	delete(got, "vocab.json")
	delete(want, "vocab.json")
	wantSame(t, got, want)
}

// What is counted in the texts after an unusable line is not lost.
func TestPrepareCountsAfterUnusableLines(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.jsonl": textLine("first") + "{}\n", "b": "<|endoftext|>"})
	const want = "encoded as ordinary text: 1 name of a special token"
	if said := prepared(t, "a.jsonl b --by gpt2 --val 0 --out out --invalid skip"); !strings.Contains(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
}

// If too many lines are unusable, an option is probably wrong.
func TestPrepareTooManyUnusableLines(t *testing.T) {
	for n, fails := range map[int]bool{9_000: false, 15_000: true} {
		for _, share := range []int{8, 12} { // one in so many
			var all strings.Builder
			for i := range n {
				if i%share == 0 {
					all.WriteString("{}\n")
				} else {
					all.WriteString("{\"text\": \"a\"}\n")
				}
			}
			testfiles.WriteHere(t, map[string]string{"a.jsonl": all.String()})
			if args := "a.jsonl --by byte --val 0 --out out --invalid skip"; fails && share < 10 {
				wantError(t, args, "lines cannot be used, which is more than 10%, so perhaps an option is wrong: has no field text (")
			} else {
				prepared(t, args)
			}
		}
	}
}

// Lines and rows that are left out because they are too long count among the unusable ones of all.
func TestPrepareTooManyLongLines(t *testing.T) {
	useSmallChunks(t, 1<<10, 4<<10)
	line := "{\"text\": \"a\"}\n"
	long := "{\"text\": \"" + strings.Repeat("a", 5<<10) + "\"}\n"
	testfiles.WriteHere(t, map[string]string{"a.jsonl": strings.Repeat(strings.Repeat(line, 7)+long, minLines/8+1)})
	wantError(t, "a.jsonl --by byte --val 0 --out out --invalid skip", "lines cannot be used, which is more than 10%, so perhaps an option is wrong: "+tooLong)
	rows := slices.Repeat([]string{"a", "a", "a", "a", "a", "a", "a", strings.Repeat("a", 5<<10)}, minLines/8+1)
	testfiles.WriteHere(t, map[string]string{"a.parquet": parquetOf(t, rows)})
	wantError(t, "a.parquet --by byte --val 0 --out out --invalid skip", "rows cannot be used, which is more than 10%, so perhaps an option is wrong: "+tooLong)
}

// A run without documents says why there are none.
func TestPrepareNoDocuments(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.jsonl": "{}\n", "b.jsonl": "{\"text\": \"\"}\n", "empty": ""})
	wantError(t, "a.jsonl --by byte --val 0 --out out --invalid skip", "the inputs have no documents: left out because they cannot be used: 1 line: has no field text (1, the first is line 1 of a.jsonl)")
	wantError(t, "b.jsonl --by byte --val 0 --out out", "the inputs have no documents: left out because they have no text: 1 document; the first is line 1 of b.jsonl")
	wantError(t, "empty --by byte --val 0 --out out", "the inputs have no documents")
}

// NaN and infinities, as Python writes them, count as null.
func TestReplaceNaN(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	var value func(depth int, python bool, rng *rand.Rand) string
	value = func(depth int, python bool, rng *rand.Rand) string {
		space := strings.Repeat(" ", rng.IntN(3))
		switch n := rng.IntN(8); {
		case n < 3:
			name := []string{"NaN", "Infinity", "-Infinity"}[n]
			if !python {
				name = "null"
			}
			return space + name + space
		case n < 5 || depth == 0:
			text, _ := json.Marshal([]string{"NaN", "a \"NaN, Infinity", `\`, `\": NaN`, ": -Infinity,"}[rng.IntN(5)])
			return space + string(text)
		case n == 5:
			return "[" + value(depth-1, python, rng) + "," + value(depth-1, python, rng) + "]"
		}
		return `{"NaN":` + value(depth-1, python, rng) + `,"b":` + value(depth-1, python, rng) + "}" + space
	}
	for range 2000 {
		seed := rng.Uint64()
		python, valid := value(4, true, rand.New(rand.NewPCG(seed, 0))), value(4, false, rand.New(rand.NewPCG(seed, 0)))
		var got, want any
		if err := json.Unmarshal([]byte(valid), &want); err != nil {
			t.Fatal(err)
		}
		line := `{"v":` + python + "}"
		if err := json.Unmarshal(replaceNaN([]byte(line)), &got); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if got := got.(map[string]any)["v"]; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%s: %v, want %v", line, got, want)
		}
	}
}

// A byte order mark before a line is not part of it, wherever files were concatenated; inside a
// text, it is a character.
func TestPrepareByteOrderMarks(t *testing.T) {
	const mark = "\ufeff"
	one, two := mark+textLine("a")+mark+"\n", mark+textLine("b"+mark)+"\n"+mark+textLine("c")
	for name, content := range map[string]string{"a.jsonl": one + two, "a.jsonl.gz": gzipped(one) + gzipped(two), "a.jsonl.zst": zstandard(one) + zstandard(two)} {
		testfiles.WriteHere(t, map[string]string{name: content})
		prepared(t, name+" --by byte --val 0 --out out")
		if text := decoded(readManifest(t), readTokens(t, "out/train.bin")); text != "ab"+mark+"c" {
			t.Errorf("%s: tokens say %q", name, text)
		}
	}
}

// A name with a dot is a nested path if that exists, and otherwise the longest key.
func TestPrepareKeysWithDots(t *testing.T) {
	for _, test := range []struct{ field, line, want string }{
		{"a.b", `{"a": {"b": "nested"}, "a.b": "key"}`, "nested"},
		{"a.b", `{"a.b": "key", "a": {"b": "nested"}}`, "nested"},
		{"a.b", `{"a.b": "key"}`, "key"},
		{"a.b", `{"a.b": "key", "a": {}}`, "key"},
		{"a.b", `{"a.b": "key", "a": null}`, "key"},
		{"a.b", `{"a.b": "key", "a": "text"}`, "key"},
		{"a.b", `{"a.b": "key", "a": [{"b": "x"}]}`, "key"},
		{"a.b.c", `{"a.b": {"c": "2+1"}, "a": {"b.c": "1+2"}, "a.b.c": "3"}`, "1+2"},
		{"a.b.c", `{"a.b": {"c": "2+1"}, "a.b.c": "3"}`, "3"},
		{"a.b.c", `{"a.b": {"c": "2+1"}, "a": {"b": {}}}`, "2+1"},
		{"m.*.a.b", `{"m": [{"a": {"b": "1"}}, {"a.b": "2"}, {"a.b": "3", "a": 5}]}`, "123"},
		{"x.m.*.t", `{"x.m": [{"t": "1"}, {"t": "2"}]}`, "12"},
		{"x.m[r=u].t", `{"x.m": [{"t": "1", "r": "u"}, {"t": "2", "r": "v"}]}`, "1"},
	} {
		testfiles.WriteHere(t, map[string]string{"a.jsonl": test.line + "\n"})
		for _, args := range []string{"--field " + test.field, "--mask " + test.field + ":1"} {
			if strings.Contains(args, "--mask") && strings.Contains(test.field, "[") {
				continue // the others have mask 0
			}
			prepared(t, "a.jsonl --by byte --val 0 --force --out out "+args)
			if text := decoded(readManifest(t), readTokens(t, "out/train.bin")); text != test.want {
				t.Errorf("%s of %s: %q, want %q", args, test.line, text, test.want)
			}
		}
	}
	testfiles.WriteHere(t, map[string]string{"a.jsonl": "{\"a\": {\"c\": 1}}\n"})
	wantError(t, "a.jsonl --by byte --val 0 --field a.b --out out", `has no field a.b: choose one with --field or --mask; there are ["c"]`)
}

// The content of a message may be a list of parts, of which those without text are counted.
func TestPrepareParts(t *testing.T) {
	part := func(text string) string { return `{"type": "text", "text": "` + text + `"}` }
	image := `{"type": "image_url", "image_url": {"url": "x"}}`
	for content, want := range map[string]string{
		`"abc"`: "abc",
		`null`:  "",
		`[]`:    "",
		`[` + part("a") + `, ` + part("bc") + `]`:         "abc",
		`[` + part("a") + `,` + image + `,"b"]`:           "ab",
		`[{"text": "a"}, {"type": "image"}]`:              "a",
		`[{"type": "input_text", "text": "a"}]`:           "a",
		`[{"type": "text", "text": null}]`:                "",
		`[` + part("a") + `, ` + part("\\u00e9\\n") + `]`: "aé\n",
	} {
		testfiles.WriteHere(t, map[string]string{"a.jsonl": `{"messages": [{"role": "user", "content": ` + content + `}, {"role": "assistant", "content": "!"}]}`})
		said := prepared(t, "a.jsonl --by byte --val 0 --out out --mask messages[role=user].content:0,messages[role=assistant].content:1")
		if text := decoded(readManifest(t), readTokens(t, "out/train.bin")); text != want+"!" {
			t.Errorf("%s: %q, want %q", content, text, want+"!")
		}
		if strings.Contains(content, "image") != strings.Contains(said, "dropped: 1 field of messages, content[type=image") {
			t.Errorf("%s: said %q", content, said)
		}
	}
	testfiles.WriteHere(t, map[string]string{"a.jsonl": `{"messages": [{"role": "user", "content": [1]}]}`})
	wantError(t, "a.jsonl --by byte --val 0 --out out --field messages.*.content", "line 1: field messages.*.content is not a list of texts and parts, because an element is a number")
}

// The pass that counts before encoding ends like the other, if too many lines cannot be used.
func TestCountingEndsEarly(t *testing.T) {
	o := &options{stdout: io.Discard, stderr: io.Discard}
	counter := &tokenCounter{width: 1, documents: "lines", progress: o.newProgress("counting", nil, position{})}
	ch := new(chunk)
	for range minLines {
		ch.notes.Lines++
		ch.notes.addUnusable("has no field text", "a.jsonl: line 1")
	}
	if err := counter.write(ch); err == nil || !strings.Contains(err.Error(), "lines cannot be used") {
		t.Errorf("the error is %v", err)
	}
}
