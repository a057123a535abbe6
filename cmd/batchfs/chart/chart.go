// Package chart draws lines to .svg and .png files.
package chart

import (
	"bytes"
	"cmp"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A Line is one line of a chart: Y[i] belongs to X[i].
type Line struct {
	Name string
	X, Y []float64
}

// A Chart is one plot, which Save draws.
type Chart = *plot.Plot

const chartWidth, chartHeight = 9 * vg.Inch, 4 * vg.Inch

// palette has Okabe and Ito's colours, which the colour-blind can tell apart, without their yellow, which is too light on white.
var palette = []color.Color{
	color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff},
	color.RGBA{0xcc, 0x79, 0xa7, 0xff}, color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0x56, 0xb4, 0xe9, 0xff}, color.Black,
}

func colour(i int) color.Color { return palette[i%len(palette)] }

// Lines draws each series in its own colour, with its name at its end. logX needs x above 0.
func Lines(title, xlabel, ylabel string, logX bool, series []Line) Chart {
	p := newPlot(title, xlabel)
	p.Y.Label.Text = ylabel
	p.Y.Tick.Marker = plot.TickerFunc(linearTicks)
	p.Y.Min = 0
	if logX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(logTicks)
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
			continue // it has no points
		}
		l.Color, l.Width = colour(i), vg.Points(2)
		dots.Color, dots.Shape, dots.Radius = colour(i), draw.CircleGlyph{}, vg.Points(2.5)
		p.Add(l, dots)
	}
	p.Add(endLabels(series))
	p.Y.Max *= 1.05
	return p
}

func newPlot(title, xlabel string) *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.Title.Text, p.X.Label.Text = title, xlabel
	p.Title.TextStyle.Font.Size, p.Title.Padding = vg.Points(16), vg.Points(12)
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font.Size, axis.Label.Padding = vg.Points(12), vg.Points(6)
		axis.Tick.Label.Font.Size = vg.Points(11)
		axis.Padding = 0
	}
	p.X.Tick.Marker = plot.TickerFunc(linearTicks)
	return p
}

// logTicks returns the powers of ten, with unlabelled ticks between them.
func logTicks(low, high float64) (ticks []plot.Tick) {
	for ten := math.Pow(10, math.Floor(math.Log10(low))); ten <= high; ten *= 10 {
		for n := 1.0; n < 10; n++ {
			t := plot.Tick{Value: n * ten}
			if n == 1 {
				t.Label = short(ten)
			}
			if t.Value >= low && t.Value <= high {
				ticks = append(ticks, t)
			}
		}
	}
	return ticks
}

// linearTicks returns about five ticks, 1, 2 or 5 times a power of ten apart.
func linearTicks(low, high float64) (ticks []plot.Tick) {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/4)))
	for _, n := range []float64{5, 2} {
		if (high-low)/4 >= n*step {
			step *= n
			break
		}
	}
	for i := math.Ceil(low / step); i*step <= high; i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: short(i * step)})
	}
	return ticks
}

// short prints a number in three digits: 0.25, 17, 1.18k, 2M.
func short(v float64) string {
	v, _ = strconv.ParseFloat(fmt.Sprintf("%.3g", v), 64)
	for _, unit := range []struct {
		name  string
		value float64
	}{{"G", 1e9}, {"M", 1e6}, {"k", 1e3}} {
		if math.Abs(v) >= unit.value {
			return fmt.Sprintf("%.4g%s", v/unit.value, unit.name)
		}
	}
	return fmt.Sprintf("%.3g", v)
}

// endLabels writes the name of each line at its end. The names do not overlap.
type endLabels []Line

func (e endLabels) style(p *plot.Plot, i int) draw.TextStyle {
	style := p.Y.Tick.Label
	style.Color, style.XAlign, style.YAlign = colour(i), draw.XLeft, draw.YCenter
	style.Font.Size = vg.Points(12)
	return style
}

const labelGap = vg.Length(8) // between a line's end and its name

func (e endLabels) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	type label struct {
		i  int
		at vg.Point
	}
	var all []label
	for i, s := range e {
		if n := len(s.X); n > 0 {
			all = append(all, label{i, vg.Point{X: x(s.X[n-1]) + labelGap, Y: y(s.Y[n-1])}})
		}
	}
	slices.SortStableFunc(all, func(a, b label) int { return cmp.Compare(a.at.Y, b.at.Y) })
	height := vg.Points(15)
	for i := range all { // from the bottom up, then from the top down
		least := c.Min.Y + height/2
		if i > 0 {
			least = all[i-1].at.Y + height
		}
		all[i].at.Y = max(all[i].at.Y, least)
	}
	most := c.Max.Y
	for _, l := range slices.Backward(all) {
		l.at.Y = min(l.at.Y, most)
		most = l.at.Y - height
		fill(c, e.style(p, l.i), l.at, e[l.i].Name)
	}
}

// GlyphBoxes makes the plot leave room for the names.
func (e endLabels) GlyphBoxes(p *plot.Plot) (boxes []plot.GlyphBox) {
	for i, s := range e {
		if n := len(s.X); n > 0 {
			width := e.style(p, i).Width(s.Name)
			boxes = append(boxes, plot.GlyphBox{X: p.X.Norm(s.X[n-1]), Rectangle: vg.Rectangle{Max: vg.Point{X: labelGap + width}}})
		}
	}
	return boxes
}

// fill writes text vertically centred at a height, as the axes write their numbers.
func fill(c draw.Canvas, style draw.TextStyle, at vg.Point, text string) {
	at.Y += style.FontExtents().Descent
	c.FillText(style, at, text)
}

// Check returns an error unless charts can be saved to path, or path is empty.
func Check(path string) error {
	if ext := filepath.Ext(path); path != "" && ext != ".svg" && ext != ".png" {
		return fmt.Errorf("%s: the name must end in .svg or .png", path)
	}
	return nil
}

// Save draws charts, one below the other, to a .svg or .png file.
func Save(path string, charts ...Chart) error {
	if err := Check(path); err != nil {
		return err
	}
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
	all := draw.New(canvas)
	all.SetColor(color.White) // or an SVG is black on a dark page
	all.Fill(all.Rectangle.Path())
	top := all.Max.Y
	for _, c := range charts {
		top -= margin
		area := draw.Canvas{Canvas: all.Canvas, Rectangle: vg.Rectangle{
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
	if filepath.Ext(path) == ".svg" { // fonts of the same widths, for readers that lack this one
		text = bytes.ReplaceAll(text, []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arimo,Helvetica,Arial,sans-serif;"))
	}
	return os.WriteFile(path, text, 0o644)
}
