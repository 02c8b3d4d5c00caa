package command

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/oplog"
)

// input is a command as it came.
type input struct {
	body      bson.Raw
	sequences []sequence
	// exhaust and legacy: several replies are welcome; it came as OP_QUERY.
	exhaust, legacy bool
	// buf is memory for the reply; nil for one that the caller keeps.
	buf []byte
}

type sequence struct {
	name string
	docs []bson.Raw
}

// output is what goes back.
type output struct {
	body bson.Raw
	more bool
	next bson.Raw
	// hangUp closes the connection instead of answering.
	hangUp bool
}

// leastReply is how much memory a reply begins with, in bytes.
const leastReply = 256

// dispatch carries out one command from beginning to end.
func (s *Server) dispatch(ctx context.Context, conn *Conn, in input) output {
	r := &request{srv: s, conn: conn}
	out := &reply{Buf: in.buf}
	if cap(in.buf) < leastReply {
		out.Buf = make([]byte, 4, leastReply)
	}
	out.Buf = out.Buf[:4]
	r.self = s.cfg.Node.View()
	err := r.parse(in)
	if err == nil {
		err = r.carryOut(ctx, out)
	}
	s.stats.count(r, err)
	if r.failing != nil && r.failing.hangUp {
		return output{hangUp: true}
	}
	if err != nil {
		return output{body: r.refused(out, refusal(err))}
	}
	body := r.answered(out)
	if len(body) > wire.MaxDocumentSize {
		err := servererr.New(servererr.BSONObjectTooLarge, "the reply to %s of %d bytes is larger than the limit of %d", r.name, len(body), wire.MaxDocumentSize)
		return output{body: r.refused(out, err)}
	}
	return output{body: body, more: out.more, next: out.next}
}

// carryOut runs a command that was parsed.
func (r *request) carryOut(ctx context.Context, out *reply) error {
	if err := r.srv.closed.Err(); err != nil {
		return errShutdown
	}
	if err := r.authorize(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.srv.closed, func() { cancel(errShutdown) })()
	if r.maxTime > 0 && !r.spec.ownMaxTime {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, r.maxTime, errMaxTime)
		defer stop()
	}
	if err := r.meetFailPoint(ctx); err != nil {
		return err
	}
	for _, check := range []func() error{r.checkSessionOptions, r.checkState, r.checkConcerns, r.meetMood} {
		if err := check(); err != nil {
			return err
		}
	}
	if err := r.awaitReadConcern(ctx); err != nil {
		return err
	}
	return r.runChecked(ctx, out)
}

// runChecked runs a command that may run, in its session, and waits for its
// write concern, which is waited for after an error as well if the command has
// written before it.
func (r *request) runChecked(ctx context.Context, out *reply) error {
	err := r.runInSession(ctx, out)
	r.afterwards()
	r.awaitRead(ctx)
	waits := r.spec.writes && (!r.inTxn() || transactionCommands[r.spec.name])
	if waits && (err == nil || !out.wrote.IsNull()) {
		out.unmet, out.unmetCode = r.awaitWriteConcern(ctx, out)
	}
	if f := r.failing; f != nil && f.concern != nil && out.unmet == nil && err == nil && r.spec.writes {
		out.unmet, out.unmetCode = f.concern, f.concernCode
	}
	return err
}

func (r *request) runInSession(ctx context.Context, out *reply) error {
	if r.txnNumber == nil || r.spec.name == "coordinateCommitTransaction" {
		return r.runMoody(ctx, out)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	release, err := r.checkOut(ctx, cancel)
	if err != nil {
		return err
	}
	defer release()
	if err = r.begin(); err == nil {
		err = r.runMoody(ctx, out)
	}
	if err != nil && r.inTxn() {
		r.abandonTxn()
		r.noteUnknown(out, err)
	}
	return err
}

// runMoody runs the command itself, unless a mood is in its way.
func (r *request) runMoody(ctx context.Context, out *reply) error {
	if err := r.strike(); err != nil {
		return err
	}
	return r.spec.run(ctx, r, out)
}

// authorize checks where the command may be sent, and by whom.
func (r *request) authorize() error {
	if r.spec.adminOnly && r.db != "admin" {
		return servererr.New(servererr.Unauthorized, "%s may only be run against the admin database.", r.spec.name)
	}
	if r.srv.cfg.Auth == nil || r.conn.Internal || r.spec.beforeAuth {
		return nil
	}
	if r.spec.check != nil {
		return r.spec.check(r)
	}
	return r.srv.cfg.Auth.Check(r.conn, "", "", "", r.cmd)
}

// checkState refuses what a member in its state does not do.
func (r *request) checkState() error {
	v := &r.self
	starting := v.State == oplog.MemberStartup2 || v.State == oplog.MemberStartup && !r.conn.Internal
	if r.db == "local" && (starting || v.State == oplog.MemberRollback) && r.readsOplog() {
		return servererr.New(servererr.NotPrimaryOrSecondary,
			"Oplog collection reads are not allowed while in the rollback or startup state.")
	}
	writable := v.Writable || r.db == "local"
	if writable || r.spec.secondary == anyMember && r.spec.name != "getMore" {
		return nil
	}
	may := r.spec.secondary == anyMember
	if !may {
		canOptIn := r.spec.secondary == optIn && !r.inTxn()
		may = canOptIn && (r.conn.Internal || r.readPref != "" && r.readPref != "primary")
		if !may && canOptIn {
			return servererr.New(servererr.NotPrimaryNoSecondaryOk, "%s",
				r.wording("not primary and secondaryOk=false", "not master and slaveOk=false"))
		}
	}
	if !may {
		return servererr.New(servererr.NotWritablePrimary, "%s", r.wording("not primary", notMaster))
	}
	if v.State.Readable() {
		return nil
	}
	if v.State == oplog.MemberRecovering {
		return servererr.New(servererr.NotPrimaryOrSecondary, "node is recovering")
	}
	return servererr.New(servererr.NotPrimaryOrSecondary, "node is not in primary or recovering state")
}

// readsOplog tells whether the command reads the oplog.
func (r *request) readsOplog() bool {
	first := firstElem(r.cmd)
	switch r.spec.name {
	case "getMore":
		first, _ = rawbson.Lookup(r.cmd, "collection")
	case "find", "aggregate", "count", "distinct":
	default:
		return false
	}
	name, _ := first.Text()
	return name == oplogNamespace.Collection()
}

// notMaster is what clients of old are told by a member that is not the primary.
const notMaster = "not master"

// wording picks between the present words and those for clients that have not
// said that they know them.
func (r *request) wording(now, before string) string {
	if r.conn.SupportsHello || r.srv.atLeast(6, 0) {
		return now
	}
	return before
}
