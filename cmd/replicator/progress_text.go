package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/width"
)

// cells returns the number of terminal cells of a text.
func cells(text string) int {
	n := 0
	for _, r := range text {
		n += runeCells(r)
	}
	return n
}

func runeCells(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	if k := width.LookupRune(r).Kind(); k == width.EastAsianWide || k == width.EastAsianFullwidth {
		return 2
	}
	return 1
}

const dots = "..."

// cut makes text fit, by leaving out its end.
func cut(text string, most int) string {
	if cells(text) <= most {
		return text
	}
	if most <= len(dots) {
		return dots[:max(0, most)]
	}
	return first(text, most-len(dots)) + dots
}

// cutMiddle makes a name fit, by leaving out its middle: the database comes first,
// and collections often differ at the end.
func cutMiddle(name string, most int) string {
	if cells(name) <= most {
		return name
	}
	room := most - len(dots)
	if room < 2 {
		return cut(name, most)
	}
	runes := []rune(name)
	tail, used := len(runes), 0
	for tail > 0 && used+runeCells(runes[tail-1]) <= room/2 {
		tail--
		used += runeCells(runes[tail])
	}
	return first(name, room-used) + dots + string(runes[tail:])
}

// first returns as much of the beginning as fits.
func first(text string, most int) string {
	for i, r := range text {
		if most -= runeCells(r); most < 0 {
			return text[:i]
		}
	}
	return text
}

// pad fills text up to so many cells.
func pad(text string, n int) string { return text + strings.Repeat(" ", max(0, n-cells(text))) }

// padLeft does so in front.
func padLeft(text string, n int) string { return strings.Repeat(" ", max(0, n-cells(text))) + text }

// flow puts parts into lines, as many as fit in each.
func flow(most int, parts ...string) []string {
	const gap = "   "
	var lines []string
	line := ""
	for _, part := range parts {
		switch {
		case part == "":
		case line == "":
			line = part
		case cells(line)+len(gap)+cells(part) <= most:
			line += gap + part
		default:
			lines = append(lines, cut(line, most))
			line = part
		}
	}
	if line != "" {
		lines = append(lines, cut(line, most))
	}
	return lines
}

// wrap breaks a text between words, and indents continuation lines. Text beyond
// mostRows is left out.
func wrap(text string, most int) []string {
	const indent = "  "
	var lines []string
	for cells(text) > most && len(lines) < mostRows-1 {
		line := first(text, most)
		if i := strings.LastIndexByte(first(text, most+1), ' '); i > most/3 {
			line = text[:i]
		}
		lines = append(lines, line)
		text = indent + strings.TrimLeft(text[len(line):], " ")
	}
	return append(lines, cut(text, most))
}

var byteUnits = []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

// inBytes returns the unit that suits n best, as an index of byteUnits.
func inBytes(n float64) (unit int) {
	// A value that would be rounded to 1024 is 1 of the next unit.
	for n >= 1023.95 && unit < len(byteUnits)-1 {
		n /= 1024
		unit++
	}
	return unit
}

func ofUnit(n float64, unit int) string {
	if unit == 0 {
		return strconv.FormatFloat(n, 'f', 0, 64)
	}
	for range unit {
		n /= 1024
	}
	return strconv.FormatFloat(n, 'f', 1, 64)
}

// byteText formats a number of bytes.
func byteText(n float64) string {
	unit := inBytes(n)
	return ofUnit(n, unit) + " " + byteUnits[unit]
}

// bytesOf formats bytes done of an estimated total, which is 0 if unknown.
func bytesOf(done, total int64) string {
	if total <= 0 {
		return byteText(float64(done))
	}
	unit, ofTotal := inBytes(float64(done)), inBytes(float64(total))
	if unit == ofTotal || done == 0 {
		return ofUnit(float64(done), ofTotal) + " of " + byteText(float64(total))
	}
	return byteText(float64(done)) + " of " + byteText(float64(total))
}

// grouped formats a number: 1,234,567.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return sign + text
}

// countOf formats a count of a total.
func countOf(done, total int64) string {
	if total <= 0 {
		return grouped(done)
	}
	return grouped(done) + " of " + grouped(total)
}

// plural returns a noun in the number of n.
func plural(n int64, thing string) string {
	if n == 1 {
		return thing
	}
	if base, ok := strings.CutSuffix(thing, "ex"); ok {
		return base + "exes"
	}
	return thing + "s"
}

// span formats a duration: 3d4h, 2h5m, 5m30s, 12s.
func span(d time.Duration) string {
	d = max(0, d.Round(time.Second))
	days, d := d/(24*time.Hour), d%(24*time.Hour)
	h, m, s := d/time.Hour, d%time.Hour/time.Minute, d%time.Minute/time.Second
	switch {
	case days > 0:
		return fmt.Sprintf("%dd%dh", days, h)
	case h > 0:
		return fmt.Sprintf("%dh%dm", h, m)
	case m > 0:
		return fmt.Sprintf("%dm%ds", m, s)
	}
	return fmt.Sprintf("%ds", s)
}

// percent formats a share. Only a complete one is 100 %.
func percent(part float64) string {
	text := strconv.FormatFloat(100*part, 'f', 1, 64)
	if part < 1 && text == "100.0" {
		text = "99.9"
	}
	return text + " %"
}

// bar draws a share as a bar.
func bar(part float64, n int) string {
	inside := n - 2
	full := min(inside, int(part*float64(inside)))
	head := ""
	if full < inside {
		head = ">"
	}
	return "[" + strings.Repeat("=", full) + head + strings.Repeat(" ", inside-full-len(head)) + "]"
}
