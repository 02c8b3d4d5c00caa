package replay_test

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/replay"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// TestRelog carries out, through the write path, what each recorded entry says has
// been done, and compares the log with the recorded one, field for field and in
// order. Only timestamps, terms and wall times may differ, and the names of
// temporary collections.
func TestRelog(t *testing.T) {
	scenarios, err := corpus.Open(corpusDir)
	check(t, err)
	for i := range scenarios {
		s := &scenarios[i]
		if s.Name == movingCopy {
			continue // its data before is not what the log was written on
		}
		if s.Name == "live" {
			continue // clients wrote between the entries of one command
		}
		t.Run(s.Name, func(t *testing.T) {
			entries, extra := recorded(t, s)
			before, err := s.Before()
			check(t, err)
			w := &writer{t: t, want: entries, txns: map[string]*opwrite.Txn{}, store: storage.New(storage.Options{OplogBytes: 1 << 30})}
			load(t, w.store, before, extra)
			for _, raw := range entries {
				w.learnUUIDs(raw)
			}
			dialect := opwrite.Dialect{Version: "5.0.7"}
			if s.Name == "update-v1" {
				dialect.FCV = "4.4"
			}
			w.path, err = opwrite.New(opwrite.Config{
				Store: w.store, Dialect: dialect, Host: "127.0.0.1:27301", NewUUID: w.nextUUID,
				Term: func() (int64, error) { return 1, nil }, Now: func() time.Time { return time.Unix(2, 0) },
			})
			check(t, err)
			w.run()
			after, err := s.After()
			check(t, err)
			read(t, w.store, func(r *storage.Reader) {
				for _, difference := range memstore.Diff(after, throughJSON(t, snapshot(t, r.View(bson.Timestamp{})))) {
					t.Error(difference)
				}
			})
		})
	}
}

// writer repeats a recorded log.
type writer struct {
	t     *testing.T
	store *storage.Store
	path  *opwrite.Path
	want  []bson.Raw
	uuids []oplog.UUID
	txns  map[string]*opwrite.Txn
}

func (w *writer) nextUUID() oplog.UUID {
	if len(w.uuids) == 0 {
		w.t.Fatal("more UUIDs are asked for than were recorded")
	}
	id := w.uuids[0]
	w.uuids = w.uuids[1:]
	return id
}

func (w *writer) learnUUIDs(raw bson.Raw) {
	e, err := oplog.ParseEntry(raw)
	check(w.t, err)
	switch e.Command {
	case oplog.CommandCreate:
		w.uuids = append(w.uuids, e.UI)
	case oplog.CommandStartIndexBuild:
		build, err := e.IndexBuild()
		check(w.t, err)
		w.uuids = append(w.uuids, build.Build)
	case oplog.CommandApplyOps:
		for _, op := range w.ops(&e) {
			if op.Command == oplog.CommandCreate {
				w.uuids = append(w.uuids, op.UI)
			}
		}
	default:
	}
}

func (w *writer) ops(e *oplog.Entry) (ops []oplog.Op) {
	group, err := e.ApplyOps()
	check(w.t, err)
	for op, err := range group.Ops() {
		check(w.t, err)
		ops = append(ops, op)
	}
	return ops
}

func (w *writer) entry(n int) *oplog.Entry {
	e, err := oplog.ParseEntry(w.want[n])
	check(w.t, err)
	return &e
}

// run repeats entries until all are there. One step may log several.
func (w *writer) run() {
	wanted, logged := normalizer{}, normalizer{}
	last := bson.Timestamp{}
	for n := 0; n < len(w.want); {
		check(w.t, w.path.Write(func(b *opwrite.Batch) error { return w.step(b, n) }))
		from := n
		read(w.t, w.store, func(r *storage.Reader) {
			for stored := range r.Oplog().From(bson.Timestamp{T: last.T, I: last.I + 1}) {
				want, got := wanted.normal(w.t, w.want[n]), logged.normal(w.t, stored.Raw)
				if !bytes.Equal(want, got) {
					w.t.Fatalf("entry %d:\n%s", n, cmp.Diff(want.String(), got.String()))
				}
				last = stored.At.TS
				n++
			}
		})
		if n == from {
			w.t.Fatalf("entry %d: %s: nothing was logged", n, w.want[n])
		}
	}
}

// step repeats the operation of entry n, and maybe of more entries after it.
func (w *writer) step(b *opwrite.Batch, n int) error {
	e := w.entry(n)
	stmt, image := opwrite.Stmt{}, opwrite.NoImage
	if e.LSID != nil {
		stmt.Session = &opwrite.Session{LSID: e.LSID, TxnNumber: e.TxnNumber}
		stmt.ID, _ = e.StmtID.Int32OK()
	}
	switch {
	case e.Kind == oplog.KindNoop && e.LSID == nil:
		return b.Note(e.O)
	case e.Kind == oplog.KindNoop:
		e = w.entry(n + 1)
		image = opwrite.PostImage
		if rawHas(e.Raw, "preImageOpTime") {
			image = opwrite.PreImage
		}
	case e.Kind == oplog.KindCommand:
		return w.command(b, n, e)
	case e.Kind == oplog.KindInsert && e.NS == opwrite.IndexBuildsNS:
		build, err := w.entry(n + 1).IndexBuild()
		check(w.t, err)
		coll, _ := b.View().ByUUID(w.entry(n + 1).UI)
		return b.CreateIndexes(coll, build.Specs)
	}
	return w.crud(b, &e.Op, stmt, image)
}

func (w *writer) crud(ops opwrite.Ops, op *oplog.Op, stmt opwrite.Stmt, image opwrite.Image) error {
	coll, ok := ops.View().ByUUID(op.UI)
	if !ok {
		w.t.Fatalf("no collection %s", op.NS)
	}
	old, _ := coll.Get(op.ID)
	switch op.Kind {
	case oplog.KindInsert:
		var stmts []opwrite.Stmt
		if stmt.Session != nil {
			stmts = []opwrite.Stmt{stmt}
		}
		_, err := ops.Insert(coll, []bson.Raw{op.O}, stmts)
		return err
	case oplog.KindDelete:
		return ops.Delete(coll, old, stmt, image)
	default:
		post, err := update.Apply(old.Doc, op.O)
		check(w.t, err)
		up := opwrite.Update{Post: post, Image: image}
		switch form, err := update.Classify(op.O); {
		case err != nil:
			return err
		case form == update.FormDelta:
			up.Delta, err = update.DeltaOf(op.O)
			check(w.t, err)
		case form == update.FormModifiers:
			up.Modifiers = op.O
		default:
			up.Made = op.O
		}
		return ops.Update(coll, old, up, stmt)
	}
}

var temporaryName = regexp.MustCompile(`tmp[A-Za-z0-9]{5}\.`)

func (w *writer) command(b *opwrite.Batch, n int, e *oplog.Entry) error {
	coll, _ := b.View().ByUUID(e.UI)
	switch e.Command {
	case oplog.CommandCreate:
		return w.create(b, n, e)
	case oplog.CommandCreateIndexes:
		index, err := e.CreateIndexes()
		check(w.t, err)
		return b.CreateIndexes(coll, []bson.Raw{index.Spec})
	case oplog.CommandDropIndexes:
		index, err := e.DropIndexes()
		check(w.t, err)
		return b.DropIndex(coll, index.Name)
	case oplog.CommandDrop:
		for m := n; m < len(w.want); m++ {
			switch next := w.entry(m); {
			case next.Command == oplog.CommandDropDatabase && next.NS == e.NS:
				return b.DropDatabase(e.NS.DB())
			case next.Command == oplog.CommandDrop && next.NS == e.NS:
				continue
			}
			break
		}
		return b.Drop(coll)
	case oplog.CommandRenameCollection:
		rename, err := e.RenameCollection()
		check(w.t, err)
		target, _ := b.View().ByUUID(rename.DropTarget)
		return b.Rename(coll, rename.To, target, rename.StayTemp)
	case oplog.CommandCollMod:
		change, err := e.CollMod()
		check(w.t, err)
		options, index, spec, err := replay.Modified(coll, change.Changes)
		check(w.t, err)
		return b.CollMod(coll, options, index, spec, e.O, e.O2)
	case oplog.CommandApplyOps:
		if e.LSID == nil {
			_, err := replay.ApplyOps(b, e.O)
			return err
		}
		return w.transaction(b, n, e)
	case oplog.CommandCommitTransaction, oplog.CommandAbortTransaction:
		txn := w.txns[string(e.LSID)]
		delete(w.txns, string(e.LSID))
		if e.Command == oplog.CommandAbortTransaction {
			return txn.Abort(b)
		}
		_, err := txn.CommitPrepared(b, txn.ReadAt())
		if err == nil {
			w.t.Error("a commit timestamp before the prepare was accepted")
		}
		prepared, err := txn.Prepare(b) // says again where it was prepared
		check(w.t, err)
		_, err = txn.CommitPrepared(b, prepared.TS)
		return err
	default:
		w.t.Fatalf("entry %d: no way to repeat %s", n, e.Raw)
		return nil
	}
}

func (w *writer) create(b *opwrite.Batch, n int, e *oplog.Entry) error {
	create, err := e.Create()
	check(w.t, err)
	if temporaryName.MatchString(create.NS.Collection()) {
		return w.copy(b, n, &create)
	}
	if create.IDIndex == nil && !rawHas(create.Options, "clusteredIndex") {
		cmd := document(w.t, bson.D{{Key: "applyOps", Value: bson.A{bson.D{
			{Key: "op", Value: "c"}, {Key: "ns", Value: string(e.NS)}, {Key: "o", Value: e.O},
		}}}})
		_, err := replay.ApplyOps(b, cmd)
		return err
	}
	_, err = b.Create(create.NS, create.Options, create.IDIndex)
	return err
}

// copy repeats a rename across databases or a convertToCapped, which begin with a
// temporary collection.
func (w *writer) copy(b *opwrite.Batch, n int, create *oplog.Create) error {
	if strings.HasSuffix(string(create.NS), ".renameCollection") {
		for m := n; ; m++ {
			next := w.entry(m)
			if next.Command != oplog.CommandRenameCollection {
				continue
			}
			rename, err := next.RenameCollection()
			check(w.t, err)
			source, _ := b.View().ByUUID(w.entry(m + 1).UI)
			target, _ := b.View().ByUUID(rename.DropTarget)
			return b.Rename(source, rename.To, target, false)
		}
	}
	_, name, _ := strings.Cut(string(create.NS), ".convertToCapped.")
	source, _ := b.View().Collection(oplog.NewNamespace(create.NS.DB(), name))
	size, _ := rawbson.Lookup(create.Options, "size")
	bytes, _ := size.Int64()
	return b.ConvertToCapped(source, bytes)
}

// transaction repeats a transaction, with all entries of its chain.
func (w *writer) transaction(b *opwrite.Batch, n int, e *oplog.Entry) error {
	txn := b.Begin(&opwrite.Session{LSID: e.LSID, TxnNumber: e.TxnNumber}, bson.Timestamp{})
	for ; ; n++ {
		e = w.entry(n)
		for _, op := range w.ops(e) {
			check(w.t, w.inner(txn, &op))
		}
		group, err := e.ApplyOps()
		check(w.t, err)
		switch {
		case group.Prepare:
			w.txns[string(e.LSID)] = txn
			_, err = txn.Prepare(b)
			return err
		case !group.PartialTxn:
			_, err = txn.Commit(b)
			return err
		}
	}
}

func (w *writer) inner(txn *opwrite.Txn, op *oplog.Op) error {
	switch op.Command {
	case oplog.CommandCreate:
		create, err := op.Create()
		check(w.t, err)
		_, err = txn.Create(create.NS, create.Options, create.IDIndex)
		return err
	case oplog.CommandCreateIndexes:
		index, err := op.CreateIndexes()
		check(w.t, err)
		coll, _ := txn.View().ByUUID(op.UI)
		return txn.CreateIndexes(coll, []bson.Raw{index.Spec})
	default:
		return w.crud(txn, op, opwrite.Stmt{}, opwrite.NoImage)
	}
}

// normalizer takes entries of one log in order. It numbers them.
type normalizer map[bson.Timestamp]uint32

// normal returns an entry with numbers in place of timestamps, without term and
// wall time.
func (z normalizer) normal(t *testing.T, raw bson.Raw) bson.Raw {
	t.Helper()
	e, err := oplog.ParseEntry(raw)
	check(t, err)
	z[e.OpTime.TS] = uint32(len(z)) + 1
	return temporaryName.ReplaceAll(z.rewrite(raw), []byte("tmpXXXXX."))
}

func (z normalizer) rewrite(doc bson.Raw) bson.Raw {
	start, dst := bsoncore.AppendDocumentStart(make([]byte, 0, len(doc)))
	it := rawbson.NewIter(doc)
	for it.Next() {
		inner, _ := it.Document()
		switch it.Name() {
		case "ts", "commitTimestamp":
			ts, _ := it.Timestamp()
			dst = bsoncore.AppendTimestampElement(dst, it.Name(), 0, z[ts])
		case "t":
			n, _ := it.Int64()
			dst = bsoncore.AppendInt64Element(dst, it.Name(), min(n, 0))
		case "wall":
			dst = bsoncore.AppendDateTimeElement(dst, it.Name(), 0)
		case "o":
			if rawHas(inner, "commitTransaction") {
				inner = z.rewrite(inner)
			}
			dst = bsoncore.AppendDocumentElement(dst, it.Name(), bsoncore.Document(inner))
		case "prevOpTime", "preImageOpTime", "postImageOpTime":
			dst = bsoncore.AppendDocumentElement(dst, it.Name(), bsoncore.Document(z.rewrite(inner)))
		default:
			dst = bsoncore.AppendValueElement(dst, it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}
