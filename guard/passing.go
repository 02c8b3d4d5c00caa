package guard

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// PassingConfig says which writes of a source's oplog came from the target.
type PassingConfig struct {
	// MetaDB is the metadata database of the source: of the links that write to it.
	MetaDB string
	// Target is the id of the target's replica set.
	Target bson.RawValue
	// Sessions returns the ids {id: UUID} of all sessions that a link of an instance may write in.
	Sessions func(link, instance string) []bson.Raw
	// Ended reports whether a link of an instance is known to have ended before the entry that is asked
	// about first. It may be nil.
	Ended func(link, instance string) bool
}

// Passing finds, in the oplog of a source, the writes of links whose source is this link's target.
// These must not be mirrored back: otherwise two links, one each way, would send a write round for
// ever.
//
//	target ──▶ another link ──▶ source's data ──▶ this link: passed over
//	                            by its sessions; by its announcements, while it has not ended
//
// Every write in a session of such a link is its own. A command is its own if it is announced by a link
// that has not ended: a command announced by an ended link is done, or never will be, and the same
// command of an application must not be taken for it. A Passing must not be used concurrently.
type Passing struct {
	cfg PassingConfig
	// own are the sessions of all such links, live the announcements of those that go on.
	own  map[[16]byte]bool
	live map[string]*Watch
}

// NewPassing makes it from the documents of links and of commands that the source's metadata had when
// the entry was written that precedes the first one that it is asked about.
func NewPassing(cfg PassingConfig, links, commands []bson.Raw) (*Passing, error) {
	p := &Passing{cfg: cfg, own: map[[16]byte]bool{}, live: map[string]*Watch{}}
	for _, doc := range links {
		if err := p.learn(doc); err != nil {
			return nil, err
		}
	}
	for name, w := range p.live {
		for _, doc := range commands {
			if a, ours := readAnnounced(doc, name); ours {
				w.state.Open = append(w.state.Open, a)
			}
		}
	}
	return p, nil
}

// learn takes the document of a link.
func (p *Passing) learn(doc bson.Raw) error {
	r := metadata.NewReader(doc)
	source, ok := r.Doc("source", true)
	if !ok || !source.Has("id") || p.cfg.Target.IsZero() || !source.Value("id").Equal(p.cfg.Target) {
		return nil
	}
	link, instance, over := r.Text("_id"), r.Text("instance"), r.Has("over")
	if r.Err() != nil {
		return fmt.Errorf("read a link in the source's metadata: %w", r.Err())
	}
	for _, id := range p.cfg.Sessions(link, instance) {
		if u, ok := sessionOf(id); ok {
			p.own[u] = true
		}
	}
	if delete(p.live, link); !over {
		p.live[link] = &Watch{cfg: WatchConfig{Link: link, MetaDB: p.cfg.MetaDB}}
	}
	return nil
}

// Over reports whether the entry e, the next one of the log, is to be passed over.
func (p *Passing) Over(e *oplog.Entry) (bool, error) {
	switch {
	case e.Kind == oplog.KindNoop:
		return false, nil
	case e.Kind == oplog.KindCommand && e.Command == oplog.CommandApplyOps:
		if err := p.group(e); err != nil {
			return false, err
		}
	case e.NS.DB() == p.cfg.MetaDB:
		return false, p.metadata(&e.Op)
	}
	if lsid := e.Session().LSID; lsid != nil {
		if len(p.own) == 0 {
			return false, nil
		}
		session, ok := sessionOf(lsid)
		return ok && p.own[session], nil
	}
	if len(p.live) == 0 {
		return false, nil
	}
	return p.announced(&e.Op, 0)
}

// group learns from a transaction on the metadata. Its first operation says whether it is one.
func (p *Passing) group(e *oplog.Entry) error {
	group, err := e.ApplyOps()
	if err != nil {
		return err
	}
	for op, err := range group.Ops() {
		if err != nil {
			return err
		}
		if op.NS.DB() != p.cfg.MetaDB {
			return nil
		}
		if op.Kind.IsCRUD() {
			if err := p.metadata(&op); err != nil {
				return err
			}
		}
	}
	return nil
}

// metadata learns from a change of the metadata: which links there are, and what they announce.
func (p *Passing) metadata(op *oplog.Op) error {
	switch {
	case op.NS.Collection() == metadata.Commands:
		for _, w := range p.live {
			if err := w.metadata(op); err != nil {
				return err
			}
		}
	case op.NS.Collection() == metadata.Links && op.Kind == oplog.KindInsert:
		return p.learn(op.O)
	case op.NS.Collection() == metadata.Links && op.Kind == oplog.KindUpdate:
		if name, _ := op.ID.StringValueOK(); p.live[name] != nil && ends(op.O) {
			delete(p.live, name)
		}
	case op.NS.Collection() == metadata.Links && op.Kind == oplog.KindDelete:
		if name, ok := op.ID.StringValueOK(); ok {
			delete(p.live, name)
		}
	}
	return nil
}

// ends reports whether an update of a link's document sets its end.
func ends(o bson.Raw) bool {
	if _, whole := rawbson.Lookup(o, "over"); whole {
		return true
	}
	for _, path := range [][]string{{"diff", "i"}, {"diff", "u"}, {"$set"}} {
		doc, ok := o, true
		for _, name := range path {
			e, _ := rawbson.Lookup(doc, name)
			if doc, ok = e.Document(); !ok {
				break
			}
		}
		if !ok {
			continue
		}
		if _, sets := rawbson.Lookup(doc, "over"); sets {
			return true
		}
	}
	return false
}

// announced reports whether a link that has not ended has announced an entry without a session. A group is
// that of one command.
func (p *Passing) announced(op *oplog.Op, depth int) (bool, error) {
	if op.Kind == oplog.KindCommand && op.Command == oplog.CommandApplyOps && depth <= mostNested {
		group, err := op.ApplyOps()
		if err != nil {
			return false, err
		}
		for first, err := range group.Ops() {
			if err != nil {
				return false, err
			}
			return p.announced(&first, depth+1)
		}
		return false, nil
	}
	name, ns, to := op.Kind.String(), op.NS, oplog.Namespace("")
	switch {
	case op.Kind.IsCRUD() && ns.IsSystemViews():
		view, _ := op.ID.StringValueOK()
		ns = oplog.Namespace(view)
	case op.Kind.IsCRUD():
	default:
		switch op.Command { //nolint:exhaustive // All others change a collection.
		case oplog.CommandCommitTransaction, oplog.CommandAbortTransaction, oplog.CommandDBCheck, oplog.CommandDropDatabase:
			return false, nil
		}
		var err error
		name = op.Command.String()
		if ns, to, err = op.Target(); err != nil {
			return false, err
		}
	}
	for _, w := range p.live {
		if w.announced(name, ns, to) {
			return true, nil
		}
	}
	return false, nil
}
