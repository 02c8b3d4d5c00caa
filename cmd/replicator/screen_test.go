package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// terminal interprets the output of a screen, and holds the visible text.
type terminal struct {
	mu       sync.Mutex
	lines    [][]rune
	row, col int
	width    int
}

func (m *terminal) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	text := string(p)
	for text != "" {
		switch {
		case strings.HasPrefix(text, "\x1b["):
			n, end := 0, strings.IndexAny(text[2:], "AKJ")+2
			_, _ = fmt.Sscanf(text[2:end], "%d", &n)
			switch text[end] {
			case 'A':
				if m.row -= n; m.row < 0 {
					return 0, fmt.Errorf("the cursor is at %d", m.row)
				}
			case 'J':
				m.lines = m.lines[:min(len(m.lines), m.row+1)]
				fallthrough
			case 'K':
				if m.row < len(m.lines) {
					m.lines[m.row] = m.lines[m.row][:min(m.col, len(m.lines[m.row]))]
				}
			}
			text = text[end+1:]
		case text[0] == '\r':
			m.col, text = 0, text[1:]
		case text[0] == '\n':
			m.col, text = 0, text[1:]
			m.row++
		default:
			r := []rune(text)[0]
			text = text[len(string(r)):]
			if m.col == m.width {
				m.row, m.col = m.row+1, 0
			}
			for len(m.lines) <= m.row {
				m.lines = append(m.lines, nil)
			}
			for len(m.lines[m.row]) <= m.col {
				m.lines[m.row] = append(m.lines[m.row], ' ')
			}
			m.lines[m.row][m.col] = r
			m.col++
		}
	}
	return len(p), nil
}

func (m *terminal) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out strings.Builder
	for _, line := range m.lines {
		out.WriteString(string(line) + "\n")
	}
	return out.String()
}

// TestScreen: whatever is written and drawn, in whichever order and by however many
// at once, the terminal shows the lines that were written, and the block below.
func TestScreen(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := &terminal{width: 1000}
		s := newScreen(m)
		s.widthOf = func() int { return 30 }
		var written string
		var want []string
		for i := range rapid.IntRange(1, 30).Draw(r, "steps") {
			switch rapid.IntRange(0, 3).Draw(r, "step") {
			case 0:
				want = nil
				for j := range rapid.IntRange(0, 4).Draw(r, "lines") {
					want = append(want, fmt.Sprintf("block %d.%d %s", i, j, strings.Repeat("x", rapid.IntRange(0, 15).Draw(r, "length"))))
				}
				s.draw(want)
			case 1:
				s.keep()
				if !strings.HasSuffix(written, "\n") && written != "" {
					want = nil // nothing of it is there
				}
				written += asLines(want)
				want = nil
			default:
				text := rapid.SampledFrom([]string{"a line\n", "two\nlines\n", "part ", "", "end\n"}).Draw(r, "text")
				if n, err := s.Write([]byte(text)); n != len(text) || err != nil {
					r.Fatalf("%d, %v", n, err)
				}
				written += text
			}
			expected := written
			if strings.HasSuffix(written, "\n") || written == "" {
				expected += asLines(want)
			}
			if got := strings.TrimRight(m.String(), " \n"); got != strings.TrimRight(expected, " \n") {
				r.Fatalf("got\n%s\nwant\n%s", got, expected)
			}
		}
	})
}

// asLines ends each line.
func asLines(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return strings.Join(list, "\n") + "\n"
}

// TestScreenNarrower: a terminal that became narrower has broken the lines.
func TestScreenNarrower(t *testing.T) {
	var out bytes.Buffer
	s := newScreen(&out)
	width := 80
	s.widthOf = func() int { return width }
	s.draw([]string{strings.Repeat("x", 75), "y", strings.Repeat("z", 40)})
	out.Reset()
	width = 40
	s.draw([]string{"a"})
	if got := out.String(); got != "\r\x1b[4Aa\x1b[K\n\x1b[J" {
		t.Errorf("%q", got)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestScreenBroken(t *testing.T) {
	s := newScreen(brokenPipe{})
	s.draw([]string{"a"})
	if n, err := s.Write([]byte("x\n")); n != 0 || err == nil {
		t.Errorf("%d, %v", n, err)
	}
	if s.width() != assumedWidth || s.height() != 0 {
		t.Errorf("%d, %d", s.width(), s.height())
	}
}
