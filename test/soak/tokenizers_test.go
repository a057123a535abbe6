package soak

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"batchfs/cmd/batchfs/prepare/bpe"

	"batchfs/test/e2e"
)

// Every text has the same tokens as with tiktoken.
func TestTokensOfTiktoken(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	dir := tokenizers(t)
	for _, name := range []string{"gpt2", "cl100k", "o200k"} {
		t.Run(name, func(t *testing.T) {
			tokenizer := e2e.Must(bpe.Named(name))(t)
			compareTokens(t, tokenizer, 100_000, filepath.Join(dir, "bin/python"), "clients/tokens.py", "tiktoken", writeRanks(t, tokenizer))
		})
	}
}

// writeRanks writes one of OpenAI's vocabularies in tiktoken's format, and returns the path. The
// file has a line for each token that is not special, with its bytes in base64 and its number.
func writeRanks(t testing.TB, tokenizer *bpe.Tokenizer) string {
	var ranks strings.Builder
	for token := range uint32(tokenizer.Size()) {
		text := tokenizer.Bytes(token)
		if _, special := tokenizer.Special()[string(text)]; !special && len(text) > 0 {
			fmt.Fprintf(&ranks, "%s %d\n", base64.StdEncoding.EncodeToString(text), token)
		}
	}
	name := strings.Replace(tokenizer.Name(), "gpt2", "r50k", 1)
	return e2e.Write(t, filepath.Join(t.TempDir(), name+"_base.tiktoken"), ranks.String())
}

// Every text has the same tokens as with Hugging Face's tokenizers. Pre-tokenizers whose models
// .ci/tokenizers does not have are tested with the vocabulary of Qwen 3.
func TestTokensOfTokenizers(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	dir, paths := tokenizers(t), map[string]string{}
	for _, name := range []string{"llama3_2", "qwen3", "gpt35turbo", "gpt4o", "deepseek_v3", "llama2", "gemma3", "olmo_1", "olmo_2"} {
		paths[name] = filepath.Join(dir, name+".json")
	}
	var preTokenizers, qwen map[string]json.RawMessage
	e2e.NoError(t, json.Unmarshal(e2e.Content(t, "../cmd/batchfs/prepare/bpe/testdata/pretokenizers.json"), &preTokenizers))
	e2e.NoError(t, json.Unmarshal(e2e.Content(t, paths["qwen3"]), &qwen))
	for name, stage := range preTokenizers {
		qwen["pre_tokenizer"] = stage
		name = "qwen3_split_like_" + name
		paths[name] = e2e.Write(t, filepath.Join(t.TempDir(), name+".json"), string(e2e.Must(json.Marshal(qwen))(t)))
	}
	for name, path := range paths {
		t.Run(name, func(t *testing.T) {
			run := 100_000
			// Hugging Face's library takes quadratic time for some of these regular expressions.
			if name == "gpt4o" || name == "qwen3_split_like_deepseek_v2" {
				run = 1000
			}
			compareTokens(t, e2e.Must(bpe.Open(path))(t), run, filepath.Join(dir, "bin/python"), "clients/tokens.py", "tokenizers", path)
		})
	}
}

// With random vocabularies, flags of added tokens, normalizers and pre-tokenizers, every text has
// the same tokens as with Hugging Face's tokenizers, also if it is cut where Cut says.
func TestTokensOfVariants(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	dir, n := t.TempDir(), e2e.NormalOrSoak(50, 2000)
	e2e.RunJob(t, filepath.Join(tokenizers(t), "bin/python"), "clients/variants.py", "1", fmt.Sprint(n), dir)
	random := rand.New(rand.NewPCG(1, 2))
	texts, cuts := 0, 0
	for i := range n {
		ordinary := e2e.Must(bpe.Open(filepath.Join(dir, fmt.Sprintf("%d.json", i))))(t)
		tokenizers := map[string]*bpe.Tokenizer{"ordinary": ordinary, "special": ordinary.WithSpecial()}
		caches := map[string]*bpe.Cache{"ordinary": bpe.NewCache(), "special": bpe.NewCache()}
		for raw := range bytes.Lines(e2e.Content(t, filepath.Join(dir, fmt.Sprintf("%d.jsonl", i)))) {
			var line struct {
				Text              string
				Ordinary, Special []uint32
			}
			e2e.NoError(t, json.Unmarshal(raw, &line))
			for name, want := range map[string][]uint32{"ordinary": line.Ordinary, "special": line.Special} {
				encoder, text := tokenizers[name].NewEncoder(caches[name]), []byte(line.Text)
				texts++
				if got := encoder.Append(nil, text); !slices.Equal(got, want) {
					t.Fatalf("variant %d: %q (%s): %d, want %d", i, text, name, got, want)
				}
				if at, _ := tokenizers[name].Cut(text[:random.IntN(len(text))]); at > 0 {
					cuts++
					if got := encoder.AppendRest(encoder.Append(nil, text[:at]), text[at:]); !slices.Equal(got, want) {
						t.Fatalf("variant %d: %q (%s), cut at %d: %d, want %d", i, text, name, at, got, want)
					}
				}
			}
		}
	}
	if texts < 100*n || cuts < 10*n {
		t.Errorf("%d texts, %d cuts", texts, cuts)
	}
}

// Every text has the same tokens as with Mistral's own library.
func TestTokensOfTekken(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	dir := tokenizers(t)
	path := filepath.Join(dir, "tekken.json")
	compareTokens(t, e2e.Must(bpe.Open(path))(t), 1000, filepath.Join(dir, "bin/python"), "clients/tokens.py", "mistral_common", path)
}

// Conversations in published chat templates have the tokens of the whole rendered text, and a mask
// that is 1 for exactly the tokens that the assistant generates. A model can train on them.
func TestChats(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	for family, name := range map[string]string{"llama": "llama3_2", "qwen": "qwen3", "mistral": "mistral_nemo", "chatml": "qwen3"} {
		t.Run(family, func(t *testing.T) {
			chats := makeChats(t, family, name)
			said := e2e.Must(chats.prepare(t, chats.file).Output())(t)
			chats.check(t)
			ones := bytes.Count(e2e.Content(t, filepath.Join(chats.data, "train.mask.bin")), []byte{1})
			if !regexp.MustCompile(fmt.Sprintf(`(?m)^assistant +\d+ +%d$`, ones)).MatchString(strings.ReplaceAll(string(said), ",", "")) {
				t.Errorf("it said %s, want %d tokens of the assistant to be trained on", said, ones)
			}
			if note := "system messages are ignored by the template"; strings.Contains(string(said), note) != (family == "mistral") || strings.Contains(string(said), "to stop") {
				t.Errorf("it said %s, want only Mistral's system messages to be ignored, and all turns to end", said)
			}
			if family == "chatml" {
				const turn = `{{ message.content + "<|im_end|>" }}{% endgeneration %}`
				chat := e2e.Write(t, filepath.Join(t.TempDir(), "chat.jsonl"), `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`)
				for tagged, stops := range map[string]bool{`{{ message.content }}{% endgeneration %}{{ "<|im_end|>" }}`: false, `{{ message.content + "<|im_end|>\n" }}{% endgeneration %}`: true} {
					e2e.Write(t, filepath.Join(chats.model, "chat_template.jinja"), strings.ReplaceAll(chatML, turn, tagged))
					e2e.NoError(t, os.RemoveAll(chats.data))
					if said := e2e.Must(chats.prepare(t, chat).Output())(t); strings.Contains(string(said), "so a model would not learn to stop") == stops {
						t.Errorf("%s: it said %s, want that a model would learn to stop: %v", tagged, said, stops)
					}
				}
			}
			if family == "qwen" || e2e.InSoak() { // training is the same with every template
				t.Run("train", func(t *testing.T) {
					e2e.NeedFUSE(t)
					e2e.NeedPython(t, "torch")
					m := e2e.Mount(t, "--data", chats.data, "--set", "splits.train.rows=packed", "--set", "splits.train.dtype=int64",
						"--set", "splits.train.batch_size=4", "--set", "splits.train.block_size=64")
					e2e.RunJob(t, "env", "PYTHONPATH=../python", "PYTHONDONTWRITEBYTECODE=1", e2e.Python, "-c", trainOnChats, m.Path("train"))
				})
			}
		})
	}
}

// chatML is a chat template that marks what the assistant generates.
const chatML = `{% for message in messages %}{{ "<|im_start|>" + message.role + "\n" }}{% if message.role == "assistant" -%}
{% generation %}{{ message.content + "<|im_end|>" }}{% endgeneration %}{% else %}{{ message.content + "<|im_end|>" }}{% endif %}{{ "\n" }}{% endfor %}`

const trainOnChats = `
import sys, torch, batchfs
train = batchfs.split(sys.argv[1], order="shuffle")
vocab = train.info["vocab_size"]
model = torch.nn.Sequential(torch.nn.Embedding(vocab, 8), torch.nn.Linear(8, vocab))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
losses = []
for _, batch in train.torch(stop=20):
    x, y = (batch[name][batch["mask"] == 1] for name in "xy")
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert len(losses) == 20 and sum(losses[10:]) < sum(losses[:10]), losses
`

// A run that stopped at an invalid line and continues with --resume writes the same bytes as an
// uninterrupted run. In a soak, so does a run that was killed.
func TestInterruptedChats(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	chats := makeChats(t, "qwen", "qwen3")
	lines := strings.SplitAfter(string(e2e.Content(t, chats.file)), "\n")
	for _, wrong := range []struct{ line, said string }{
		{"{", "JSONDecodeError"},
		{`{"conversations": [{"from": "gpt", "value": "a"}]}`, `a line must be {"messages": [`},
		{`{"messages": [{"role": "human", "content": "a"}, {"role": "assistant", "content": "b"}]}`, `the template ignores message 0, whose role is "human"`},
		{`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null}]}`, `most templates need "content": ""`},
	} {
		lines[len(lines)/2] = wrong.line + "\n"
		file := e2e.Write(t, filepath.Join(t.TempDir(), "wrong.jsonl"), strings.Join(lines, ""))
		out, _ := chats.prepare(t, file, "--resume").CombinedOutput()
		if want := fmt.Sprintf("wrong.jsonl, line %d: ", len(lines)/2+1); !strings.Contains(string(out), want) || !strings.Contains(string(out), wrong.said) {
			t.Errorf("%s: it said %s, want %q and %q", wrong.line, out, want, wrong.said)
		}
	}
	begin := time.Now()
	out := e2e.Must(chats.prepare(t, chats.file, "--resume").Output())(t)
	if !strings.Contains(string(out), "before the resume are not counted") {
		t.Errorf("it began again: %s", out)
	}
	chats.check(t)

	random := rand.New(rand.NewPCG(1, 2))
	took := time.Since(begin)
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(chats.data, name))
		return err == nil
	}
	for kills := 0; e2e.InSoak() && kills < 20; {
		if exists("vocab.json") && !exists(".prepare") { // it is complete
			chats.check(t)
			e2e.NoError(t, os.RemoveAll(chats.data))
		}
		cmd := chats.prepare(t, chats.file, "--resume")
		e2e.NoError(t, cmd.Start())
		// Python imports its libraries in the first half.
		kill := time.AfterFunc(took/2+time.Duration(random.Int64N(int64(took))), func() { cmd.Process.Kill() })
		if cmd.Wait() != nil {
			kills++
		}
		kill.Stop()
	}
}

// chats are conversations, and the files that examples/prepare_chat.py must write for them.
type chats struct {
	python, model string
	file          string
	data          string // the directory to write
	want          string // a directory with the files that data must have
}

func makeChats(t *testing.T, family, name string) *chats {
	t.Helper()
	dir, model, out := tokenizers(t), t.TempDir(), t.TempDir()
	for file, suffix := range map[string]string{"tokenizer.json": ".json", "tokenizer_config.json": ".config.json"} {
		e2e.NoError(t, os.Symlink(filepath.Join(dir, name+suffix), filepath.Join(model, file)))
	}
	if family == "chatml" {
		e2e.Write(t, filepath.Join(model, "chat_template.jinja"), chatML)
	}
	python := filepath.Join(dir, "bin/python")
	e2e.RunJob(t, python, "clients/chat.py", family, model, fmt.Sprint(e2e.NormalOrSoak(50, 1000)), out)
	return &chats{python, model, filepath.Join(out, "chat.jsonl"), filepath.Join(out, "data"), filepath.Join(out, "want")}
}

func (c *chats) prepare(t *testing.T, file string, flags ...string) *exec.Cmd {
	cmd := e2e.Job(t, c.python, append([]string{"../examples/prepare_chat.py", file, "--tokenizer", c.model, "--out", c.data}, flags...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH=../python", "PYTHONDONTWRITEBYTECODE=1", "HF_HUB_OFFLINE=1")
	return cmd
}

func (c *chats) check(t *testing.T) {
	t.Helper()
	for _, file := range []string{"train.bin", "train.mask.bin", "train.bin.index"} {
		if got, want := e2e.Content(t, filepath.Join(c.data, file)), e2e.Content(t, filepath.Join(c.want, file)); !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, want the %d bytes that were found independently", file, len(got), len(want))
		}
	}
}

// The Python package finds the bytes of the tokens of every tokenizer library that it supports.
func TestVocabulariesInPython(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	cmd := e2e.Job(t, filepath.Join(tokenizers(t), "bin/python"), "-m", "unittest", "-v", "tests.test_writer.TestTokenizers")
	cmd.Dir, cmd.Env = "../python", append(os.Environ(), "BATCHFS_PROGRAM="+e2e.Batchfs, "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// tokenizers returns a directory with the Python tokenizers and their files. The first call may
// install them.
func tokenizers(t testing.TB) string {
	t.Helper()
	installing.Lock()
	defer installing.Unlock()
	if installed == "" {
		out, stderr, err := e2e.TryJob(t, "../.ci/tokenizers")
		if err != nil {
			e2e.SkipOrFail(t, ".ci/tokenizers: %v: %s", err, stderr)
		}
		installed = strings.TrimSpace(out)
	}
	return installed
}

var (
	installing sync.Mutex
	installed  string // guarded by installing
)

// compareTokens compares a tokenizer with another program on all texts. No text repeats a string
// more than run times.
func compareTokens(t *testing.T, tokenizer *bpe.Tokenizer, run int, program ...string) {
	kinds := []iter.Seq[string]{oddTexts(min(run, 10_000)), mixedTexts(200), textsHere(t, 256<<10)}
	if e2e.InSoak() {
		kinds = []iter.Seq[string]{oddTexts(run), mixedTexts(100_000), textsHere(t, 40<<20), everyCharacter}
	}
	texts := func(yield func(string) bool) {
		for _, kind := range kinds {
			for text := range kind {
				if !yield(text) {
					return
				}
			}
		}
	}
	encoder := tokenizer.NewEncoder(bpe.NewCache())
	n, size, different := 0, 0, 0
	for text, want := range otherTokens(t, texts, program...) {
		n, size = n+1, size+len(text)
		if got := encoder.Append(nil, []byte(text)); !slices.Equal(got, want) {
			if different++; different <= 5 {
				t.Errorf("text %d, %s", n, difference(tokenizer, got, want))
			}
		}
	}
	t.Logf("%d of %d texts differ, of %d bytes", different, n, size)
}

func difference(tokenizer *bpe.Tokenizer, got, want []uint32) string {
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	show := func(tokens []uint32) (s string) {
		for _, token := range tokens[max(i-3, 0):min(i+5, len(tokens))] {
			s += fmt.Sprintf(" %d:%q", token, tokenizer.Bytes(token))
		}
		return s
	}
	return fmt.Sprintf("token %d: got%s, want%s", i, show(got), show(want))
}

// otherTokens yields texts, and the tokens that another program encodes them to.
func otherTokens(t *testing.T, texts iter.Seq[string], program ...string) iter.Seq2[string, []uint32] {
	return func(yield func(string, []uint32) bool) {
		var in, out, stderr bytes.Buffer
		for text := range texts {
			binary.Write(&in, binary.LittleEndian, uint32(len(text)))
			in.WriteString(text)
		}
		cmd := e2e.Job(t, program[0], program[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, &out, &stderr
		if err := cmd.Run(); err != nil {
			t.Fatalf("%q: %v\n%s", program, err, &stderr)
		}
		for text := range texts {
			var n uint32
			e2e.NoError(t, binary.Read(&out, binary.LittleEndian, &n))
			tokens := make([]uint32, n)
			e2e.NoError(t, binary.Read(&out, binary.LittleEndian, tokens))
			if !yield(text, tokens) {
				return
			}
		}
	}
}

// snippets are texts that tokenizers split in different ways.
var snippets = []string{"a", "Zß", "ǅ", "don't", "I'LL", "it'ſ", "'", "’s", "HTTPServer", "camelCase", "_", " ", "  ", "    ", "\t", "\n", "\r\n", "\r", " \n",
	"\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "1", "1234", "٣", "Ⅷ", "½", "x²", "!", "...", "/", "//\n", "—", "“q”", "\\n", "http://a.b/c?d=e&f",
	"def f(x):\n    return x\n", "}\n\n\n", "中文", "日本語テキスト", "ア・イ", "\u3099", "。", "！", "Ａｚ", "１", "한국어", "\u1112\u1161\u11ab", "ไทย", "हिन्दी", "العربية", "עברית", "Ελληνικά", "Русский",
	"naïve", "Ḁ", "e\u0301", "\u0301", "\u0301\u0302", "q\u0323\u0307", "\u0307\u0323", "\u0344", "ﬁ", "Å", "İi", "ſt", "ʰ", "ªº", "𝔘𝔫𝔦", "𐐀𐐨", "𑄮",
	"👍🏽", "👨‍👩‍👧‍👦", "🇩🇪🇫🇷", "☎️", "\u200d", "\u200b", "\ufeff", "\ufffd", "\x00", "\x01\x02", "\x7f", "<|endoftext|>", "<|end_of_text|>", "<|im_start|>", "<tool_call>", "<|"}

// oddTexts yields every pair of snippets, and short strings repeated up to longest times. Outside
// a soak, few strings are repeated more than 1,000 times.
func oddTexts(longest int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, a := range snippets {
			for _, b := range snippets {
				if !yield(a + b + a) {
					return
				}
			}
		}
		for _, s := range []string{" ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "a", "A", "aB", "ab", "1", "!", "é", "中", "👍", "\u0301", "\u0323\u0301", " a", "\n ", "-", "/", "'s", "<|endoftext|>"} {
			for _, n := range []int{1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 127, 128, 129, 257, 1000, 100_000} {
				run := strings.Repeat(s, n)
				if n > longest || n > 1000 && !e2e.InSoak() && !strings.Contains(" \na", s) {
					continue
				}
				for _, text := range []string{run, "e" + run, " " + run + "\nx" + run} {
					if !yield(text) {
						return
					}
				}
			}
		}
	}
}

// mixedTexts yields n texts of random snippets. Every call yields the same texts.
func mixedTexts(n int) iter.Seq[string] {
	return func(yield func(string) bool) {
		random := rand.New(rand.NewPCG(1, 2))
		for range n {
			var b strings.Builder
			for range 1 + random.IntN(40) {
				b.WriteString(strings.Repeat(snippets[random.IntN(len(snippets))], 1+random.IntN(1+random.IntN(4))))
			}
			if !yield(b.String()) {
				return
			}
		}
	}
}

// everyCharacter yields texts in which each character of Unicode appears where its class matters.
func everyCharacter(yield func(string) bool) {
	var b strings.Builder
	for r := rune(0); r <= utf8.MaxRune; r++ {
		if utf8.ValidRune(r) {
			fmt.Fprintf(&b, "a%[1]cb A%[1]ca %[1]c's%[1]cS 1%[1]c2  %[1]c\n!%[1]c/%[1]c\n\n%[1]c%[1]c ' %[1]cA e\u0301%[1]c\u0323 中%[1]c中  %[1]c%[1]cم %[1]c م", r)
		}
		if r%64 == 63 && b.Len() > 0 {
			if !yield(b.String()) {
				return
			}
			b.Reset()
		}
	}
}

// textsHere yields up to size bytes of this machine's manuals, in many languages, and of Go's
// source.
func textsHere(t testing.TB, size int) iter.Seq[string] {
	root := strings.TrimSpace(e2e.Run(t, "go", "env", "GOROOT"))
	return func(yield func(string) bool) {
		for _, dir := range []string{"/usr/share", filepath.Join(root, "src")} {
			left := size / 2
			filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
				if err != nil || !entry.Type().IsRegular() {
					return nil
				}
				text, err := os.ReadFile(path)
				if err != nil || !utf8.Valid(text) || len(text) > size/8 {
					return nil
				}
				if left -= len(text); left < 0 || !yield(string(text)) {
					return fs.SkipAll
				}
				return nil
			})
		}
	}
}
