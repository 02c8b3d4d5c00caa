package initialsync

import (
	"log/slog"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// Has reports whether there is a spool on disk that has the entry from which an instance of
// the link reads next, and returns the last entry in it. It opens nothing, and is for a link
// that another process may lead. C is its copy, nil if it has none.
func (l *Log) Has(instance string, c *checkpoint.Copy, from oplog.OpTime) (last oplog.OpTime, ok bool) {
	of := Log{cfg: l.cfg, instance: instance}
	dir := l.dirOf(instance)
	if dir == "" {
		return oplog.OpTime{}, false
	}
	first, last, ok, err := spool.Peek(dir, of.idOf(c))
	if err != nil {
		l.cfg.Observer.Log(slog.LevelWarn, "the spool cannot be looked into", slog.String(keyError, err.Error()))
		return oplog.OpTime{}, false
	}
	return last, ok && !from.Before(first) && !from.After(last)
}
