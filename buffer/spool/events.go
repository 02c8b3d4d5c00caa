package spool

import (
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// Keys of the events' attributes.
const (
	keyDir     = "dir"
	keyFile    = "file"
	keyOffset  = "offset"
	keyBytes   = "bytes"
	keyLimit   = "limit"
	keyFree    = "free"
	keyEntries = "entries"
	keyFirst   = "first"
	keyLast    = "last"
	keyWhy     = "why"
	keyFor     = "for"
	keyID      = "id"
	keyWas     = "was"
)

// Opened is a spool that has entries of an earlier process or attempt.
type Opened struct {
	Dir            string
	Bytes, Entries int64
	First, Last    oplog.OpTime
}

// Message implements event.Event.
func (Opened) Message() string { return "spool found on disk" }

// Level implements event.Event.
func (Opened) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Opened) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyDir, e.Dir), slog.Int64(keyBytes, e.Bytes),
		slog.Int64(keyEntries, e.Entries), slog.String(keyFirst, e.First.String()), slog.String(keyLast, e.Last.String()))
}

// Emptied is a folder that had the files of another spool.
type Emptied struct {
	Dir string
	// Was is whose files they were, ID whose folder it is now.
	Was, ID string
	Bytes   int64
}

// Message implements event.Event.
func (Emptied) Message() string { return "files of another spool removed" }

// Level implements event.Event.
func (Emptied) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Emptied) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyDir, e.Dir), slog.String(keyWas, e.Was), slog.String(keyID, e.ID),
		slog.Int64(keyBytes, e.Bytes))
}

// Cut is the end of a file that was not wholly written, and was cut off. What it
// held is fetched again.
type Cut struct {
	File string
	// Offset is where it was cut, in bytes. At 0 the file was removed.
	Offset int64
	// Bytes are lost, with at least so many Entries: of what has no readable head
	// it is not known how many they were.
	Bytes, Entries int64
	Why            string
}

// Message implements event.Event.
func (Cut) Message() string { return "unfinished end of the spool cut off" }

// Level implements event.Event.
func (Cut) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e Cut) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyFile, e.File), slog.Int64(keyOffset, e.Offset), slog.Int64(keyBytes, e.Bytes),
		slog.Int64(keyEntries, e.Entries), slog.String(keyWhy, e.Why))
}

// Full is a spool that has no room: the source's log is not read on.
type Full struct {
	Dir string
	Why string
	// Bytes are on disk, of Limit; Free are left on the disk.
	Bytes, Limit, Free int64
}

// Message implements event.Event.
func (Full) Message() string { return "spool full, reading of the source waits" }

// Level implements event.Event.
func (Full) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e Full) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyDir, e.Dir), slog.String(keyWhy, e.Why), slog.Int64(keyBytes, e.Bytes),
		slog.Int64(keyLimit, e.Limit), slog.Int64(keyFree, e.Free))
}

// Room is a spool that was full and goes on.
type Room struct {
	Dir string
	// For is how long it was full.
	For          time.Duration
	Bytes, Limit int64
}

// Message implements event.Event.
func (Room) Message() string { return "spool has room again" }

// Level implements event.Event.
func (Room) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Room) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyDir, e.Dir), slog.Duration(keyFor, e.For), slog.Int64(keyBytes, e.Bytes),
		slog.Int64(keyLimit, e.Limit))
}
