package pace

import (
	"log/slog"
	"math"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/event"
)

// The keys of what events say.
const (
	keySide   = "side"
	keyWhy    = "why"
	keyFactor = "factor"
	keyError  = "error"
)

// Slowed says that the copy is slowed down, or more than it was, or for another
// reason.
type Slowed struct {
	// Side is the cluster that has enough to do, by the sign of Why.
	Side clone.Side
	Why  string
	// Factor is the part of its speed that the copy has left.
	Factor float64
}

// Recovered says that the copy has all of its speed again.
type Recovered struct{}

// Unwatched says that one side does not let us ask how it is. It is told of once.
type Unwatched struct {
	Side clone.Side
	Err  error
}

var (
	_ event.Event = Slowed{}
	_ event.Event = Recovered{}
	_ event.Event = Unwatched{}
)

// Message implements event.Event.
func (Slowed) Message() string { return "copy is slowed down" }

// Level implements event.Event.
func (Slowed) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Slowed) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keySide, string(e.Side)), slog.String(keyWhy, e.Why),
		slog.Float64(keyFactor, math.Round(e.Factor*1e4)/1e4))
}

// Message implements event.Event.
func (Recovered) Message() string { return "copy is at full speed again" }

// Level implements event.Event.
func (Recovered) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (Recovered) LogValue() slog.Value { return slog.GroupValue() }

// Message implements event.Event.
func (Unwatched) Message() string {
	return "the server may not be asked how busy it is: only the time that it takes will slow the copy down"
}

// Level implements event.Event.
func (Unwatched) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e Unwatched) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keySide, string(e.Side)), slog.String(keyError, e.Err.Error()))
}
