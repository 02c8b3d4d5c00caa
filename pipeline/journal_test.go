package pipeline_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog/txn"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/pipeline/reading"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/syncsource"
)

// Message, Level and LogValue make ended an event.
func (ended) Message() string        { return "ended" }
func (ended) Level() slog.Level      { return slog.LevelInfo }
func (e ended) LogValue() slog.Value { return slog.StringValue(verdict(e.err)) }

// verdict describes how a run ended, in words that are the same each time.
func verdict(err error) string {
	if err == nil {
		return "drained"
	}
	v := failure.Classify(err)
	return fmt.Sprintf("%s %d: %s", v.Action, v.Code, kind(err))
}

// kind names the cause of an error.
func kind(err error) string {
	if errors.Is(err, fetcher.ErrOtherHistory) {
		return "other history" // because of what a member is without
	}
	switch {
	case as[*initialsync.NoMemberError](err):
		return "no member"
	case as[*origin.ChangedError](err):
		return "member changed"
	case as[*spool.FullError](err):
		return "spool full"
	}
	for name, sentinel := range map[string]error{
		"compatibility version": initialsync.ErrFCVChanged, "log lost": fetcher.ErrLogLost, "too many copies": initialsync.ErrCopies,
		"stopped": failure.ErrStopped, "other settings": checkpoint.ErrSettings,
		"other source": checkpoint.ErrOtherSource, "fenced": lease.ErrFenced, "held": lease.ErrHeld, "start too old": replset.ErrTooOld,
		"member behind": fetcher.ErrSourceBehind, "member too stale": fetcher.ErrTooStale, "start missing": fetcher.ErrStartMissing,
		"member rolled back": fetcher.ErrRolledBack, "member of another set": fetcher.ErrForeignSet, "rewound": lease.ErrRewound,
	} {
		if errors.Is(err, sentinel) {
			return name
		}
	}
	if e, ok := errors.AsType[*applier.DivergenceError](err); ok {
		return fmt.Sprintf("diverged at %s %s, %s", e.NS, bsontext.Value(e.ID), e.What)
	}
	if e, ok := errors.AsType[*applier.UniqueError](err); ok {
		return fmt.Sprintf("unique index %s of %s, _id %s", e.Index, e.NS, bsontext.Value(e.ID))
	}
	if e, ok := errors.AsType[*applier.StuckError](err); ok {
		return "stuck: " + kind(e.Err)
	}
	switch {
	case as[*syncsource.TooStaleError](err):
		return "too stale everywhere"
	case as[*txn.ResumeError](err):
		return "log without the position"
	case as[*txn.BrokenChainError](err):
		return "transaction without its beginning"
	case as[*mongo.LostError](err):
		return "no answer"
	case as[*mongo.UnconfirmedError](err):
		return "not confirmed"
	}
	prefix := ""
	if as[*applier.OpError](err) {
		prefix = "operation refused, "
	}
	if e, ok := errors.AsType[*servererr.Error](err); ok {
		return prefix + e.Code.String()
	}
	return err.Error()
}

func as[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// rare are the events that a scenario shows only on request: whether and when they
// occur depends on timing.
var rare = map[string]bool{
	"denied": true, "left": true, "rewound": true, "slow": true, "reading": true, "no-source": true, "error": true, "source": true, "copied": true, "gone": true, "again": true, "moved": true,
}

// line returns an event as scenarios show it, and its name if it is a rare one; empty
// if they do not show it.
func (w *world) line(e told) (text, is string) {
	switch e := e.event.(type) {
	case monitor.StateChanged:
		return "state " + word(e.To), ""
	case pipeline.AttemptEnded:
		return "attempt ended", ""
	case reading.Earlier:
		return "reading earlier", ""
	case syncsource.SourceChosen:
		if e.From == e.To {
			return "", ""
		}
		from := ""
		if e.From != "" {
			from = w.name(e.From) + " "
		}
		return "source " + from + "-> " + w.name(e.To), "source"
	case syncsource.NoSource:
		return "no source: " + e.Reason, "no-source"
	case checkpoint.Acquired:
		return "lease acquired", ""
	case initialsync.StepChanged:
		return "copy: " + string(e.Step), ""
	case event.Line:
		return w.logged(e)
	case initialsync.CopyEnded:
		return "everything copied", ""
	case initialsync.CopyMoved:
		if e.From == e.To {
			return "copy continues: the same member", "moved"
		}
		return "copy continues: another member", "moved"
	case monitor.Consistent:
		return "consistent", ""
	case resync.PartEvent:
		if text, _ := w.line(told{event: e.Event}); text != "" {
			return "again: " + text, "again"
		}
		return "", ""
	case resync.Began:
		return "copies again: " + string(e.NS), ""
	case resync.Ended:
		if e.Err != nil {
			return "not copied again: " + string(e.NS) + ": " + kind(e.Err), ""
		}
		return "copied again: " + string(e.NS), ""
	case ended:
		return "ended: " + verdict(e.err), ""
	}
	return "", ""
}

// logged returns the line of an event that has no type of its own.
func (w *world) logged(e event.Line) (text, is string) {
	attr := func(key string) string { return event.Attr(e, key).String() }
	switch e.Message() {
	case "source denied":
		return "denied " + w.name(attr("host")), "denied"
	case "leaving the source":
		return "source left: " + attr("reason"), "left"
	case "reading the oplog":
		return "reading " + w.name(attr("host")), "reading"
	case "collection copied":
		return "copied " + attr("ns"), "copied"
	case "the source has dropped a collection that was being copied":
		return "gone " + attr("ns"), "gone"
	case "an index cannot be built on the target":
		return "index failed: " + attr("ns") + " " + attr("index"), ""
	case "a view cannot be made on the target":
		return "view failed: " + attr("ns"), ""
	case "link created in the target":
		return "link created", ""
	case "number of writers changed":
		return "writers " + attr("from") + " -> " + attr("writers"), ""
	case "another process has acquired the lease":
		return "fenced", "rewound"
	case "the target lost acknowledged writes, which are written again":
		return "rewound", "rewound"
	case "target diverged":
		return "diverged: " + attr("ns") + " " + attr("id") + ", " + attr("what"), ""
	case "a transaction is applied in several":
		return "not atomic: " + attr("ops") + " operations", ""
	case "operations are applied one by one":
		return "one by one: " + kind(event.Attr(e, "cause").Any().(error)), "slow"
	case "command applied", "options deferred until cutover", "index deferred until cutover":
		return e.Message(), "command"
	case "source failed":
		return "source failed: " + kind(event.Attr(e, "error").Any().(error)), "denied"
	case "the copy is void and starts again":
		return "copy void: " + kind(event.Attr(e, "error").Any().(error)), ""
	case "the spool is damaged: the log is read again from the source":
		return "spool discarded", ""
	case "unfinished end of the spool cut off":
		return "spool cut", ""
	case "a collection has to be copied":
		return "needs a copy: " + attr("ns"), ""
	case "spool full, reading the oplog paused":
		return "spool full", ""
	case "spool has room again":
		return "spool has room", ""
	}
	return "", ""
}

// isStep reports whether an event is a step that a link repeats as often as needed. If
// steps are not shown, decisions and ends still are.
func isStep(e event.Event) bool {
	switch e := e.(type) {
	case monitor.StateChanged, pipeline.AttemptEnded, checkpoint.Acquired, initialsync.StepChanged,
		initialsync.CopyEnded, resync.Began:
		return true
	case resync.Ended:
		return e.Err == nil
	case event.Line:
		return e.Message() == "spool has room again" || e.Message() == "a collection has to be copied"
	}
	return false
}

// word names a state; the two that alternate in a working link have the same name.
func word(s monitor.State) string {
	if s == monitor.CatchingUp || s == monitor.Steady {
		return "running"
	}
	return string(s)
}

// name calls a host by a letter.
func (w *world) name(host string) string {
	w.naming.Lock()
	defer w.naming.Unlock()
	if w.names[host] == "" {
		w.names[host] = string(rune('A' + len(w.names)))
	}
	return w.names[host]
}

// journal returns the events since the last call, each line once, where it first
// occurred: how often a step is repeated depends on timing.
func (w *world) journal(show []string) []string {
	w.mu.Lock()
	events := w.events
	w.events = nil
	w.mu.Unlock()
	var lines []string
	for _, e := range events {
		line, is := w.line(e)
		if a, ok := e.event.(pipeline.AttemptEnded); ok && slices.Contains(show, "error") {
			line += ": " + kind(a.Err)
		}
		if line == "" || is == "command" && !slices.Contains(show, is) || rare[is] && !slices.Contains(show, is) {
			continue
		}
		if slices.Contains(show, "decisions") && isStep(e.event) {
			continue
		}
		if s, ok := e.event.(monitor.StateChanged); ok {
			if w.shown[e.link] == word(s.To) {
				continue
			}
			w.shown[e.link] = word(s.To)
		}
		if e.link != "a" {
			line = e.link + ": " + line
		}
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}
