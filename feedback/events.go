package feedback

import (
	"log/slog"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// Keys of the events' attributes.
const (
	keyMode    = "mode"
	keyHost    = "host"
	keyMember  = "member"
	keyApplied = "applied"
	keyError   = "error"
	keyHint    = "hint"
)

// Reporting announces the first report that the source accepted, or the first after
// errors.
type Reporting struct {
	Mode    Mode
	Host    string
	Applied oplog.OpTime
}

// Message implements event.Event.
func (Reporting) Message() string { return "progress is reported to the source" }

// Level implements event.Event.
func (Reporting) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Reporting) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyMode, e.Mode.String()), slog.String(keyHost, e.Host),
		slog.String(keyApplied, e.Applied.String()))
}

// Failed announces a report that the source did not accept, or may not have
// accepted. It is sent once for consecutive equal errors.
type Failed struct {
	Mode     Mode
	MemberID int
	Host     string
	Err      error
}

// Message implements event.Event.
func (Failed) Message() string { return "progress could not be reported to the source" }

// Level implements event.Event.
func (Failed) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e Failed) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String(keyMode, e.Mode.String()), slog.String(keyHost, e.Host)}
	if e.Mode == Member {
		attrs = append(attrs, slog.Int(keyMember, e.MemberID))
	}
	attrs = append(attrs, slog.String(keyError, e.Err.Error()))
	if hint := e.Hint(); hint != "" {
		attrs = append(attrs, slog.String(keyHint, hint))
	}
	return slog.GroupValue(attrs...)
}

// Hint returns the remedy for an error that does not pass by itself, empty for one that may.
func (e Failed) Hint() string {
	switch {
	case servererr.IsNoMember(e.Err):
		return "add the member to the source's configuration, or report by a document, or not at all"
	case servererr.IsDenied(e.Err) && e.Mode == Member:
		return "grant the source's user the action internal on the cluster, or report by a document, or not at all"
	case servererr.IsDenied(e.Err):
		return "grant the source's user readWrite on the database of the positions, or do not report"
	}
	return ""
}

// faultText returns the text that identifies an error: another text is announced
// again.
func faultText(j *job, err error) string {
	return j.host + " " + servererr.Brief(err)
}
