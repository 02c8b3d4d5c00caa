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
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// Begin finds where the oplog is to be read and applied from, in the order of the
// server's own initial sync: replset.FindStart, then a read that waits until there is
// no oplog hole before Begin (it reads the feature compatibility version), then a
// majority-committed read of Begin. It returns a *FCVError if that version is being
// changed or missing, and ErrUncommitted if the member does not know Begin as committed
// within a minute.
func Begin(ctx context.Context, member mongo.Caller) (replset.Start, error) {
	s, err := begin(ctx, member, replset.Patience)
	if err != nil {
		return replset.Start{}, fmt.Errorf("find where the copy%s begins: %w", of(member), err)
	}
	return s, nil
}

func begin(ctx context.Context, member mongo.Caller, patience time.Duration) (replset.Start, error) {
	s, err := replset.FindStart(ctx, member, replset.Local)
	if back, ok := errors.AsType[*replset.WentBackError](err); ok {
		err = &ChangedError{hostOf(member), back.Error()}
	}
	if err != nil {
		return replset.Start{}, err
	}
	if _, err := readFCV(ctx, member, replset.Local, s.Begin.TS, patience); err != nil {
		return replset.Start{}, err
	}
	return s, awaitCommitted(ctx, member, s.Begin, patience)
}

// Stop returns the member's newest entry: nothing that was read from the member before
// is later. If that is before begin, it returns a *ChangedError.
func Stop(ctx context.Context, member mongo.Caller, begin oplog.OpTime) (oplog.OpTime, error) {
	last, err := replset.NewestEntry(ctx, member, replset.Local)
	if err != nil {
		return oplog.OpTime{}, fmt.Errorf("find where the copy%s ends: %w", of(member), err)
	}
	if last.OpTime.Before(begin) {
		return oplog.OpTime{}, &ChangedError{hostOf(member), fmt.Sprintf("its newest entry is %s, and the copy began at %s", last.OpTime, begin)}
	}
	return last.OpTime, nil
}

// Settled waits until everything that the member has shown so far is majority-committed,
// so that it can not be rolled back: lists of collections and indexes, and whether a
// collection exists, are always read as the member has them. It returns a *ChangedError if
// the member is not what it was before the first of these reads, or was rolled back since.
func Settled(ctx context.Context, member mongo.Caller, was Identity) error {
	last, err := replset.NewestEntry(ctx, member, replset.Local)
	if err == nil {
		err = awaitCommitted(ctx, member, last.OpTime, replset.Patience)
	}
	if err != nil {
		return fmt.Errorf("await that a majority has what%s was listed: %w", of(member), err)
	}
	return Check(ctx, member, was)
}

// servePatience limits the read of Serves.
const servePatience = 10 * time.Second

// Serves returns an error if a member cannot serve the reads of a copy that began at an
// entry: with read concern majority, after that entry. A member may answer everything else
// and have no majority-committed snapshot, or be far behind.
func Serves(ctx context.Context, member mongo.Caller, begin oplog.OpTime) error {
	if _, err := readFCV(ctx, member, replset.Majority, begin.TS, servePatience); err != nil {
		return fmt.Errorf("read%s as a majority has it: %w", of(member), err)
	}
	return nil
}

// Unlogged reports whether the members of a source trim their capped collections by
// themselves, without oplog entries, as those with a feature compatibility version
// below 5.0 do. If that version is being changed, it returns a *FCVError.
func Unlogged(ctx context.Context, member mongo.Caller, begin oplog.OpTime) (bool, error) {
	name, err := readFCV(ctx, member, replset.Majority, begin.TS, replset.Patience)
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
func readFCV(ctx context.Context, member mongo.Caller, level replset.Level, at bson.Timestamp, patience time.Duration) (string, error) {
	f := replset.Find{
		DB: "admin", Collection: "system.version",
		Filter: document().AppendString("_id", "featureCompatibilityVersion").Build(),
		Level:  level, After: at, MaxTime: patience,
	}
	_, doc, err := f.Run(ctx, member)
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

// awaitCommitted waits until a member shows an entry as majority-committed.
func awaitCommitted(ctx context.Context, member mongo.Caller, at oplog.OpTime, patience time.Duration) error {
	f := replset.At(at.TS)
	f.Level, f.After, f.MaxTime = replset.Majority, at.TS, patience
	_, doc, err := f.Run(ctx, member)
	if servererr.Classify(err) == servererr.Expired {
		return fmt.Errorf("await the entry %s: %w after %s: %w", at, ErrUncommitted, patience, err)
	}
	if err != nil {
		return fmt.Errorf("await the entry %s, as a majority has it: %w", at, err)
	}
	if doc == nil {
		return &ChangedError{hostOf(member), fmt.Sprintf("the entry %s is gone", at)}
	}
	e, err := replset.ReadEntry(doc)
	if err != nil {
		return fmt.Errorf("await the entry %s, as a majority has it: %w", at, err)
	}
	if !e.OpTime.Equal(at) {
		return &ChangedError{hostOf(member), fmt.Sprintf("in place of the entry %s there is %s", at, e.OpTime)}
	}
	return nil
}

// hostOf returns the address of a member, if its caller knows it.
func hostOf(member mongo.Caller) string {
	if m, ok := member.(interface{ Host() string }); ok {
		return m.Host()
	}
	return ""
}

// of names the member in an error message.
func of(member mongo.Caller) string {
	if host := hostOf(member); host != "" {
		return " of " + host
	}
	return ""
}

func document() *bsoncore.DocumentBuilder { return bsoncore.NewDocumentBuilder() }
