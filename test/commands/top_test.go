package commands

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
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

// A topMount is a mount in the JSON that top prints.
type topMount struct {
	Mountpoint, State string
	Takeovers         int
	Processes         []struct{ PID int }
	Sequences         []struct {
		Name            string
		Batches, Errors int
		Readers         []struct {
			Command        string
			WaitedFraction *float64 `json:"waited_fraction"`
		}
	}
}

// startTop starts top with its output in a pipe. Each call of the returned function reads a line.
func startTop(t *testing.T, mountpoint string) func() *topMount {
	t.Helper()
	program := e2e.StartClient(t, exec.Command(e2e.Batchfs, "top", mountpoint))
	return func() *topMount {
		t.Helper()
		var top struct{ Mounts []*topMount }
		e2e.NoError(t, json.Unmarshal([]byte(program.ReadLine(t)), &top))
		e2e.Equal(t, "mounts", len(top.Mounts), 1)
		return top.Mounts[0]
	}
}

// In a pipe, top prints JSON every second: who reads next, which part of the time each reader
// waits, and counters. These survive workers that die.
func TestTop(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	reader := e2e.StartClient(t, exec.Command(e2e.Python, "-c", `
import os, sys, time
fd, taken = os.open(sys.argv[1], os.O_RDONLY), 0
size = os.fstat(fd).st_size
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    assert len(os.pread(fd, size, 0)) == size
    taken += 1
    time.sleep(0.001)
print(taken, flush=True)`, m.Path("train/next"), filepath.Join(filepath.Dir(config), "stop")))
	reader.AwaitReady(t)
	next := startTop(t, m.Dir)
	e2e.Await(t, "a reader of next with the fraction of its time that it waited", func() (any, bool) {
		s := next().Sequences[0]
		return fmt.Sprintf("%+v", s), s.Name == "train" && s.Batches > 0 && len(s.Readers) == 1 && s.Readers[0].Command != "" && s.Readers[0].WaitedFraction != nil
	})
	kills := e2e.Repeats(10)
	for range kills {
		m.KillServing(t, syscall.SIGKILL)
	}
	e2e.Write(t, filepath.Join(filepath.Dir(config), "stop"), "")
	taken := e2e.Must(strconv.Atoi(reader.ReadLine(t)))(t)
	// A request is counted again if a worker dies after counting and before replying.
	counted := func(n int) bool { return n >= taken && n <= taken+kills }
	e2e.Await(t, fmt.Sprintf("%d takeovers, %d batches that were read, and 3 processes", kills, taken), func() (any, bool) {
		m := next()
		return fmt.Sprintf("%+v", m), m.Takeovers == kills && counted(m.Sequences[0].Batches) && len(m.Processes) == 3
	})
	text := string(e2e.Content(t, m.Path("metrics")))
	n := regexp.MustCompile(`(?m)^batchfs_batches_total\{settings="",split="train"\} (.*)$`).FindStringSubmatch(text)
	if n == nil || !counted(e2e.Must(strconv.Atoi(n[1]))(t)) {
		t.Errorf("metrics say %q, want %d batches, or up to one more per kill", n, taken)
	}
	e2e.Contains(t, "metrics", text, fmt.Sprintf("batchfs_takeovers_total %d\n", kills))
}

// writeMixtureConfig writes a configuration of sources with these weights, and of batches of 7
// rows.
func writeMixtureConfig(t testing.TB, weights ...int) (config string) {
	dir, text := t.TempDir(), "[batch]\nbatch_size = 7\nblock_size = 16\n[splits.train]\n"
	for i, weight := range weights {
		file := e2e.WriteTokens(t, filepath.Join(dir, fmt.Sprintf("%d.bin", i)), 1000, 2)
		text += fmt.Sprintf("[[splits.train.sources]]\ntokens = %q\nweight = %d\n", file, weight)
	}
	return e2e.Write(t, filepath.Join(dir, "config.toml"), text)
}

// The rows of each source of a mixture are counted, under all settings and across workers.
func TestSourceRows(t *testing.T) {
	t.Parallel()
	m := e2e.Mount(t, "-c", writeMixtureConfig(t, 7, 2, 1))
	for round := range 3 {
		for range 10 {
			e2e.Run(t, "cat", m.Path("train/next"))
		}
		for k := 5 * round; k < 5*(round+1); k++ { // 7 rows of each rank
			e2e.Run(t, "cat", m.Path(fmt.Sprintf("train/rank=0,world=2/batch/%d", k)), m.Path(fmt.Sprintf("train/rank=1,world=2/batch/%d.npy", k)))
		}
		m.KillServing(t, syscall.SIGKILL)
	}
	metrics := metricsIn(t, string(e2e.Content(t, m.Path("metrics"))))
	for i, want := range []float64{7, 2, 1} {
		labels := fmt.Sprintf(`{source="%d",split="train"}`, i)
		e2e.Equal(t, "rows of source"+labels, metrics["batchfs_source_rows_total"+labels], 3*2*7*want)
		e2e.Equal(t, "the weight of source"+labels, metrics["batchfs_source_weight_ratio"+labels], want/10)
	}
}

// Metrics over HTTP are the same as those in the file metrics, even while the worker is stopped.
// Other paths, other sites and a port that is in use are rejected.
func TestMetricsListen(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config, "--set", "mount.metrics_listen=127.0.0.1:0")
	worker := m.AwaitWorker(t)
	e2e.NoError(t, syscall.Kill(worker, syscall.SIGSTOP))
	url := m.Metrics(t)
	status, text, err := fetch(t, url)
	e2e.NoError(t, syscall.Kill(worker, syscall.SIGCONT))
	e2e.NoError(t, err)
	e2e.Equal(t, "the HTTP status", status, http.StatusOK)
	names := regexp.MustCompile(`(?m)^# TYPE .*$`)
	e2e.SameSet(t, names.FindAllString(text, -1), names.FindAllString(string(e2e.Content(t, m.Path("metrics"))), -1))
	if status, _, _ := fetch(t, strings.TrimSuffix(url, "metrics")); status != http.StatusNotFound {
		t.Errorf("/ has status %d, want 404", status)
	}
	request := e2e.Must(http.NewRequest(http.MethodGet, url, nil))(t)
	request.Host = "example.org"
	response := e2e.Must(client.Do(request))(t)
	response.Body.Close()
	e2e.Equal(t, "the HTTP status for the host example.org", response.StatusCode, http.StatusForbidden)
	address := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/metrics")
	e2e.CheckFails(t, "mount.metrics_listen: listen tcp "+address, e2e.Batchfs, "mount", "-c", config, "--set", "mount.metrics_listen="+address, t.TempDir())
}

// awaitListed waits until list shows a mount in a state.
func awaitListed(t *testing.T, mountpoint, state string) {
	t.Helper()
	e2e.Await(t, fmt.Sprintf("list to show %s as %s", mountpoint, state), func() (any, bool) {
		list := e2e.Run(t, e2e.Batchfs, "list")
		for line := range strings.Lines(list) {
			if fields := strings.Fields(line); fields[0] == mountpoint {
				return line, fields[1] == state
			}
		}
		return list, false
	})
}

// list and top show every mount, whatever its state, without accessing its files.
func TestListOfMounts(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	serving, dead := e2e.Mount(t, "-c", config), e2e.Mount(t, "-c", config)
	awaitListed(t, serving.Dir, "serving")
	awaitListed(t, dead.Dir, "serving")
	e2e.NoError(t, dead.Cmd.Process.Signal(syscall.SIGKILL))
	awaitListed(t, dead.Dir, "dead")
	awaitListed(t, serving.Dir, "serving")
	e2e.Equal(t, "the state of the dead mount in top", startTop(t, dead.Dir)().State, "dead")
	link := filepath.Join(t.TempDir(), "link")
	e2e.NoError(t, os.Symlink(serving.Dir, link))
	e2e.Equal(t, "the state of the other one by a link", startTop(t, link)().State, "serving")
	e2e.Run(t, e2e.Batchfs, "unmount", dead.Dir)
	e2e.CheckFails(t, "no batchfs is mounted there", e2e.Batchfs, "top", t.TempDir())
}

// In a terminal, top draws a screen, without colors under NO_COLOR, until SIGTERM ends it.
func TestTopInATerminal(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	out, begin := unreadOutput(t, true)
	defer out.Close()
	e2e.NoError(t, unix.IoctlSetWinsize(int(out.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
	var shown screen
	begin(&shown)
	cmd := exec.Command(e2e.Batchfs, "top", m.Dir)
	cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = out, out, out
	done := e2e.Begin(t, cmd)
	e2e.AwaitText(t, &shown, "waiting for data?")
	e2e.AwaitText(t, &shown, "SEQUENCE")
	if strings.Contains(shown.String(), "\x1b[31m") {
		t.Errorf("NO_COLOR is set, and top prints colors: %q", shown.String())
	}
	e2e.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	e2e.AwaitExit(t, cmd, done)
}

// `batchfs why PATH`, status.json and the mount's log give the reason for ENOENT and EINVAL.
func TestWhy(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	log := filepath.Join(t.TempDir(), "log")
	m := e2e.Mount(t, "-c", config, "--log", log)
	for path, want := range map[string]string{
		"train/Next":                `no file is called "Next": there are next, next.npy`,
		"train/seed=seven/next":     "seed: must be a whole number from 0",
		"train/colour=red":          `unknown setting "colour"`,
		"train/seed=\xff":           "seed: must be a whole number from 0",
		"train/batch/01":            "01 begins with a zero: write 1",
		"train/batch/1.txt":         `".txt" cannot follow a batch number, but .npy, .safetensors, .json or nothing can`,
		"train/batch/next":          `"next" does not begin with a batch number`,
		"train/batch/1099511627776": "batch numbers are below 1099511627776",
		"train/next/x":              "next is a file, which has nothing below it (not a directory)",
		"tain/next":                 `no split or file is called "tain": there are README, status.json, metrics, train, val`,
		"seed=1":                    "belong in the directory of a split, as in train/seed=1",
	} {
		e2e.CheckFails(t, want, e2e.Batchfs, "why", m.Path(path))
	}
	for _, path := range []string{"", "train", "train/next", "train/rank=1,world=2/batch/7.npy", "status.json"} {
		e2e.CheckOutput(t, "can be read", e2e.Batchfs, "why", m.Path(path))
	}
	e2e.Equal(t, "the cursor", m.Cursor(t, "train"), "0")
	e2e.Run(t, e2e.Batchfs, "seek", m.Path("train/start=1"), "1099511627775")
	e2e.Run(t, "cat", m.Path("train/start=1/next"))
	_, stderr, _ := e2e.Try(t, e2e.Batchfs, "why", m.Path("train/start=1/next"))
	e2e.Equal(t, "how often why prints the errno", strings.Count(stderr, "no data available"), 1)
	status := e2e.JSON[struct {
		Log      string
		BadNames []struct{ Path, Why string } `json:"bad_names"`
	}](t, "cat", m.Path("status.json"))
	e2e.Equal(t, "the log file in status.json", status.Log, log)
	e2e.Equal(t, "bad names in status.json", len(status.BadNames), 10)
	for _, bad := range status.BadNames {
		if bad.Path == "" || bad.Why == "" {
			t.Errorf("a bad name in status.json is %+v, want a path and a reason", bad)
		}
	}
	e2e.NoError(t, os.Truncate(filepath.Join(filepath.Dir(config), "train.bin"), 1000))
	e2e.CheckFails(t, "train.bin", e2e.Batchfs, "why", m.Path("train/batch/0"))
	// The last error of the sequence does not explain what the kernel rejects.
	e2e.CheckFails(t, "0 is a file, which has nothing below it (not a directory)", e2e.Batchfs, "why", m.Path("train/batch/0/x"))
	e2e.CheckFails(t, "no file has such a long name", e2e.Batchfs, "why", m.Path("train/"+strings.Repeat("x", 2000)))
}

// why says what a read of the whole file would say, however its path writes the settings, and takes
// no batch.
func TestWhySaysWhatAReadSays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tokens := e2e.WriteTokens(t, filepath.Join(dir, "train.bin"), 100_001, 4)
	// In the second row of batch 1, after 80 kB of each array, and not in the samples of mount.
	raw := e2e.Content(t, tokens)
	binary.LittleEndian.PutUint32(raw[4*90_800:], 200_000)
	e2e.Write(t, tokens, raw)
	m := e2e.Mount(t, "-c", e2e.Write(t, filepath.Join(dir, "config.toml"), []byte(`
[splits.train]
tokens = "train.bin"
token_dtype = "uint32"
vocab_size = 150_000
eot = 1
documents = true
order = "sequential"
batch_size = 3
block_size = 20_000
`)))
	for _, path := range []string{
		"train/batch/1", "train/batch/1.npy", "train/batch/1.safetensors", "train/batch/1.positions.npy", "train/batch/1.cu_seqlens.npy",
		"train/batches.npy", "train/batches.positions.npy", "train/start=1/next", "train/start=1/next.npy", "train/start=1/next.safetensors",
		"train/world=2/rank=1/batch/0.positions.npy", "train/world=2/rank=1/next", "train/seed=9,rank=1,world=2/batch/0.cu_seqlens.npy",
	} {
		if _, _, err := e2e.Try(t, "cat", m.Path(path)); err == nil {
			t.Errorf("%s can be read", path)
		}
		e2e.CheckFails(t, "train.bin: token 90800 is 200000, and tokens must be below vocab_size", e2e.Batchfs, "why", m.Path(path))
	}
	for path, want := range map[string]string{
		"train/batch/.hidden":                   "files of batches are called 17, 17.npy",
		"train/world=2/rank=1/Next":             `no file is called "Next": there are next, next.npy`,
		"train/world=2/rank=1/batch/Next":       `"Next" does not begin with a batch number`,
		"train/batch/68719476736.positions.npy": "single arrays have files only for batches below 68719476736; read 68719476736.npy or 68719476736.safetensors",
	} {
		e2e.CheckFails(t, want, e2e.Batchfs, "why", m.Path(path))
	}
	for _, path := range []string{"train/batch/0", "train/batch/0.positions.npy", "train/next", "train/tokens.bin", "train/start=1"} {
		e2e.CheckOutput(t, path+" can be read", e2e.Batchfs, "why", m.Path(path))
	}
	e2e.Equal(t, "the cursors", m.Cursor(t, "train")+m.Cursor(t, "train/start=1"), "01")
}

// Each mount in the background has its own log. The doctor says where it is, also if the mount is
// dead.
func TestLogsOfMounts(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	state := t.TempDir()
	seen := map[string]bool{}
	for _, name := range []string{"a/b", "a-b", strings.Repeat("x", 200)} {
		dir := filepath.Join(t.TempDir(), name)
		e2e.NoError(t, os.MkdirAll(dir, 0o755))
		cmd := e2e.Command(t, e2e.Batchfs, "mount", "-d", "-c", config, dir)
		cmd.Dir = filepath.Dir(state)
		cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+filepath.Base(state))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Cleanup(func() { e2e.Run(t, e2e.Batchfs, "unmount", dir) })
		log := e2e.JSON[struct{ Log string }](t, "cat", filepath.Join(dir, "status.json")).Log
		if seen[log] || !strings.HasPrefix(log, state) {
			t.Errorf("the log of %s is %s, want a new one in %s", dir, log, state)
		}
		seen[log] = true
		e2e.Contains(t, log, string(e2e.Content(t, log)), "mountpoint="+dir)
		e2e.CheckOutput(t, "ok   log: "+log+"\n", e2e.Batchfs, "doctor", dir)

		pid := regexp.MustCompile(`running in the background, process (\d+), log `).FindStringSubmatch(string(out))[1]
		e2e.NoError(t, syscall.Kill(e2e.Must(strconv.Atoi(pid))(t), syscall.SIGKILL))
		e2e.Await(t, "the doctor to say where the log of the dead mount is", func() (any, bool) {
			said, _, err := e2e.Try(t, "env", "XDG_STATE_HOME="+state, e2e.Batchfs, "doctor", dir)
			return said, err != nil && strings.Contains(said, "is dead: ") && strings.Contains(said, "ok   log: "+log+", unless ")
		})
	}
}
