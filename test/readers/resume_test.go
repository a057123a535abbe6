package readers

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// A run whose mount was killed resumes at the step that the trainer knows, with the batches of an
// uninterrupted run.
func TestResume(t *testing.T) {
	t.Parallel()
	const steps = 2000
	runs := 12
	if testing.Short() {
		runs = 3
	}
	config := filepath.Join(t.TempDir(), "config.toml")
	data := e2e.WriteTokens(t, filepath.Join(filepath.Dir(config), "train.bin"), 60_000, 2)
	e2e.Write(t, config, fmt.Appendf(nil, "batch.block_size = 256\nsplits.train.tokens = %q\n", data))
	orders := []string{"shuffle", "torch", "random", "sequential"}
	orders = orders[:min(runs, len(orders))]
	want := map[string][]string{}
	for _, order := range orders {
		want[order] = e2e.Digests(t, "train", 0, steps, "-c", config, "--set", "batch.order="+order)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	for i := range runs {
		order, byNumber, after := orders[i%len(orders)], chance.IntN(2) == 0, chance.IntN(steps-1100)
		t.Run(fmt.Sprintf("%d %s", i, order), func(t *testing.T) {
			t.Parallel()
			flags := []string{"-c", config, "--set", "batch.order=" + order}
			m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), flags...)
			trainer := []string{"pread_kept", m.Path("train/next"), fmt.Sprint(steps)}
			if byNumber {
				trainer = []string{"stretch", m.Path("train/batch"), "0", fmt.Sprint(steps)}
			}
			// The reader is at most a thousand lines ahead, because a pipe holds no more.
			got := runInterrupted(t, trainer, after, func() {
				processes := append(m.Workers(t), m.Cmd.Process.Pid)
				m.Cmd.Process.Kill()
				e2e.AwaitEnded(t, processes...)
			})
			e2e.Run(t, e2e.PlainBatchfs, "unmount", m.Dir)

			step := len(got)
			t.Logf("killed after %d steps", step)
			var rest []string
			switch left := fmt.Sprint(steps - step); i % 3 {
			case 0:
				m = e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), flags...)
				rest = e2e.Read(t, "stretch", m.Path("train/batch"), fmt.Sprint(step), fmt.Sprint(steps))
			case 1:
				m = e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), flags...)
				rest = e2e.Read(t, "pread_kept", m.Path(fmt.Sprintf("train/start=%d/next", step)), left)
			case 2:
				flags = append(flags, "--set", fmt.Sprintf("batch.start=%d", step))
				m = e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), flags...)
				rest = e2e.Read(t, "pread_kept", m.Path("train/next"), left)
			}
			if got = append(got, rest...); len(got) != steps {
				t.Fatalf("got %d steps, want %d", len(got), steps)
			}
			for k := range got {
				if got[k] != want[order][k] {
					t.Fatalf("step %d is %s, want %s as in an uninterrupted run", k, got[k], want[order][k])
				}
			}
		})
	}
}

// runInterrupted runs a method of clients/readers.py, calls interrupt when it has printed more than
// after lines, and returns all lines. The method must fail.
func runInterrupted(t *testing.T, args []string, after int, interrupt func()) (lines []string) {
	t.Helper()
	cmd := e2e.Job(t, e2e.Python, append([]string{"clients/readers.py"}, args...)...)
	out := e2e.Must(cmd.StdoutPipe())(t)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	e2e.NoError(t, cmd.Start())
	for scanner := bufio.NewScanner(out); scanner.Scan(); {
		lines = append(lines, scanner.Text())
		if len(lines) == after+1 {
			interrupt()
		}
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(stderr.String(), "Error: [Errno ") {
		t.Errorf("the reader ended with %v, want an errno\n%s", err, &stderr)
	}
	return lines
}
