package metrics

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"batchfs/fs/figures"
	"batchfs/fs/state"
)

func newShared(t testing.TB, names ...string) *state.Shared {
	t.Helper()
	file, shared, err := state.New()
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	t.Cleanup(shared.Close)
	for _, name := range names {
		n := shared.NewNumber()
		shared.Add(n, name, 0, 0)
		shared.Sequences[n].Lookups.Store(1)
	}
	return shared
}

// lint parses metrics as Prometheus does, and checks that they follow its naming rules.
func lint(t testing.TB, text []byte) {
	t.Helper()
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v in\n%s", err, problems, text)
	}
}

// The metrics show the counters, whatever characters are in the names of sequences.
func TestText(t *testing.T) {
	shared := newShared(t, "train", "val", "train/rank=3,world=8", "train/rank=4,world=8", "a\"b\\c\nd", "\xff", "\xfe")
	shared.Sequences[4].Lookups.Store(0) // forgotten by the kernel
	shared.Describe(1, "0123", 0, []string{"web", "books"})
	shared.SetPhase(1, 3, []float64{1, 0})
	shared.RowsBySource[1][1].Rows.Store(4)
	shared.SetProgram("v9")
	shared.Workers.Store(3)
	shared.Sequences[1].Begun.Store(17)
	shared.Sequences[3].Cursor.Store(5)
	fh := uint64(0)
	for range 4 {
		shared.BeginRead(1, fh, 1, 2, 0).End()
	}
	shared.Store.Buckets[16].Store(2)
	text := Text(shared)
	lint(t, text)
	if len(text)%textUnit != 0 {
		t.Errorf("%d bytes, want a multiple of %d", len(text), textUnit)
	}
	for _, want := range []string{
		`batchfs_build_info{version="v9"} 1`, `batchfs_takeovers_total 2`, `batchfs_split_info{fingerprint="0123",split="train"} 1`,
		`batchfs_source_rows_total{source="books",split="train"} 4`, `batchfs_source_weight_ratio{source="web",split="train"} 1`, `batchfs_stage{split="train"} 3`,
		`batchfs_batches_total{settings="",split="train"} 17`, `batchfs_cursor{settings="rank=3,world=8",split="train"} 5`,
		`batchfs_read_wait_seconds_count{settings="",split="train"} 4`, `batchfs_store_request_duration_seconds_bucket{le="32.768"} 0`,
		`batchfs_store_request_duration_seconds_count 2`, `split="?"`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "rank=4") {
		t.Error("settings that are not open have metrics")
	}
}

// Metrics that are read while sequences begin and end show no part of a name.
func TestNamesAreWhole(t *testing.T) {
	shared := newShared(t, "train")
	names := []string{strings.Repeat("a", 300), strings.Repeat("b", 300)}
	stop := make(chan struct{})
	var adding sync.WaitGroup
	adding.Go(func() {
		number := shared.NewNumber()
		for {
			for _, name := range names {
				shared.Remove(number)
				shared.Add(number, "train/"+name, 0, 0)
				shared.Sequences[number].Lookups.Store(1)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	defer adding.Wait()
	defer close(stop)
	for range 300_000 {
		for s := range figures.Sequences(shared) {
			if s.Split != "train" || s.Settings != "" && !slices.Contains(names, s.Settings) {
				t.Fatalf("a sequence is named %q, %q", s.Split, s.Settings)
			}
		}
	}
}

// The size of the metrics is bounded, however many settings directories are open.
func TestManySequences(t *testing.T) {
	var names []string
	for i := range 1500 {
		names = append(names, fmt.Sprintf("train/seed=%d", i))
	}
	text := Text(newShared(t, names...))
	// A tenth of the series, because the linter compares each pair.
	lint(t, regexp.MustCompile(`(?m)^.*seed=\d*[1-9]".*\n`).ReplaceAll(text, nil))
	seen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		series := line[:strings.LastIndexByte(line, ' ')+1]
		if series != "" && seen[series] {
			t.Errorf("there are two lines for %s", series)
		}
		seen[series] = true
	}
	if n := strings.Count(string(text), "batchfs_cursor{"); n != maxSequences {
		t.Errorf("%d sequences have metrics, want %d", n, maxSequences)
	}
	if !strings.Contains(string(text), "batchfs_sequences_left_out 500\n") {
		t.Error("the metrics do not show that 500 sequences were left out")
	}
}

// All metrics that the alerts and the dashboard use exist.
func TestDeployedNames(t *testing.T) {
	names := regexp.MustCompile(`batchfs_[a-z_]+`)
	shared, known := newShared(t, "train"), map[string]bool{}
	shared.Worker.Store(int64(os.Getpid()))
	shared.Describe(1, "", 0, []string{"web"})
	for _, name := range names.FindAllString(string(Text(shared)), -1) {
		known[name] = true
	}
	for _, file := range []string{"alerts.yaml", "dashboard.json"} {
		text, err := os.ReadFile("../../../deploy/prometheus/" + file)
		if err != nil {
			t.Fatal(err)
		}
		used := names.FindAllString(string(text), -1)
		if len(used) < 10 {
			t.Errorf("%s names %q", file, used)
		}
		for _, name := range used {
			if !known[name] {
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
	}
}
