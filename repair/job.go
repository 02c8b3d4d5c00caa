package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/jobs"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// job is one request. All but state and outcome belongs to the goroutine of Manager.Run.
type job struct {
	m    *Manager
	term int64
	args request.RepairArgs
	why  string

	source, target oplog.Namespace
	// sum counts the written documents. Source and Target in it are the times of the last group.
	sum applier.Repaired
	// refused are documents that the target has refused.
	refused []refusal
	// stored are the _ids of the documents that were compared last, by keyOf: those of the request may be numbers of another type.
	stored map[string]bson.RawValue
	// proof says as of when the documents were found the same, empty before that.
	proof string

	// state and outcome are guarded by Manager.mu.
	state, outcome string
}

type refusal struct {
	id  bson.RawValue
	why string
}

// impossible is the reason why documents of a collection cannot be repaired.
type impossible struct{ why string }

func (e *impossible) Error() string { return e.why }

// failure is the reason why a repair has not ended well.
type failure struct{ why string }

func (e *failure) Error() string { return e.why }

// run carries out the request, and sets its outcome. When ctx is done, there is none.
func (j *job) run(ctx context.Context) {
	err := j.do(ctx)
	if ctx.Err() != nil {
		return // the next leader begins it again
	}
	no, isNo := errors.AsType[*impossible](err)
	switch {
	case err == nil:
		j.say(request.Done, "%s", j.summary())
	case isNo && j.sum.Source.IsNull():
		j.say(request.Refused, "%s: %s", j.args.Namespace, no.why)
	default:
		j.say(request.Failed, "%v", err)
	}
}

// do carries out the request.
func (j *job) do(ctx context.Context) error {
	j.source = j.args.NS()
	target, mirrored := j.m.cfg.Scope.Target(j.source)
	switch {
	case !mirrored:
		return &impossible{"the link does not mirror it"}
	case j.args.Target != "" && j.args.Target != string(target):
		return &impossible{fmt.Sprintf("the link has it in %s, not in %s: the report is of another link, or of other settings", target, j.args.Target)}
	}
	j.target = target.Clone()
	name := jobs.Namespace(j.target)
	if err := j.lock(ctx, name, j.target.DB()); err != nil {
		return err
	}
	defer j.m.cfg.Locks.Release(name)
	ids, err := j.ids(ctx)
	if err != nil {
		return err
	}
	for from := 0; from < len(ids); from += groupDocs {
		j.say(request.Working, "%d of %d documents are done%s", from, len(ids), j.delayed())
		if err := j.group(ctx, ids[from:min(len(ids), from+groupDocs)]); err != nil {
			return err
		}
	}
	if err := j.again(ctx); err != nil {
		return err
	}
	return j.prove(ctx, ids)
}

// delayed says for how long each group waits, empty if it does not.
func (j *job) delayed() string {
	if j.m.cfg.Delay == 0 {
		return ""
	}
	return fmt.Sprintf("; each group waits, as the link applies entries %s after the source", j.m.cfg.Delay)
}

// again tries the documents once more that were refused: all others are right by now, so that a
// unique index may accept them.
func (j *job) again(ctx context.Context) error {
	refused := j.refused
	j.refused = nil
	for _, r := range refused {
		if err := j.group(ctx, []bson.RawValue{r.id}); err != nil {
			return err
		}
	}
	return nil
}

// ids returns the _ids to repair.
func (j *job) ids(ctx context.Context) ([]bson.RawValue, error) {
	from, to, isRange, err := j.args.Range()
	if err != nil {
		return nil, &impossible{err.Error()}
	}
	if !isRange {
		ids, err := j.args.Values()
		if err != nil {
			return nil, &impossible{err.Error()}
		}
		return distinct(ids), nil
	}
	j.say(request.Working, "lists the documents in the range")
	onSource, err := inRange(ctx, j.m.cfg.Source, j.source, from, to)
	if err != nil {
		return nil, err
	}
	onTarget, err := inRange(ctx, j.m.cfg.Target, j.target, from, to)
	if err != nil {
		return nil, err
	}
	ids := distinct(slices.Concat(onSource, onTarget))
	if len(ids) == 0 {
		return nil, &impossible{"neither side has a document in the range; the server compares values of one type only"}
	}
	if max(len(onSource), len(onTarget)) > mostInRange {
		return nil, &impossible{fmt.Sprintf("the range has more than %d documents: take a smaller one, or copy the collection again with replicator resync", mostInRange)}
	}
	return ids, nil
}

// group writes a group, in parts if that is needed.
func (j *job) group(ctx context.Context, ids []bson.RawValue) error {
	pause, left, old := firstPause, j.patience(), tooOld(0)
	for {
		left.add(j.m.cfg.Delay)
		out, isOld, err := j.offer(ctx, ids, left)
		if err != nil {
			return err
		}
		if old.add(isOld, j.m.cfg.Delay) {
			return &failure{fmt.Sprintf("the link applies entries %s after the source, and the source does not have its documents of then any more: raise minSnapshotHistoryWindowInSeconds of the source above that, or copy the collection again with replicator resync; %s", j.m.cfg.Delay, out.Why)}
		}
		if out.State != applier.RepairDone {
			if err := mongo.Pause(ctx, idleShare*out.Idle); err != nil {
				return err
			}
		}
		switch out.State {
		case applier.RepairDone:
			j.add(&out)
			return mongo.Pause(ctx, idleShare*out.Idle)
		case applier.RepairImpossible:
			return &impossible{out.Why}
		case applier.RepairRefused:
			j.refused = append(j.refused, refusal{ids[0], out.Why})
			return nil
		case applier.RepairLater:
		case applier.RepairSmaller:
			if len(ids) == 1 {
				j.refused = append(j.refused, refusal{ids[0], out.Why})
				return nil
			}
			if err := j.group(ctx, ids[:len(ids)/2]); err != nil {
				return err
			}
			return j.group(ctx, ids[len(ids)/2:])
		}
		if left.over() {
			return &failure{fmt.Sprintf("not all documents could be written within %s: %s", j.m.cfg.Patience, out.Why)}
		}
		j.say(request.Working, "waits: %s", out.Why)
		if err := mongo.Pause(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, longestPause)
	}
}

// offer hands a group to the applier, and waits for the result. It returns true if the source no longer
// has the documents as of the time for which they were asked.
func (j *job) offer(ctx context.Context, ids []bson.RawValue, left *patience) (applier.Repaired, bool, error) {
	id, after, err := uuidOf(ctx, j.m.cfg.Source, j.source)
	switch {
	case errors.Is(err, errGone):
		return applier.Repaired{}, false, &impossible{"the source does not have the collection: replicator verify shows how the catalogs differ"}
	case err != nil && mongo.RepeatsRead(err):
		return applier.Repaired{Why: err.Error()}, false, nil
	case err != nil:
		return applier.Repaired{}, false, err
	}
	// The applier reads before it answers.
	var failed error
	read := func(ctx context.Context, at bson.Timestamp) ([]bson.Raw, error) {
		docs, err := j.sourceAt(ctx, id, ids, at)
		failed = err
		return docs, err
	}
	done := make(chan applier.Repaired, 1)
	r := &applier.Repair{NS: j.source, IDs: ids, After: after, Read: read, Done: func(out applier.Repaired) { done <- out }}
	left.seen()
	select {
	case j.m.groups <- r:
		left.skip() // no attempt ran
	case <-ctx.Done():
		return applier.Repaired{}, false, context.Cause(ctx)
	}
	out, err := left.await(ctx, done)
	switch {
	case err != nil:
		return applier.Repaired{}, false, err
	case servererr.IsOptionRefused(failed) || servererr.IsNotUnderstood(failed):
		return out, false, &impossible{fmt.Sprintf("the source cannot be read as of an earlier time (%v): copy the collection again with replicator resync", failed)}
	}
	return out, servererr.IsSnapshotTooOld(failed), nil
}

// sourceAt reads documents of the source's collection with a UUID as of a time at which it had the
// name.
func (j *job) sourceAt(ctx context.Context, id oplog.UUID, ids []bson.RawValue, at bson.Timestamp) ([]bson.Raw, error) {
	docs, err := byIDs(ctx, j.m.cfg.Source, j.source, oplog.UUID{}, ids, at)
	if err != nil {
		return nil, err
	}
	// One that was dropped since then reads as empty.
	now, _, err := uuidOf(ctx, j.m.cfg.Source, j.source)
	switch {
	case errors.Is(err, errGone), err == nil && now != id:
		return nil, errChanged
	case err != nil:
		return nil, err
	}
	return docs, nil
}

func (j *job) add(out *applier.Repaired) {
	j.sum.Rewritten += out.Rewritten
	j.sum.Inserted += out.Inserted
	j.sum.Deleted += out.Deleted
	j.sum.Equal += out.Equal
	j.sum.Source = out.Source
	if oplog.CompareTimestamps(out.Target, j.sum.Target) > 0 {
		j.sum.Target = out.Target
	}
}

// summary describes the written documents.
func (j *job) summary() string {
	parts := []string{fmt.Sprintf("%s: %d documents rewritten, %d inserted, %d deleted, %d were the same", j.target, j.sum.Rewritten, j.sum.Inserted, j.sum.Deleted, j.sum.Equal)}
	if !j.sum.Source.IsNull() {
		parts = append(parts, fmt.Sprintf("the last ones as of %s", j.sum.Source))
	}
	if j.proof != "" {
		parts = append(parts, j.proof)
	}
	return strings.Join(parts, ", ")
}
