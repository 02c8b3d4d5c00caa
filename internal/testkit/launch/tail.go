package launch

import (
	"io"
	"os"
	"strings"
)

// tailBytes is how much of a log is shown at most.
const tailBytes = 8 << 10

// Tail returns the last lines of a log, or why there are none.
func Tail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	text, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-tailBytes), tailBytes))
	if err != nil {
		return err.Error()
	}
	return LastLines(text)
}

// LastLines returns the last lines of a text, as many as are shown.
func LastLines(all []byte) string {
	text := string(all[max(0, len(all)-tailBytes):])
	if len(all) >= tailBytes { // the first line is most likely cut
		if _, rest, ok := strings.Cut(text, "\n"); ok {
			text = rest
		}
	}
	return strings.TrimRight(text, "\n")
}
