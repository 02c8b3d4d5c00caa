package dispatch

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/oplog"
)

// Input is a command as received.
type Input struct {
	Body      bson.Raw
	Sequences []Sequence
	// Exhaust and legacy: several replies are welcome; it came as OP_QUERY.
	Exhaust, Legacy bool
	// buf is memory for the reply; nil for one that the caller keeps.
	buf []byte
}

// Sequence is a document sequence of an OP_MSG.
type Sequence struct {
	Name string
	Docs []bson.Raw
}

// Output is the answer to it.
type Output struct {
	Body bson.Raw
	More bool
	Next bson.Raw
	// hangUp closes the connection instead of answering.
	hangUp bool
}

// leastReply is the initial size of a reply's memory, in bytes.
const leastReply = 256

// Dispatch executes one command from start to end.
func (s *Server) Dispatch(ctx context.Context, conn *Conn, in Input) Output {
	r := &Request{Server: s, Conn: conn}
	out := &Reply{Buf: in.buf}
	if cap(in.buf) < leastReply {
		out.Buf = make([]byte, 4, leastReply)
	}
	out.Buf = out.Buf[:4]
	r.Self = s.Config.Node.View()
	err := r.parse(in)
	if err == nil {
		err = r.carryOut(ctx, out)
	}
	s.Stats.count(r, err)
	if r.Failing != nil && r.Failing.HangUp {
		return Output{hangUp: true}
	}
	if err != nil {
		return Output{Body: r.refused(out, Refusal(err))}
	}
	body := r.answered(out)
	if len(body) > wire.MaxDocumentSize {
		err := servererr.New(servererr.BSONObjectTooLarge, "the reply to %s of %d bytes is larger than the limit of %d", r.Name, len(body), wire.MaxDocumentSize)
		return Output{Body: r.refused(out, err)}
	}
	return Output{Body: body, More: out.More, Next: out.Next}
}

// carryOut runs a parsed command.
func (r *Request) carryOut(ctx context.Context, out *Reply) error {
	if err := r.Server.closed.Err(); err != nil {
		return errShutdown
	}
	if err := r.authorize(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.Server.closed, func() { cancel(errShutdown) })()
	if r.maxTime > 0 && !r.Spec.OwnMaxTime {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, r.maxTime, ErrMaxTime)
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
func (r *Request) runChecked(ctx context.Context, out *Reply) error {
	err := r.runInSession(ctx, out)
	r.afterwards()
	r.awaitRead(ctx)
	waits := r.Spec.Writes && (!r.InTxn() || transactionCommands[r.Spec.Name])
	if waits && (err == nil || !out.Wrote.IsNull()) {
		out.unmet, out.unmetCode = r.awaitWriteConcern(ctx, out)
	}
	if f := r.Failing; f != nil && f.concern != nil && out.unmet == nil && err == nil && r.Spec.Writes {
		out.unmet, out.unmetCode = f.concern, f.concernCode
	}
	return err
}

func (r *Request) runInSession(ctx context.Context, out *Reply) error {
	if r.TxnNumber == nil {
		return r.runMoody(ctx, out)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	release, err := r.CheckOut(ctx, cancel)
	if err != nil {
		return err
	}
	defer release()
	if err = r.begin(); err == nil {
		err = r.runMoody(ctx, out)
	}
	if err != nil && r.InTxn() {
		r.AbandonTxn()
		r.noteUnknown(out, err)
	}
	return err
}

// runMoody runs the command itself, unless a mood replaces it.
func (r *Request) runMoody(ctx context.Context, out *Reply) error {
	if err := r.strike(); err != nil {
		return err
	}
	return r.Spec.Run(ctx, r, out)
}

// authorize checks where the command may be sent, and by whom.
func (r *Request) authorize() error {
	if r.Spec.AdminOnly && r.DB != "admin" {
		return servererr.New(servererr.Unauthorized, "%s may only be run against the admin database.", r.Spec.Name)
	}
	if r.Server.Config.Auth == nil || r.Conn.Internal || r.Spec.BeforeAuth {
		return nil
	}
	if r.Spec.Check != nil {
		return r.Spec.Check(r)
	}
	return r.Server.Config.Auth.Check(r.Conn, "", "", "", r.Cmd)
}

// checkState refuses commands that the member does not run in its state.
func (r *Request) checkState() error {
	v := &r.Self
	starting := v.State == oplog.MemberStartup2 || v.State == oplog.MemberStartup && !r.Conn.Internal
	if r.DB == "local" && (starting || v.State == oplog.MemberRollback) && r.readsOplog() {
		return servererr.New(servererr.NotPrimaryOrSecondary,
			"Oplog collection reads are not allowed while in the rollback or startup state.")
	}
	writable := v.Writable || r.DB == "local"
	if writable || r.Spec.Secondary == AnyMember && r.Spec.Name != "getMore" {
		return nil
	}
	may := r.Spec.Secondary == AnyMember
	if !may {
		canOptIn := r.Spec.Secondary == OptIn && !r.InTxn()
		may = canOptIn && (r.Conn.Internal || r.readPref != "" && r.readPref != "primary")
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

// readsOplog reports whether the command reads the oplog.
func (r *Request) readsOplog() bool {
	first := FirstElem(r.Cmd)
	switch r.Spec.Name {
	case "getMore":
		first, _ = rawbson.Lookup(r.Cmd, "collection")
	case "find", "aggregate", "count", "distinct":
	default:
		return false
	}
	name, _ := first.Text()
	return name == OplogNamespace.Collection()
}

// notMaster is the message to old clients from a member that is not the primary.
const notMaster = "not master"

// wording chooses between the present message and that for clients that have
// not sent helloOk.
func (r *Request) wording(now, before string) string {
	if r.Conn.SupportsHello || r.Server.AtLeast(6, 0) {
		return now
	}
	return before
}
