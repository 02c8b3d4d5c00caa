package repair

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

const (
	// cutPoll is the time between two looks for a newer cut.
	cutPoll = 200 * time.Millisecond
	// staleCuts is how many cuts may become too old to be read.
	staleCuts = 5
	// mostNamed is how many documents an outcome names.
	mostNamed = 3
)

// prove compares the documents of both sides at a consistent cut that is later than every write of
// the repair. The cut is majority-committed, so the result holds.
func (j *job) prove(ctx context.Context, ids []bson.RawValue) error {
	j.say(request.Working, "%s; waits for a later consistent cut to compare them", j.summary())
	after, left, pause := j.sum.Target, j.patience(), firstPause
	for n := 0; ; {
		cut, err := j.laterCut(ctx, after)
		if err != nil {
			return err
		}
		different, err := j.compare(ctx, ids, &cut)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			return j.proved(ctx, ids, different, &cut)
		case isAway(err) && !left.over():
			if err := mongo.Pause(ctx, pause); err != nil {
				return err
			}
			pause = min(2*pause, longestPause)
			continue
		case n == staleCuts || !isStale(err):
			return &failure{fmt.Sprintf("%s; but they could not be compared at a later cut: %v; run replicator verify", j.summary(), err)}
		}
		after = cut.Target
		n++
	}
}

// isAway reports whether a server does not answer at present, whatever the cut.
func isAway(err error) bool {
	return mongo.RepeatsRead(err) && !servererr.IsSnapshotTooOld(err) && !servererr.IsSnapshotUnavailable(err) && !servererr.IsGoneTransaction(err)
}

// isStale reports whether a comparison may succeed at a newer cut.
func isStale(err error) bool {
	return mongo.RepeatsRead(err) || errors.Is(err, errChanged) || servererr.IsSnapshotTooOld(err) || servererr.IsSnapshotUnavailable(err)
}

// proved returns the outcome of the comparison.
func (j *job) proved(ctx context.Context, ids, different []bson.RawValue, cut *checkpoint.Cut) error {
	noted := j.note(ctx, ids, different, cut)
	if len(different) > 0 {
		return &failure{fmt.Sprintf("%s: %d documents of %s, %s, at a cut as of %s%s", request.StillDiffers, len(different), j.target, named(different), cut.Source, j.refusals())}
	}
	// Documents that were refused may be the same by now: the source has changed them.
	j.proof = fmt.Sprintf("the same as the source's at a cut as of %s%s", cut.Source, noted)
	return nil
}

// note has those that do not differ any more noted. It returns a text if that fails.
func (j *job) note(ctx context.Context, ids, different []bson.RawValue, cut *checkpoint.Cut) string {
	if j.m.cfg.Proved == nil {
		return ""
	}
	still := make(map[string]bool, len(different))
	for _, id := range different {
		still[keyOf(id)] = true
	}
	var same []bson.RawValue
	for _, id := range ids {
		key := keyOf(id)
		stored, is := j.stored[key]
		switch {
		case still[key]:
		case is:
			same = append(same, stored)
		default: // one that was deleted may have been another type of number
			same = append(same, alike(id)...)
		}
	}
	if err := j.m.cfg.Proved(ctx, j.source, same, cut); err != nil {
		return fmt.Sprintf(" (differences that were known of them remain until the next verification: %v)", err)
	}
	return ""
}

// alike returns an _id and, of an integer, the other types of number that a server takes for equal.
func alike(id bson.RawValue) []bson.RawValue {
	all := []bson.RawValue{id}
	n, ok := id.AsInt64OK()
	if !ok {
		return all
	}
	for _, v := range []any{int32(n), n, float64(n)} { //nolint:gosec // one that it does not fit is not equal
		t, data, err := bson.MarshalValue(v)
		if other := (bson.RawValue{Type: t, Value: data}); err == nil && t != id.Type && keyOf(other) == keyOf(id) {
			all = append(all, other)
		}
	}
	return all
}

// named names some of the documents.
func named(ids []bson.RawValue) string {
	var texts []string
	for _, id := range ids[:min(len(ids), mostNamed)] {
		texts = append(texts, "_id "+show(id))
	}
	if len(ids) > mostNamed {
		texts = append(texts, "…")
	}
	return strings.Join(texts, ", ")
}

// refusals says which documents were refused.
func (j *job) refusals() string {
	var texts []string
	for i := range j.refused[:min(len(j.refused), mostNamed)] {
		texts = append(texts, fmt.Sprintf("; _id %s: %s", show(j.refused[i].id), j.refused[i].why))
	}
	return strings.Join(texts, "")
}

// laterCut waits for a cut after a time of the target, and after everything that was read from the
// source.
func (j *job) laterCut(ctx context.Context, after bson.Timestamp) (checkpoint.Cut, error) {
	asked, left := time.Time{}, j.patience()
	for {
		cut, why := j.m.cfg.Cuts.NewestCut()
		if oplog.CompareTimestamps(cut.Target, after) > 0 && !cut.Source.Before(j.sum.Source) {
			return cut, nil
		}
		if left.over() {
			return cut, &failure{fmt.Sprintf("%s; but no later cut was made within %s to compare them: %s; run replicator verify", j.summary(), j.m.cfg.Patience, cmp.Or(why, "the entries read are not applied yet"))}
		}
		if time.Since(asked) >= cutAgain {
			j.m.cfg.Cuts.Cut()
			asked = time.Now()
		}
		if err := mongo.Pause(ctx, cutPoll); err != nil {
			return cut, err
		}
	}
}

// compare returns which documents differ at a cut.
func (j *job) compare(ctx context.Context, ids []bson.RawValue, cut *checkpoint.Cut) (different []bson.RawValue, err error) {
	source, target := j.m.cfg.Source, j.m.cfg.Target
	j.stored = map[string]bson.RawValue{}
	before, err := j.uuids(ctx)
	if err != nil {
		return nil, err
	}
	expected, err := j.expected(ctx, before)
	if err != nil {
		return nil, err
	}
	atSource := func(ids []bson.RawValue) ([]bson.Raw, error) {
		return byIDs(ctx, source, j.source, expected[0], ids, cut.Source.TS)
	}
	atTarget := func(ids []bson.RawValue) ([]bson.Raw, error) {
		return byIDs(ctx, target, j.target, expected[1], ids, cut.Target)
	}
	for from := 0; from < len(ids); {
		n := min(len(ids)-from, groupDocs)
		want, err := smaller(&n, func(n int) ([]bson.Raw, error) { return atSource(ids[from : from+n]) })
		if err != nil {
			return nil, err
		}
		got, err := atTarget(ids[from : from+n])
		if errors.Is(err, applier.ErrRepairSize) && n > 1 {
			n = 1
			if want, err = atSource(ids[from : from+n]); err == nil {
				got, err = atTarget(ids[from : from+n])
			}
		}
		if err != nil {
			return nil, err
		}
		different = append(different, unlike(want, got)...)
		for _, doc := range slices.Concat(want, got) {
			id := idOf(doc)
			j.stored[keyOf(id)] = bson.RawValue{Type: id.Type, Value: bytes.Clone(id.Value)}
		}
		from += n
	}
	// A collection dropped since the cut has read as empty.
	now, err := j.uuids(ctx)
	if err == nil && now != before {
		err = errChanged
	}
	return different, err
}

// smaller reads fewer documents until they are not too much.
func smaller(n *int, read func(n int) ([]bson.Raw, error)) ([]bson.Raw, error) {
	for {
		docs, err := read(*n)
		if !errors.Is(err, applier.ErrRepairSize) || *n == 1 {
			return docs, err
		}
		*n /= 2
	}
}

// uuids returns the UUIDs of the collection on both sides, one after the other.
func (j *job) uuids(ctx context.Context) (both [2]oplog.UUID, err error) {
	if both[0], _, err = uuidOf(ctx, j.m.cfg.Source, j.source); err == nil {
		both[1], _, err = uuidOf(ctx, j.m.cfg.Target, j.target)
	}
	if errors.Is(err, errGone) {
		err = errChanged
	}
	return both, err
}

// expected returns the UUIDs that reads of both sides name: a collection that had another name as of the cut, and has its own again, would
// read as empty. Those of servers that look up a name in their newest catalog are zero.
func (j *job) expected(ctx context.Context, are [2]oplog.UUID) (expected [2]oplog.UUID, err error) {
	for i, c := range []mongo.Caller{j.m.cfg.Source, j.m.cfg.Target} {
		reply, err := mongo.Hello(ctx, c)
		if err != nil {
			return expected, fmt.Errorf("ask for the version: %w", err)
		}
		if mongo.ExpectsUUIDs(reply) {
			expected[i] = are[i]
		}
	}
	return expected, nil
}

// unlike returns the _ids of documents that only one of the sides has, byte for byte.
func unlike(a, b []bson.Raw) []bson.RawValue {
	var ids []bson.RawValue
	for _, list := range [][2][]bson.Raw{{a, b}, {b, a}} {
		for _, doc := range list[0] {
			if !slices.ContainsFunc(list[1], func(o bson.Raw) bool { return bytes.Equal(o, doc) }) {
				ids = append(ids, idOf(doc))
			}
		}
	}
	return distinct(ids)
}
