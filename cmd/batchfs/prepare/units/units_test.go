package units

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"batchfs/cmd/batchfs/internal/testfiles"
)

var planned = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

func input(name string, size int64) Input {
	return Input{Name: name, Format: "jsonl", State: State{Size: size, Modified: planned}}
}

func newPlan(t testing.TB, unitBytes int64, inputs ...Input) *Plan {
	t.Helper()
	p := New(json.RawMessage(`{"by":"byte"}`), []byte("{}"), unitBytes)
	_, err := p.Add(inputs, Lines)
	testfiles.NoError(t, err)
	return p
}

// Units have all bytes of all inputs once, in order. A unit exceeds the limit only if its input
// cannot be divided.
func TestUnitsCoverInputs(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		limit := 1 + rnd.Int64N(50)
		var inputs []Input
		for i := range rnd.IntN(20) {
			inputs = append(inputs, input(fmt.Sprint(i), rnd.Int64N(100)))
		}
		wholes := rnd.IntN(2) == 0
		p := New(json.RawMessage("{}"), nil, limit)
		for half := range 2 { // the second time, only some are new
			known := inputs[:len(inputs)*(1+half)/2]
			_, err := p.Add(known, func(in Input, limit int64) ([]Part, error) {
				if wholes {
					return nil, nil
				}
				return Lines(in, limit)
			})
			testfiles.NoError(t, err)
		}
		covered := map[string]int64{}
		for i, u := range p.Units {
			all := int64(0)
			for _, in := range p.InputsOf(i) {
				n := in.Size
				if u.End > 0 {
					n = u.End - u.Begin
				}
				covered[in.Name] += n
				all += n
			}
			if all != u.Bytes || all > limit && (!wholes || u.Inputs > 1) {
				t.Fatalf("limit %d: unit %+v has %d bytes", limit, u, all)
			}
		}
		for _, in := range inputs {
			if covered[in.Name] != in.Size {
				t.Fatalf("limit %d: %d bytes of %+v are in units", limit, covered[in.Name], in)
			}
		}
		var text bytes.Buffer
		testfiles.NoError(t, p.Write(&text))
		again, err := Read(&text, "plan.json")
		testfiles.NoError(t, err)
		if again.DigestAll() != p.DigestAll() || fmt.Sprint(again.Units) != fmt.Sprint(p.Units) {
			t.Fatalf("%+v is read as %+v", p, again)
		}
	}
}

func TestGroups(t *testing.T) {
	for want, sizes := range map[string][]int64{
		"[{2 8} {3 20} {5 10} {6 1}]": {4, 4, 20, 5, 5, 1},
		"[{1 1}]":                     {1},
	} {
		if got := fmt.Sprint(Groups(sizes, 10)); got != want {
			t.Errorf("groups of %d are divided into %s, want %s", sizes, got, want)
		}
	}
}

// A plan with a gap, an overlap, or a part too much is refused, wherever it is.
func TestBrokenPlans(t *testing.T) {
	p := newPlan(t, 10, input("a", 3), input("b", 4), input("c", 35), input("d", 1))
	for i := range p.Units {
		for name, change := range map[string]func(units []Unit) []Unit{
			"without unit":    func(units []Unit) []Unit { return slices.Delete(units, i, i+1) },
			"with again unit": func(units []Unit) []Unit { return slices.Insert(units, i, units[i]) },
			"longer":          func(units []Unit) []Unit { units[i].End++; return units },
			"shorter":         func(units []Unit) []Unit { units[i].End--; return units },
			"later":           func(units []Unit) []Unit { units[i].Begin++; return units },
			"more inputs":     func(units []Unit) []Unit { units[i].Inputs++; return units },
		} {
			broken := *p
			broken.Units = change(slices.Clone(p.Units))
			var text bytes.Buffer
			testfiles.NoError(t, broken.Write(&text))
			if _, err := Read(&text, "plan.json"); err == nil || !strings.HasPrefix(err.Error(), "--plan plan.json: ") || !strings.HasSuffix(err.Error(), ": make a new plan") {
				t.Errorf("%s %d: error %v", name, i, err)
			}
		}
	}
}

// Too many units are an error before they take memory, whether they are of one input or of several.
func TestTooManyUnits(t *testing.T) {
	for _, inputs := range [][]Input{{input("a", 1<<60)}, slices.Repeat([]Input{input("a", maxUnits/2+1)}, 2)} {
		p := New(json.RawMessage("{}"), nil, 1)
		for i := range inputs {
			inputs[i].Name = fmt.Sprint(i)
		}
		if _, err := p.Add(inputs, Lines); err == nil || !strings.HasSuffix(err.Error(), "units are too many, because the limit is 1000000: use a larger --unit-bytes") {
			t.Errorf("%d inputs: %v", len(inputs), err)
		}
		if len(p.Units) > maxUnits {
			t.Errorf("%d units", len(p.Units))
		}
	}
}

// New inputs get units of their own, and change neither the names nor the digests of others.
func TestAddInputs(t *testing.T) {
	a, b, c := input("a", 3), input("b", 30), input("c", 4)
	p := newPlan(t, 10, b, c)
	names := func(n int) (all []string) {
		for i := range n {
			all = append(all, p.SidecarName(i))
		}
		return all
	}
	before := names(len(p.Units))
	added, err := p.Add([]Input{a, b, c}, Lines)
	if err != nil || added != 1 || !slices.Equal(names(len(before)), before) || p.InputsOf(len(before))[0].Name != "a" {
		t.Errorf("%d added, %v: %+v", added, err, p)
	}
	for _, changed := range []Input{input("b", 31), {Name: "b", Format: "jsonl", State: State{Size: 30, Modified: planned.Add(1)}}, {Name: "b", Format: "text", State: b.State}} {
		if _, err := p.Add([]Input{changed}, Lines); err == nil || !strings.HasPrefix(err.Error(), "b: has changed") {
			t.Errorf("%+v: error %v", changed, err)
		}
	}
}

// Everything that decides the tokens of a unit decides the name of its sidecar, and nothing else.
func TestDigest(t *testing.T) {
	base := newPlan(t, 10, input("a", 3), input("b", 30)).SidecarName(1)
	later := input("b", 30)
	later.Modified = planned.Add(1)
	inVal := input("b", 30)
	inVal.Val = true
	options, tokenizer := newPlan(t, 10, input("a", 3), input("b", 30)), New(json.RawMessage(`{"by":"byte"}`), []byte("{} "), 10)
	options.Options = json.RawMessage(`{"by":"gpt2"}`)
	tokenizer.Add([]Input{input("a", 3), input("b", 30)}, Lines)
	for name, p := range map[string]*Plan{
		"time": newPlan(t, 10, input("a", 3), later), "val": newPlan(t, 10, input("a", 3), inVal), "size": newPlan(t, 10, input("a", 3), input("b", 29)),
		"name": newPlan(t, 10, input("a", 3), input("c", 30)), "options": options, "tokenizer": tokenizer,
	} {
		if got := p.SidecarName(1); got == base {
			t.Errorf("another %s: the sidecar is still %s", name, got)
		}
	}
	if got := newPlan(t, 10, input("z", 10), input("b", 30)).SidecarName(1); got != base {
		t.Errorf("with another input in another unit, the sidecar is %s, want %s", got, base)
	}
}

func TestDone(t *testing.T) {
	p := newPlan(t, 10, input("a", 30))
	files := map[string]State{"train_000000.bin": {}, p.SidecarName(1): {}, Dir + "/notes": {}, "vocab.json": {}}
	if done, err := p.Done(files); err != nil || !slices.Equal(done, []string{"", p.SidecarName(1), ""}) {
		t.Errorf("done: %q, %v", done, err)
	}
	lenient := *p
	lenient.Options, lenient.Stricter = json.RawMessage(`{"by":"byte","invalid":"skip"}`), p.Options
	files[lenient.SidecarName(2)] = State{}
	if done, err := lenient.Done(files); err != nil || !slices.Equal(done, []string{"", p.SidecarName(1), lenient.SidecarName(2)}) {
		t.Errorf("done according to the lenient plan: %q, %v", done, err)
	}
	delete(files, lenient.SidecarName(2))
	for name, want := range map[string]string{
		Dir + "/000002-0123456789abcdef-v1.json":                     "unit 000002: .units/000002-0123456789abcdef-v1.json is from another plan, because its inputs, the tokenizer or another option differ",
		Dir + "/000009-0123456789abcdef-v1.json":                     "unit 000009: .units/000009-0123456789abcdef-v1.json is from another plan, because this plan has only 3 units",
		strings.Replace(p.SidecarName(2), "-v1.json", "-v7.json", 1): "because it has version 7 of the tokens, and this batchfs makes version 1",
	} {
		files[name] = State{}
		if _, err := p.Done(files); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", name, err, want)
		}
		delete(files, name)
	}
}

// For each number of tasks, each unit belongs to one task, and with as many tasks as units, the
// number of the task is that of its unit.
func TestTasks(t *testing.T) {
	for _, of := range []int{1, 3, 16, 100} {
		var all []int
		for i := range of {
			units := Task{i, of}.Units(40)
			if of >= 40 && i < 40 && !slices.Equal(units, []int{i}) {
				t.Errorf("task %d of %d has units %d", i, of, units)
			}
			all = append(all, units...)
		}
		slices.Sort(all)
		if len(all) != 40 || all[0] != 0 || all[39] != 39 || len(slices.Compact(all)) != 40 {
			t.Errorf("%d tasks have units %d", of, all)
		}
	}
}

// The number of tasks may be any integer.
func TestManyTasks(t *testing.T) {
	if got := (Task{1, math.MaxInt}).Units(3); !slices.Equal(got, []int{1}) {
		t.Errorf("units %d, want unit 1", got)
	}
}

func TestParseTask(t *testing.T) {
	if got, err := ParseTask("3/16"); err != nil || got != (Task{3, 16}) {
		t.Errorf("3/16: %v, %v", got, err)
	}
	for _, text := range []string{"", "3", "/", "3/", "16/16", "-1/16", "0/0", "a/b", "1/2/3", " 1/2"} {
		if got, err := ParseTask(text); err == nil || !strings.HasPrefix(err.Error(), "--task: must be I/N") {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestTaskOfScheduler(t *testing.T) {
	const gaps = "SLURM_ARRAY_TASK_ID=40 SLURM_ARRAY_TASK_COUNT=3 SLURM_ARRAY_TASK_MIN=3 SLURM_ARRAY_TASK_MAX=40"
	for _, test := range []struct {
		env   string
		tasks int
		want  string // a task, or a part of the error
	}{
		{"SLURM_ARRAY_TASK_ID=5 SLURM_ARRAY_TASK_COUNT=16 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_MAX=15", 0, "5/16"},
		{"SLURM_ARRAY_TASK_ID=16 SLURM_ARRAY_TASK_COUNT=16 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=16", 0, "15/16"},
		{"SLURM_ARRAY_TASK_ID=16 SLURM_ARRAY_TASK_COUNT=16 SLURM_ARRAY_TASK_MIN=1", 0, "15/16"},
		{gaps, 0, "--tasks: give the number of tasks of the whole job, because the array from 3 to 40 has only 3"},
		{gaps, 100, "40/100"},
		{"JOB_COMPLETION_INDEX=0", 4, "0/4"},
		{"JOB_COMPLETION_INDEX=4", 4, "JOB_COMPLETION_INDEX: must be from 0 to 3 for 4 tasks (got 4)"},
		{"JOB_COMPLETION_INDEX=0", 0, "--tasks: give the number of tasks"},
		{"JOB_COMPLETION_INDEX=x", 4, "JOB_COMPLETION_INDEX: must be a whole number"},
		{"SLURM_ARRAY_TASK_ID=5", 0, "SLURM_ARRAY_TASK_MIN: must be a whole number"},
		{"", 4, "--task: give I/N"},
	} {
		env := map[string]string{}
		for pair := range strings.FieldsSeq(test.env) {
			name, value, _ := strings.Cut(pair, "=")
			env[name] = value
		}
		got, err := TaskOf(func(name string) string { return env[name] }, test.tasks)
		if err == nil && got.String() != test.want || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q with --tasks %d: %v, %v; want %s", test.env, test.tasks, got, err, test.want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for want, list := range map[string][]int{"": nil, "3": {3}, "3,17,40-42": {3, 17, 40, 41, 42}, "0-1,3": {0, 1, 3}} {
		if got := Numbers(list); got != want {
			t.Errorf("%d: %s, want %s", list, got, want)
		}
	}
}

func TestSummary(t *testing.T) {
	p := newPlan(t, 10, input("a", 40))
	sidecars := make([]*Sidecar, 4)
	for _, i := range []int{1, 3} {
		sidecars[i] = &Sidecar{Unit: i, Seconds: float64(i), Finished: planned.Add(time.Duration(i) * time.Second)}
	}
	s := p.Summarize(sidecars)
	if s.Done != 2 || !slices.Equal(s.Missing, []int{0, 2}) || s.Rate != 20./3 || s.Left != 3*time.Second || s.Slowest[0].Unit != 3 {
		t.Errorf("%+v", s)
	}
	if s := p.Summarize(make([]*Sidecar, 4)); s.Done != 0 || s.Rate != 0 || s.Left != 0 {
		t.Errorf("without sidecars: %+v", s)
	}
}

// The bytes of a file are read if its time differs, and always to verify; other bytes, another size
// and a missing file are errors that name the unit.
func TestCheckSidecar(t *testing.T) {
	dir := t.TempDir()
	ctx, out, path := context.Background(), Folder(dir), filepath.Join(dir, "train_000007.bin")
	testfiles.Write(t, map[string]string{path: "tokens"})
	state := func() State {
		state, err := out.Stat(ctx, "train_000007.bin")
		testfiles.NoError(t, err)
		return state
	}
	s := &Sidecar{Unit: 7, Files: []File{{"train_000007.bin", hashOf([]byte("tokens")), state()}}}
	check := func(name string, verify bool, want string) {
		t.Helper()
		if err := s.Check(ctx, out, verify); err == nil && want != "" || err != nil && (want == "" || !strings.HasPrefix(err.Error(), "unit 000007: "+path+want)) {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
	}
	check("unchanged", false, "")
	check("unchanged", true, "")
	testfiles.NoError(t, os.Chtimes(path, planned, planned))
	check("a copy", false, "")
	testfiles.Write(t, map[string]string{path: "TOKENS"})
	check("other bytes", false, " has other bytes")
	s.Files[0].State = state()
	check("other bytes under the same time", false, "")
	check("other bytes under the same time", true, " has other bytes")
	testfiles.Write(t, map[string]string{path: "token"})
	check("another size", false, " has 5 bytes, but had 6")
	testfiles.NoError(t, os.Remove(path))
	check("no file", false, " is missing")
}

// Cleaning a directory whose name is a pattern removes only what is left in it.
func TestCleanFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	files := map[string]string{}
	for _, dir := range []string{"data1", "data[1]"} {
		for _, name := range []string{"tmp-000000-1/train.bin", ".000000.json.123", "000000.json"} {
			files[filepath.Join(dir, Dir, name)] = "x"
		}
		files[dir+"/.vocab.json.4"], files[dir+"/.hidden"] = "x", "x"
	}
	testfiles.Write(t, files)
	testfiles.NoError(t, Folder("data[1]").Clean(t.Context(), nil))
	for path := range files {
		left := strings.HasPrefix(path, "data1/") || strings.HasSuffix(path, "/000000.json") || strings.HasSuffix(path, ".hidden")
		if _, err := os.Stat(path); (err == nil) != left {
			t.Errorf("%s exists: %v, want %v", path, err == nil, left)
		}
	}
}

// A file that vanishes while the directory is listed, as the temporary file of a sidecar does, is
// no error.
func TestListDuringTasks(t *testing.T) {
	out := Folder(t.TempDir())
	testfiles.NoError(t, out.Make(t.Context()))
	testfiles.NoError(t, out.Write(t.Context(), Dir+"/sidecar", nil))
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := out.Path(fmt.Sprintf("%s/.temporary%d", Dir, i%50))
			os.WriteFile(name, nil, 0o644)
			os.Remove(name)
		}
	})
	for range 1000 {
		files, err := out.List(t.Context(), true)
		if _, ok := files[Dir+"/sidecar"]; err != nil || !ok {
			t.Errorf("%v, %v", files, err)
			break
		}
	}
	close(stop)
	writer.Wait()
}
