package report

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/oplogrep/replicator/bench/result"
)

// Write draws reports into index.html of a folder, which needs no other file, and returns
// its name. The folder is created if it does not exist; its other files stay.
func Write(folder string, reports []*result.Report) (file string, err error) {
	if len(reports) == 0 {
		return "", errors.New("draw a report: no results were given")
	}
	html, err := page(reports)
	if err == nil {
		err = os.MkdirAll(folder, 0o755)
	}
	file = filepath.Join(folder, "index.html")
	if err == nil {
		err = os.WriteFile(file, html, 0o644)
	}
	if err != nil {
		return "", fmt.Errorf("draw a report: %w", err)
	}
	return file, nil
}
