package guard

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// Scope selects the namespaces to mirror.
type Scope interface {
	// Source returns the source's name of a namespace of the target, false if nothing is
	// mirrored there.
	Source(target oplog.Namespace) (oplog.Namespace, bool)
}

// WatchConfig says whose target is watched.
type WatchConfig struct {
	// Link is the link's name, Instance its instance, MetaDB its metadata database.
	Link, Instance, MetaDB string
	// Scope is the whole link's.
	Scope Scope
	// Sessions returns the ids {id: UUID} of all sessions that a link of an instance may write
	// in.
	Sessions func(link, instance string) []bson.Raw
	// Deletes reports whether the target itself deletes documents from a collection: it is
	// capped, or an index of it expires documents, or it is gone. By the time of the call another one may have its
	// name, so id identifies it, unless it is zero.
	Deletes func(ctx context.Context, ns oplog.Namespace, id oplog.UUID) (bool, error)
	// Copied returns the copy of a collection that is made now. May be nil.
	Copied func(ns oplog.Namespace) Copy
}

// Watch finds the foreign writes in the target's oplog. It belongs to one goroutine.
type Watch struct {
	cfg   WatchConfig
	state State
	// own are the sessions of the link and its parts.
	own map[[16]byte]bool
}

// NewWatch returns a Watch that continues from a state.
func NewWatch(cfg WatchConfig, from State) *Watch {
	w := &Watch{cfg: cfg, state: from.clone(), own: map[[16]byte]bool{}}
	w.learn(Part{cfg.Link, cfg.Instance})
	for _, p := range from.Parts {
		w.learn(p)
	}
	return w
}

func (w *Watch) learn(p Part) {
	for _, id := range w.cfg.Sessions(p.Link, p.Instance) {
		if u, ok := sessionOf(id); ok {
			w.own[u] = true
		}
	}
}

// Reset continues from another state.
func (w *Watch) Reset(from State) {
	w.state = from.clone()
	for _, p := range from.Parts {
		w.learn(p)
	}
}

// Clear is [State.Clear].
func (w *Watch) Clear(upTo bson.Timestamp) bool { return w.state.Clear(upTo) }

// State returns the present state.
func (w *Watch) State() State { return w.state.clone() }

// sessionOf returns the UUID of a session id {id: UUID, ...}.
func sessionOf(lsid bson.Raw) (id [16]byte, ok bool) {
	e, _ := rawbson.Lookup(lsid, "id")
	subtype, data, ok := e.Binary()
	if !ok || subtype != bson.TypeBinaryUUID || len(data) != len(id) {
		return id, false
	}
	return [16]byte(data), true
}

// See examines the next entry and returns the foreign writes in it. Entries that the link's
// lanes have written may be left out.
func (w *Watch) See(ctx context.Context, e *oplog.Entry) ([]Write, error) {
	s := seen{w: w, ctx: ctx, e: e}
	from := e.Session()
	s.txn = from.TxnNumber
	if from.LSID != nil {
		s.session, s.hasSession = sessionOf(from.LSID)
		s.own = s.hasSession && w.own[s.session]
	}
	if err := s.op(&e.Op, 0); err != nil {
		return nil, fmt.Errorf("examine the target's entry %s: %w", e.OpTime, err)
	}
	w.state.At, w.state.Wall = e.OpTime, int64(e.Wall)
	for i := range s.found {
		f := &s.found[i]
		w.state.add(f)
		w.touch(f)
	}
	return s.found, nil
}

// touch records the namespaces of a foreign write.
func (w *Watch) touch(f *Write) {
	var made Touched // the temporary collection that a command of the server has completed
	if ns := f.NS.Collection(); oplog.IsTemporary(ns) && (f.Kind == oplog.CommandRenameCollection.String() || f.Kind == oplog.CommandDrop.String()) {
		made = w.state.forget(f.NS)
	}
	twice := false
	for _, ns := range []oplog.Namespace{f.NS, f.To} {
		source, ok := w.source(ns)
		if !ok || ns == made.NS {
			continue
		}
		w.state.touch(ns, source.Clone(), f, w.copied(ns), twice)
		twice = true
	}
	if made.NS != "" && f.To != "" {
		w.state.completed(f.To, &made)
		w.state.become(f.NS, f.To)
	}
}

func (w *Watch) copied(ns oplog.Namespace) Copy {
	if w.cfg.Copied == nil {
		return Copy{}
	}
	return w.cfg.Copied(ns)
}

// seen is the examination of one entry.
type seen struct {
	w   *Watch
	ctx context.Context //nolint:containedctx // It lives as long as the call that has it.
	e   *oplog.Entry

	txn             int64
	session         [16]byte
	hasSession, own bool
	found           []Write
}

// op examines an operation of the entry.
func (s *seen) op(op *oplog.Op, depth int) error {
	switch {
	case op.Kind == oplog.KindNoop:
		return nil
	case op.Kind == oplog.KindCommand && op.Command == oplog.CommandApplyOps:
		return s.applyOps(op, depth)
	case op.NS.DB() == s.w.cfg.MetaDB:
		return s.w.metadata(op)
	case s.own:
		return nil
	case op.Kind.IsCRUD():
		return s.document(op)
	default:
		return s.command(op)
	}
}

// mostNested is how deep an applyOps may contain others. The server's limit is 10.
const mostNested = 10

func (s *seen) applyOps(op *oplog.Op, depth int) error {
	if depth > mostNested {
		return fmt.Errorf("applyOps is nested more than %d times", mostNested)
	}
	group, err := op.ApplyOps()
	if err != nil {
		return err
	}
	for inner, err := range group.Ops() {
		if err == nil {
			err = s.op(&inner, depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// source returns the source's name of a namespace of the target, false if nothing is mirrored
// there. What belongs to a time series has its name.
func (w *Watch) source(ns oplog.Namespace) (oplog.Namespace, bool) {
	if db := ns.DB(); db == "" || oplog.IsServerDB(db) || db == w.cfg.MetaDB {
		return "", false
	}
	return w.cfg.Scope.Source(ns.Series())
}

func (w *Watch) mirrored(ns oplog.Namespace) bool {
	_, ok := w.source(ns)
	return ok
}

// viewKinds are the commands on a view that write its definition.
var viewKinds = map[oplog.Kind]string{oplog.KindInsert: "create", oplog.KindUpdate: "collMod", oplog.KindDelete: "drop"}

// document examines a write of a document.
func (s *seen) document(op *oplog.Op) error {
	w := s.w
	if op.NS.IsSystemViews() { // The document is the definition of a view.
		name, _ := op.ID.StringValueOK()
		view := oplog.Namespace(name)
		if !w.mirrored(view) || !s.isJudged() {
			return nil
		}
		if w.announced(op.Kind.String(), view, "") {
			if op.Kind == oplog.KindDelete {
				w.state.dropped(view)
			}
			return nil
		}
		s.add(viewKinds[op.Kind], view, "", bson.RawValue{})
		return nil
	}
	if !w.mirrored(op.NS) {
		return nil
	}
	if !s.hasSession {
		if w.announced(op.Kind.String(), op.NS, "") {
			return nil
		}
		if op.Kind == oplog.KindDelete {
			if !s.isJudged() {
				return nil
			}
			itself, err := w.cfg.Deletes(s.ctx, op.NS, op.UI)
			if err != nil || itself {
				return err
			}
		}
	}
	s.add(op.Kind.String(), op.NS, "", op.ID)
	return nil
}

// isJudged reports whether what the link may have sent without a session is judged: whether it
// was announced.
func (s *seen) isJudged() bool { return s.e.OpTime.After(s.w.state.CommandsFrom) }

// command examines a command.
func (s *seen) command(op *oplog.Op) error {
	switch op.Command { //nolint:exhaustive // All others change a collection.
	case oplog.CommandCommitTransaction, oplog.CommandAbortTransaction, oplog.CommandDBCheck:
		return nil // The writes of a prepared transaction were in its applyOps.
	case oplog.CommandDropDatabase:
		return nil // Each of its collections was dropped before.
	case oplog.CommandCreate:
		if c, err := op.Create(); err == nil && c.NS.IsSystemViews() {
			return nil // The view follows.
		}
	}
	ns, to, err := op.Target()
	if err != nil {
		return err
	}
	if !s.w.mirrored(ns) && (to == "" || !s.w.mirrored(to)) {
		return nil
	}
	judged := s.isJudged()
	if own := judged && s.w.announced(op.Command.String(), ns, to); own || !judged {
		s.follow(op.Command, ns.Series(), to.Series(), own)
		return nil
	}
	s.add(op.Command.String(), ns, to, bson.RawValue{})
	return nil
}

// follow takes the foreign writes to a collection that the link drops, or somebody renames, with it.
func (s *seen) follow(c oplog.Command, ns, to oplog.Namespace, own bool) {
	switch {
	case c == oplog.CommandDrop && own:
		s.w.state.dropped(ns)
	case c == oplog.CommandRenameCollection:
		source, mirrored := s.w.source(to)
		if !mirrored {
			source = ""
		}
		s.w.state.renamed(ns, to, source, s.e.OpTime.TS, s.w.copied(to))
	}
}

// add adds a foreign write.
func (s *seen) add(kind string, ns, to oplog.Namespace, id bson.RawValue) {
	f := Write{
		OpTime: s.e.OpTime, Wall: s.e.WallTime().UTC(), Kind: kind, NS: ns.Series().Clone(), To: to.Series().Clone(), Txn: s.txn,
	}
	if !id.IsZero() {
		f.ID = strings.ToValidUTF8(bsontext.Value(id), "?")
		if len(f.ID) > mostID {
			f.ID = strings.ToValidUTF8(f.ID[:mostID], "") + "…"
		}
	}
	if s.hasSession {
		f.Session = hex.EncodeToString(s.session[:])
	}
	s.found = append(s.found, f)
}

// metadata learns from a change of the metadata: which commands are announced, and which parts
// the link has.
func (w *Watch) metadata(op *oplog.Op) error {
	switch {
	case op.NS.Collection() == metadata.Commands && op.Kind == oplog.KindInsert:
		a, ok := readAnnounced(op.O, w.cfg.Link)
		if ok {
			w.state.Open = append(w.state.Open, a)
		}
	case op.NS.Collection() == metadata.Commands && op.Kind == oplog.KindDelete:
		w.state.Open = slices.DeleteFunc(w.state.Open, func(a Announced) bool { return a.ID.Equal(op.ID) })
	case op.NS.Collection() == metadata.Links && op.Kind == oplog.KindInsert:
		r := metadata.NewReader(op.O)
		if !r.Has("of") || r.Text("of") != w.cfg.Link {
			return nil
		}
		p := Part{r.Text("_id"), r.Text("instance")}
		if r.Err() != nil {
			return r.Err()
		}
		if w.state.AddPart(p) {
			w.learn(p)
		}
	}
	return nil
}
