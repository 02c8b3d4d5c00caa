// Package filestamp tells whether a file that is replaced while the program runs, such as a certificate, has changed
// since it was read.
package filestamp

import (
	"os"
	"time"
)

// Stamp identifies the content of a file. It is comparable; the zero Stamp is that of a file that cannot be examined, and
// that of a pipe or a terminal: to read one of them again may wait for ever.
type Stamp struct {
	size int64
	at   time.Time
}

// Of returns the stamp of a file. Its error is that of [os.Stat].
func Of(name string) (Stamp, error) {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return Stamp{}, err
	}
	return Stamp{info.Size(), info.ModTime()}, nil
}
