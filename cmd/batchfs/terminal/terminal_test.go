package terminal

import (
	"bufio"
	"bytes"
	"io"
	"math"
	"testing"
	"testing/synctest"
)

func TestProgressIsNotShownElsewhere(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out, "working", 100, Bytes)
	p.Add(30)
	p.Set(60, 200)
	p.Finish()
	if out.Len() > 0 || Is(&out) {
		t.Errorf("%q, terminal %v", out.String(), Is(&out))
	}
}

// Lines reports progress without a terminal, even while nothing advances.
func TestProgressInLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for total, want := range map[int64]string{2000: "working: 30% of 2.0 kB\n", -1: "working: 600 bytes\n"} {
			r, w := io.Pipe()
			p := NewProgress(io.Discard, "working", total, Bytes)
			p.Add(600)
			p.WriteLines(w)
			if line, err := bufio.NewReader(r).ReadString('\n'); line != want {
				t.Errorf("%q, %v, want %q", line, err, want)
			}
			r.Close() // unblocks a pending write
			p.Finish()
		}
	})
}

func TestFormatBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 bytes", 999: "999 bytes", 1000: "1.0 kB", 999_949: "999.9 kB", 999_950: "1.0 MB", 999_999: "1.0 MB", 1_000_000: "1.0 MB",
		999_949_999: "999.9 MB", 999_950_000: "1.0 GB", 999_999_999_999_999: "1.0 PB", 999_999_999_999_999_999: "1.0 EB", math.MaxInt64: "9.2 EB",
	} {
		if got := FormatBytes(n); got != want {
			t.Errorf("%d bytes are shown as %s, want %s", n, got, want)
		}
	}
}

func TestBar(t *testing.T) {
	for n, want := range map[float64]string{0: "", 1e-9: "▏", 1: "██▌", 1.01: "██▋", 4: "██████████"} {
		if got := Bar(n, 4, 10); got != want {
			t.Errorf("%g of 4: %q, want %q", n, got, want)
		}
	}
}
