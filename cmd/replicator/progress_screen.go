package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// screen is a terminal, or a substitute, with a block of lines at its end that is
// redrawn. Text written to it appears above the block. It is safe for concurrent
// use.
type screen struct {
	out io.Writer
	// widthOf returns the number of cells of a line; it is set before anything is
	// drawn.
	widthOf func() int

	mu    sync.Mutex // guards the rest, and out
	block []string
	// drawn are the cells of each line of the block that is on the terminal. The
	// cursor is at the beginning of the line below.
	drawn []int
	// open is true if the last write did not end its line.
	open bool
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out}
	s.widthOf = s.width
	return s
}

// size asks the terminal for its size, 0 where it is none.
func (s *screen) size() (width, height int) {
	file, ok := s.out.(*os.File)
	if !ok {
		return 0, 0
	}
	width, height, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0, 0
	}
	return width, height
}

// width is how many cells a line has.
func (s *screen) width() int {
	if width, _ := s.size(); width > 0 {
		return width
	}
	return assumedWidth
}

// height is how many lines there are, 0 where that is not known.
func (s *screen) height() int {
	_, height := s.size()
	return height
}

// Write writes above the block.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	s.open = p[len(p)-1] != '\n'
	var b strings.Builder
	s.up(&b)
	if len(s.drawn) > 0 {
		b.WriteString(clearBelow)
	}
	s.drawn = nil
	b.Write(p)
	if !s.open {
		s.down(&b)
	}
	if _, err := io.WriteString(s.out, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

const (
	clearLine  = "\x1b[K" // from the cursor to the end of the line
	clearBelow = "\x1b[J" // and all lines below
)

// draw replaces the block. Lines must fit the width.
func (s *screen) draw(lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.block = lines
	if s.open || len(lines) == 0 && len(s.drawn) == 0 {
		return
	}
	var b strings.Builder
	s.up(&b)
	s.down(&b)
	b.WriteString(clearBelow)
	_, _ = io.WriteString(s.out, b.String()) // a write error cannot be reported
}

// keep leaves the block in place; from now on there is none.
func (s *screen) keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.block, s.drawn = nil, nil
}

// up moves to the start of the block. A terminal that was made narrower has
// wrapped its lines.
func (s *screen) up(b *strings.Builder) {
	if len(s.drawn) == 0 {
		return
	}
	rows, width := 0, max(1, s.widthOf())
	for _, cells := range s.drawn {
		rows += max(1, (cells+width-1)/width)
	}
	fmt.Fprintf(b, "\r\x1b[%dA", rows)
}

// down draws the block over the previous one.
func (s *screen) down(b *strings.Builder) {
	s.drawn = s.drawn[:0]
	for _, line := range s.block {
		b.WriteString(line + clearLine + "\n")
		s.drawn = append(s.drawn, cells(line))
	}
}
