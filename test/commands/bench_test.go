package commands

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"batchfs/test/e2e"
)

func benchCommand(t testing.TB, dir string, args ...string) *exec.Cmd {
	return e2e.Job(t, e2e.PlainBatchfs, append([]string{"bench", "--python", e2e.Python, "--dir", dir, "--bytes", "20000000", "--rounds", "1"}, args...)...)
}

// A file that cannot be written is an error before bench measures anything.
func TestBenchChecksFiles(t *testing.T) {
	for _, flag := range []string{"--json", "--plot"} {
		_, stderr, err := e2e.Try(t, e2e.PlainBatchfs, "bench", flag, filepath.Join(t.TempDir(), "none/bench.svg"))
		if err == nil || !strings.HasPrefix(stderr, "batchfs: "+flag+": ") {
			t.Errorf("%s: error %v: %s", flag, err, stderr)
		}
	}
}

// bench measures every way to read batches, cold and warm, and leaves nothing behind.
func TestBench(t *testing.T) {
	e2e.SkipIfShort(t)
	e2e.NeedFUSE(t)
	dir, file := filepath.Join(t.TempDir(), "no UTF-8: \xff, $HOME 'or' \"[glob]\""), filepath.Join(t.TempDir(), "bench.json")
	e2e.NoError(t, os.Mkdir(dir, 0o755))
	cmd := benchCommand(t, dir, "--steps", "3", "--all", "--json", file, "--plot", file+".svg")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	e2e.CheckNothingLeft(t, dir)
	var report struct {
		Host    struct{ Kernel, Go, Python, NumPy, Torch string }
		NotCold bool `json:"not_cold"`
		Scenes  []struct {
			Name string
			Ways []struct {
				Name, Kind, Access string
				Rounds             []float64
				Wait, P99          float64
				NanoGPT            float64 `json:"nanogpt_over_this"`
			}
		}
	}
	text := e2e.Content(t, file)
	e2e.NoError(t, json.Unmarshal(text, &report))
	if h := report.Host; h.Kernel == "" || h.Go == "" || h.Python == "" || h.NumPy == "" {
		t.Errorf("the host is %+v, want kernel, Go, Python and NumPy", h)
	}
	want := 8
	if report.Host.Torch != "" { // PyTorch has a DataLoader
		want++
	}
	for _, scene := range report.Scenes {
		if len(scene.Ways) != want {
			t.Errorf("%s: %d ways to get batches, want %d", scene.Name, len(scene.Ways), want)
		}
		for _, w := range scene.Ways {
			if len(w.Rounds) != 1 || w.Wait <= 0 || w.P99 <= 0 || w.NanoGPT <= 0 {
				t.Errorf("%s: %+v, want one round and positive figures", scene.Name, w)
			}
		}
	}
	e2e.Equal(t, "scenes", len(report.Scenes), 3)
	e2e.Contains(t, "the output", string(out), "\nBACK TO BACK: ")
	e2e.Contains(t, "the output", string(out), "\nWait for a batch of 12 rows of 1024 tokens, after 3 ms of compute\n")
	e2e.Contains(t, "the chart", string(e2e.Content(t, file+".svg")), ">Wait for a batch, after 3 ms of compute<")
}

// An interrupted bench fails, and leaves nothing behind.
func TestBenchInterrupted(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	dir := t.TempDir()
	cmd := benchCommand(t, dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	done := e2e.Begin(t, cmd)
	e2e.Await(t, "a mount", func() (any, bool) {
		entries, err := os.ReadDir(dir)
		return fmt.Sprint(entries, err), len(e2e.MountsBelow(t, dir)) > 0
	})
	e2e.Await(t, "the end", func() (any, bool) { // a user presses Ctrl-C repeatedly
		cmd.Process.Signal(syscall.SIGINT)
		select {
		case <-done:
			return nil, true
		default:
			return e2e.MountsBelow(t, dir), false
		}
	})
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(out.String(), "interrupted") {
		t.Errorf("exit status %d, want 1 and a message that says interrupted\n%s", cmd.ProcessState.ExitCode(), &out)
	}
	e2e.CheckNothingLeft(t, dir)
}
