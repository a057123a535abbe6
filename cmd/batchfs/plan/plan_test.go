package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/cmd/batchfs/terminal"
)

// runPlan runs the command in an empty directory.
func runPlan(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	t.Chdir(t.TempDir())
	cmd := Command()
	var text bytes.Buffer
	cmd.SetOut(&text)
	cmd.SetErr(&text)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return text.String(), err
}

// runEstimate returns the estimate for steps of a second.
func runEstimate(t *testing.T, args ...string) (n Estimate) {
	t.Helper()
	out, err := runPlan(t, append([]string{"--json", "--step", "1s"}, args...)...)
	testfiles.NoError(t, err)
	testfiles.NoError(t, json.Unmarshal([]byte(out), &n))
	return n
}

func checkNear(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 0.05*math.Abs(want) {
		t.Errorf("%s: %g, want %g", what, got, want)
	}
}

func checkVerdicts(t *testing.T, n Estimate, words ...string) {
	t.Helper()
	var verdicts string
	for _, v := range n.Verdicts {
		verdicts += fmt.Sprintf("ok %v: %s\n", v.OK, v.Text)
	}
	for _, word := range words {
		if !strings.Contains(verdicts, word) {
			t.Errorf("the verdicts lack %q:\n%s", word, verdicts)
		}
	}
}

const largeCache = 1 << 40 // in bytes; more than any test needs

// With shuffle_block, each byte is fetched once, by one host. With shuffle and random, a host reads
// on average four of the 2048 rows of each block in an epoch, so it needs nearly the whole corpus.
func TestOrders(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	corpus := []string{"--tokens", "15T", "--hosts", "512", "--gpus", "8", "--bandwidth", "1Mbit", "--set", fmt.Sprint("store.cache_bytes=", largeCache)}
	const bytes, block = 30e12, 4 << 20
	n := runEstimate(t, append(corpus, "--set", "batch.order=shuffle", "--set", "batch.shuffle_block=64MiB")...)
	checkNear(t, "shuffle_block: bytes of all hosts", n.Fetched, bytes)
	checkNear(t, "shuffle_block: a host's share", n.WorkingSetBytes, bytes/512)
	if n.LaterEpochs.Bytes != 0 {
		t.Errorf("shuffle_block: %g bytes a second are fetched again in later epochs", n.LaterEpochs.Bytes)
	}
	// There are 15 list requests, and 4 requests for each of the 15,000 objects.
	checkNear(t, "seconds in which all hosts mount", n.FleetMountSeconds, 60015*512/5500)
	checkVerdicts(t, n, "SPLIT/rank=RANK,world=4096,local_world=8", "ok false: if all hosts mount at once", "1 h 33 min")
	unlimited := append(corpus, "--set", "store.cache_bytes=1000000000000000")
	n = runEstimate(t, append(unlimited, "--set", "batch.order=shuffle")...)
	checkNear(t, "shuffle: a host's share", n.WorkingSetBytes, bytes*(1-math.Pow(1-1./512, 2048)))
	checkVerdicts(t, n, "(batchfs cache fill)")
	checkNear(t, "shuffle: peak", n.FirstEpoch.PeakBytes, 96*block)
	n = runEstimate(t, unlimited...)
	checkNear(t, "random: a host's share", n.WorkingSetBytes, bytes*(1-math.Exp(-4)))
	n = runEstimate(t, append(unlimited, "--set", "batch.order=sequential")...)
	checkNear(t, "sequential: blocks of a step", n.StepBlocks, 1+96*1024.*2/block)
}

// The hit rate of a cache is the fraction of the working set that fits in the cache.
func TestCaches(t *testing.T) {
	n := runEstimate(t, "--tokens", "10G", "--hosts", "2", "--set", "batch.order=shuffle")
	if len(n.Caches) != 5 {
		t.Errorf("%d caches, want 5", len(n.Caches))
	}
	for _, c := range n.Caches {
		checkNear(t, fmt.Sprintf("hits of %.0f bytes", c.Bytes), c.Hits, c.Bytes/n.WorkingSetBytes)
	}
}

// The parts of the timeline add up to what the run fetches, and end with the run or with what was
// counted. The block cache fills up to its limit.
func TestTimeline(t *testing.T) {
	for _, test := range []struct {
		args   string
		epochs float64 // in the timeline
	}{{"--epochs 0.35", 0.35}, {"--epochs 2", 2}, {"--epochs 50", 4}} {
		n := runEstimate(t, append(strings.Fields(test.args), "--tokens", "500M", "--hosts", "2", "--set", "batch.order=shuffle", "--set", "store.cache_bytes=700000000")...)
		fetched, end, cached := 0.0, uint64(0), 0.0
		for _, p := range n.Timeline {
			if p.End <= end || p.Cached < cached {
				t.Errorf("%s: %+v follows step %d and %g cached bytes", test.args, p, end, cached)
			}
			fetched += p.Bytes * float64(p.End-end) * n.StepSeconds
			end, cached = p.End, p.Cached
		}
		checkNear(t, test.args+": last step", float64(end), test.epochs*float64(n.EpochSteps))
		checkNear(t, test.args+": bytes in the cache", cached, min(n.WorkingSetBytes, 7e8))
		if n.Epochs <= 4 {
			checkNear(t, test.args+": fetched bytes", fetched, n.HostFetched)
		}
	}
}

// Few sampled blocks give few parts, so that chance does not make some of them many times as busy
// as others.
func TestPartsOfFewSamples(t *testing.T) {
	for _, cache := range []string{"10000000000", "100000000000"} { // a host needs more, and less
		n := runEstimate(t, "--tokens", "100G", "--hosts", "8", "--gpus", "8", "--set", "batch.order=shuffle", "--set", "batch.shuffle_block=64MiB", "--set", "store.cache_bytes="+cache)
		for _, p := range n.Timeline[1:] {
			if p.End <= n.EpochSteps && (p.Bytes < n.FirstEpoch.Bytes/2 || p.Bytes > 2*n.FirstEpoch.Bytes) {
				t.Errorf("a cache of %s: %g bytes a second up to step %d, want about %g", cache, p.Bytes, p.End, n.FirstEpoch.Bytes)
			}
		}
	}
}

// The price is that of the requests and bytes of all hosts, mounting included.
func TestPrice(t *testing.T) {
	corpus := []string{"--tokens", "100M", "--hosts", "2"}
	n := runEstimate(t, append(corpus, "--get-price", "0.5", "--gb-price", "0.25")...)
	checkNear(t, "price", n.Price, n.Requests/1000*0.5+n.Fetched/1e9*0.25)
	checkNear(t, "price by default", runEstimate(t, corpus...).Price, n.Requests*4e-7)
}

// Charts go to the file, and the text has bars for the same rates and caches.
func TestPictures(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plan.svg")
	out, err := runPlan(t, "--tokens", "100M", "--step", "1s", "--epochs", "2", "--plot", file)
	testfiles.NoError(t, err)
	for _, want := range []string{"\nBytes a second from the store to a host, up to each step", "█ ", "\nBlocks that later epochs find in the block cache", "the run: price"} {
		if !strings.Contains(out, want) {
			t.Errorf("%s\nlacks %q", out, want)
		}
	}
	text, err := os.ReadFile(file)
	testfiles.NoError(t, err)
	for _, want := range []string{">Bytes a second from the store to a host<", ">Requests a second of a host<", ">Bytes in the block cache of a host<"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the chart lacks %s", want)
		}
	}
}

// Without a cache, each step fetches all of its blocks.
func TestNoCache(t *testing.T) {
	uncached := runEstimate(t, "--tokens", "10G", "--hosts", "2", "--gpus", "1", "--set", "batch.order=shuffle", "--set", "store.cache_bytes=0", "--epochs", "2")
	checkVerdicts(t, uncached, "ok true: if all hosts mount at once", "ok false: the block cache", "store.cache_bytes = ")
	checkNear(t, "requests without a cache", uncached.HostRequests, uncached.StepBlocks*float64(uncached.Steps))
}

// Each source has its own epochs. Later epochs cost as much as the last one that was simulated.
func TestSources(t *testing.T) {
	n := runEstimate(t, "--source", "web=8G:3", "--source", "books=1G:1", "--hosts", "2", "--gpus", "2", "--set", "batch.order=shuffle", "--steps", "50000")
	rows := 50_000. * 12 * 4
	checkNear(t, "epochs of web", n.Sources[0].Epochs, rows*0.75*1024/8e9)
	checkNear(t, "epochs of books", n.Sources[1].Epochs, rows*0.25*1024/1e9)
	corpus := []string{"--tokens", "1G", "--set", "store.cache_bytes=0"}
	checkNear(t, "requests of 100 epochs", runEstimate(t, append(corpus, "--epochs", "100")...).HostRequests, 50*runEstimate(t, append(corpus, "--epochs", "2")...).HostRequests)
}

// Each stage has its tokens, fractions and epochs, and a cap begins a stage.
func TestStages(t *testing.T) {
	dir := t.TempDir()
	testfiles.Write(t, map[string]string{filepath.Join(dir, "a.bin"): strings.Repeat("ab", 8001), filepath.Join(dir, "b.bin"): strings.Repeat("ab", 4001), filepath.Join(dir, "c.toml"): `
batch = {batch_size = 2, block_size = 8, order = "shuffle", token_dtype = "uint16"}
splits.train.sources = [{name = "web", tokens = "a.bin"}, {name = "math", tokens = "b.bin", max_epochs = 0.5}]
splits.train.stages = [{weights = {web = 9, math = 1}}, {from_row = 400, weights = {web = 1, math = 1}}]
`})
	n := runEstimate(t, "-c", filepath.Join(dir, "c.toml"), "--steps", "500")
	want := []Stage{ // math has 500 rows, 250 of them until the cap: 40 in stage 0, 210 in stage 1
		{0, "", []StageSource{{360 * 8, 0.9, 0.36}, {40 * 8, 0.1, 0.08}}},
		{200, "", []StageSource{{210 * 8, 0.5, 0.57}, {210 * 8, 0.5, 0.5}}},
		{410, "math", []StageSource{{180 * 8, 1, 0.75}, {0, 0, 0.5}}},
	}
	if !reflect.DeepEqual(n.Stages, want) {
		t.Errorf("stages %+v, want %+v", n.Stages, want)
	}
	out, err := runPlan(t, "-c", filepath.Join(dir, "c.toml"), "--steps", "500", "--step", "1s")
	if testfiles.NoError(t, err); !strings.Contains(out, "stage 2, from step 410, when max_epochs of math are used up") {
		t.Error(out)
	}
}

// The splits that --tokens and --source replace don't have to suit the settings of [batch].
func TestReplacedSplits(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.toml")
	testfiles.NoError(t, os.WriteFile(config, []byte("[batch]\nbatch_size = 3\n[splits.val]\ntokens = \"val.bin\"\norder = \"sequential\""), 0o600))
	for _, corpus := range []string{"--tokens=1T", "--source=web=1T:1"} {
		args := []string{"--step=1s", "--hosts=2", "--gpus=8", "--set=batch.order=shuffle", "--set=batch.shuffle_block=64MiB", corpus}
		got := runEstimate(t, append(args, "-c", config)...)
		if want := runEstimate(t, append(args, "--set=batch.batch_size=3")...); !reflect.DeepEqual(got, want) {
			t.Errorf("%s with another split: %+v, want %+v", corpus, got, want)
		}
		_, err := runPlan(t, append(args, "-c", config, "--set=batch.order=sequential")...)
		if err == nil || !strings.Contains(err.Error(), "splits.plan") {
			t.Errorf("%s with settings that it cannot have: %v", corpus, err)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, test := range []struct {
		args  string
		words []string
	}{
		{"--tokens 1G", []string{"--step", "0.25s"}},
		{"--tokens 15X --step 1s", []string{"--tokens", `"15X"`, "15T"}},
		{"--tokens 15T:3 --step 1s", []string{"--tokens: ", `"15T:3"`}},
		{"--tokens 15T --step 1s --shard-tokens 1k", []string{"--shard-tokens", "1k", "15M"}},
		{"--tokens 100 --step 1s", []string{"block_size"}},
		{"--source web=1T --step 1s", []string{"--source", `"web=1T"`, "web=10T:3"}},
		{"--source web=5 --step 1s", []string{"--source", `"web=5"`, "web=10T:3"}},
		{"--source web=:5 --step 1s", []string{"--source", `"web=:5"`}},
		{"--source web=1T:0 --step 1s", []string{"--source", `"web=1T:0"`}},
		{"--source web=1T:Inf --step 1s", []string{"--source", `"web=1T:Inf"`}},
		{"--source web=15T:1 --source tiny=1M:1 --step 1s", []string{"source tiny", "epochs", "weight"}},
		{"--tokens 1G --step 1s --hosts 0", []string{"--hosts", "0"}},
		{"--tokens 1G --step 1s --hosts 1000000 --gpus 100", []string{"--hosts", "--gpus", "16777216"}},
		{"--tokens 1G --step 1s --hosts 1000000 --gpus 8", []string{"batch_size", "12"}},
		{"--tokens 1G --step 1s --bandwidth fast", []string{"--bandwidth", `"fast"`, "25Gbit"}},
		{"--tokens 1G --step 1s --requests -1", []string{"--requests", `"-1"`}},
		{"--tokens 1G --step 1s --plot a.pdf", []string{"a.pdf", ".svg"}},
		{"--tokens 1G --step 1s --plot none/a.svg", []string{"--plot", "none"}},
		{"--tokens 1G --step 1s --get-price -1", []string{"--get-price", "-1"}},
		{"--tokens 1G --step 1s --gb-price NaN", []string{"--gb-price", "NaN"}},
		{"train --tokens 1G --step 1s", []string{"train", "--set"}},
		{"--tokens 1G --step 1s --set batch.rows=packed", []string{"rows"}},
		{"--tokens 1G --step 1s --set batch.rows=packed --set batch.too_long=drop", []string{"leave rows, bos and too_long out"}},
		{"--step 1s", []string{"config.toml"}},
	} {
		_, err := runPlan(t, strings.Fields(test.args)...)
		for _, word := range test.words {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("plan %s: %v, want %q", test.args, err, test.words)
				break
			}
		}
	}
}

func TestUnits(t *testing.T) {
	for text, want := range map[string]float64{"15T": 15e12, "1.5B": 1.5e9, "200M": 2e8, "7": 7} {
		if got, err := parseQuantity("--tokens", text, counts, 1, maxTokens, ""); err != nil || got != want {
			t.Errorf("%s tokens: %g, %v", text, got, err)
		}
	}
	for text, want := range map[string]float64{"25Gbit": 3.125e9, "3GB": 3e9, "1MiB": 1 << 20} {
		if got, err := parseQuantity("--bandwidth", text, rates, 1, 1e15, ""); err != nil || got != want {
			t.Errorf("%s: %g, %v", text, got, err)
		}
	}
	for bytes, want := range map[float64]string{999.9: "999 bytes", 9.2e18: "9.2 EB", 1e20: "100.0 EB", 1e24: "1.0 YB", 1e35: "100000.0 QB"} {
		if got := terminal.FormatBytes(bytes); got != want {
			t.Errorf("%g bytes are %s, want %s", bytes, got, want)
		}
	}
	for seconds, want := range map[float64]string{0.25: "0.25 s", 12: "12 s", 303: "5 min 3 s", 12000: "3 h 20 min", 59.6: "1 min 0 s", 1e6: "11 d 13 h", 3.6e12: "41666666 d 16 h"} {
		if got := formatDuration(seconds); got != want {
			t.Errorf("%g seconds are %s, want %s", seconds, got, want)
		}
	}
}
