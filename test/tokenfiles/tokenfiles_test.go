// Package tokenfiles tests what batchfs prepare and the Python package's writer have in common: the
// token files, and how they come about.
package tokenfiles

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }

// advice is part of what every command says about unfinished token files.
const advice = "run the interrupted batchfs prepare again, continue the batchfs.writer with resume=True or call batchfs.finish again"

const (
	shardTokens = 100_000
	manyLines   = 320 // several shards
)

// A program writes the same documents in each run.
type program interface {
	// start continues what is in a directory. wait returns errKilled, or what the program says.
	start(t testing.TB, dir string) (wait func() error)
}

func write(t testing.TB, p program, dir string) error {
	t.Helper()
	return p.start(t, dir)()
}

type killedError struct{}

func (killedError) Error() string { return "killed" }

var errKilled error = killedError{}

// prepare runs batchfs prepare with these arguments.
type prepare []string

func (p prepare) start(t testing.TB, dir string) (wait func() error) {
	t.Helper()
	cmd := e2e.Command(t, e2e.PlainBatchfs, append(append([]string{"prepare"}, p...), "--out", dir)...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	e2e.NoError(t, cmd.Start())
	return func() error {
		switch err := cmd.Wait(); {
		case err == nil:
			return nil
		case cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
			return errKilled
		default:
			return fmt.Errorf("%w: %s", err, &said)
		}
	}
}

// A pythonProgram is a function of clients/writer.py.
type pythonProgram struct {
	client   *e2e.Client
	function string
}

func (p pythonProgram) start(t testing.TB, dir string) (wait func() error) {
	t.Helper()
	e2e.Must(fmt.Fprintln(p.client.In, p.function, dir))(t)
	return func() error {
		switch status, said, _ := strings.Cut(p.client.ReadLine(t), " "); status {
		case "0":
			return nil
		case "-9":
			return errKilled
		default:
			return fmt.Errorf("%s: %s", status, said)
		}
	}
}

// texts are JSON lines of which all programs make the same documents.
type texts struct {
	dir   string
	files []string
	args  []string // of prepare
}

// newTexts writes three files with a number of lines, some of which are for val.
func newTexts(t testing.TB, lines int) *texts {
	x := &texts{dir: t.TempDir()}
	rng := rand.New(rand.NewPCG(1, 2))
	words := func() string {
		text := make([]byte, rng.IntN(2000))
		for i := range text {
			text[i] = 'a' + byte(rng.IntN(26))
		}
		return string(text)
	}
	for name, part := range map[string]int{"a": 2, "b": 1, "val": 1} {
		var all strings.Builder
		for range lines * part / 4 {
			fmt.Fprintf(&all, "{\"p\": \"%s\", \"c\": \"%s.\"}\n", words(), words())
		}
		e2e.Write(t, filepath.Join(x.dir, name+".jsonl"), all.String())
	}
	// Otherwise, documents of val would be last.
	for _, name := range []string{"a", "val", "b"} {
		x.files = append(x.files, filepath.Join(x.dir, name+".jsonl"))
	}
	x.args = append(slices.Clone(x.files), "--by", x.tokenizer(t), "--mask", "p:0,c:1", "--eot", "begin", "--val-files", "val.jsonl", "--shard-tokens", fmt.Sprint(shardTokens))
	return x
}

// tokenizer writes a tokenizer.json in which each byte is a token.
func (x *texts) tokenizer(t testing.TB) string {
	vocab := map[string]int{}
	next := 256
	for b := range 256 {
		r := rune(b)
		if b <= ' ' || 127 <= b && b <= 160 || b == 173 {
			r = rune(next)
			next++
		}
		vocab[string(r)] = b
	}
	level := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}
	raw := e2e.Must(json.Marshal(map[string]any{
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": []any{}},
		"pre_tokenizer": level,
		"added_tokens":  []any{map[string]any{"id": 256, "content": "<|endoftext|>", "special": true}},
	}))(t)
	return e2e.Write(t, filepath.Join(x.dir, "tokenizer.json"), raw)
}

func (x *texts) python(t testing.TB, function string) pythonProgram {
	t.Helper()
	args := append([]string{"clients/writer.py", filepath.Join(x.dir, "tokenizer.json"), fmt.Sprint(shardTokens)}, x.files...)
	cmd := exec.Command(e2e.Python, args...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	client := e2e.StartClient(t, cmd)
	client.AwaitReady(t)
	return pythonProgram{client, function}
}

// files returns the content of each file in a directory, except the files of unfinished work.
func files(t testing.TB, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	entries, err := os.ReadDir(dir)
	if !os.IsNotExist(err) {
		e2e.NoError(t, err)
	}
	for _, e := range entries {
		if e.Name() != ".prepare" && e.Name() != ".units" {
			found[e.Name()] = string(e2e.Content(t, filepath.Join(dir, e.Name())))
		}
	}
	return found
}

// The same documents become the same files.
func TestSameFiles(t *testing.T) {
	t.Parallel()
	x := newTexts(t, manyLines)
	var found []map[string]string
	var manifests []map[string]any
	for i, p := range []program{prepare(x.args), x.python(t, "write")} {
		dir := filepath.Join(x.dir, fmt.Sprint(i))
		e2e.NoError(t, write(t, p, dir))
		all := files(t, dir)
		var m map[string]any
		e2e.NoError(t, json.Unmarshal([]byte(all["vocab.json"]), &m))
		delete(all, "vocab.json")
		// These let each program recognize its own files.
		for _, key := range []string{"run", "writer"} {
			delete(m, key)
		}
		found, manifests = append(found, all), append(manifests, m)
	}
	if names := slices.Sorted(maps.Keys(found[0])); len(names) < 3*5 {
		t.Errorf("the files are %q, want several shards with an index and a mask", names)
	}
	if !maps.Equal(found[0], found[1]) {
		t.Errorf("the files of prepare, %q, and of the writer, %q, differ", slices.Sorted(maps.Keys(found[0])), slices.Sorted(maps.Keys(found[1])))
	}
	if !reflect.DeepEqual(manifests[0], manifests[1]) {
		t.Errorf("the manifest of prepare: %v\nthat of the writer: %v", manifests[0], manifests[1])
	}
}

// whyNotMountable returns why a split cannot be opened, or an empty string if a mount would serve
// both.
func whyNotMountable(t testing.TB, dir string) string {
	t.Helper()
	for _, split := range []string{"train", "val"} {
		if _, why, err := e2e.Try(t, e2e.PlainBatchfs, "cat", split, "--data", dir, "--format", "info", "--set", "batch.block_size=16"); err != nil {
			return why
		}
	}
	return ""
}

// A run that is killed before any change to the file system, and then continued, writes the files
// of an uninterrupted run. Meanwhile, nothing can be mounted but all files of one run.
//
// It takes long because each program makes about 200 changes; only make soak tries all of them.
func TestKilledAtEveryChange(t *testing.T) {
	t.Parallel()
	x := newTexts(t, manyLines)
	parts, step := e2e.NormalOrShort(2, 1), e2e.NormalOrShort(15, 23)
	if e2e.InSoak() {
		step = parts
	}
	for name, newProgram := range map[string]func(t testing.TB) program{
		"prepare":         func(testing.TB) program { return prepare(x.args) },
		"prepare --force": func(testing.TB) program { return prepare(append(slices.Clone(x.args), "--force")) },
		"writer":          func(t testing.TB) program { return x.python(t, "write") },
		"shards":          func(t testing.TB) program { return x.python(t, "shards") },
	} {
		for part := range parts {
			t.Run(fmt.Sprintf("%s/%d", name, part), func(t *testing.T) {
				t.Parallel()
				k := &killer{x: x, program: newProgram(t), source: t.TempDir(), old: map[string]string{}}
				k.slow = e2e.NewSlowFS(t, k.source)
				want := filepath.Join(t.TempDir(), "want")
				e2e.NoError(t, write(t, k.program, want))
				k.want = files(t, want)
				if strings.Contains(name, "--force") {
					k.old = x.oldFiles(t)
				}
				for change := 1 + part*step/parts; k.kill(t, change); change += step {
				}
			})
		}
	}
}

// oldFiles returns the files of a run with other texts, which has more shards.
func (x *texts) oldFiles(t testing.TB) map[string]string {
	t.Helper()
	args := append(slices.Clone(x.args), "--shard-tokens", "40000")
	args[0] = e2e.Write(t, filepath.Join(t.TempDir(), "old.jsonl"), strings.Repeat("{\"p\": \"old\", \"c\": \"text\"}\n", 20_000))
	dir := filepath.Join(t.TempDir(), "old")
	e2e.NoError(t, write(t, prepare(args), dir))
	return files(t, dir)
}

// A killer kills a program and lets it continue.
type killer struct {
	x         *texts
	program   program
	slow      *e2e.SlowFS
	source    string            // directory that slow shows
	old, want map[string]string // files before and after the program has run
}

// kill kills the program before its n-th change. It returns false if the program makes fewer
// changes.
func (k *killer) kill(t testing.TB, n int) bool {
	t.Helper()
	dir, slowDir := filepath.Join(k.source, fmt.Sprint(n)), filepath.Join(k.slow.Dir, fmt.Sprint(n))
	for name, content := range k.old {
		e2e.Write(t, filepath.Join(dir, name), content)
	}
	k.slow.KillAt(t, n)
	err := write(t, k.program, slowDir)
	changes := k.slow.Changes(t)
	k.slow.KillAt(t, 0)
	if err == nil {
		t.Logf("%d changes", len(changes))
		return false
	}
	when := fmt.Sprintf("killed after change %d, %s", n-1, changes[len(changes)-1])
	if err != errKilled {
		t.Fatalf("%s: %v", when, err)
	}
	k.checkMount(t, when, dir)
	if err := write(t, k.program, slowDir); err != nil {
		t.Errorf("%s, and continued: %v", when, err)
	}
	if !maps.Equal(files(t, dir), k.want) {
		t.Errorf("%s, and continued: the files differ from those of an uninterrupted run", when)
	}
	if left, err := os.ReadDir(filepath.Join(dir, ".prepare")); err == nil {
		t.Errorf("%s, and continued: .prepare has %v", when, left)
	}
	e2e.NoError(t, os.RemoveAll(dir))
	return true
}

// checkMount checks that a mount rejects a directory, and says how to continue, unless it has all
// files of one run.
func (k *killer) checkMount(t testing.TB, when, dir string) {
	t.Helper()
	now := files(t, dir)
	names := slices.Sorted(maps.Keys(now))
	_, notBegun := os.Lstat(filepath.Join(dir, ".prepare"))
	switch why := whyNotMountable(t, dir); {
	case len(now) > 0 && (maps.Equal(now, k.want) || maps.Equal(now, k.old)):
		if why != "" {
			t.Errorf("%s: a mount rejects all files of a run: %s", when, why)
		}
	case why == "":
		t.Errorf("%s: %q can be mounted", when, names)
	case notBegun == nil && !strings.Contains(why, advice):
		t.Errorf("%s: a mount of %q says %q, want how to continue", when, names, why)
	}
}

// All data is on disk before anything refers to it, and tokens become visible last.
func TestOrderOfChanges(t *testing.T) {
	t.Parallel()
	x := newTexts(t, manyLines)
	for name, p := range map[string]program{"prepare": prepare(x.args), "writer": x.python(t, "write"), "shards": x.python(t, "shards")} {
		t.Run(name, func(t *testing.T) {
			slow := e2e.NewSlowFS(t, t.TempDir())
			slow.KillAt(t, 0)
			e2e.NoError(t, write(t, p, filepath.Join(slow.Dir, "data")))
			dirty := map[string]bool{} // files with data that was not synced
			var checkpoints int
			var moved []string
			changes := slow.Changes(t)
			for i, change := range changes {
				words := strings.Fields(change)
				path := words[1]
				next := func(want string) {
					if i+1 == len(changes) || changes[i+1] != want {
						t.Errorf("after %q: %q, want %q", change, changes[i+1:][:1], want)
					}
				}
				switch words[0] {
				case "create", "write":
					dirty[path] = true
				case "fsync":
					delete(dirty, path)
				case "unlink":
					if len(moved) == 0 && filepath.Base(path) != "vocab.json" {
						t.Errorf("%q before any file was moved", change)
					}
				case "rename":
					to := words[2]
					if dirty[path] {
						t.Errorf("%q before it was synced", change)
					}
					if !strings.Contains(to, "/.prepare/") {
						moved = append(moved, filepath.Base(to))
						break
					}
					checkpoints++
					if len(dirty) > 0 {
						t.Errorf("%q before %q were synced", change, slices.Sorted(maps.Keys(dirty)))
					}
					next("fsyncdir " + filepath.Dir(to))
				}
				if len(moved) > 0 && words[0] == "rename" && !strings.HasPrefix(changes[i+1], "rename ") {
					next("fsyncdir data")
				}
			}
			if len(dirty) > 0 || checkpoints < 4 || len(moved) < 10 || moved[0] != "vocab.json" {
				t.Errorf("%d checkpoints, moves of %q, not synced: %q; want several checkpoints, vocab.json first, and all synced", checkpoints, moved, slices.Sorted(maps.Keys(dirty)))
			}
			if err := tokensLast(moved); err != nil {
				t.Errorf("moved: %v", err)
			}
		})
	}
}

// tokensLast returns an error unless each token file follows the other files of its shard.
func tokensLast(names []string) error {
	for i, name := range names {
		stem, extension, _ := strings.Cut(name, ".")
		isTokens := slices.Contains([]string{"bin", "npy", "ds"}, extension)
		if isTokens && slices.ContainsFunc(names[i+1:], func(later string) bool { return strings.HasPrefix(later, stem+".") }) {
			return fmt.Errorf("%s comes before another file of the shard: %q", name, names)
		}
	}
	return nil
}

// In every format, prepare moves a token file after the other files of its shard, and removes an
// old one before them.
func TestOrderInEveryFormat(t *testing.T) {
	t.Parallel()
	x := newTexts(t, 4)
	source := t.TempDir()
	slow := e2e.NewSlowFS(t, source)
	for format, extra := range map[string]int{"headerless": 0, "llm.c": 0, "npy": 0, "megatron": 0, "datatrove": 1} {
		for options, more := range map[string]int{"--field c": 0, "--mask p:0,c:1": 1, "--field c --id p": 1, "--mask p:0,c:1 --id p": 2} {
			args := append(slices.Clone(x.files), "--by", "byte", "--val-files", "val.jsonl", "--format", format)
			args = append(args, strings.Fields(options)...)
			dir := filepath.Join(slow.Dir, "data")
			e2e.NoError(t, write(t, prepare(args), dir))
			slow.KillAt(t, 0)
			e2e.NoError(t, write(t, prepare(append(args, "--force")), dir))
			var removed, moved []string
			for _, change := range slow.Changes(t) {
				switch words := strings.Fields(change); {
				case words[0] == "unlink" && filepath.Dir(words[1]) == "data":
					removed = append(removed, filepath.Base(words[1]))
				case words[0] == "rename" && filepath.Dir(words[2]) == "data":
					moved = append(moved, filepath.Base(words[2]))
				}
			}
			of := fmt.Sprintf("--format %s %s", format, options)
			if files := 2 * (2 + extra + more); len(removed) != files || len(moved) != 1+files || moved[0] != "vocab.json" {
				t.Errorf("%s: removed %q and moved %q, want %d files, and vocab.json moved first", of, removed, moved, files)
			}
			if err := tokensLast(moved); err != nil {
				t.Errorf("%s, moved: %v", of, err)
			}
			slices.Reverse(removed)
			if err := tokensLast(removed); err != nil {
				t.Errorf("%s, removed, last first: %v", of, err)
			}
			e2e.NoError(t, os.RemoveAll(filepath.Join(source, "data")))
		}
	}
}

// The programs keep each other out.
func TestLocks(t *testing.T) {
	t.Parallel()
	x := newTexts(t, manyLines)
	programs := map[string]program{"prepare": prepare(x.args), "writer": x.python(t, "write"), "shards": x.python(t, "shards"), "finish": x.python(t, "finish")}
	for name, holder := range programs {
		if name == "finish" {
			continue
		}
		slow := e2e.NewSlowFS(t, t.TempDir())
		dir := filepath.Join(slow.Dir, "data")
		slow.Hang(t, "fsync")
		if python, ok := holder.(pythonProgram); ok {
			holder = x.python(t, python.function) // because it is one of the others too
		}
		wait := holder.start(t, dir)
		slow.AwaitHanging(t, "fsync")
		for other, p := range programs {
			if err := write(t, p, dir); err == nil || !strings.Contains(err.Error(), "is running there: wait until it has ended") {
				t.Errorf("%s while %s runs: error %v, want that another runs there", other, name, err)
			}
		}
		slow.Delay(t, "fsync", 0)
		if err := wait(); err != nil {
			t.Errorf("%s, after others were refused: %v", name, err)
		}
	}
}

// A program removes what another left that cannot be continued, and refuses the rest, as the table
// in docs/design.md says.
func TestFilesOfTheOtherProgram(t *testing.T) {
	t.Parallel()
	x := newTexts(t, 4)
	programs := map[string]program{"prepare": prepare(x.args), "writer": x.python(t, "write")}
	want := map[string]map[string]string{}
	for name, p := range programs {
		dir := filepath.Join(x.dir, name)
		e2e.NoError(t, write(t, p, dir))
		want[name] = files(t, dir)
	}
	rows := regexp.MustCompile("(?m)^\\| (`[^|]*`) \\| (both|prepare|writer) \\| (removes it|refuses) \\|").FindAllStringSubmatch(e2e.ReadPage(t, "docs/design.md"), -1)
	if len(rows) < 10 {
		t.Fatalf("docs/design.md has %d rows, want a table", len(rows))
	}
	n := 0
	for _, row := range rows {
		for _, file := range strings.Split(strings.Trim(row[1], "`"), "` `") {
			for name, p := range programs {
				if row[2] == name {
					continue
				}
				n++
				dir := filepath.Join(x.dir, fmt.Sprint(n))
				work := filepath.Join(dir, ".prepare")
				if strings.HasSuffix(file, "/") {
					e2e.NoError(t, os.MkdirAll(filepath.Join(work, file), 0o755))
				} else {
					e2e.Write(t, filepath.Join(work, file), "unfinished")
				}
				err := write(t, p, dir)
				_, left := os.Lstat(filepath.Join(work, file))
				if row[3] == "refuses" {
					if err == nil || !strings.Contains(err.Error(), "belongs to") || left != nil || len(files(t, dir)) > 0 {
						t.Errorf("%s with %s: error %v, want that it belongs to the other program; the file: %v", name, file, err, left)
					}
					continue
				}
				if _, workLeft := os.Lstat(work); err != nil || !os.IsNotExist(workLeft) || !maps.Equal(files(t, dir), want[name]) {
					t.Errorf("%s with %s: error %v, want the files of a run without it, and nothing left", name, file, err)
				}
			}
		}
	}
}

// A continued run notices that files of the checkpoint are missing or too short.
func TestContinuedRunChecksFiles(t *testing.T) {
	t.Parallel()
	x := newTexts(t, manyLines)
	for name, p := range map[string]program{"prepare": prepare(x.args), "writer": x.python(t, "write")} {
		t.Run(name, func(t *testing.T) {
			source := t.TempDir()
			slow := e2e.NewSlowFS(t, source)
			work := filepath.Join(source, "data", ".prepare")
			// Many changes after the second shard was begun, there is a checkpoint with the first.
			slow.KillAt(t, 110)
			if err := write(t, p, filepath.Join(slow.Dir, "data")); err != errKilled {
				t.Fatalf("error %v, want %v", err, errKilled)
			}
			slow.KillAt(t, 0)
			for _, file := range []string{"train_000001.bin", "train_000001.bin.index", "train_000001.mask.bin"} {
				hidden := filepath.Join(source, "hidden")
				e2e.NoError(t, os.Rename(filepath.Join(work, file), hidden))
				if err := write(t, p, filepath.Join(slow.Dir, "data")); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "restore the file") {
					t.Errorf("without %s: error %v, want one that names it", file, err)
				}
				e2e.NoError(t, os.Rename(hidden, filepath.Join(work, file)))
			}
			e2e.NoError(t, write(t, p, filepath.Join(slow.Dir, "data")))
		})
	}
}
