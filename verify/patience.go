package verify

import (
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
)

const (
	// waitsAfter is how long a side is asked again before that is told, waitsEvery how often it is told then.
	waitsAfter = 10 * time.Second
	waitsEvery = 30 * time.Second
)

// retry returns how a read is retried that begins now.
func (c *Config) retry() mongo.Retry {
	next := time.Now().Add(waitsAfter)
	return mongo.Retry{For: c.Patience, Again: again, Failed: func(err error) {
		if now := time.Now(); now.After(next) {
			next = now.Add(waitsEvery)
			c.Waits(err)
		}
	}}
}
