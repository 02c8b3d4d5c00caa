package report

import (
	"bytes"
	"image/color"
	"math"
	"strings"

	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/oplogrep/replicator/bench/result"
)

// picture is what can be drawn.
type picture interface {
	// size is how large it wants to be.
	size() (width, height vg.Length)
	draw(c draw.Canvas)
}

// A chart is no wider than this, so that its letters can still be read where a narrow
// screen makes it smaller.
const (
	chartWidth = vg.Length(420)
	margin     = vg.Length(12)
	dpi        = 192
)

// The palette is that of Okabe and Ito, which colour-blind readers can distinguish
// too. Lines have marks of different shapes, too.
var (
	blue       = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	vermillion = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	grey       = color.RGBA{0x9a, 0x9a, 0x9a, 0xff}
	ink        = color.RGBA{0x22, 0x22, 0x22, 0xff}
	faint      = color.RGBA{0x55, 0x55, 0x55, 0xff}
	rule       = color.RGBA{0xe2, 0xe2, 0xe2, 0xff}

	palette = []color.Color{
		blue, vermillion,
		color.RGBA{0x00, 0x9e, 0x73, 0xff},
		color.RGBA{0xcc, 0x79, 0xa7, 0xff},
		color.RGBA{0xb0, 0x7a, 0x00, 0xff},
		color.RGBA{0x3a, 0x9b, 0xd4, 0xff},
		ink,
	}
	marks = []draw.GlyphDrawer{
		draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.PlusGlyph{},
	}
)

// weightBold is golang.org/x/image/font's, which is no dependency of its own for it.
const weightBold = 3

// letters is a style of text.
func letters(size vg.Length, c color.Color, bold bool) text.Style {
	f := font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
	if bold {
		f.Weight = weightBold
	}
	return text.Style{Color: c, Font: f, Handler: text.Plain{Fonts: font.DefaultCache}}
}

var (
	titleStyle = letters(13, ink, true)
	labelStyle = letters(11, ink, false)
	boldStyle  = letters(11, ink, true)
	smallStyle = letters(10.5, faint, false)
)

// asSVG draws it as SVG.
func asSVG(p picture) ([]byte, error) {
	c := vgsvg.New(p.size())
	p.draw(draw.New(c))
	var out bytes.Buffer
	if _, err := c.WriteTo(&out); err != nil {
		return nil, err
	}
	// The fallbacks have the same widths, or are at least sans-serif.
	return []byte(strings.ReplaceAll(out.String(), "font-family:Liberation Sans;", "font-family:'Liberation Sans',Arial,Helvetica,sans-serif;")), nil
}

// asPNG draws it as PNG, twice as fine as a screen.
func asPNG(p picture) ([]byte, error) {
	w, h := p.size()
	c := vgimg.NewWith(vgimg.UseWH(w, h), vgimg.UseDPI(dpi))
	p.draw(draw.New(c))
	var out bytes.Buffer
	if _, err := (vgimg.PngCanvas{Canvas: c}).WriteTo(&out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// paper makes a canvas white, whatever the background is, and leaves its margins
// free.
func paper(c draw.Canvas) draw.Canvas {
	fill(c, color.White, c.Min.X, c.Min.Y, c.Max.X, c.Max.Y)
	return draw.Crop(c, margin, -margin, margin, -margin)
}

func fill(c draw.Canvas, with color.Color, x0, y0, x1, y1 vg.Length) {
	c.FillPolygon(with, []vg.Point{{X: x0, Y: y0}, {X: x1, Y: y0}, {X: x1, Y: y1}, {X: x0, Y: y1}})
}

// write writes a line of text whose upper edge is at y, from x to the right, or to
// the left if right.
func write(c draw.Canvas, style text.Style, x, y vg.Length, right bool, s string) {
	style.YAlign = text.YTop
	if right {
		style.XAlign = text.XRight
	}
	c.FillText(style, vg.Point{X: x, Y: y}, s)
}

// oneLine removes characters that a line of a chart cannot show.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// broken breaks a text into lines of a maximum width: at spaces, and within a word
// only if that alone is wider.
func broken(style text.Style, width vg.Length, s string) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		longer := strings.TrimSpace(line + " " + word)
		if line != "" && style.Width(longer) > width {
			lines = append(lines, line)
			longer = word
		}
		for style.Width(longer) > width {
			fits := []rune(longer)
			for len(fits) > 1 && style.Width(string(fits)) > width {
				fits = fits[:len(fits)-1]
			}
			lines = append(lines, string(fits))
			longer = longer[len(string(fits)):]
		}
		line = longer
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// short is a number at an axis: 1,500,000 is 1.5 M.
func short(v float64) string {
	switch size := math.Abs(v); {
	case size >= 999_500_000:
		return result.Figure(v/1e9) + " G"
	case size >= 999_500:
		return result.Figure(v/1e6) + " M"
	case size >= 10_000:
		return result.Figure(v/1e3) + " k"
	}
	return result.Figure(v)
}
