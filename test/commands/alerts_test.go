package commands

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/internal/testwait"
	"batchfs/test/e2e"
)

// metricLine matches a line of metrics: a name, its labels, and a value.
var metricLine = regexp.MustCompile(`(?m)^(batchfs_\w+)(?:(\{.*\}))? (\S+)$`)

// metricsIn returns the metrics in a text, by name and labels.
func metricsIn(t *testing.T, text string) map[string]float64 {
	t.Helper()
	values := map[string]float64{}
	for _, s := range metricLine.FindAllStringSubmatch(text, -1) {
		values[s[1]+s[2]] = e2e.Must(strconv.ParseFloat(s[3], 64))(t)
	}
	return values
}

var client = http.Client{Timeout: testwait.Limit}

func fetch(t *testing.T, url string) (status int, text string, err error) {
	t.Helper()
	response, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	return response.StatusCode, string(e2e.Must(io.ReadAll(response.Body))(t)), nil
}

// A watch collects the time series that Prometheus would store about the mounts of a job.
type watch struct {
	*testing.T
	job    string
	mu     *sync.Mutex
	series *strings.Builder // shared by all jobs; guarded by mu
}

func (w *watch) mount(program string, args ...string) *e2e.Mounted {
	w.Helper()
	return e2e.MountProgram(w, exec.Command(program), append(args, "--set", "mount.metrics_listen=127.0.0.1:0")...)
}

// scrape returns the metrics of a mount, or nil if nothing answers.
func (w *watch) scrape(m *e2e.Mounted) map[string]float64 {
	if _, text, err := fetch(w.T, m.Metrics(w)); err == nil {
		return metricsIn(w.T, text)
	}
	return nil
}

// during scrapes a mount before and after an action. In the series that it adds, the action
// continues for two hours.
func (w *watch) during(m *e2e.Mounted, do func()) {
	first, began := w.scrape(m), time.Now()
	if first == nil {
		w.Fatal("the metrics are not served")
	}
	do()
	second, minutes := w.scrape(m), time.Since(began).Minutes()
	w.mu.Lock()
	defer w.mu.Unlock()
	line := func(name, labels, values string) {
		labels = strings.TrimSuffix(fmt.Sprintf("{job=%q,instance=%q,", w.job, m.Dir)+strings.TrimPrefix(labels, "{"), ",")
		fmt.Fprintf(w.series, "    - {series: %s, values: %q}\n", strconv.Quote(name+strings.TrimSuffix(labels, "}")+"}"), values)
	}
	up := "1x120"
	if second == nil {
		up = "0x120"
	}
	line("up", "", up)
	counter := regexp.MustCompile(`_(total|bucket|count|sum)$`)
	for key, value := range second {
		name, labels := key, ""
		if brace := strings.Index(key, "{"); brace >= 0 {
			name, labels = key[:brace], key[brace:]
		}
		if counter.MatchString(name) {
			line(name, labels, fmt.Sprintf("%.9f%+.9fx120", first[key], (value-first[key])/minutes))
		} else {
			line(name, labels, fmt.Sprintf("%.9fx120", value))
		}
	}
}

func (w *watch) awaitMetric(m *e2e.Mounted, name string, holds func(value float64) bool) {
	w.Helper()
	e2e.Await(w, name, func() (any, bool) {
		value := w.scrape(m)[name]
		return value, holds(value)
	})
}

func isPositive(value float64) bool { return value > 0 }

// read reads next, and pauses after each read.
func (w *watch) read(m *e2e.Mounted, times int, seconds float64) {
	w.Helper()
	e2e.Run(w, e2e.Python, "-c", `
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(fd).st_size
for _ in range(int(sys.argv[2])):
    assert len(os.pread(fd, size, 0)) == size
    if sys.argv[3] != "0": # even time.sleep(0) may yield the processor for longer than a read takes
        time.sleep(float(sys.argv[3]))`, m.Path("train/next"), fmt.Sprint(times), fmt.Sprint(seconds))
}

func (w *watch) mountTokens(program string) (m *e2e.Mounted, tokens string) {
	w.Helper()
	config, _ := e2e.SmallConfig(w, 1)
	return w.mount(program, "-c", config), filepath.Join(filepath.Dir(config), "train.bin")
}

// mountStore mounts an object of 30 blocks, few of which fit in memory. A faulty store replies to
// every eighth request with 503.
func (w *watch) mountStore(faulty bool, split string, args ...string) *e2e.Mounted {
	w.Helper()
	b := e2e.NewBucket(w)
	b.Put(w, "train.bin", e2e.RandomBytes(30*e2e.StoreBlock))
	config := b.Config(w, "s3://bucket/train.bin", split)
	m := w.mount(e2e.Batchfs, append(args, "-c", config, "--set", "memory.ahead_bytes=1048576")...)
	var requests atomic.Int64
	if faulty {
		b.FailWith(func(out http.ResponseWriter, _ *http.Request) bool {
			if requests.Add(1)%8 != 0 {
				return false
			}
			out.WriteHeader(http.StatusServiceUnavailable)
			return true
		})
	}
	return m
}

// inOrder holds settings of a split whose readers finish with a block while it is in memory.
const inOrder = "layout = \"tokens\"\norder = \"sequential\"\nbatch_size = 12"

func dashboardExpressions(t *testing.T) (expressions []string) {
	var d struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	e2e.NoError(t, json.Unmarshal(e2e.Content(t, dashboardFile), &d))
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			expressions = append(expressions, strings.NewReplacer(`="$job"`, `=~".+"`, "$instance", ".+", "$__rate_interval", "5m", "$__range", "1h").Replace(target.Expr))
		}
	}
	return expressions
}

const dashboardFile = "../deploy/prometheus/dashboard.json"

// The dashboard conforms to Grafana's schema.
func TestDashboard(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	tools, stderr, err := e2e.TryJob(t, "../.ci/grafana")
	if err != nil {
		e2e.SkipOrFail(t, "Grafana's schema: %v: %s", err, stderr)
	}
	dir := strings.TrimSpace(tools)
	program := fmt.Sprintf("import type { Dashboard } from %q;\nconst d: Dashboard = %s;\n", dir+"/dashboard", e2e.Content(t, dashboardFile))
	e2e.RunJob(t, "node", dir+"/tsc", "--noEmit", "--strict", "--module", "nodenext", e2e.Write(t, filepath.Join(t.TempDir(), "dashboard.ts"), program))
}

// Each thing that can go wrong fires its own alerts and no others. promtool evaluates the rules on
// metrics of real mounts. Every panel of the dashboard shows data.
func TestAlerts(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		e2e.SkipOrFail(t, "no promtool, which is in the Debian package prometheus: %v", err)
	}
	const rules = "../deploy/prometheus/alerts.yaml"
	states := map[string]struct {
		cause  func(w *watch)
		firing []string
	}{
		"well": {cause: func(w *watch) {
			m := w.mount(e2e.Batchfs, "-c", writeMixtureConfig(w, 3, 1))
			// A read may take 100 ms, as on a busy machine, before this counts as waiting.
			w.during(m, func() { w.read(m, 3, 2) })
		}},
		"batchfs": {firing: []string{"Gone"}, cause: func(w *watch) {
			m, _ := w.mountTokens(e2e.Batchfs)
			w.during(m, func() {
				e2e.NoError(w, m.Cmd.Process.Signal(syscall.SIGKILL))
				e2e.Await(w, "the end of the metrics", func() (any, bool) {
					metrics := w.scrape(m)
					return metrics, metrics == nil
				})
			})
			e2e.Run(w, e2e.Batchfs, "unmount", m.Dir)
		}},
		"waits": {firing: []string{"TrainingWaits"}, cause: func(w *watch) {
			config, _ := e2e.SmallConfig(w, 1)
			disk := e2e.NewSlowFS(w, filepath.Dir(config))
			m := w.mount(e2e.Batchfs, "-c", filepath.Join(disk.Dir, filepath.Base(config)), "--set", "memory.page_cache=drop")
			disk.Delay(w, "read", 20*time.Millisecond)
			w.during(m, func() { w.read(m, 20, 0) })
		}},
		"fails": {firing: []string{"Errors"}, cause: func(w *watch) {
			m, tokens := w.mountTokens(e2e.Batchfs)
			w.during(m, func() {
				e2e.NoError(w, os.Truncate(tokens, 1000))
				e2e.CheckFails(w.T, "Stale", "cat", m.Path("train/next"))
			})
		}},
		"crowded": {firing: []string{"RequestsWait"}, cause: func(w *watch) {
			d := e2e.NewFaultyFile(w, e2e.RandomBytes(1<<20))
			m := w.mount(e2e.Batchfs, "-c", e2e.Write(w, filepath.Join(w.TempDir(), "config.toml"), fmt.Sprintf("[splits.train]\ntokens = %q\n", d.Path)))
			d.Set(w, e2e.Hang)
			w.during(m, func() {
				for k := range 50 {
					e2e.Begin(w, exec.Command("cat", m.Path(fmt.Sprintf("train/batch/%d", k))))
				}
				w.awaitMetric(m, "batchfs_requests_waiting", isPositive)
			})
			d.Set(w, e2e.Healthy)
		}},
		"dies": {firing: []string{"WorkersDie"}, cause: func(w *watch) {
			m, _ := w.mountTokens(e2e.Batchfs)
			w.during(m, func() {
				e2e.NoError(w, syscall.Kill(m.AwaitWorker(w), syscall.SIGQUIT))
				w.awaitMetric(m, "batchfs_worker_crashes_total", isPositive)
			})
		}},
		"refused": {firing: []string{"StoreFails"}, cause: func(w *watch) {
			m := w.mountStore(true, inOrder)
			w.during(m, func() { e2e.Run(w, "cat", m.Path("train/batches.bin")) })
		}},
		"half": {firing: []string{"CacheThrashes", "CacheNearlyFull"}, cause: func(w *watch) {
			m := w.mountStore(false, inOrder, "--set", "store.cache_dir="+w.TempDir(), "--set", fmt.Sprintf("store.cache_bytes=%d", 15*(e2e.StoreBlock+4096)))
			e2e.Run(w, "cat", m.Path("train/seed=1/batches.bin"))
			w.during(m, func() {
				e2e.Run(w, "cat", m.Path("train/seed=2/batches.bin"))
				w.awaitMetric(m, "batchfs_cache_stored_bytes", isPositive)
			})
		}},
		"random": {firing: []string{"FetchedTwice"}, cause: func(w *watch) {
			m := w.mountStore(false, "order = \"random\"\nbatch_size = 1")
			w.during(m, func() { e2e.Run(w, "head", "-c", "100000", m.Path("train/batches.bin")) })
		}},
		"differ": {firing: []string{"HostsDiffer"}, cause: func(w *watch) {
			m, _ := w.mountTokens(e2e.Batchfs)
			config, _ := e2e.SmallConfig(w, 1)
			e2e.WriteTokens(w, filepath.Join(filepath.Dir(config), "train.bin"), 50_000, 2)
			another := w.mount(e2e.Batchfs, "-c", config)
			w.during(m, func() {})
			w.during(another, func() {})
		}},
		"versions": {firing: []string{"HostsDiffer"}, cause: func(w *watch) {
			later := filepath.Join(w.TempDir(), "batchfs")
			e2e.RunJob(w, "go", "build", "-ldflags", "-X main.stamped=v9", "-o", later, "../cmd/batchfs")
			for _, program := range []string{e2e.Batchfs, later} {
				m, _ := w.mountTokens(program)
				w.during(m, func() {})
			}
		}},
	}
	if os.Geteuid() == 0 { // mounting a disk needs root
		disk := states["well"]
		disk.firing = []string{"CacheNearlyFull"}
		disk.cause = func(w *watch) {
			dir := w.TempDir()
			e2e.NoError(w, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,mode=700"))
			w.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
			m := w.mountStore(false, inOrder, "--set", "store.cache_dir="+dir)
			w.during(m, func() {
				e2e.Run(w, "cat", m.Path("train/batches.bin"))
				w.awaitMetric(m, "batchfs_cache_stored_bytes", func(bytes float64) bool { return bytes > 30*e2e.StoreBlock })
			})
		}
		states["disk"] = disk
	}
	var series, want strings.Builder
	var mu sync.Mutex
	t.Run("states", func(t *testing.T) {
		for job, state := range states {
			for _, name := range state.firing {
				fmt.Fprintf(&want, "    - {labels: '{alertname=\"Batchfs%s\", job=%q}', value: 1}\n", name, job)
			}
			t.Run(job, func(t *testing.T) {
				t.Parallel()
				state.cause(&watch{t, job, &mu, &series})
			})
		}
	})
	for _, expression := range dashboardExpressions(t) {
		fmt.Fprintf(&want, "  - {expr: %q, eval_time: 119m, exp_samples: [{value: 1}]}\n", "count("+expression+") > bool 0")
	}
	// A subtest has five minutes of its own.
	t.Run("rules", func(t *testing.T) {
		e2e.Run(t, promtool, "check", "rules", rules)
		e2e.RunJob(t, promtool, "test", "rules", e2e.Write(t, filepath.Join(t.TempDir(), "test.yaml"), fmt.Sprintf(`rule_files: [%q]
evaluation_interval: 1m
tests:
- interval: 1m
  input_series:
%s  promql_expr_test:
  - expr: group by (alertname, job) (ALERTS{alertstate="firing"})
    eval_time: 119m
    exp_samples:
%s`, e2e.Must(filepath.Abs(rules))(t), series.String(), want.String())))
	})
}
