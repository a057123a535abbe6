// Package chart draws charts to .svg and .png files.
package chart

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A Chart is one of the drawings in a file: [Bars] or a [Line].
type Chart interface {
	plot() (p *plot.Plot, height vg.Length, err error)
}

// Bars is a chart with horizontal bars from top to bottom.
type Bars struct {
	Title string
	Bars  []Bar
}

// A Bar is a value above 0, with a name to its left and a label to its right.
type Bar struct {
	Name, Label string
	Value       float64
	Highlight   bool // whether the bar has another color
}

// A Line is a chart with a line through points, whose X increases.
type Line struct {
	Title, XLabel    string
	FormatX, FormatY func(float64) string // for the values of ticks
	Points           []Point
	IsMean           bool // whether each Y is the mean since the previous point
}

// A Point is a point of a line. Y is not below 0.
type Point struct{ X, Y float64 }

// Colors of Okabe and Ito, which color-blind readers can tell apart, and two grays.
var (
	blue   = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	orange = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	ink    = color.Gray{0x26}
	pale   = color.Gray{0xe0}
)

func newPlot(title string) *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.Title.Text, p.Title.TextStyle.Font.Size, p.Title.Padding = title, 14, 10
	for _, style := range []*draw.TextStyle{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label} {
		style.Color = ink
	}
	p.X.Tick.Label.Font.Size, p.Y.Tick.Label.Font.Size = 11, 11
	return p
}

func (b Bars) plot() (*plot.Plot, vg.Length, error) {
	p := newPlot(b.Title)
	n, longest := len(b.Bars), 0.0
	for _, bar := range b.Bars {
		longest = max(longest, bar.Value)
	}
	// Names and values begin at fixed places, with room for wider fonts than the one measured here.
	left := -0.8 * longest
	plain, highlighted := make(plotter.Values, n), make(plotter.Values, n)
	texts := plotter.XYLabels{}
	for i, bar := range b.Bars {
		row := n - 1 - i // rows are counted from the bottom
		if plain[row] = bar.Value; bar.Highlight {
			plain[row], highlighted[row] = 0, bar.Value
		}
		texts.XYs = append(texts.XYs, plotter.XY{X: left, Y: float64(row)}, plotter.XY{X: bar.Value, Y: float64(row)})
		texts.Labels = append(texts.Labels, bar.Name, bar.Label)
	}
	for i, values := range []plotter.Values{plain, highlighted} {
		bars, err := plotter.NewBarChart(values, 13)
		if err != nil {
			return nil, 0, err
		}
		bars.Horizontal, bars.Color, bars.LineStyle.Width = true, []color.Color{blue, orange}[i], 0
		p.Add(bars)
	}
	labels, err := plotter.NewLabels(texts)
	if err != nil {
		return nil, 0, err
	}
	labels.Offset.X = 5
	for i := range labels.TextStyle {
		labels.TextStyle[i] = p.Y.Tick.Label
		labels.TextStyle[i].XAlign, labels.TextStyle[i].YAlign = draw.XLeft, draw.YCenter
	}
	p.Add(labels)
	p.HideAxes()
	p.X.Min, p.X.Max = left, 1.05*longest
	return p, 40 + 20*vg.Length(n), nil
}

func (l Line) plot() (*plot.Plot, vg.Length, error) {
	p := newPlot(l.Title)
	p.X.Label.Text = l.XLabel
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks(l.FormatX), ticks(l.FormatY)
	var points plotter.XYs
	for _, at := range l.Points {
		points = append(points, plotter.XY(at))
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return nil, 0, err
	}
	line.Color, line.Width, line.FillColor = blue, 2, color.NRGBA{blue.R, blue.G, blue.B, 0x30}
	if l.IsMean {
		line.StepStyle = plotter.PreStep
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = pale, pale
	p.Add(grid, line)
	p.Y.Min = 0
	if p.Y.Max *= 1.05; p.Y.Max == 0 {
		p.Y.Max = 1
	}
	return p, 220, nil
}

// A ticks formats the labels of the default ticks.
type ticks func(float64) string

func (format ticks) Ticks(least, most float64) []plot.Tick {
	all := plot.DefaultTicks{}.Ticks(least, most)
	for i := range all {
		if all[i].Label != "" {
			all[i].Label = format(all[i].Value) + " " // room for wider fonts
		}
	}
	return all
}

// CheckPath checks the value of --plot. An empty path is valid: it stands for no file.
func CheckPath(path string) error {
	if path == "" {
		return nil
	}
	if ext := extension(path); ext != ".svg" && ext != ".png" {
		return fmt.Errorf("--plot: the name of the file must end in .svg or .png (got %q)", path)
	}
	return CheckWritable("--plot", path)
}

func extension(path string) string { return strings.ToLower(filepath.Ext(path)) }

// CheckWritable checks that the file that a flag names can be written later, without creating it.
// An empty path is valid.
func CheckWritable(flag, path string) error {
	if path == "" {
		return nil
	}
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("%s: %s is a directory", flag, path)
	case errors.Is(err, fs.ErrNotExist):
		path = filepath.Dir(path)
	}
	if err := unix.Access(path, unix.W_OK); err != nil {
		return fmt.Errorf("%s: cannot write to %s: %w", flag, path, err)
	}
	return nil
}

// Save draws charts of one kind, one below the other, to a file whose name CheckPath accepts.
func Save(path string, charts ...Chart) error {
	const width, margin = vg.Length(680), vg.Length(18)
	tiles := draw.Tiles{Rows: len(charts), Cols: 1, PadTop: margin, PadBottom: margin, PadLeft: margin, PadRight: margin, PadY: margin}
	var plots [][]*plot.Plot
	var highest vg.Length
	for _, c := range charts {
		p, height, err := c.plot()
		if err != nil {
			return err
		}
		plots, highest = append(plots, []*plot.Plot{p}), max(highest, height)
	}
	height := margin + vg.Length(len(charts))*(highest+margin)
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	canvas = vgsvg.New(width, height)
	if extension(path) == ".png" {
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(144))}
	}
	page := draw.New(canvas)
	page.SetColor(color.White) // on a dark page, the text would be invisible without a background
	page.Fill(page.Rectangle.Path())
	for i, row := range plot.Align(plots, tiles, page) {
		plots[i][0].Draw(row[0])
	}
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return err
	}
	text := b.Bytes()
	if extension(path) == ".svg" { // adds fonts of the same widths, for hosts without Liberation
		text = bytes.ReplaceAll(text, []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arimo,Helvetica,Arial,sans-serif;"))
	}
	return os.WriteFile(path, text, 0o666)
}
