package commands

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"batchfs/test/e2e"
)

// A seen mount is what top prints of it.
type seen struct {
	Mountpoint, State string
	Takeovers         int
	Processes         []struct{ PID int }
	Sequences         []struct {
		Name            string
		Batches, Errors int
		Readers         []struct {
			Command     string
			WaitedShare *float64 `json:"waited_share"`
		}
	}
}

// seconds starts top, whose output is a pipe, and returns a function for the mount of its next line.
func seconds(t *testing.T, mountpoint string) func() *seen {
	cmd := e2e.Command(t, e2e.Batchfs, "top", mountpoint)
	out := e2e.Must(cmd.StdoutPipe())(t)
	e2e.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	lines := bufio.NewReader(out)
	return func() *seen {
		t.Helper()
		line, err := lines.ReadString('\n')
		e2e.NoError(t, err)
		var all struct{ Mounts []*seen }
		e2e.NoError(t, json.Unmarshal([]byte(line), &all))
		e2e.Equal(t, "mounts", len(all.Mounts), 1)
		return all.Mounts[0]
	}
}

// Piped, top prints an object a second: who reads next, how long that waits, and what was counted, which no death of a worker loses.
func TestTop(t *testing.T) {
	t.Parallel()
	config, _ := e2e.Small(t, 1)
	m := e2e.Mount(t, "-c", config)
	reader := e2e.StartClient(t, e2e.Command(t, e2e.Python, "-c", `
import os, sys, time
fd, taken = os.open(sys.argv[1], os.O_RDONLY), 0
size = os.fstat(fd).st_size
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    assert len(os.pread(fd, size, 0)) == size
    taken += 1
    time.sleep(0.001)
print(taken, flush=True)`, m.Path("train/next"), filepath.Join(filepath.Dir(config), "stop")))
	reader.Ready(t)
	next := seconds(t, m.Dir)
	e2e.Await(t, "a reader of next whose waits are known", func() bool {
		s := next().Sequences[0]
		return s.Name == "train" && s.Batches > 0 && len(s.Readers) == 1 && s.Readers[0].Command != "" && s.Readers[0].WaitedShare != nil
	})
	kills := e2e.Soak(10)
	for range kills {
		worker := m.AwaitStandby(t)[0]
		e2e.Kill(t, m, worker)
		e2e.AwaitEnded(t, worker)
	}
	e2e.Write(t, filepath.Join(filepath.Dir(config), "stop"), "")
	taken := e2e.Must(strconv.Atoi(reader.Line(t)))(t)
	// A request that was counted and had no answer yet is counted again.
	counted := func(n int) bool { return n >= taken && n <= taken+kills }
	e2e.Await(t, "all that was read", func() bool {
		m := next()
		return m.Takeovers == kills && counted(m.Sequences[0].Batches) && len(m.Processes) == 3
	})
	text := string(e2e.Content(t, m.Path("metrics")))
	n := regexp.MustCompile(`(?m)^batchfs_batches_total\{settings="",split="train"\} (.*)$`).FindStringSubmatch(text)
	if n == nil || !counted(e2e.Must(strconv.Atoi(n[1]))(t)) {
		t.Errorf("%d batches were read; metrics say %q", taken, n)
	}
	e2e.Contains(t, "metrics", text, fmt.Sprintf("batchfs_takeovers_total %d\n", kills))
}

// mixture is a configuration of batches of 7 rows.
func mixture(t testing.TB, weights ...int) (config string) {
	dir, text := t.TempDir(), "[batch]\nbatch_size = 7\nblock_size = 16\n[splits.train]\n"
	for i, weight := range weights {
		file := e2e.Tokens(t, filepath.Join(dir, fmt.Sprintf("%d.bin", i)), 1000, 2)
		text += fmt.Sprintf("[[splits.train.sources]]\ntokens = %q\nweight = %d\n", file, weight)
	}
	return e2e.Write(t, filepath.Join(dir, "config.toml"), text)
}

// The rows of each source of a mixture are counted, whatever settings they are read under and whichever worker serves.
func TestSourceRows(t *testing.T) {
	t.Parallel()
	m := e2e.Mount(t, "-c", mixture(t, 7, 2, 1))
	for round := range 3 {
		for range 10 {
			e2e.Run(t, "cat", m.Path("train/next"))
		}
		for k := 5 * round; k < 5*(round+1); k++ { // 7 rows of each rank
			e2e.Run(t, "cat", m.Path(fmt.Sprintf("train/rank=0,world=2/batch/%d", k)), m.Path(fmt.Sprintf("train/rank=1,world=2/batch/%d.npy", k)))
		}
		e2e.Kill(t, m, m.AwaitStandby(t)[0])
	}
	metrics := samples(t, string(e2e.Content(t, m.Path("metrics"))))
	for i, want := range []float64{7, 2, 1} {
		labels := fmt.Sprintf(`{source="%d",split="train"}`, i)
		e2e.Equal(t, "rows of source"+labels, metrics["batchfs_source_rows_total"+labels], 3*2*7*want)
		e2e.Equal(t, "its share", metrics["batchfs_source_share_ratio"+labels], want/10)
	}
}

// Metrics over HTTP are the same as in the mount's file, also while no worker serves; no other path is, and a port that is taken is refused.
func TestMetricsListen(t *testing.T) {
	config, _ := e2e.Small(t, 1)
	m := e2e.Mount(t, "-c", config, "--set", "mount.metrics_listen=127.0.0.1:0")
	worker := m.Worker(t)
	e2e.NoError(t, syscall.Kill(worker, syscall.SIGSTOP))
	url := m.Metrics(t)
	status, text, err := fetch(t, url)
	e2e.NoError(t, syscall.Kill(worker, syscall.SIGCONT))
	e2e.NoError(t, err)
	e2e.Equal(t, "the status", status, http.StatusOK)
	names := regexp.MustCompile(`(?m)^# TYPE .*$`)
	e2e.SameSet(t, names.FindAllString(text, -1), names.FindAllString(string(e2e.Content(t, m.Path("metrics"))), -1))
	if status, _, _ := fetch(t, strings.TrimSuffix(url, "metrics")); status != http.StatusNotFound {
		t.Errorf("/ is answered with %d", status)
	}
	address := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/metrics")
	e2e.Fails(t, "mount.metrics_listen: listen tcp "+address, e2e.Batchfs, "mount", "-c", config, "--set", "mount.metrics_listen="+address, t.TempDir())
}

// view and metrics answer despite more idle connections than the process may have descriptors. A
// request whose Host header may name another site is refused.
func TestServedOverHTTP(t *testing.T) {
	t.Parallel()
	config, _ := e2e.Small(t, 1)
	fewFiles := func() *exec.Cmd { return exec.Command("sh", "-c", `ulimit -n 256; exec "$0" "$@"`, e2e.Batchfs) }
	view := fewFiles()
	view.Args = append(view.Args, "view", "-c", config)
	page := e2e.StartClient(t, view).Line(t)
	metrics := e2e.MountProgram(t, fewFiles(), "-c", config, "--set", "mount.metrics_listen=127.0.0.1:0").Metrics(t)
	for _, address := range []string{page, metrics} {
		where := e2e.Must(url.Parse(address))(t)
		for range 300 {
			c := e2e.Must(net.Dial("tcp", where.Host))(t)
			defer c.Close()
			e2e.Must(io.WriteString(c, "GET / HT"))(t)
		}
		for host, want := range map[string]int{where.Host: http.StatusOK, "localhost": http.StatusOK, "example.org:80": http.StatusForbidden} {
			r := e2e.Must(http.NewRequest(http.MethodGet, address, nil))(t)
			r.Host, r.Close = host, true
			client := http.Client{Timeout: e2e.Limit}
			response := e2e.Must(client.Do(r))(t)
			response.Body.Close()
			e2e.Equal(t, "the status of "+address+" for "+host, response.StatusCode, want)
		}
	}
}

// stateInList returns a function that reports whether list shows the mount at mountpoint in state.
func stateInList(t *testing.T, mountpoint, state string) func() bool {
	return func() bool {
		for line := range strings.Lines(e2e.Run(t, e2e.Batchfs, "list")) {
			if fields := strings.Fields(line); fields[0] == mountpoint {
				return fields[1] == state
			}
		}
		return false
	}
}

// list and top show every mount, whatever its state, without accessing its files.
func TestListOfMounts(t *testing.T) {
	t.Parallel()
	config, _ := e2e.Small(t, 1)
	serving, dead := e2e.Mount(t, "-c", config), e2e.Mount(t, "-c", config)
	e2e.Await(t, "two mounts that serve", func() bool {
		return stateInList(t, serving.Dir, "serving")() && stateInList(t, dead.Dir, "serving")()
	})
	e2e.NoError(t, dead.Cmd.Process.Signal(syscall.SIGKILL))
	e2e.Await(t, "a dead one", stateInList(t, dead.Dir, "dead"))
	e2e.Await(t, "one that serves beside it", stateInList(t, serving.Dir, "serving"))
	e2e.Equal(t, "top of the dead one", seconds(t, dead.Dir)().State, "dead")
	e2e.Run(t, e2e.Batchfs, "unmount", dead.Dir)
	e2e.Fails(t, "no batchfs is mounted there", e2e.Batchfs, "top", t.TempDir())
}

// In a terminal top draws a screen, and q ends it.
func TestTopInATerminal(t *testing.T) {
	t.Parallel()
	config, _ := e2e.Small(t, 1)
	m := e2e.Mount(t, "-c", config)
	out, begin := unread(t, true)
	defer out.Close()
	e2e.NoError(t, unix.IoctlSetWinsize(int(out.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
	var said screen
	begin(&said)
	cmd := e2e.Command(t, e2e.Batchfs, "top", m.Dir)
	cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = out, out, out
	done := e2e.Begin(t, cmd)
	e2e.Await(t, "a screen", func() bool {
		return strings.Contains(said.String(), "waiting for data?") && strings.Contains(said.String(), "SEQUENCE")
	})
	if strings.Contains(said.String(), "\x1b[31m") {
		t.Errorf("there are colours: %q", said.String())
	}
	e2e.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	<-done
}

// Whoever gets ENOENT or EINVAL can ask why: of the path, of status.json, and of a log that is the mount's own.
func TestWhy(t *testing.T) {
	t.Parallel()
	config, _ := e2e.Small(t, 1)
	log := filepath.Join(t.TempDir(), "log")
	m := e2e.Mount(t, "-c", config, "--log", log)
	for path, want := range map[string]string{
		"train/Next":                `no file is called "Next": there are next, next.npy`,
		"train/seed=seven/next":     "seed: must be a whole number from 0",
		"train/colour=red":          `unknown setting "colour"`,
		"train/batch/01":            "01 begins with a zero: write 1",
		"train/batch/1.txt":         `".txt" cannot follow a batch number, but .npy, .safetensors, .json or nothing can`,
		"train/batch/next":          `"next" does not begin with a batch number`,
		"train/batch/1099511627776": "batch numbers are below 1099511627776",
		"tain/next":                 `no split or file is called "tain": there are README, status.json, metrics, train, val`,
		"seed=1":                    "belong in the directory of a split, as in train/seed=1",
	} {
		e2e.Fails(t, want, e2e.Batchfs, "why", m.Path(path))
	}
	for _, path := range []string{"", "train", "train/next", "train/rank=1,world=2/batch/7.npy", "status.json"} {
		e2e.Says(t, "can be read", e2e.Batchfs, "why", m.Path(path))
	}
	e2e.Equal(t, "the cursor", m.Cursor(t, "train"), "0")
	status := e2e.JSON[struct {
		Log      string
		BadNames []struct{ Path, Why string } `json:"bad_names"`
	}](t, "cat", m.Path("status.json"))
	e2e.Equal(t, "the log in status.json", status.Log, log)
	e2e.Equal(t, "bad names", len(status.BadNames), 9)
	for _, bad := range status.BadNames {
		if bad.Path == "" || bad.Why == "" {
			t.Errorf("%+v", bad)
		}
	}
	e2e.NoError(t, os.Truncate(filepath.Join(filepath.Dir(config), "train.bin"), 1000))
	e2e.Fails(t, "train.bin", e2e.Batchfs, "why", m.Path("train/batch/0"))
}

// Each mount in the background has a log of its own.
func TestLogsOfMounts(t *testing.T) {
	t.Parallel()
	config, _ := e2e.Small(t, 1)
	state := t.TempDir()
	seen := map[string]bool{}
	for _, name := range []string{"a/b", "a-b", strings.Repeat("x", 200)} {
		dir := filepath.Join(t.TempDir(), name)
		e2e.NoError(t, os.MkdirAll(dir, 0o755))
		cmd := e2e.Command(t, e2e.Batchfs, "mount", "-d", "-c", config, dir)
		cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+state)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Cleanup(func() { e2e.Run(t, e2e.Batchfs, "unmount", dir) })
		log := e2e.JSON[struct{ Log string }](t, "cat", filepath.Join(dir, "status.json")).Log
		if seen[log] || !strings.HasPrefix(log, state) {
			t.Errorf("the log of %s is %s", dir, log)
		}
		seen[log] = true
		e2e.Contains(t, log, string(e2e.Content(t, log)), "mountpoint="+dir)
	}
}
