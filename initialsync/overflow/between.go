package overflow

import (
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/fetcher"
)

// between is called between two attempts, after a time in which attempts have advanced
// nothing: it spools the oplog while none gets as far as reading it.
func (a *Attempt) between(since time.Time) {
	if a.cfg.Told() || a.of.log.Storing() || time.Now().Before(a.again) {
		return
	}
	a.again = time.Now().Add(again)
	if err := a.start(a.fetchConfig(), "no attempt has applied anything since "+since.UTC().Format(time.RFC3339)); err != nil {
		a.of.notSpooled(err)
	}
}

// fetchConfig says how the source is read from the last checkpoint on: the entries spooled from
// there are all that a restart needs.
func (a *Attempt) fetchConfig() fetcher.Config {
	st := a.cfg.State
	a.mu.Lock()
	st.Applied, st.FetchFrom = a.at.Applied, a.at.FetchFrom
	a.mu.Unlock()
	return a.of.cfg.Fetch(a.cfg.Source, st)
}

// start starts to spool the oplog, and announces it.
func (a *Attempt) start(fetch fetcher.Config, why string) error {
	if err := a.cfg.Start(fetch); err != nil {
		return err
	}
	a.why = why
	if why == relayAgain {
		a.of.relaysAgain()
		return nil
	}
	a.of.cfg.Show.Spools(a.of.log.Spool(), why)
	a.of.cfg.Observer.Log(slog.LevelWarn, "the oplog is spooled to disk until the target has caught up",
		slog.String(keyWhy, why), slog.String(keyFrom, fetch.From.String()), slog.String(keyDir, a.of.log.Dir()))
	return nil
}
