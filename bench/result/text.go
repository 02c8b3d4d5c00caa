package result

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Figure formats a number: three digits or more, thousands set apart, never with
// an exponent.
func Figure(v float64) string {
	size := math.Abs(v)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return strconv.FormatFloat(v, 'f', -1, 64)
	case size >= 99.95:
		return thousands(strconv.FormatFloat(v, 'f', 0, 64))
	case size >= 9.995:
		return trimmed(v, 1)
	case size >= 0.9995:
		return trimmed(v, 2)
	case size >= 0.0005:
		return trimmed(v, 3)
	case size >= 1e-9:
		return trimmed(v, 2-int(math.Floor(math.Log10(size))))
	}
	return "0"
}

// trimmed has so many decimals at most, and no zeros at its end.
func trimmed(v float64, decimals int) string {
	s := strconv.FormatFloat(v, 'f', decimals, 64)
	if !strings.Contains(s, ".") {
		return s
	}
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// thousands sets them apart in a whole number.
func thousands(digits string) string {
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// Duration formats a time, given in seconds.
func Duration(seconds float64) string {
	switch {
	case seconds == 0:
		return "0 s"
	case seconds < 1e-3:
		return Figure(seconds*1e6) + " µs"
	case seconds < 1:
		return Figure(seconds*1e3) + " ms"
	}
	return Figure(seconds) + " s"
}

// Memory formats a number of bytes in binary units.
func Memory(bytes int64) string {
	if bytes >= 1<<30 {
		return Figure(float64(bytes)/(1<<30)) + " GiB"
	}
	return Figure(float64(bytes)/(1<<20)) + " MiB"
}

// Shown is the machine in a line.
func (m *Machine) Shown() string {
	var parts []string
	add := func(s string) {
		if s = strings.TrimSpace(s); s != "" {
			parts = append(parts, s)
		}
	}
	add(m.CPU)
	if m.Cores > 0 {
		add(fmt.Sprintf("%d %s", m.Cores, plural("core", m.Cores)))
	}
	if m.Memory > 0 {
		add(Memory(m.Memory))
	}
	if m.OS != "" || m.Arch != "" {
		add(m.OS + "/" + m.Arch)
	}
	add(m.Kernel)
	add(m.Go)
	if m.Version != "" {
		add("replicator " + m.Version)
	}
	return strings.Join(parts, ", ")
}

func plural(word string, n int) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// indent is what lines of a table begin with.
const indent = "  "

// column is how a column of a table is set. Where the table is wider than the page, a
// cell wider than most is broken at spaces, or after a slash, into several lines; other
// text stays wide.
type column struct {
	title string
	right bool
	most  int
}

// grid lines up rows below the columns' titles, each line indented. Columns that
// have nothing in any row are left out.
func grid(out *strings.Builder, columns []column, rows [][]string) {
	cells := make([][][]string, 0, len(rows)+1) // by row, column, line
	head := make([]string, len(columns))
	for i, c := range columns {
		head[i] = c.title
	}
	rows = append([][]string{head}, rows...)
	whole := len(indent) - 2
	for i := range columns {
		if filled(rows[1:], i) {
			whole += widestOf(rows, i) + 2
		}
	}
	widths := make([]int, len(columns))
	for _, row := range rows {
		broken := make([][]string, len(columns))
		for i, cell := range row {
			if !filled(rows[1:], i) {
				continue
			}
			most := columns[i].most
			if whole <= pageWidth {
				most = 0
			}
			broken[i] = wrap(cell, most)
			for _, line := range broken[i] {
				widths[i] = max(widths[i], utf8.RuneCountInString(line))
			}
		}
		cells = append(cells, broken)
	}
	for _, row := range cells {
		writeRow(out, columns, widths, row)
	}
}

// writeRow writes the lines of a row, whose cells may have several lines each.
func writeRow(out *strings.Builder, columns []column, widths []int, row [][]string) {
	for n := 0; ; n++ {
		line, more := strings.Builder{}, false
		for i, cell := range row {
			if widths[i] == 0 {
				continue
			}
			text := ""
			if n < len(cell) {
				text, more = cell[n], true
			}
			if line.Len() > 0 {
				line.WriteString("  ")
			} else {
				line.WriteString(indent)
			}
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if columns[i].right {
				line.WriteString(pad + text)
			} else {
				line.WriteString(text + pad)
			}
		}
		if !more {
			return
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

func widestOf(rows [][]string, i int) int {
	widest := 0
	for _, row := range rows {
		widest = max(widest, utf8.RuneCountInString(row[i]))
	}
	return widest
}

func filled(rows [][]string, i int) bool {
	for _, row := range rows {
		if row[i] != "" {
			return true
		}
	}
	return false
}

// wrap breaks a text into lines of at most so many characters; 0 means no limit.
func wrap(text string, most int) []string {
	var lines []string
	line := ""
	for _, word := range words(text) {
		whole := strings.TrimRight(line+word, " ")
		if most > 0 && line != "" && utf8.RuneCountInString(whole) > most {
			lines = append(lines, strings.TrimRight(line, " "))
			line = ""
		}
		line += word
	}
	return append(lines, strings.TrimRight(line, " "))
}

// words are the parts that a text may be broken into, each with what ends it.
func words(text string) []string {
	var list []string
	from := 0
	for i, r := range text {
		if r == ' ' || r == '/' {
			list = append(list, text[from:i+1])
			from = i + 1
		}
	}
	return append(list, text[from:])
}
