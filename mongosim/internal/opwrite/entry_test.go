package opwrite_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// TestDialects pins the entries of the dialects that are not recorded. Sessions are
// shown as S, collections as their UUIDs' first bytes.
func TestDialects(t *testing.T) {
	tests := []struct {
		dialect opwrite.Dialect
		want    []string
	}{
		{
			dialect: opwrite.Dialect{Version: "4.4.10"},
			want: []string{
				`{S,"op":"i","ns":"db.c","ui":U1,"o":{"_id":1,"n":1},"ts":#6,"t":2,"wall":W,"v":2,"stmtId":0,"prevOpTime":{"ts":#0,"t":-1}}`,
				`{S,"op":"i","ns":"db.c","ui":U1,"o":{"_id":2,"n":2},"ts":#7,"t":2,"wall":W,"v":2,"stmtId":1,"prevOpTime":{"ts":#6,"t":2}}`,
				`{S,"op":"n","ns":"db.c","ui":U1,"o":{"_id":1,"n":1},"ts":#8,"t":2,"wall":W,"v":2,"stmtId":2,"prevOpTime":{"ts":#7,"t":2}}`,
				`{S,"op":"u","ns":"db.c","ui":U1,"o":{"$v":1,"$set":{"n":5}},"o2":{"_id":1},"ts":#9,"t":2,"wall":W,"v":2,"stmtId":2,"prevOpTime":{"ts":#7,"t":2},"preImageOpTime":{"ts":#8,"t":2}}`,
				`{"op":"d","ns":"db.c","ui":U1,"o":{"_id":1},"ts":#10,"t":2,"wall":W,"v":2}`,
				`{"op":"d","ns":"db.c","ui":U1,"o":{"_id":2},"ts":#11,"t":2,"wall":W,"v":2}`,
			},
		},
		{
			dialect: opwrite.Dialect{Version: "7.0.5"},
			want: []string{
				`{S,"op":"i","ns":"db.c","ui":U1,"o":{"_id":1,"n":1},"o2":{"_id":1},"stmtId":0,"ts":#6,"t":2,"v":2,"wall":W,"prevOpTime":{"ts":#0,"t":-1}}`,
				`{S,"op":"i","ns":"db.c","ui":U1,"o":{"_id":2,"n":2},"o2":{"_id":2},"stmtId":1,"ts":#7,"t":2,"v":2,"wall":W,"prevOpTime":{"ts":#6,"t":2}}`,
				`{S,"op":"u","ns":"db.c","ui":U1,"o":{"$v":2,"diff":{"u":{"n":5}}},"o2":{"_id":1},"needsRetryImage":"preImage","stmtId":2,"ts":#8,"t":2,"v":2,"wall":W,"prevOpTime":{"ts":#7,"t":2}}`,
				`{"op":"c","ns":"admin.$cmd","o":{"applyOps":[{"op":"d","ns":"db.c","ui":U1,"o":{"_id":1}},{"op":"d","ns":"db.c","ui":U1,"o":{"_id":2}}]},"ts":#9,"t":2,"v":2,"wall":W}`,
			},
		},
		{
			dialect: opwrite.Dialect{Version: "8.0.1"},
			want: []string{
				`{S,"op":"c","ns":"admin.$cmd","o":{"applyOps":[{"op":"i","ns":"db.c","ui":U1,"o":{"_id":1,"n":1},"o2":{"_id":1},"stmtId":0},{"op":"i","ns":"db.c","ui":U1,"o":{"_id":2,"n":2},"o2":{"_id":2},"stmtId":1}]},"ts":#6,"t":2,"v":2,"wall":W,"prevOpTime":{"ts":#0,"t":-1},"multiOpType":1}`,
				`{S,"op":"u","ns":"db.c","ui":U1,"o":{"$v":2,"diff":{"u":{"n":5}}},"o2":{"_id":1},"needsRetryImage":"preImage","stmtId":2,"ts":#8,"t":2,"v":2,"wall":W,"prevOpTime":{"ts":#6,"t":2}}`,
				`{"op":"c","ns":"admin.$cmd","o":{"applyOps":[{"op":"d","ns":"db.c","ui":U1,"o":{"_id":1}},{"op":"d","ns":"db.c","ui":U1,"o":{"_id":2}}]},"ts":#9,"t":2,"v":2,"wall":W}`,
			},
		},
	}
	for _, test := range tests {
		t.Run(test.dialect.Version, func(t *testing.T) {
			p, store := newPath(t, test.dialect)
			create(t, p, "db.c", nil)
			for _, ns := range []string{"x", "y"} { // as many as there will be collections
				check(t, p.Write(func(b *opwrite.Batch) error { return b.Note(doc(t, bson.D{{Key: "msg", Value: ns}})) }))
			}
			create(t, p, opwrite.TransactionsNS, nil)
			create(t, p, opwrite.ImagesNS, nil)
			session := &opwrite.Session{LSID: lsid(t), TxnNumber: 4}
			check(t, p.Write(func(b *opwrite.Batch) error {
				coll, _ := b.View().Collection("db.c")
				docs := []bson.Raw{doc(t, bson.D{{Key: "_id", Value: int32(1)}, {Key: "n", Value: int32(1)}}), doc(t, bson.D{{Key: "_id", Value: int32(2)}, {Key: "n", Value: int32(2)}})}
				_, err := b.Insert(coll, docs, []opwrite.Stmt{{Session: session, ID: 0}, {Session: session, ID: 1}})
				check(t, err)
				coll, _ = b.View().Collection("db.c")
				old := first(coll)
				five := bson.D{{Key: "n", Value: int32(5)}}
				check(t, b.Update(coll, old, opwrite.Update{
					Post:  doc(t, append(bson.D{{Key: "_id", Value: int32(1)}}, five...)),
					Delta: doc(t, bson.D{{Key: "u", Value: five}}), Modifiers: doc(t, bson.D{{Key: "$set", Value: five}}),
					Image: opwrite.PreImage,
				}, opwrite.Stmt{Session: session, ID: 2}))
				_, image, done, err := b.Executed(opwrite.Stmt{Session: session, ID: 2})
				if o := image.Raw.Lookup("o"); err != nil || !done || o.String() != old.Doc.String() {
					t.Errorf("executed %v, %v, image %s", done, err, image.Raw)
				}
				var all []storage.Record
				coll, _ = b.View().Collection("db.c")
				for r := range coll.Natural(0) {
					all = append(all, r)
				}
				return b.DeleteMany(coll, all)
			}))
			got := entries(t, store, 5)
			for i := range got {
				got[i] = short(got[i])
			}
			if d := cmp.Diff(test.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func first(c *storage.Collection) storage.Record {
	for r := range c.Natural(0) {
		return r
	}
	return storage.Record{}
}

// short makes an entry readable.
func short(text string) string {
	for old, is := range map[string]string{
		`"lsid":{"id":{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAAAQ==","subType":"04"}},"uid":{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","subType":"00"}}},"txnNumber":4`: "S",
		`{"$binary":{"base64":"AQAAAAAAAAAAAAAAAAAAAA==","subType":"04"}}`: "U1",
		`"wall":{"$date":"1970-01-01T00:00:07Z"}`:                          `"wall":W`,
		`{"$timestamp":{"t":0,"i":0}}`:                                     "#0",
	} {
		text = strings.ReplaceAll(text, old, is)
	}
	for strings.Contains(text, `{"$timestamp":{"t":7,"i":`) {
		before, after, _ := strings.Cut(text, `{"$timestamp":{"t":7,"i":`)
		number, after, _ := strings.Cut(after, "}}")
		text = before + "#" + number + after
	}
	return text
}

// TestUnknownDialect refuses dialects that it cannot write.
func TestUnknownDialect(t *testing.T) {
	for _, d := range []opwrite.Dialect{{}, {Version: "3.6.1"}, {Version: "9.1.0"}, {Version: "five"}, {Version: "5.0.1", FCV: "6.0"}, {Version: "5.0.1", FCV: "4"}} {
		_, err := opwrite.New(opwrite.Config{Dialect: d})
		if err == nil || !strings.Contains(err.Error(), "version") || !strings.Contains(err.Error(), "no store") {
			t.Errorf("%+v: %v", d, err)
		}
	}
}
