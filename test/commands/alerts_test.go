package commands

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"batchfs/test/e2e"
)

const alerts = "../deploy/prometheus/alerts.yaml"

func promtool(t *testing.T, args ...string) {
	t.Helper()
	program, err := exec.LookPath("promtool")
	if err != nil {
		t.Skipf("promtool, of the package prometheus, is not here: %v", err)
	}
	e2e.Run(t, append([]string{program}, args...)...)
}

// Each alert fires in the state that it is for, and in no other.
func TestAlerts(t *testing.T) {
	promtool(t, "check", "rules", alerts)
	promtool(t, "test", "rules", strings.Replace(alerts, ".yaml", "_test.yaml", 1))
}

// sample is a line of metrics: a name, its labels, and a value.
var sample = regexp.MustCompile(`(?m)^(batchfs_\w+)(?:\{(.*)\})? (\S+)$`)

// scrape reads the metrics of a mount, by name and labels.
func scrape(t *testing.T, m *e2e.Mounted) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for _, s := range sample.FindAllStringSubmatch(string(e2e.Content(t, m.Path("metrics"))), -1) {
		all[s[1]+"{"+s[2]+"}"] = e2e.Must(strconv.ParseFloat(s[3], 64))(t)
	}
	return all
}

// series has a mount's metrics go in two hours from what they were to what they are.
func series(instance string, was, are map[string]float64) (text string) {
	for name, value := range are {
		labels := strings.TrimSuffix(strings.Replace(name, "{", fmt.Sprintf("{job=%q,instance=%q,", "batchfs", instance), 1), ",}")
		if !strings.HasSuffix(labels, "}") {
			labels += "}"
		}
		text += fmt.Sprintf("    - {series: %s, values: \"%.9f%+.9fx120\"}\n", strconv.Quote(labels), was[name], (value-was[name])/120)
	}
	return text
}

// What a mount counts when something is really wrong with it fires the alert for that, and no other one.
func TestAlertsOfMounts(t *testing.T) {
	t.Parallel()
	promtool(t, "--version")
	config, _ := e2e.Small(t, 1)
	other, _ := e2e.Small(t, 1)
	e2e.Tokens(t, filepath.Join(filepath.Dir(other), "train.bin"), 50_000, 2)
	m, another := e2e.Mount(t, "-c", config), e2e.Mount(t, "-c", other) // the tokens of two hosts differ
	was := scrape(t, m)

	e2e.Run(t, e2e.Python, "-c", `
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(fd).st_size
for _ in range(2000):
    assert len(os.pread(fd, size, 0)) == size`, m.Path("train/next")) // which does nothing else
	worker := m.Worker(t)
	e2e.NoError(t, syscall.Kill(worker, syscall.SIGQUIT))
	e2e.AwaitEnded(t, worker)
	m.AwaitWorker(t)
	e2e.NoError(t, os.Truncate(filepath.Join(filepath.Dir(config), "train.bin"), 1000))
	e2e.Fails(t, "Stale", "cat", m.Path("train/next"))
	e2e.Await(t, "a crash that is counted", func() bool { return scrape(t, m)["batchfs_worker_crashes_total{}"] == 1 })

	firing := []string{"BatchfsErrors", "BatchfsGone", "BatchfsHostsDiffer", "BatchfsTrainingWaits", "BatchfsWorkersDie"}
	var want string
	for _, name := range slices.Sorted(slices.Values(firing)) {
		want += fmt.Sprintf("      - {labels: '{alertname=%q}', value: 1}\n", name)
	}
	test := fmt.Sprintf(`rule_files: [%q]
evaluation_interval: 1m
tests:
- interval: 1m
  input_series:
    - {series: 'up{job="batchfs", instance="host3"}', values: "0x120"}
%s%s  promql_expr_test:
  - expr: group by (alertname) (ALERTS{alertstate="firing"})
    eval_time: 119m
    exp_samples:
%s`, e2e.Must(filepath.Abs(alerts))(t), series("host1", was, scrape(t, m)), series("host2", scrape(t, another), scrape(t, another)), want)
	promtool(t, "test", "rules", e2e.Write(t, filepath.Join(t.TempDir(), "test.yaml"), test))
}
