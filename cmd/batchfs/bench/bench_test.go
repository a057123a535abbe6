package bench

import (
	"bytes"
	"cmp"
	"strings"
	"testing"
	"time"
)

func TestFigure(t *testing.T) {
	// With read-ahead, many short waits are followed by a long one. One wait is an outlier.
	var waits []float64
	for range 5 * 16 {
		waits = append(waits, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 170)
	}
	waits[100] = 1e6
	if got := (&scene{}).typicalWait(waits); got != 20 {
		t.Errorf("back to back: %v, want the mean of windows, 20", got)
	}
	if got := (&scene{Compute: time.Millisecond}).typicalWait(waits); got != 10 {
		t.Errorf("after compute: %v, want the median, 10", got)
	}
	if got := (&scene{Compute: time.Millisecond, Cold: true}).typicalWait(waits); got < 700 {
		t.Errorf("cold: %v, want the mean", got)
	}
}

// The advice is to change only what is slower than an alternative.
func TestAdvice(t *testing.T) {
	const nothing = "Change nothing: every way to read takes about as long."
	for _, test := range []struct {
		name          string
		slow          map[string]float64 // waits by kind, or by kind and access; others are 10
		readAhead     int
		want, without string
	}{
		{name: "all alike", want: nothing},
		{name: "little", slow: map[string]float64{"next_kept": 12, "batches_binremap": 11}, want: nothing},
		{name: "batches.bin", slow: map[string]float64{"next_kept": 40, "next_opened": 90}, want: "read batches.bin in order (10.0 µs a batch after 3 ms of compute; next kept open takes 40.0,", without: "pread"},
		{name: "next", slow: map[string]float64{"next_opened": 90}, want: "keep next open", without: "in order"},
		{name: "access", slow: map[string]float64{"batches_binremap": 30, "next_keptremap": 30, "next_openedremap": 30, "nanogpt": 99, "pread_rows": 99, "dataloader": 99},
			want: `set memory.access = "pread" (10.0 µs a batch back to back; "remap" takes 30.0)`, without: "in order"},
		{name: "not root", readAhead: 128, want: "mount as root, so that the kernel reads 1024 KiB of batches.bin ahead, not 128"},
		{name: "root", readAhead: 1024, want: nothing},
		{name: "loader", slow: map[string]float64{"batches_bin": 40, "next_kept": 40, "next_opened": 40, "nanogpt": 99}, want: "use no mount: the fastest is one pread per row"},
	} {
		for _, torch := range []bool{false, true} {
			r := &report{Host: hostInfo{MountReadAhead: test.readAhead}, Scenes: (&options{}).scenes(torch)}
			for _, sc := range r.Scenes {
				for _, w := range sc.Ways {
					w.waits = []float64{cmp.Or(test.slow[w.Kind+w.Access], test.slow[w.Kind], 10)}
					w.Rounds = w.waits
				}
				sc.summarize()
			}
			r.Advice = r.advice()
			var table bytes.Buffer
			r.print(&table)
			if got := table.String(); !strings.Contains(got, test.want) || strings.Contains(got, "%!") || strings.Contains(got, "NaN") ||
				test.without != "" && strings.Contains(r.Advice, test.without) {
				t.Errorf("%s:\n%s", test.name, got)
			}
		}
	}
}
