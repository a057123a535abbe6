package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestStatistics(t *testing.T) {
	for _, test := range []struct {
		xs                []float64
		mean, median, p99 float64
	}{
		{nil, 0, 0, 0},
		{[]float64{7}, 7, 7, 7},
		{[]float64{4, 1}, 2.5, 2.5, 3.97},
		{[]float64{9, 1, 2}, 4, 2, 8.86},
	} {
		for i, pair := range [][2]float64{{mean(test.xs), test.mean}, {median(test.xs), test.median}, {quantile(test.xs, 0.99), test.p99}} {
			if math.Abs(pair[0]-pair[1]) > 1e-9 {
				t.Errorf("%v: statistic %d is %v, want %v", test.xs, i, pair[0], pair[1])
			}
		}
	}
}

func TestFigure(t *testing.T) {
	// Read-ahead in bursts: 30 short waits, two long ones. And one wait that is somebody else's.
	var waits []float64
	for range 5 * 16 {
		waits = append(waits, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 170)
	}
	waits[100] = 1e6
	if got := (scene{}).figure(waits); got != 20 {
		t.Errorf("back to back: %v, want the mean of windows, 20", got)
	}
	if got := (scene{Compute: time.Millisecond}).figure(waits); got != 10 {
		t.Errorf("after compute: %v, want the median, 10", got)
	}
	if got := (scene{Compute: time.Millisecond, Cold: true}).figure(waits); got < 700 {
		t.Errorf("cold: %v, want the mean", got)
	}
}

// Whatever is run, every promise finds its rows, and no two rows look the same.
func TestReport(t *testing.T) {
	for _, full := range []bool{false, true} {
		for _, torch := range []bool{false, true} {
			r := &report{Ideal: 1000}
			for _, sc := range (&options{full: full}).scenes(torch) {
				var results []*result
				seen := map[string]bool{}
				for _, c := range sc.contenders {
					name := c.group() + c.String()
					if seen[name] {
						t.Errorf("%s: twice %s", sc.Name, name)
					}
					seen[name] = true
					results = append(results, &result{contender: c, rounds: []float64{3, 1, 2}, waits: []float64{1, 2}, even: []float64{1}, steps: 2, disk: 2000})
				}
				r.add(sc, results)
			}
			r.promise()
			// All took as long: only what need not be faster than another holds.
			for _, p := range r.Promises {
				if p.Holds != (p.Target <= 1 || p.AtMost) {
					t.Errorf("%+v", p)
				}
			}
			var table bytes.Buffer
			r.print(&table)
			if strings.Contains(table.String(), "%!") || strings.Contains(table.String(), "NaN") {
				t.Errorf("table:\n%s", &table)
			}
			if _, err := json.Marshal(r); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestReader(t *testing.T) {
	s, err := newStage(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	path, err := s.tokens(context.Background(), "t.bin", 10_000, false, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c := command{Kind: "gather", Path: path, Access: "pread", DType: "int64", Layout: "xy", Batch: 3, Block: 5, Steps: 2, Lead: 2, Seconds: 1}
	r, err := newReader(c)
	if err != nil {
		t.Fatal(err)
	}
	if waits, err := r.run(c); err != nil || len(waits) != 2 {
		t.Errorf("%v %v", waits, err)
	}
	r.buf[8]++
	if r.check() == nil {
		t.Error("x and y differ, and nobody says so")
	}
	if err := os.Truncate(path, 8192); err != nil {
		t.Fatal(err)
	}
	if _, err := r.run(c); err == nil {
		t.Error("a file that was cut gave batches")
	}
}

func TestIdealBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.bin")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := idealBytes(path, 12, 8); err != nil || got != 4096 {
		t.Errorf("%v %v: all rows lie on one page", got, err)
	}
}
