// Package chart draws line charts to .svg and .png files.
package chart

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A Line is one series of a chart: the points (X[i], Y[i]).
type Line struct {
	Name string
	X, Y []float64
}

// A Chart is one plot. Save draws it.
type Chart = *plot.Plot

const chartWidth, chartHeight = 9 * vg.Inch, 4 * vg.Inch

// palette has the colors of Okabe and Ito, which color-blind readers can tell apart, without their
// yellow, which is too light on white.
var palette = []color.Color{
	color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff},
	color.RGBA{0xcc, 0x79, 0xa7, 0xff}, color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0x56, 0xb4, 0xe9, 0xff}, color.Black,
}

// Lines returns a chart with each series in its own color, and a legend if there are several. With
// logX, every x must be positive.
func Lines(title, xlabel, ylabel string, logX bool, series []Line) Chart {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, xlabel, ylabel
	p.Title.TextStyle.Font.Size, p.Title.Padding = vg.Points(16), vg.Points(12)
	p.Legend.Top, p.Legend.Left, p.Legend.Padding = true, true, vg.Points(3)
	p.Y.Min = 0
	if logX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xe0}, color.Gray{0xe0}
	p.Add(grid)
	for i, s := range series {
		points := make(plotter.XYs, len(s.X))
		for j := range s.X {
			points[j] = plotter.XY{X: s.X[j], Y: s.Y[j]}
		}
		l, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			continue
		}
		lineColor := palette[i%len(palette)]
		l.Color, l.Width = lineColor, vg.Points(2)
		dots.Color, dots.Shape, dots.Radius = lineColor, draw.CircleGlyph{}, vg.Points(2.5)
		p.Add(l, dots)
		if len(series) > 1 {
			p.Legend.Add(s.Name, l, dots)
		}
	}
	return p
}

// CheckPath returns an error unless path ends in .svg or .png, or is empty.
func CheckPath(path string) error {
	if ext := filepath.Ext(path); path != "" && ext != ".svg" && ext != ".png" {
		return fmt.Errorf("%s: the name must end in .svg or .png", path)
	}
	return nil
}

// Save draws charts, one below the other, to a file whose name CheckPath accepts.
func Save(path string, charts ...Chart) error {
	const margin = vg.Length(20)
	height := margin + vg.Length(len(charts))*(chartHeight+margin)
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	canvas = vgsvg.New(chartWidth, height)
	if filepath.Ext(path) == ".png" {
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(chartWidth, height), vgimg.UseDPI(160))}
	}
	page := draw.New(canvas)
	page.SetColor(color.White) // an SVG without a background is black on a dark page
	page.Fill(page.Rectangle.Path())
	top := page.Max.Y
	for _, c := range charts {
		top -= margin
		area := draw.Canvas{Canvas: page.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: margin, Y: top - chartHeight}, Max: vg.Point{X: chartWidth - margin, Y: top},
		}}
		c.Draw(area)
		top -= chartHeight
	}
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return err
	}
	text := b.Bytes()
	if filepath.Ext(path) == ".svg" { // adds fallback fonts of the same widths
		text = bytes.ReplaceAll(text, []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arimo,Helvetica,Arial,sans-serif;"))
	}
	return os.WriteFile(path, text, 0o644)
}
