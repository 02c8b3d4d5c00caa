package overflow

import (
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
)

// relayAgain is why an attempt that reads into memory is followed by one that reads through the
// relay log: see docs/adr/0047-a-relay-log-and-promotion.md.
const relayAgain = "the relay log can be written again"

// Relays reports whether the next attempt, of a link with this copy, reads through the relay log:
// whether there is to be one, and its folder can be written to. Otherwise the link continues from
// memory, and tries again.
func (o *Overflow) Relays(c *checkpoint.Copy) bool {
	if !o.cfg.Relay || time.Now().Before(o.relayNext) {
		return false
	}
	if err := o.log.Prepare(c); err != nil {
		o.notRelayed(err)
		return false
	}
	o.cfg.Show.Relays("")
	return true
}

// notRelayed announces that there is no relay log at present.
func (o *Overflow) notRelayed(err error) {
	o.relayNext = time.Now().Add(again)
	o.cfg.Show.Relays(err.Error())
	o.cfg.Observer.Log(slog.LevelWarn, "the relay log cannot be written: entries read and not durable on the target are in memory only", slog.Any(keyError, err))
}

// relaysAgain announces that there is one again.
func (o *Overflow) relaysAgain() {
	o.relayNext = time.Time{}
	o.cfg.Show.Relays("")
	o.cfg.Observer.Log(slog.LevelInfo, relayAgain, slog.String(keyDir, o.log.Dir()))
}
