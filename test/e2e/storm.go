package e2e

import (
	"encoding/binary"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Lasting returns its first argument, and in a soak the second.
func Lasting(test, soak time.Duration) time.Duration {
	if InSoak() {
		return soak
	}
	return test
}

// The batch size, block size and batches an epoch of a storm.
const StormB, StormT, StormBatches = 4, 256, 4096

// StormTokens are positions, with a version of the file in the upper bits.
func StormTokens(version int) []byte {
	var raw []byte
	for i := range StormB*StormT*StormBatches + 1 {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(version<<24|i))
	}
	return raw
}

// StormConfig is a configuration of them, with more keys of the split.
func StormConfig(t testing.TB, more string) (config, data string) {
	t.Helper()
	dir := t.TempDir()
	config, data = filepath.Join(dir, "config.toml"), filepath.Join(dir, "train.bin")
	Write(t, data, StormTokens(0))
	Write(t, AlignedOf(data), StormTokens(0))
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
`, StormB, StormT, data, more, AlignedOf(data)))
	return config, data
}

// AlignedOf is the file of the array beside tokens.
func AlignedOf(data string) string { return data + ".at" }

// A StormResult is what readers tell at their end.
type StormResult struct {
	Taken   int            // batches of next
	Missing int            // of them, how many no reader got
	Failed  map[string]int // reads, by errno
	Slowest float64        // read, in seconds
	Reads   int
}

// StartStorms starts readers of each kind of file of a mount's split train.
func StartStorms(t testing.TB, m *Mounted) (all []*Client) {
	t.Helper()
	for _, way := range []string{"next", "npy", "safetensors", "plain", "nonblocking", "kept", "rows", "numbered", "batches", "mapped", "tokens", "texts",
		"tensors", "arrays"} {
		all = append(all, StartClient(t, exec.Command(Python, "clients/storm.py", way, m.Path("train"))))
	}
	all = append(all, StartClient(t, exec.Command(CStorm, m.Path("train/next"), fmt.Sprint(StormB), fmt.Sprint(StormT), fmt.Sprint(StormBatches))))
	for _, r := range all {
		r.Ready(t)
	}
	return all
}

// EndStorms ends the readers of a mount. One that got a wrong byte fails the test, and so do two that got one number.
func EndStorms(t testing.TB, m *Mounted, readers []*Client) (got StormResult) {
	t.Helper()
	got.Failed = map[string]int{}
	var numbers [StormBatches]int // how many batches of next were at each place of an epoch
	for _, r := range readers {
		for line := range strings.Lines(r.End(t)) {
			var place, n int
			var name string
			var seconds float64
			switch {
			case Scan(line, "number %d %d", &place, &n):
				numbers[place] += n
			case Scan(line, "failed %s %d", &name, &n):
				got.Failed[name] += n
			case Scan(line, "slowest %g", &seconds):
				got.Slowest = max(got.Slowest, seconds)
			case Scan(line, "reads %d", &n):
				got.Reads += n
			}
		}
	}
	got.Taken = m.Taken(t, "train")
	for p, n := range numbers {
		want := (got.Taken - p + StormBatches - 1) / StormBatches // of batches at that place of their epoch
		if n > want {
			t.Errorf("%d reads got a batch at place %d, of which there were %d", n, p, want)
		}
		got.Missing += max(want-n, 0)
	}
	return got
}

// String sums up what the readers told.
func (r StormResult) String() string {
	return fmt.Sprintf("%d reads, %d batches of next, %d numbers missing, reads failed %v, slowest %.3f s", r.Reads, r.Taken, r.Missing, r.Failed, r.Slowest)
}

// Scan reports whether a line has a format, and reads its values.
func Scan(line, format string, values ...any) bool {
	n, _ := fmt.Sscanf(line, format, values...)
	return n == len(values)
}
