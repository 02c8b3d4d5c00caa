package report

import (
	"fmt"
	"image/color"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/oplogrep/replicator/bench/result"
)

// lineChart draws lines with marks, over numbers or over names.
type lineChart struct {
	title, x, y string
	lines       []line
	// names, if set, are those of the x 0, 1, 2 and so on.
	names []string
	// logY draws a logarithmic axis even if the values would not need one.
	logY bool
}

const (
	plotHeight   = vg.Length(200)
	titleHeight  = vg.Length(22)
	legendHeight = vg.Length(17)
	unitHeight   = vg.Length(20)
	swatch       = vg.Length(22)
)

func (l *lineChart) size() (width, height vg.Length) {
	return chartWidth, 2*margin + titleHeight + vg.Length(l.legend(draw.Canvas{}, chartWidth-2*margin, 0))*legendHeight + 2*unitHeight + plotHeight
}

func (l *lineChart) draw(c draw.Canvas) {
	c = paper(c)
	write(c, titleStyle, c.Min.X, c.Max.Y, false, l.title)
	top := c.Max.Y - titleHeight
	rows := l.legend(c, c.Max.X-c.Min.X, top)
	top -= vg.Length(rows) * legendHeight
	// The names of the axes are no part of the plot: it would take the room that they
	// need from the wrong places where an axis is logarithmic, and one that lies down
	// can be read without turning the head.
	write(c, labelStyle, c.Min.X, top-4, false, l.y)
	style := labelStyle
	style.XAlign, style.YAlign = draw.XCenter, draw.YBottom
	c.FillText(style, vg.Point{X: (c.Min.X + c.Max.X) / 2, Y: c.Min.Y}, l.x)
	l.plot().Draw(draw.Crop(c, 0, -4, unitHeight-7, top-unitHeight-3-c.Max.Y))
}

// legend names the lines, as many in a row as there is room for, and returns how many
// rows that takes. Without a canvas it only counts.
func (l *lineChart) legend(c draw.Canvas, width, top vg.Length) (rows int) {
	at := vg.Length(0)
	rows = 1
	for i, series := range l.lines {
		for j, part := range broken(smallStyle, width-swatch-4, oneLine(series.name)) {
			need := swatch + 4 + smallStyle.Width(part)
			if j > 0 || at > 0 && at+need > width {
				at = 0
				rows++
			}
			if c.Canvas != nil {
				x, y := c.Min.X+at, top-vg.Length(rows-1)*legendHeight
				if j == 0 {
					c.StrokeLine2(stroke(i), x, y-6, x+swatch, y-6)
					c.DrawGlyphNoClip(mark(i), vg.Point{X: x + swatch/2, Y: y - 6})
				}
				write(c, smallStyle, x+swatch+4, y, false, part)
			}
			at += need + 14
		}
	}
	return rows
}

func stroke(i int) draw.LineStyle {
	style := draw.LineStyle{Color: palette[i%len(palette)], Width: 1.8}
	if i >= len(palette) {
		style.Dashes = []vg.Length{5, 3}
	}
	return style
}

func mark(i int) draw.GlyphStyle {
	return draw.GlyphStyle{Color: palette[i%len(palette)], Radius: 3.4, Shape: marks[i%len(marks)]}
}

// bounds are those of the points with their ranges.
func (l *lineChart) bounds() (left, right, low, high float64) {
	left, right, low, high = math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for _, series := range l.lines {
		for _, p := range series.points {
			left, right = min(left, p.x), max(right, p.x)
			low, high = min(low, p.low), max(high, p.high)
		}
	}
	return left, right, low, high
}

func (l *lineChart) plot() *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Color, axis.Tick.Color = faint, faint
		axis.Width, axis.Tick.Width = 0.8, 0.8
		keep := axis.Tick.Label
		axis.Tick.Label = smallStyle
		axis.Tick.Label.XAlign, axis.Tick.Label.YAlign = keep.XAlign, keep.YAlign
	}
	// Add would widen the axes to the data; they are set after it.
	p.Add(&grid{})
	for i, series := range l.lines {
		l.add(p, i, series.points)
	}
	l.axes(p)
	return p
}

// axes chooses the axes: logarithmic where values lie so far apart that a linear one
// would show the small ones as nothing.
func (l *lineChart) axes(p *plot.Plot) {
	left, right, low, high := l.bounds()
	if l.logY || spans(low, high, 30) {
		p.Y.Scale = plot.LogScale{}
		ticks := logTicks(low, high)
		p.Y.Tick.Marker = fixed(ticks)
		p.Y.Min, p.Y.Max = min(ticks[0].Value, low), max(ticks[len(ticks)-1].Value, high)
	} else {
		ticks := linearTicks(high)
		p.Y.Tick.Marker = fixed(ticks)
		p.Y.Min, p.Y.Max = 0, ticks[len(ticks)-1].Value
	}
	if p.Y.Max <= p.Y.Min {
		p.Y.Max = p.Y.Min * 10
	}
	if l.names != nil {
		ticks := make([]plot.Tick, len(l.names))
		for i, name := range l.names {
			ticks[i] = plot.Tick{Value: float64(i), Label: name}
		}
		p.X.Tick.Marker = fixed(ticks)
		p.X.Min, p.X.Max = -0.15, float64(len(l.names))-0.85
		return
	}
	var values []float64
	for _, series := range l.lines {
		for _, point := range series.points {
			values = append(values, point.x)
		}
	}
	place := func(v float64) float64 { return (v - left) / (right - left) }
	p.X.Min, p.X.Max = left-(right-left)*0.02, right+(right-left)*0.02
	if spans(left, right, 8) {
		p.X.Scale = plot.LogScale{}
		place = func(v float64) float64 { return math.Log(v/left) / math.Log(right/left) }
		edge := math.Pow(right/left, 0.02)
		p.X.Min, p.X.Max = left/edge, right*edge
	}
	p.X.Tick.Marker = fixed(valueTicks(values, place))
}

// add adds a line, its marks, and the ranges where they are more than a mark.
func (l *lineChart) add(p *plot.Plot, i int, points []point) {
	xys := make(plotter.XYs, len(points))
	ranges := ranged{style: draw.LineStyle{Color: palette[i%len(palette)], Width: 0.9}, points: points}
	for j, point := range points {
		xys[j] = plotter.XY{X: point.x, Y: point.y}
	}
	p.Add(&ranges,
		&plotter.Line{XYs: xys, LineStyle: stroke(i)},
		&plotter.Scatter{XYs: xys, GlyphStyle: mark(i)})
}

// grid draws a rule at each tick of the y axis that has a label.
type grid struct{}

// Plot implements plot.Plotter.
func (*grid) Plot(c draw.Canvas, p *plot.Plot) {
	_, y := p.Transforms(&c)
	for _, t := range p.Y.Tick.Marker.Ticks(p.Y.Min, p.Y.Max) {
		if at := y(t.Value); t.Label != "" && c.ContainsY(at) {
			c.StrokeLine2(draw.LineStyle{Color: rule, Width: 0.8}, c.Min.X, at, c.Max.X, at)
		}
	}
}

// ranged draws the ranges that points were measured in.
type ranged struct {
	style  draw.LineStyle
	points []point
}

// Plot implements plot.Plotter.
func (r *ranged) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for _, point := range r.points {
		if point.low >= point.high {
			continue
		}
		at, low, high := x(point.x), y(point.low), y(point.high)
		c.StrokeLine2(r.style, at, low, at, high)
		c.StrokeLine2(r.style, at-3, low, at+3, low)
		c.StrokeLine2(r.style, at-3, high, at+3, high)
	}
}

// alt is the chart in words.
func (l *lineChart) alt() string {
	var out strings.Builder
	fmt.Fprintf(&out, "Line chart of %s by %s.", l.y, l.x)
	for _, series := range l.lines {
		fmt.Fprintf(&out, " %s:", oneLine(series.name))
		for i, p := range series.points {
			if i > 0 {
				out.WriteString(",")
			}
			at := result.Figure(p.x)
			if l.names != nil {
				at = l.names[int(p.x)]
			}
			fmt.Fprintf(&out, " %s at %s", result.Figure(p.y), at)
		}
		out.WriteString(".")
	}
	return out.String()
}
