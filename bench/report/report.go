package report

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/oplogrep/replicator/bench/result"
)

// Write draws reports into a folder: index.html, which needs nothing but the files
// of that folder, and each chart as SVG and PNG: throughput against writers, batch size,
// document size and namespaces; goals; latencies. A chart that the reports have no
// runs for is left out. It returns the files it wrote. The folder is made if it is
// not there; what else is in it stays.
func Write(folder string, reports []*result.Report) (files []string, err error) {
	if len(reports) == 0 {
		return nil, errors.New("draw a report: no results were given")
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, fmt.Errorf("draw a report: %w", err)
	}
	add := func(name string, content []byte) error {
		file := filepath.Join(folder, name)
		if err := os.WriteFile(file, content, 0o644); err != nil {
			return fmt.Errorf("draw a report: %w", err)
		}
		files = append(files, file)
		return nil
	}
	p := newPage(reports)
	for _, c := range p.all() {
		for _, form := range []struct {
			ending string
			make   func(picture) ([]byte, error)
		}{{".svg", asSVG}, {".png", asPNG}} {
			content, err := form.make(c.picture)
			if err != nil {
				return files, fmt.Errorf("draw the chart %s%s: %w", c.Name, form.ending, err)
			}
			if err := add(c.Name+form.ending, content); err != nil {
				return files, err
			}
		}
	}
	// The page is written last, so that the files it shows exist.
	html, err := p.html()
	if err != nil {
		return files, fmt.Errorf("draw a report: %w", err)
	}
	return files, add("index.html", html)
}

// chart is a chart on the page.
type chart struct {
	// Name is that of its files, without the ending.
	Name string
	// Title and Alt are its text alternatives.
	Title, Alt string
	picture    picture
}
