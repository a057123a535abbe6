package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

func format(v float64) string { return fmt.Sprintf("%g MB", v) }

var charts = []Chart{
	Bars{"Waits", []Bar{{"nanoGPT's get_batch", "173 µs", 173, false}, {"next <kept> open", "0.5 µs", 0.5, true}}},
	Line{Title: "Bytes", XLabel: "steps", FormatX: format, FormatY: format, IsMean: true, Points: []Point{{0, 0}, {10, 3}, {20, 4}}},
	Line{Title: "Nothing", XLabel: "steps", FormatX: format, FormatY: format, Points: []Point{{0, 0}, {20, 0}}},
}

// An SVG is well-formed XML with all texts, and the same each time. Its first shape is the
// background.
func TestSVG(t *testing.T) {
	t.Chdir(t.TempDir())
	var saved [2][]byte
	for i := range saved {
		if err := Save("a.svg", charts...); err != nil {
			t.Fatal(err)
		}
		saved[i], _ = os.ReadFile("a.svg")
	}
	if !bytes.Equal(saved[0], saved[1]) {
		t.Error("two drawings of the same charts differ")
	}
	var texts, paths []string
	for d := xml.NewDecoder(bytes.NewReader(saved[0])); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			if token.Name.Local == "path" {
				paths = append(paths, fmt.Sprint(token.Attr))
			}
		case xml.CharData:
			texts = append(texts, strings.TrimSpace(string(token)))
		}
	}
	for _, want := range []string{"Waits", "nanoGPT's get_batch", "173 µs", "next <kept> open", "0.5 µs", "Bytes", "steps", "4 MB", "20 MB", "Nothing"} {
		if !slices.Contains(texts, want) {
			t.Errorf("no text %q in %q", want, texts)
		}
	}
	if !strings.Contains(paths[0], "#FFFFFF") {
		t.Errorf("the first shape is %s, want a white background", paths[0])
	}
}

// A PNG is opaque, and nothing touches its edges.
func TestPNG(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := Save("a.png", charts...); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile("a.png")
	picture, err := png.Decode(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	size, drawn := picture.Bounds().Size(), 0
	for y := range size.Y {
		for x := range size.X {
			r, g, b, a := picture.At(x, y).RGBA()
			if r&g&b == 0xffff && a == 0xffff {
				continue
			}
			drawn++
			if a != 0xffff || x < 9 || y < 9 || x >= size.X-9 || y >= size.Y-9 {
				t.Fatalf("the color at %d, %d of %v is %x %x %x, alpha %x", x, y, size, r, g, b, a)
			}
		}
	}
	if drawn < 1000 {
		t.Errorf("%d pixels are not white", drawn)
	}
}

func TestCheckPath(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("directory.svg", 0o755); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"": "", "a.svg": "", "a.b.png": "", "A.SVG": "", "A.Png": "", "a.pdf": ".svg or .png",
		"svg": ".svg or .png", "none/a.svg": "none", "directory.svg": "is a directory"} {
		err := CheckPath(path)
		if want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", path, err, want)
		}
	}
}

// The case of a name's end does not matter.
func TestUpperCase(t *testing.T) {
	t.Chdir(t.TempDir())
	for path, want := range map[string]string{"A.SVG": "<?xml", "A.PNG": "\x89PNG"} {
		if err := Save(path, charts...); err != nil {
			t.Fatal(err)
		}
		if content, _ := os.ReadFile(path); !bytes.HasPrefix(content, []byte(want)) {
			t.Errorf("%s begins with %q, want %q", path, content[:5], want)
		}
	}
}
