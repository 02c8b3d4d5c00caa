package continuous

import (
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/verify/standing"
)

// mostTold is how many differences of a collection are announced one by one.
const mostTold = 20

const (
	keyNS          = "ns"
	keyCause       = "cause"
	keyWhy         = "why"
	keyKind        = "kind"
	keyID          = "id"
	keyName        = "name"
	keyWhat        = "what"
	keyDifferences = "differences"
	keyNamespaces  = "namespaces"
	keyLeft        = "left"
	keyAsOf        = "asOf"
	keyCollections = "collections"
)

// Differs announces a difference between source and target. It has no values.
type Differs struct {
	NS oplog.Namespace
	standing.Found
}

// Message implements event.Event.
func (Differs) Message() string { return "the target differs from the source" }

// Level implements event.Event.
func (Differs) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e Differs) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String(keyNS, string(e.NS)), slog.String(keyKind, e.Kind)}
	for _, a := range []slog.Attr{slog.String(keyID, e.ID), slog.String(keyName, e.Name), slog.String(keyWhat, e.What)} {
		if a.Value.String() != "" {
			attrs = append(attrs, a)
		}
	}
	return slog.GroupValue(attrs...)
}

// Known announces differences that are not named one by one: those that were known before this process
// led, or many of one collection.
type Known struct {
	// NS is empty for all.
	NS          oplog.Namespace
	Differences int64
	Namespaces  int
}

// Message implements event.Event.
func (Known) Message() string { return "differences between source and target are known" }

// Level implements event.Event.
func (Known) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e Known) LogValue() slog.Value {
	attrs := []slog.Attr{slog.Int64(keyDifferences, e.Differences), slog.Int(keyNamespaces, e.Namespaces)}
	if e.NS != "" {
		attrs = append(attrs, slog.String(keyNS, string(e.NS)))
	}
	return slog.GroupValue(attrs...)
}

// Cleared announces that a later comparison has not found differences any more.
type Cleared struct {
	NS            oplog.Namespace
	Cleared, Left int64
}

// Message implements event.Event.
func (Cleared) Message() string { return "differences between source and target are gone" }

// Level implements event.Event.
func (Cleared) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Cleared) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyNS, string(e.NS)), slog.Int64(keyDifferences, e.Cleared), slog.Int64(keyLeft, e.Left))
}

// Unverified announces that a collection of the source is not verified any more.
type Unverified struct {
	NS  oplog.Namespace
	Why string
}

// Message implements event.Event.
func (Unverified) Message() string { return "a collection is not verified any more" }

// Level implements event.Event.
func (Unverified) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Unverified) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyNS, string(e.NS)), slog.String(keyWhy, e.Why))
}

// Verified announces that everything is verified that was not before.
type Verified struct {
	AsOf        time.Time
	Collections int
	Differences int64
}

// Message implements event.Event.
func (Verified) Message() string { return "everything is compared with the source" }

// Level implements event.Event.
func (Verified) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Verified) LogValue() slog.Value {
	return slog.GroupValue(slog.Time(keyAsOf, e.AsOf), slog.Int(keyCollections, e.Collections), slog.Int64(keyDifferences, e.Differences))
}
