package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCharts(t *testing.T) {
	charts := []Chart{
		Lines("Resident memory", "batches read", "MiB", true, []Line{
			{"np.memmap kept, in the trainer", []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000}, []float64{36, 38, 50, 60, 70, 90, 150, 250, 400, 600, 800, 900, 1000, 1040}},
			{"batchfs remap", []float64{1, 20000}, []float64{9, 17}},
			{"batchfs pread", []float64{1, 20000}, []float64{9, 18}},
			{"without points", nil, nil},
		}),
		Lines("From the store", "steps", "MB a second", false, []Line{{"a host", []float64{0, 500}, []float64{1184, 2}}}),
	}
	dir := t.TempDir()
	for _, suffix := range []string{".svg", ".png"} {
		path := filepath.Join(dir, "charts"+suffix)
		if err := Save(path, charts...); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if suffix == ".png" {
			if _, err := png.Decode(bytes.NewReader(data)); err != nil {
				t.Error(err)
			}
			continue
		}
		for d := xml.NewDecoder(bytes.NewReader(data)); err == nil; {
			_, err = d.Token()
		}
		if !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		for _, text := range []string{"np.memmap kept, in the trainer", "batchfs remap", "a host", ">1k<", ">10k<"} {
			if !strings.Contains(string(data), text) {
				t.Errorf("the SVG lacks %q", text)
			}
		}
	}
	if err := Save(filepath.Join(dir, "charts.pdf"), charts...); err == nil || !strings.Contains(err.Error(), ".svg or .png") {
		t.Errorf("a suffix that is neither: %v", err)
	}
}

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.25: "0.25", 17: "17", 999.9: "1k", 1184: "1.18k", 15000: "15k", 104857: "105k", 2e6: "2M"} {
		if got := short(v); got != want {
			t.Errorf("short(%v) = %s, want %s", v, got, want)
		}
	}
}
