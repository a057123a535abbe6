package e2e

import (
	"encoding/binary"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A storm reads a split in every way at once. An epoch has StormBatches batches of StormB rows of
// StormT tokens.
const StormB, StormT, StormBatches = 4, 256, 4096

// StormTokens returns positions as tokens, with a version of the file in the upper 8 bits.
func StormTokens(version int) []byte {
	const n = StormB*StormT*StormBatches + 1
	raw := make([]byte, 0, 4*n)
	for i := range n {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(version<<24|i))
	}
	return raw
}

// StormConfig writes a configuration, the tokens of a storm, and an array that is aligned with
// them. more holds further keys of the split.
func StormConfig(t testing.TB, more string) (config, data string) {
	t.Helper()
	dir := t.TempDir()
	config, data = filepath.Join(dir, "config.toml"), filepath.Join(dir, "train.bin")
	Write(t, data, StormTokens(0))
	Write(t, AlignedPath(data), StormTokens(0))
	Write(t, config, fmt.Appendf(nil, `
[batch]
batch_size = %d
block_size = %d
token_dtype = "uint32"
dtype = "uint32"
order = "sequential"
[splits.train]
tokens = %q
%s
[[splits.train.arrays]]
name = "at"
files = %q
at = "x"
dtype = "uint32"
`, StormB, StormT, data, more, AlignedPath(data)))
	return config, data
}

// AlignedPath returns the path of the aligned array.
func AlignedPath(data string) string { return data + ".at" }

// A StormResult sums up the reports of all readers of a storm.
type StormResult struct {
	Taken   int            // batches that next delivered
	Missing int            // delivered batches that no reader got
	Failed  map[string]int // failed reads, by errno
	Slowest float64        // slowest read, in seconds
	Reads   int
}

// StartStorms starts readers of every kind of file in the split train.
func StartStorms(t testing.TB, m *Mounted) (clients []*Client) {
	t.Helper()
	clients = append(clients, StartClient(t, exec.Command(Python, "clients/storm.py", m.Path("train"))))
	clients = append(clients, StartClient(t, exec.Command(CStorm, m.Path("train/next"), fmt.Sprint(StormB), fmt.Sprint(StormT), fmt.Sprint(StormBatches))))
	for _, c := range clients {
		c.AwaitReady(t)
	}
	return clients
}

// EndStorms ends the readers of a mount. The test fails if a reader got a wrong byte, or two got
// the same number.
func EndStorms(t testing.TB, m *Mounted, readers []*Client) (got StormResult) {
	t.Helper()
	got.Failed = map[string]int{}
	// numbers counts the reads of next, by the place of their batch in an epoch.
	var numbers [StormBatches]int
	for _, r := range readers {
		for line := range strings.Lines(r.End(t)) {
			var place, n int
			var name string
			var seconds float64
			switch {
			case ScanLine(line, "number %d %d", &place, &n):
				numbers[place] += n
			case ScanLine(line, "failed %s %d", &name, &n):
				got.Failed[name] += n
			case ScanLine(line, "slowest %g", &seconds):
				got.Slowest = max(got.Slowest, seconds)
			case ScanLine(line, "reads %d", &n):
				got.Reads += n
			}
		}
	}
	got.Taken = m.NextNumber(t, "train")
	for p, n := range numbers {
		// want is the number of epochs in which next has delivered batch p.
		want := (got.Taken - p + StormBatches - 1) / StormBatches
		if n > want {
			t.Errorf("%d reads got batch %d of an epoch, want at most %d", n, p, want)
		}
		got.Missing += max(want-n, 0)
	}
	return got
}

// String describes the result in one line.
func (r StormResult) String() string {
	return fmt.Sprintf("%d reads, %d batches of next, %d numbers missing, reads failed %v, slowest %.3f s", r.Reads, r.Taken, r.Missing, r.Failed, r.Slowest)
}

// ScanLine parses the values in a line, and reports whether the line matches the format.
func ScanLine(line, format string, values ...any) bool {
	n, _ := fmt.Sscanf(line, format, values...)
	return n == len(values)
}
