package top

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"batchfs/fs/figures"
)

// twoFrames returns two frames, one second apart, of a dead mount and a mount whose readers waited
// for the given fraction of that second.
func twoFrames(waited float64, readers ...*figures.Reader) (first, second *figures.Frame) {
	poll := func(second int) *figures.Frame {
		s := &figures.Sequence{Name: "train", Cursor: uint64(50 * second), Batches: uint64(50 * second), Bytes: uint64(1e6 * second), Reads: uint64(50 * second)}
		for _, r := range readers {
			reader := *r
			reader.Waited, reader.Gap = waited*float64(second), (1-waited)*float64(second)
			s.Readers = append(s.Readers, &reader)
		}
		return &figures.Frame{Time: time.Unix(int64(second), 0), Mounts: []*figures.Mount{
			{Mountpoint: "/mnt/a", State: "serving", Version: "v1",
				Store:     figures.Store{Fetched: 5e6 * int64(second), Requests: 3 * int64(second), Errors: 2 * int64(second), Retries: 1, Hits: 3, Waits: 1, Full: 1, Limit: 1e9, Needed: 4e9, Stored: 3e9},
				Processes: []figures.Process{{Name: "worker", PID: 7, Resident: 3e7}}, Sequences: []*figures.Sequence{s}},
			{Mountpoint: "/mnt/dead\x1b[2J" + strings.Repeat("é", 300), State: "dead"},
		}}
	}
	first, second = poll(1), poll(2)
	second.ComputeRates(first)
	return first, second
}

func TestHeadline(t *testing.T) {
	python := &figures.Reader{PID: 12, Command: "python"}
	for _, test := range []struct {
		waited  float64
		readers []*figures.Reader
		want    string
		isBad   bool
	}{
		{0.01, []*figures.Reader{python}, "No: python 12 waits 1.0%, /mnt/a/train/next", false},
		{0.4, []*figures.Reader{python}, "YES: python 12 waits 40.0%", true},
		{0, []*figures.Reader{python}, "No: python 12 waits 0.0%", false},
		{0, nil, "Not visible", false},
	} {
		_, f := twoFrames(test.waited, test.readers...)
		if got := headline(f); !strings.Contains(got.text, test.want) || got.isBad != test.isBad {
			t.Errorf("%+v: %+v", test, got)
		}
	}
	if got := headline(&figures.Frame{}); !strings.Contains(got.text, "No process reads next") {
		t.Errorf("%+v", got)
	}
}

// Every line fits a terminal of any size, and no name can contain control characters.
func TestScreen(t *testing.T) {
	_, f := twoFrames(0.4, &figures.Reader{PID: 12, Command: "python"}, &figures.Reader{PID: 13, Command: strings.Repeat("x", 500)})
	f.Mounts[0].Sequences[0].Errors, f.Mounts[0].Sequences[0].LastError = 3, "first\nsecond\x07"
	for range 40 {
		f.Mounts[0].Sequences = append(f.Mounts[0].Sequences, &figures.Sequence{Name: "train/order=shuffle,seed=1"})
	}
	half := 0.5
	history := map[string][]interval{"/mnt/a": append(make([]interval, 56), interval{batches: 1, waited: &half}, interval{batches: 2}, interval{}, interval{batches: 4, waited: &half})}
	for _, size := range [][2]int{{80, 24}, {200, 60}, {1, 1}, {0, 0}} {
		all := frameLines(f, history, size[0])
		for _, from := range []int{0, 7, len(all), len(all) + 3} {
			shown := screen(all, from, size[0], size[1], "", "")
			lines := strings.Split(shown, "\n")
			if len(lines) > max(size[1], 1) {
				t.Errorf("%v: %d lines", size, len(lines))
			}
			for _, l := range lines {
				if n := utf8.RuneCountInString(l); n > max(size[0], 1) || strings.ContainsAny(l, "\x1b\x07") {
					t.Errorf("%v: %d columns: %q", size, n, l)
				}
			}
		}
	}
	if shown := screen(frameLines(f, history, 80), 0, 80, 60, "", ""); !strings.Contains(shown, "\n  train/order=shuffle,seed=1\n") {
		t.Errorf("80 columns do not show the name that is longer than its column:\n%s", shown)
	}
	red := screen(frameLines(f, history, 200), 0, 200, 60, "<", ">")
	for _, want := range []string{"<Is training waiting for data? YES", "<    3 errors, the last one: first", "  train/order=shuffle,seed=1 ",
		" ▂▄ █ 50.0\n", "<  waiting   " + strings.Repeat(" ", 56) + "▄  ▄ 40.0%>\n",
		"<  store: 5.0 MB/s, 3.0 requests/s; fetched 10.0 MB, 500.0% of the bytes served; 4 errors, 1 retry>\n",
		"<  cache: has 75.0% of the 4.0 GB needed; 0 bytes of 1.0 GB used; 75.0% of block reads hit; 1 block did not fit>\n"} {
		if !strings.Contains(red, want) {
			t.Errorf("no %q in\n%s", want, red)
		}
	}
}

// The history has an interval for each second of the last minute, without the window's smoothing. A
// mount that has gone is forgotten.
func TestHistory(t *testing.T) {
	m := &model{history: map[string][]interval{}}
	poll := func(second int, mountpoint string) *figures.Frame {
		s := &figures.Sequence{Name: "train", Batches: uint64(second * second), Reads: uint64(second)}
		s.Readers = []*figures.Reader{{PID: 1, Waited: float64(second) / 4, Gap: float64(second) * 3 / 4}}
		return &figures.Frame{Time: time.Unix(int64(second), 0), Mounts: []*figures.Mount{{Mountpoint: mountpoint, Sequences: []*figures.Sequence{s}}}}
	}
	for second := range 71 {
		m.addFrame(poll(second, "/mnt/a"))
	}
	h := m.history["/mnt/a"]
	if len(h) != 60 {
		t.Fatalf("%d intervals, want 60", len(h))
	}
	for i, s := range h {
		if want := float64(2*(11+i) - 1); s.batches != want || s.waited == nil || math.Abs(*s.waited-0.25) > 1e-9 {
			t.Errorf("interval %d: %v batches per second, want %v, and a reader that waited for a quarter of the time", i, s.batches, want)
		}
	}
	if now := intervalOf(m.frames[len(m.frames)-1].Mounts[0]).batches; now != 130 {
		t.Errorf("the current rate is %v, want the mean of the window, 130", now)
	}
	m.addFrame(poll(71, "/mnt/b"))
	if len(m.history["/mnt/a"]) != 0 || len(m.history["/mnt/b"]) != 1 {
		t.Errorf("after another mount has taken its place: %v", m.history)
	}
}
