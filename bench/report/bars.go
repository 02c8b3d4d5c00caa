package report

import (
	"fmt"
	"image/color"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// bar is one of a chart, below its name and its figure in words.
type bar struct {
	name, figure string
	value        float64
	low, high    float64 // the range that it was measured in, if low < high
	kind         int     // index of the chart's kinds
	// group starts a new group with this headline, unless it is empty.
	group string
}

// barKind is what a colour means.
type barKind struct {
	name  string
	color color.Color
}

// barChart draws bars from left to right, or, from a threshold at 1, to both sides.
type barChart struct {
	title, axis string
	kinds       []barKind
	bars        []bar
	// threshold makes the axis logarithmic, with bars that begin at 1.
	threshold bool
}

const (
	barHeight  = vg.Length(11)
	textHeight = vg.Length(17)
	barGap     = vg.Length(7)
	groupGap   = vg.Length(6)
	axisHeight = vg.Length(38)

	// Bars are cut off at these limits.
	leastShown, mostShown = 1.0 / 8, 8.0
)

func (b *barChart) size() (width, height vg.Length) {
	height = 2*margin + titleHeight + 6 + axisHeight
	if len(b.kinds) > 1 {
		height += legendHeight
	}
	for i := range b.bars {
		height += b.high(i)
	}
	return chartWidth, height
}

// high is how much a bar takes, with its text.
func (b *barChart) high(i int) vg.Length {
	h := textHeight*vg.Length(b.texts(i)) + barHeight + barGap
	if group := b.group(i); len(group) > 0 {
		h += textHeight*vg.Length(len(group)) + groupGap
	}
	return h
}

// group are the lines of the headline that a bar begins a group with, if it does.
func (b *barChart) group(i int) []string {
	return broken(boldStyle, chartWidth-2*margin, oneLine(b.bars[i].group))
}

// texts is how many lines a bar's text takes: one if name and figure fit
// in one line.
func (b *barChart) texts(i int) int {
	const room = chartWidth - 2*margin
	lines := broken(labelStyle, room, oneLine(b.bars[i].name))
	if len(lines) == 1 && labelStyle.Width(lines[0])+smallStyle.Width(b.bars[i].figure)+10 <= room {
		return 1
	}
	return len(lines) + 1
}

func (b *barChart) draw(c draw.Canvas) {
	c = paper(c)
	write(c, titleStyle, c.Min.X, c.Max.Y, false, b.title)
	y := c.Max.Y - titleHeight
	if len(b.kinds) > 1 {
		b.legend(c, y)
		y -= legendHeight
	}
	y -= 6
	ticks, place := b.scale(c)
	bottom := c.Min.Y + axisHeight
	b.ground(c, ticks, place, y, bottom)
	for i := range b.bars {
		b.bar(c, i, y, place)
		y -= b.high(i)
	}
}

func (b *barChart) legend(c draw.Canvas, y vg.Length) {
	x := c.Min.X
	for _, kind := range b.kinds {
		fill(c, kind.color, x, y-11, x+12, y-1)
		write(c, smallStyle, x+17, y, false, kind.name)
		x += 17 + smallStyle.Width(kind.name) + 16
	}
}

// scale returns the axis' ticks, and where a value is.
func (b *barChart) scale(c draw.Canvas) ([]plot.Tick, func(float64) vg.Length) {
	if !b.threshold {
		high := 0.0
		for _, bar := range b.bars {
			high = max(high, bar.value, bar.high)
		}
		ticks := linearTicks(high)
		end := ticks[len(ticks)-1].Value
		return ticks, func(v float64) vg.Length { return c.Min.X + (c.Max.X-c.Min.X)*vg.Length(v/end) }
	}
	low, high := 0.5, 2.0
	for _, bar := range b.bars {
		low, high = min(low, bar.value), max(high, bar.value)
	}
	low, high = math.Max(low, leastShown), math.Min(high, mostShown)
	from, to := math.Floor(math.Log2(low)), math.Ceil(math.Log2(high))
	var ticks []plot.Tick
	for e := from; e <= to; e++ {
		v := math.Exp2(e)
		label := short(v) + " ×"
		if e < 0 {
			label = fmt.Sprintf("1/%g ×", 1/v)
		}
		ticks = append(ticks, plot.Tick{Value: v, Label: label})
	}
	return ticks, func(v float64) vg.Length {
		at := (math.Log2(v) - from) / (to - from)
		return c.Min.X + (c.Max.X-c.Min.X)*vg.Length(min(max(at, 0), 1))
	}
}

// ground draws the background of the bars, and the axis below them.
func (b *barChart) ground(c draw.Canvas, ticks []plot.Tick, place func(float64) vg.Length, top, bottom vg.Length) {
	for i, t := range ticks {
		x := place(t.Value)
		c.StrokeLine2(draw.LineStyle{Color: rule, Width: 0.8}, x, bottom, x, top)
		style := smallStyle
		style.XAlign = draw.XCenter
		switch i {
		case 0:
			style.XAlign = draw.XLeft
		case len(ticks) - 1:
			style.XAlign = draw.XRight
		}
		style.YAlign = draw.YTop
		c.FillText(style, vg.Point{X: x, Y: bottom - 3}, t.Label)
	}
	style := labelStyle
	style.XAlign, style.YAlign = draw.XCenter, draw.YTop
	c.FillText(style, vg.Point{X: (c.Min.X + c.Max.X) / 2, Y: bottom - 20}, b.axis)
}

func (b *barChart) bar(c draw.Canvas, i int, y vg.Length, place func(float64) vg.Length) {
	item := &b.bars[i]
	if group := b.group(i); len(group) > 0 {
		y -= groupGap
		for _, line := range group {
			b.behind(c, boldStyle.Width(line), c.Min.X, y)
			write(c, boldStyle, c.Min.X, y, false, line)
			y -= textHeight
		}
	}
	lines := broken(labelStyle, c.Max.X-c.Min.X, oneLine(item.name))
	for n, line := range lines {
		b.behind(c, labelStyle.Width(line), c.Min.X, y-textHeight*vg.Length(n))
		write(c, labelStyle, c.Min.X, y-textHeight*vg.Length(n), false, line)
	}
	y -= textHeight * vg.Length(b.texts(i))
	width := smallStyle.Width(item.figure)
	b.behind(c, width, c.Max.X-width, y+textHeight)
	write(c, smallStyle, c.Max.X, y+textHeight, true, item.figure)
	from := c.Min.X
	if b.threshold {
		from = place(1)
	}
	to := place(item.value)
	fill(c, b.kinds[item.kind].color, min(from, to), y-barHeight, max(from, to), y)
	if item.low < item.high {
		at, style := y-barHeight/2, draw.LineStyle{Color: ink, Width: 0.9}
		low, high := place(item.low), place(item.high)
		c.StrokeLine2(style, low, at, high, at)
		c.StrokeLine2(style, low, at-3, low, at+3)
		c.StrokeLine2(style, high, at-3, high, at+3)
	}
	if b.threshold {
		c.StrokeLine2(draw.LineStyle{Color: ink, Width: 1.4}, from, y-barHeight-2, from, y+2)
	}
}

// behind clears the background of a text.
func (*barChart) behind(c draw.Canvas, width, x, y vg.Length) {
	fill(c, color.White, x-2, y-textHeight+3, x+width+2, y+1)
}

// alt is the chart in words.
func (b *barChart) alt() string {
	var out strings.Builder
	fmt.Fprintf(&out, "Bar chart: %s.", b.axis)
	for _, bar := range b.bars {
		if bar.group != "" {
			fmt.Fprintf(&out, " %s:", oneLine(bar.group))
		}
		fmt.Fprintf(&out, " %s: %s", oneLine(bar.name), bar.figure)
		if len(b.kinds) > 1 && b.threshold {
			fmt.Fprintf(&out, ", %s", b.kinds[bar.kind].name)
		}
		out.WriteString(".")
	}
	return out.String()
}
