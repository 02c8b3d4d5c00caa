package lease

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"strconv"
	"time"
)

// NewProcess returns an id for this process: its host, a name or port that tells it from
// others there, when it was started, and 64 random bits. Without a name that is its pid, as
// pid4711: a number alone is a port. It must stay the same for the life of the process.
func NewProcess(name string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // It never fails.
	if name == "" {
		name = "pid" + strconv.Itoa(os.Getpid())
	}
	return host + ":" + name + ":" + strconv.FormatInt(time.Now().Unix(), 10) + ":" + hex.EncodeToString(random[:])
}
