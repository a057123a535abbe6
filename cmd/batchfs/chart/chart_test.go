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
		for _, text := range []string{"np.memmap kept, in the trainer", "batchfs remap", "MB a second", ">1000<", ">10000<"} {
			if !strings.Contains(string(data), text) {
				t.Errorf("the SVG lacks %q", text)
			}
		}
	}
	if err := Check("charts.pdf"); err == nil || !strings.Contains(err.Error(), ".svg or .png") {
		t.Errorf("a suffix that is neither: %v", err)
	}
}
