package test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
)

func benchCommand(t testing.TB, dir string, args ...string) *exec.Cmd {
	return command(t, plainBatchfs, append([]string{"bench", "--python", python, "--dir", dir, "--bytes", "20000000", "--rounds", "1"}, args...)...)
}

func TestBench(t *testing.T) {
	long(t)
	needFUSE(t)
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "bench.json")
	cmd := benchCommand(t, dir, "--steps", "3", "--json", file)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	leavesNothing(t, dir)
	var report struct {
		Host    struct{ Kernel, Go, Python, NumPy, Torch string }
		NotCold bool `json:"not_cold"`
		Scenes  []struct {
			Name string
			Rows []struct {
				Name, Kind, Access string
				Rounds             []float64
				Figure, P99        float64
				NanoGPT            float64 `json:"nanogpt_over_this"`
			}
		}
		Advice string
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}
	if h := report.Host; h.Kernel == "" || h.Go == "" || h.Python == "" || h.NumPy == "" {
		t.Errorf("host is %+v", h)
	}
	want := 8
	if report.Host.Torch != "" { // which has a DataLoader
		want++
	}
	for _, scene := range report.Scenes {
		if len(scene.Rows) != want {
			t.Errorf("%s: %d ways to get batches, want %d", scene.Name, len(scene.Rows), want)
		}
		for _, r := range scene.Rows {
			if len(r.Rounds) != 1 || r.Figure <= 0 || r.P99 <= 0 || r.NanoGPT <= 0 {
				t.Errorf("%s: %+v", scene.Name, r)
			}
		}
	}
	if len(report.Scenes) != 3 || report.Advice == "" || !strings.HasSuffix(string(out), "\n"+report.Advice+"\n") {
		t.Errorf("%d scenes, and at the end of the output should be the advice %q:\n%s", len(report.Scenes), report.Advice, out)
	}
}

// Both encode the same texts to the same tokens, or the bench fails.
func TestBenchTokenize(t *testing.T) {
	long(t)
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "bench.json")
	cmd := command(t, plainBatchfs, "bench", "--python", filepath.Join(tokenizers(t), "bin/python"), "--dir", dir, "--rounds", "1",
		"--tokenize="+filepath.Join(strings.TrimSpace(run(t, "go", "env", "GOROOT")), "src/net"), "--json", file)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	leavesNothing(t, dir)
	var encodings []struct {
		Library string
		Tokens  int
		Seconds float64
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &encodings)
	}
	if err != nil {
		t.Fatal(err)
	}
	seconds := map[string]float64{}
	for _, e := range encodings {
		if e.Tokens < 100_000 || e.Seconds <= 0 {
			t.Errorf("%+v", e)
		}
		seconds[e.Library] += e.Seconds
	}
	if ratio := seconds["tiktoken"] / seconds["batchfs"]; inSoak() && ratio < 3 || ratio == 0 {
		t.Errorf("%.1f times as fast as tiktoken, want 3", ratio)
	}
	t.Logf("%s", out)
}

func TestBenchInterrupted(t *testing.T) {
	t.Parallel()
	needFUSE(t)
	dir := t.TempDir()
	cmd := benchCommand(t, dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		cmd.Wait()
		close(done)
	}()
	t.Cleanup(func() { cmd.Process.Kill(); <-done })
	await(t, "a mount", func() bool { return len(mountsBelow(t, dir)) > 0 })
	await(t, "the end", func() bool { // by somebody impatient
		cmd.Process.Signal(syscall.SIGINT)
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(out.String(), "interrupted") {
		t.Errorf("exit status %d\n%s", cmd.ProcessState.ExitCode(), &out)
	}
	leavesNothing(t, dir)
}

func mountsBelow(t *testing.T, dir string) []*mountinfo.Info {
	t.Helper()
	list, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// leavesNothing looks for files, mounts and processes that have to do with a directory.
func leavesNothing(t *testing.T, dir string) {
	t.Helper()
	if list := mountsBelow(t, dir); len(list) > 0 {
		t.Errorf("%d mounts are left", len(list))
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) > 0 {
		t.Errorf("left: %v %v", files, err)
	}
	awaitNone(t, "processes", func() (left []string) {
		processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, p := range processes {
			if command, _ := os.ReadFile(p); bytes.Contains(command, []byte(dir)) {
				left = append(left, string(command))
			}
		}
		return left
	})
}
