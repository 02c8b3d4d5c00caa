package serverupdate_test

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
	"github.com/oplogrep/replicator/oplog/update"
)

// statementID names one statement of a session's retryable write: in the command
// that sends it as in the entry that it causes. In a transaction the statement has
// no number.
type statementID struct {
	session           string
	txnNumber, number int64
}

const inTransaction = -1

type statement struct {
	ns       string
	sid      statementID
	numbered bool // sid is of a session's write
	index    int
	q        bson.Raw
	u        bson.RawValue
	filters  bson.Raw
	upsert   bool
	multi    bool
}

func (st *statement) id() bson.RawValue { return st.q.Lookup("_id") }

// statementsOf returns a command's update statements.
func statementsOf(t *testing.T, cmd *corpus.Command) []statement {
	t.Helper()
	c := cmd.Command
	name := firstKey(c)
	coll, _ := c.Lookup(name).StringValueOK()
	base := statement{ns: cmd.DB + "." + coll}
	txnNumber, numbered := c.Lookup("txnNumber").AsInt64OK()
	base.numbered = numbered
	base.sid = statementID{session: string(c.Lookup("lsid", "id").Value), txnNumber: txnNumber}
	for _, field := range []string{"stmtId", "stmtIds"} {
		if _, err := c.LookupErr(field); err == nil && numbered {
			t.Fatalf("command at byte %d: %s is not understood here", cmd.Offset, field)
		}
	}
	if _, err := c.LookupErr("autocommit"); err == nil {
		base.sid.number = inTransaction
	}
	switch name {
	case "findAndModify":
		u, err := c.LookupErr("update")
		if err != nil {
			return nil // it removes
		}
		st := base
		st.u = u
		st.q, _ = c.Lookup("query").DocumentOK()
		st.upsert, _ = c.Lookup("upsert").BooleanOK()
		st.filters = bson.Raw(c.Lookup("arrayFilters").Value)
		return []statement{st}
	case "update":
		array, ok := c.Lookup("updates").ArrayOK()
		if !ok {
			return nil // omitted for its size
		}
		list, err := array.Values()
		if err != nil {
			t.Fatalf("command at byte %d: %v", cmd.Offset, err)
		}
		var statements []statement
		for i, v := range list {
			st, doc := base, v.Document()
			st.index = i
			if st.sid.number != inTransaction {
				st.sid.number = int64(i)
			}
			st.u = doc.Lookup("u")
			st.q, _ = doc.Lookup("q").DocumentOK()
			st.upsert, _ = doc.Lookup("upsert").BooleanOK()
			st.multi, _ = doc.Lookup("multi").BooleanOK()
			st.filters = bson.Raw(doc.Lookup("arrayFilters").Value)
			statements = append(statements, st)
		}
		return statements
	default:
		return nil
	}
}

// insertsOf returns a command's documents to insert, as statements with the document
// as their argument.
func insertsOf(cmd *corpus.Command) []statement {
	if firstKey(cmd.Command) != "insert" {
		return nil
	}
	array, ok := cmd.Command.Lookup("documents").ArrayOK()
	if _, err := cmd.Command.LookupErr("autocommit"); !ok || err == nil {
		return nil
	}
	list, _ := array.Values()
	statements := make([]statement, len(list))
	for i, v := range list {
		st := &statements[i]
		st.u = v
		st.sid = statementID{session: string(cmd.Command.Lookup("lsid", "id").Value), number: int64(i)}
		st.sid.txnNumber, st.numbered = cmd.Command.Lookup("txnNumber").AsInt64OK()
	}
	return statements
}

// refusal is an error of one statement.
type refusal struct {
	code    int64
	message string
	command bool // the whole command failed
}

// elsewhere reports whether a conflict, a validator, a view or a unique index refused.
func (r refusal) elsewhere() bool { return slices.Contains([]int64{112, 121, 166, 11000}, r.code) }

func refusalOf(cmd *corpus.Command, index int) (refusal, bool) {
	if cmd.Error != nil {
		code, _ := cmd.Error.Lookup("code").AsInt64OK()
		message, _ := cmd.Error.Lookup("errmsg").StringValueOK()
		return refusal{code, message, true}, true
	}
	array, ok := cmd.Reply.Lookup("writeErrors").ArrayOK()
	if !ok {
		return refusal{}, false
	}
	list, _ := array.Values()
	for _, v := range list {
		at, _ := v.Document().Lookup("index").AsInt64OK()
		if int(at) != index {
			continue
		}
		code, _ := v.Document().Lookup("code").AsInt64OK()
		message, _ := v.Document().Lookup("errmsg").StringValueOK()
		return refusal{code: code, message: message}, true
	}
	return refusal{}, false
}

// matchedOne reports whether the reply to a command of one statement says that it
// found its one document, for the commands that say so.
func matchedOne(cmd *corpus.Command) (matched, ok bool) {
	if n, isUpdate := cmd.Reply.Lookup("nModified").AsInt64OK(); isUpdate {
		found, _ := cmd.Reply.Lookup("n").AsInt64OK()
		_, upserted := cmd.Reply.LookupErr("upserted")
		return found == 1 && n == 0 && upserted != nil, true
	}
	existing, isFind := cmd.Reply.Lookup("lastErrorObject", "updatedExisting").BooleanOK()
	return existing, isFind
}

func firstKey(doc []byte) string {
	first, err := bson.Raw(doc).IndexErr(0)
	if err != nil {
		return ""
	}
	return first.Key()
}

// change is what an entry did to its document. Without pre it inserted.
type change struct {
	at           oplog.OpTime
	ns           string
	id           bson.RawValue
	pre, post, o bson.Raw
}

// history is the changes of a log.
type history struct {
	numbered map[statementID]change
	// txns are the operations of transactions, plain those that no statement's
	// number is with, both in order.
	txns  map[statementID][]change
	plain []change
	// versions are those of a document, collections those that had a name.
	versions    map[documentKey][]version
	collections map[string][]holder
}

type holder struct {
	at         bson.Timestamp
	collection oplog.UUID // zero once there is none
}

type version struct {
	at  bson.Timestamp
	doc bson.Raw // nil once it is gone
}

// at returns the document as it was when the server was at an optime.
func (h *history) at(ns string, id bson.RawValue, now bson.Timestamp) bson.Raw {
	var collection oplog.UUID
	for _, v := range h.collections[ns] {
		if v.at.After(now) {
			break
		}
		collection = v.collection
	}
	var doc bson.Raw
	for _, v := range h.versions[keyOf(collection, id)] {
		if v.at.After(now) {
			break
		}
		doc = v.doc
	}
	return doc
}

// take returns the changes that a statement caused, and forgets them.
func (h *history) take(cmd *corpus.Command, st *statement) []change {
	modified, _ := cmd.Reply.Lookup("nModified").AsInt64OK()
	switch {
	case st.numbered && st.sid.number == inTransaction:
		list := h.txns[st.sid]
		n := 1
		if st.multi {
			n = int(modified)
		}
		_, err := cmd.Reply.LookupErr("upserted")
		at := slices.IndexFunc(list, func(ch change) bool {
			return (ch.pre == nil) == (err == nil) && ch.ns == st.ns && (st.multi || ch.id.Equal(st.id()))
		})
		if at < 0 || cmd.Error != nil {
			return nil
		}
		n = min(n, len(list)-at)
		h.txns[st.sid] = slices.Concat(list[:at], list[at+n:])
		return slices.Clone(list[at : at+n])
	case st.numbered:
		ch, ok := h.numbered[st.sid]
		if !ok {
			return nil // nothing to change
		}
		delete(h.numbered, st.sid)
		return []change{ch}
	default:
		var out []change
		h.plain = slices.DeleteFunc(h.plain, func(ch change) bool {
			take := ch.pre != nil && ch.ns == st.ns && len(out) < int(modified) && (st.multi || ch.id.Equal(st.id()))
			if take {
				out = append(out, ch)
			}
			return take
		})
		return out
	}
}

// left returns the updates whose statements should have been there.
func (h *history) left() []change {
	var out []change
	for _, ch := range h.numbered {
		if ch.pre != nil {
			out = append(out, ch)
		}
	}
	return out
}

// replay follows a log from no documents at all.
func replay(t *testing.T, s *corpus.Scenario) *history {
	t.Helper()
	chains, err := txn.New(txn.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := chains.Close(); err != nil {
			t.Error(err)
		}
	}()
	all := documents{}
	h := &history{numbered: map[statementID]change{}, txns: map[statementID][]change{}, versions: map[documentKey][]version{}, collections: map[string][]holder{}}
	name := func(e *oplog.Entry, ns string, collection oplog.UUID) {
		h.collections[ns] = append(h.collections[ns], holder{e.OpTime.TS, collection})
	}
	note := func(e *oplog.Entry, op *oplog.Op, ch change) {
		if ch.ns != "" {
			key := keyOf(op.UI, ch.id)
			h.versions[key] = append(h.versions[key], version{e.OpTime.TS, ch.post})
			name(e, ch.ns, op.UI)
			return
		}
		if op.Kind != oplog.KindCommand {
			return
		}
		db, _, _ := strings.Cut(string(op.NS), ".")
		text := func(field string) string { v, _ := op.O.Lookup(field).StringValueOK(); return v }
		switch firstKey(op.O) {
		case "create":
			name(e, db+"."+text("create"), op.UI)
		case "drop":
			name(e, db+"."+text("drop"), oplog.UUID{})
		case "renameCollection":
			name(e, text("renameCollection"), oplog.UUID{})
			name(e, text("to"), op.UI)
		}
	}
	for e, err := range s.Oplog() {
		if err != nil {
			t.Fatal(err)
		}
		result, err := chains.Add(e)
		if err != nil {
			t.Fatal(err)
		}
		id := statementID{session: string(e.LSID.Lookup("id").Value), txnNumber: e.TxnNumber}
		switch result.Outcome {
		case txn.Pass:
			ch := all.apply(t, &e.Op)
			note(e, &e.Op, ch)
			number, ok := e.StmtID.AsInt64OK()
			// Updates of time-series buckets are what inserts cause.
			if ch.post == nil || strings.Contains(string(e.NS), ".system.buckets.") {
				continue
			}
			if !ok {
				h.plain = append(h.plain, ch)
				continue
			}
			id.number = number
			h.numbered[id] = ch
		case txn.Committed:
			id.number = inTransaction
			for op, err := range result.Txn.Ops() {
				if err != nil {
					t.Fatal(err)
				}
				ch := all.apply(t, &op)
				note(e, &op, ch)
				if ch.post != nil {
					h.txns[id] = append(h.txns[id], ch)
				}
			}
			if err := result.Txn.Close(); err != nil {
				t.Fatal(err)
			}
		case txn.Held, txn.Aborted:
		default:
			t.Fatalf("entry %s: %s", e.OpTime, result.Outcome)
		}
	}
	return h
}

type documentKey struct {
	collection oplog.UUID
	idType     bson.Type
	id         string
}

func keyOf(collection oplog.UUID, id bson.RawValue) documentKey {
	return documentKey{collection, id.Type, string(id.Value)}
}

// documents are those that a log leads to, starting from none. Those of a dropped
// collection stay: no other collection gets its UUID.
type documents map[documentKey]bson.Raw

func (d documents) apply(t *testing.T, op *oplog.Op) change {
	t.Helper()
	ch := change{at: op.OpTime}
	if op.Kind == oplog.KindCommand || op.Kind == oplog.KindNoop {
		return ch
	}
	if op.UI.IsZero() {
		t.Fatalf("entry %s: no collection UUID", op.OpTime)
	}
	ch.ns, ch.id, ch.o = string(op.NS), op.ID, op.O
	key := keyOf(op.UI, op.ID)
	switch op.Kind {
	case oplog.KindInsert:
		ch.post = op.O
	case oplog.KindUpdate:
		ch.pre = d[key]
		if ch.pre == nil {
			t.Fatalf("entry %s: the log does not say what %s was before", op.OpTime, op.ID)
		}
		var err error
		if ch.post, err = update.Apply(ch.pre, op.O); err != nil {
			t.Fatalf("entry %s: %v", op.OpTime, err)
		}
	default:
	}
	// The _id may have become a number of another type.
	delete(d, key)
	if ch.post != nil {
		d[keyOf(op.UI, ch.post.Lookup("_id"))] = ch.post
	}
	return ch
}
