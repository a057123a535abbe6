package prepare

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"batchfs/cmd/batchfs/internal/testfiles"
)

var update = flag.Bool("update", false, "make testdata/earlier again")

// What an earlier version has begun is continued, and what it has completed is recognized: a run
// with a checkpoint, a complete run, and a plan of which one unit is done. testdata/earlier has its
// files. If this fails, mend the code instead of the files. An option may be added if checkpoints,
// and the digests of units and runs, stay the same without it.
func TestPrepareContinuesAnEarlierVersion(t *testing.T) {
	useSmallChunks(t, 200, 1<<10)
	earlier, err := filepath.Abs("testdata/earlier")
	testfiles.NoError(t, err)
	documents := strings.Split(strings.Repeat("one two three four five six seven eight nine ten ", 3), " ")
	testfiles.WriteHere(t, map[string]string{"in/a.jsonl": lines(documents[:20]), "in/b.jsonl": lines(documents[20:])})
	for _, name := range []string{"in/a.jsonl", "in/b.jsonl"} {
		written := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
		testfiles.NoError(t, os.Chtimes(name, written, written))
	}
	const (
		unfinished = "in --by byte --val 0.3 --shard-tokens 50 --mask text:1 --id meta.body --out "
		complete   = "in/a.jsonl --by byte --val 0.3 --out "
		plan       = " in --by byte --val 0.3 --unit-bytes 1000 --plan "
	)
	if *update {
		if !stopAfter(t, 10, unfinished+"unfinished") {
			t.Fatal("it was not stopped")
		}
		prepared(t, complete+"complete")
		prepared(t, plan+"plan.json")
		prepared(t, "--plan plan.json --task 0/4 --out tasks")
		testfiles.NoError(t, os.RemoveAll(earlier))
		testfiles.NoError(t, os.CopyFS(earlier, os.DirFS(".")))
		testfiles.NoError(t, os.RemoveAll(filepath.Join(earlier, "in")))
		return
	}
	testfiles.NoError(t, os.CopyFS(".", os.DirFS(earlier)))
	testfiles.NoError(t, os.Chmod("unfinished/.prepare", 0o700))

	if said := prepared(t, unfinished+"unfinished"); !strings.Contains(said, "\ncontinuing at ") {
		t.Errorf("an unfinished run is not continued: %s", said)
	}
	if said := prepared(t, complete+"complete"); !strings.Contains(said, "is already complete") {
		t.Errorf("a complete run is not recognized: %s", said)
	}
	if said := prepared(t, plan+"plan.json"); !strings.Contains(said, "0 inputs and 0 units are new") {
		t.Errorf("the plan is not recognized: %s", said)
	}
	done, err := fs.Glob(os.DirFS("tasks"), ".units/0*")
	testfiles.NoError(t, err)
	prepared(t, "--plan plan.json --task 0/1 --out tasks")
	all, err := fs.Glob(os.DirFS("tasks"), ".units/0*")
	if testfiles.NoError(t, err); len(done) != 1 || len(all) < 3 || all[0] != done[0] {
		t.Errorf("the unit that is done, %q, is not one of %q", done, all)
	}
	prepared(t, "--plan plan.json --finish --verify --out tasks")

	prepared(t, unfinished+"new/unfinished")
	prepared(t, complete+"new/complete")
	prepared(t, plan+"new.json")
	prepared(t, "--plan new.json --task 0/1 --out new/tasks")
	prepared(t, "--plan new.json --finish --out new/tasks")
	for _, dir := range []string{"unfinished", "complete", "tasks"} {
		wantSame(t, taskFiles(t, dir), taskFiles(t, "new/"+dir))
	}
	manifest, err := os.ReadFile("tasks/vocab.json")
	testfiles.NoError(t, err)
	again, err := os.ReadFile("new/tasks/vocab.json")
	if testfiles.NoError(t, err); string(manifest) != string(again) {
		t.Errorf("of tasks of two versions, vocab.json is\n%s, and of one\n%s", manifest, again)
	}
}
