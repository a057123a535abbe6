package bench

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"slices"
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

// fakeReport returns a report with these waits in µs by kind, or by kind and access. Others are 10.
func fakeReport(torch bool, waits map[string]float64) *report {
	r := &report{Scenes: (&options{}).scenes(torch)}
	for _, sc := range r.Scenes {
		for _, w := range sc.Ways {
			w.waits = []float64{cmp.Or(waits[w.Kind+w.Access], waits[w.Kind], 10)}
			w.Rounds = w.waits
		}
		sc.summarize()
	}
	return r
}

// The last line recommends what is clearly faster than what comes before it, and has its wait.
func TestAdvice(t *testing.T) {
	for _, test := range []struct {
		waits map[string]float64
		want  string
	}{
		{nil, "Read batches.bin in order: a trainer waits 10.0 µs for a batch, cold, after 5 ms of compute. With nanoGPT get_batch, it waits 10.0 µs, 1 times as long."},
		{map[string]float64{"batches_binremap": 12, "next_kept": 11, "nanogpt": 60000}, "Read batches.bin in order: a trainer waits 12.0 µs for a batch, cold, after 5 ms of compute. With nanoGPT get_batch, it waits 60 ms, 5000 times as long."},
		{map[string]float64{"batches_bin": 40, "next_kept": 20, "next_opened": 30, "nanogpt": 50, "pread_rows": 40, "dataloader": 90}, "Read next kept open: a trainer waits 20.0 µs"},
		{map[string]float64{"batches_binremap": 13, "nanogpt": 200}, `Read batches.bin in order with memory.access = "pread": a trainer waits 10.0 µs`},
		{map[string]float64{"batches_bin": 40, "next_kept": 40, "next_opened": 90, "nanogpt": 80},
			"A mount is slower here (batchfs, batches.bin in order, remap: 40.0 µs), so use one pread per row, in the trainer: a trainer waits 10.0 µs"},
	} {
		for _, torch := range []bool{false, true} {
			var out bytes.Buffer
			fakeReport(torch, test.waits).print(&out)
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if got := lines[len(lines)-1]; !strings.HasPrefix(got, test.want) {
				t.Errorf("%v:\n%s\nwant %s", test.waits, got, test.want)
			}
		}
	}
}

// Each loader has one bar in each scene with compute, as long as its wait. A cold scene that was
// not cold is left out, everywhere.
func TestPictures(t *testing.T) {
	r := fakeReport(true, map[string]float64{"nanogpt": 1000, "batches_binpread": 500})
	for _, cached := range []bool{false, true} {
		r.ColdWasCached = cached
		var out bytes.Buffer
		r.print(&out)
		bars := slices.DeleteFunc(strings.Split(out.String(), "\n"), func(line string) bool { return !strings.HasPrefix(line, "  ") })
		want := map[bool]int{false: 12, true: 6}[cached]
		if len(bars) != want || strings.Count(out.String(), strings.Repeat("█", 22)+" 1 ms\n") != want/6 || strings.Contains(out.String(), "NaN") {
			t.Errorf("cold file in the cache %v: %d bars, want %d\n%s", cached, len(bars), want, &out)
		}
		if all := strings.Contains(out.String(), "cold, after"); all == cached {
			t.Errorf("cold file in the cache %v:\n%s", cached, &out)
		}
		file := filepath.Join(t.TempDir(), "bench.svg")
		if err := r.savePlot(file); err != nil {
			t.Fatal(err)
		}
		text, _ := os.ReadFile(file)
		for name, count := range map[string]int{">nanoGPT get_batch<": 3, ">batchfs, next kept open, pread<": 3, ">1 ms<": 3, ">500 µs<": 3, ">Wait for a batch, cold, after 5 ms of compute<": 1} {
			if cached {
				count--
			}
			if got := strings.Count(string(text), name); got != count {
				t.Errorf("cold file in the cache %v: the chart has %s %d times, want %d", cached, name, got, count)
			}
		}
		out.Reset()
		r.printAll(&out)
		if got := strings.Count(out.String(), "PyTorch DataLoader"); got != len(r.measured()) {
			t.Errorf("cold file in the cache %v: --all has %d scenes\n%s", cached, got, &out)
		}
	}
}
