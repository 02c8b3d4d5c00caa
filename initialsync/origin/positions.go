package origin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

const (
	localDB, adminDB, configDB = "local", "admin", "config"
	oplogCollection            = "oplog.rs"
)

// patience is how long a member has for one question. Some of them wait for
// writes that are under way, or for other members.
const patience = time.Minute

// Positions are where the log meets the copy.
type Positions struct {
	// FetchFrom is where reading begins: the oldest transaction that was open, or
	// the newest entry before that was asked. Begin is the newest entry after,
	// behind which the log is applied; Wall is its primary's clock, in
	// milliseconds since the epoch. FetchFrom <= Begin.
	FetchFrom, Begin oplog.OpTime
	Wall             int64
}

// Begin finds where the log is to be read and applied from, in the order of the
// server's own initial sync (newest entry, oldest open transaction, newest entry,
// a read that waits for all entries before it, which is of the document with the
// feature compatibility version). A version that is being changed is a
// *FCVError, as is none at all. A member that does not know the entry as committed
// by a majority yet is waited for, for a minute (ErrUncommitted).
func Begin(ctx context.Context, member mongo.Caller) (Positions, error) {
	p, err := begin(ctx, member, patience)
	if err != nil {
		return Positions{}, fmt.Errorf("find where the log meets the copy%s: %w", of(member), err)
	}
	return p, nil
}

func begin(ctx context.Context, member mongo.Caller, patience time.Duration) (Positions, error) {
	first, err := newest(ctx, member)
	if err != nil {
		return Positions{}, err
	}
	open, found, err := oldestOpen(ctx, member)
	if err != nil {
		return Positions{}, fmt.Errorf("read the oldest open transaction: %w", err)
	}
	last, err := newest(ctx, member)
	if err != nil {
		return Positions{}, err
	}
	if last.at.Before(first.at) {
		return Positions{}, &ChangedError{hostOf(member), fmt.Sprintf("its newest entry was %s, then %s", first.at, last.at)}
	}
	p := Positions{FetchFrom: first.at, Begin: last.at, Wall: last.wall}
	if found && open.Before(p.FetchFrom) {
		p.FetchFrom = open
	}
	if _, err := readFCV(ctx, member, p.Begin.TS, patience); err != nil {
		return Positions{}, err
	}
	return p, awaitCommitted(ctx, member, p.Begin, patience)
}

// Stop returns the member's newest entry: everything that was read from it
// before is not later than that. One before begin is a *ChangedError.
func Stop(ctx context.Context, member mongo.Caller, begin oplog.OpTime) (oplog.OpTime, error) {
	last, err := newest(ctx, member)
	if err != nil {
		return oplog.OpTime{}, fmt.Errorf("find where the copy%s ends: %w", of(member), err)
	}
	if last.at.Before(begin) {
		return oplog.OpTime{}, &ChangedError{hostOf(member), fmt.Sprintf("its newest entry is %s, and the copy began at %s", last.at, begin)}
	}
	return last.at, nil
}

// entry is what is read of one.
type entry struct {
	at   oplog.OpTime
	wall int64
}

// newest reads the newest entry. It is read backwards: a primary shows one then
// that others with earlier timestamps may still be missing before, and a read
// that began at the other end would stop before those.
func newest(ctx context.Context, member mongo.Caller) (entry, error) {
	q := question{
		db: localDB, collection: oplogCollection, sort: document().AppendInt32("$natural", -1).Build(),
		concern: local(), patience: patience,
	}
	_, doc, err := q.ask(ctx, member)
	var e entry
	switch {
	case err != nil:
	case doc == nil:
		err = errNoLog
	default:
		e, err = readEntry(doc)
	}
	if err != nil {
		return entry{}, fmt.Errorf("read the newest entry: %w", err)
	}
	return e, nil
}

// readEntry reads an entry, or another document that has an optime.
func readEntry(doc bson.Raw) (entry, error) {
	e := entry{at: oplog.OpTime{Term: oplog.UninitializedTerm}}
	ts, _ := rawbson.Lookup(doc, "ts")
	var ok bool
	if e.at.TS, ok = ts.Timestamp(); !ok || e.at.IsNull() {
		return entry{}, errors.New("an optime without a timestamp")
	}
	if term, found := rawbson.Lookup(doc, "t"); found {
		if e.at.Term, ok = term.Int64(); !ok {
			return entry{}, fmt.Errorf("an optime with a term that is %s", term.Type)
		}
	}
	wall, _ := rawbson.Lookup(doc, "wall")
	e.wall, _ = wall.DateTime()
	return e, nil
}

// oldestOpen returns where the oldest transaction began that has entries and has
// not ended, false if there is none.
func oldestOpen(ctx context.Context, member mongo.Caller) (oplog.OpTime, bool, error) {
	states := bsoncore.NewArrayBuilder().AppendString("prepared").AppendString("inProgress").Build()
	q := question{
		db: configDB, collection: "transactions",
		filter: document().AppendDocument("state", document().AppendArray("$in", states).Build()).Build(),
		sort:   document().AppendInt32("startOpTime", 1).Build(),
		// The least there is: entries that are still being written have to be there.
		concern: after("local", bson.Timestamp{I: 1}), patience: patience,
	}
	_, doc, err := q.ask(ctx, member)
	if err != nil || doc == nil {
		return oplog.OpTime{}, false, err
	}
	field, ok := rawbson.Lookup(doc, "startOpTime")
	if !ok {
		return oplog.OpTime{}, false, nil
	}
	start, ok := field.Document()
	if !ok {
		return oplog.OpTime{}, false, fmt.Errorf("its startOpTime is %s", field.Type)
	}
	e, err := readEntry(start)
	return e.at, err == nil, err
}

// Unlogged reports whether the members of a source trim their capped collections by
// themselves, without entries of the log, as those with a feature compatibility
// version below 5.0 do. A version that is being changed is a *FCVError.
func Unlogged(ctx context.Context, member mongo.Caller, begin oplog.OpTime) (bool, error) {
	name, err := readFCV(ctx, member, begin.TS, patience)
	if err != nil {
		return false, fmt.Errorf("find out whether capped collections%s are trimmed by the log: %w", of(member), err)
	}
	major, _, _ := strings.Cut(name, ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		return false, &FCVError{fmt.Sprintf("its version is %q", name)}
	}
	return n < 5, nil
}

// readFCV reads the feature compatibility version as of a time.
func readFCV(ctx context.Context, member mongo.Caller, at bson.Timestamp, patience time.Duration) (string, error) {
	q := question{
		db: adminDB, collection: "system.version",
		filter:  document().AppendString("_id", "featureCompatibilityVersion").Build(),
		concern: after("local", at), patience: patience,
	}
	_, doc, err := q.ask(ctx, member)
	if err != nil {
		return "", fmt.Errorf("read the feature compatibility version: %w", err)
	}
	if doc == nil {
		return "", &FCVError{"there is none"}
	}
	version, _ := rawbson.Lookup(doc, "version")
	name, ok := version.Text()
	if !ok || name == "" {
		return "", &FCVError{"it has no version"}
	}
	for _, field := range []string{"targetVersion", "previousVersion"} {
		if e, there := rawbson.Lookup(doc, field); there {
			return "", &FCVError{fmt.Sprintf("it is being changed (version %q, %s %s)", name, field, e.Raw())}
		}
	}
	return name, nil
}

// awaitCommitted waits until a member shows an entry as committed by a majority.
func awaitCommitted(ctx context.Context, member mongo.Caller, at oplog.OpTime, patience time.Duration) error {
	bounds := document().AppendTimestamp("$gte", at.TS.T, at.TS.I).AppendTimestamp("$lte", at.TS.T, at.TS.I).Build()
	q := question{
		db: localDB, collection: oplogCollection, filter: document().AppendDocument("ts", bounds).Build(),
		concern: after("majority", at.TS), patience: patience,
	}
	_, doc, err := q.ask(ctx, member)
	if servererr.Classify(err) == servererr.Expired {
		return fmt.Errorf("await the entry %s: %w after %s: %w", at, ErrUncommitted, patience, err)
	}
	if err != nil {
		return fmt.Errorf("await the entry %s, as a majority has it: %w", at, err)
	}
	if doc == nil {
		return &ChangedError{hostOf(member), fmt.Sprintf("the entry %s is gone", at)}
	}
	e, err := readEntry(doc)
	if err != nil {
		return fmt.Errorf("await the entry %s, as a majority has it: %w", at, err)
	}
	if !e.at.Equal(at) {
		return &ChangedError{hostOf(member), fmt.Sprintf("in place of the entry %s there is %s", at, e.at)}
	}
	return nil
}

// hostOf returns the name of a member that knows it.
func hostOf(member mongo.Caller) string {
	if m, ok := member.(interface{ Host() string }); ok {
		return m.Host()
	}
	return ""
}

// of says for an error which member is meant.
func of(member mongo.Caller) string {
	if host := hostOf(member); host != "" {
		return " of " + host
	}
	return ""
}
