package ddl_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// refuses has the target refuse a command with a code.
func (b *bench) refuses(name string, code servererr.Code) {
	b.before = func(cmd mongo.Command) error {
		if _, err := cmd.Body.LookupErr(name); err == nil {
			return servererr.New(code, "no")
		}
		return nil
	}
}

// TestRefusedIndex: an index with an option, or a value of one, that the target does not accept is left out, and listed as lacking. Whatever a server
// says of its state, or of other indexes, is not a refusal of the index.
func TestRefusedIndex(t *testing.T) {
	t.Parallel()
	for code, left := range map[servererr.Code]bool{
		servererr.CannotCreateIndex: true, servererr.InvalidOptions: true, servererr.InvalidIndexSpecificationOption: true,
		servererr.BadValue: true, servererr.TypeMismatch: true, servererr.FailedToParse: true, servererr.QueryFeatureNotAllowed: true,
		// Documents that the index cannot contain, of a 2dsphere, hashed and text index, or too many of them for its memory.
		servererr.CannotIndexParallelArrays: true, 16755: true, 16766: true, 17261: true, servererr.ExceededMemoryLimit: true,
		servererr.InternalError: false, servererr.Unauthorized: false, servererr.IndexOptionsConflict: false,
		servererr.OutOfDiskSpace: false, servererr.NotWritablePrimary: false, 40999: false,
	} {
		t.Run(strconv.Itoa(int(code)), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
			must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"create": "a"}`), ddl.Once))
			b.refuses("createIndexes", code)
			err := b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x_1", "bogus": 1}`), ddl.Once)
			specs := must.Get(ddl.ReadDeferred(t.Context(), b, "replicator", "link"))(t)
			if absent := len(specs) == 1 && specs[0].Absent && specs[0].Index == "x_1"; (err == nil) != left || absent != left {
				t.Errorf("%v, deferred %v", err, specs)
			}
		})
	}
}

// TestRefusedOptions: a create or collMod whose options the target does not accept says so; other commands have none.
func TestRefusedOptions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, line string
		code       servererr.Code
		want       bool
	}{
		{"create", `{"create": "b", "validator": {"x": {"$bogus": 1}}}`, servererr.FailedToParse, true},
		{"create", `{"create": "b", "validator": {"$expr": {"$bogus": 1}}}`, servererr.InvalidPipelineOperator, true},
		{"create", `{"create": "b", "validator": {"$jsonSchema": {}}}`, servererr.QueryFeatureNotAllowed, true},
		{"collMod", `{"collMod": "a", "validator": {"x": {"$bogus": 1}}}`, servererr.BadValue, true},
		{"create", `{"create": "b", "collation": {"locale": "fr", "version": "1"}}`, servererr.IncompatibleCollationVersion, true},
		{"create", `{"create": "b", "validator": {"$expr": {"$regexMatch": {"input": "$x", "regex": "a"}}}}`, 51111, true},
		{"create", `{"create": "b", "validator": {"mail": {"$regex": "[\\w-.]"}}}`, 51091, true},
		{"create", `{"create": "b"}`, servererr.InternalError, false},
		{"drop", `{"drop": "a"}`, servererr.BadValue, false},
		{"dropIndexes", `{"dropIndexes": "a", "index": "i"}`, servererr.BadValue, false},
		{"renameCollection", `{"renameCollection": "db.a", "to": "db.z"}`, servererr.BadValue, false},
	} {
		t.Run(c.line+" "+strconv.Itoa(int(c.code)), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
			must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"create": "a"}`), ddl.Once))
			must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"createIndexes": "a", "v": 2, "key": {"i": 1}, "name": "i"}`), ddl.Once))
			b.refuses(c.name, c.code)
			err := b.exec.Apply(t.Context(), b.operation(t, "c db.$cmd "+c.line), ddl.Once)
			if err == nil || errors.As(err, new(*ddl.OptionError)) != c.want {
				t.Errorf("%T %v", err, err)
			}
		})
	}
}

// TestRefusedRegex: servers since 6.1 do not accept some regular expressions that earlier ones have stored in a validator, as [\w-.]: they lack it.
func TestRefusedRegex(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"6.0", "7.0"} {
		for _, line := range []string{
			`{"create": "b", "validator": {"mail": {"$regex": "^[\\w-\\.]+@x$"}}}`,
			`{"collMod": "a", "validator": {"mail": {"$regularExpression": {"pattern": "^[\\w-\\.]+@x$", "options": ""}}}}`,
		} {
			t.Run(dialect+" "+line, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, dialect, ddl.Relaxed, scope.Config{})
				must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"create": "a"}`), ddl.Once))
				must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, "c db.$cmd "+line), ddl.Once))
				lacking := must.Get(ddl.ReadLacking(t.Context(), b, "replicator", "link"))(t).Options
				if refused := dialect == "7.0"; refused != (len(lacking) == 1 && lacking[0].Name == "validator") || !refused && len(lacking) > 0 {
					t.Errorf("lacking %v", lacking)
				}
			})
		}
	}
}

// TestOldCollection: what servers before 3.4 stored about an index on _id, and before 4.4 about a capped collection, and later ones keep and
// refuse in a command, is left out, or given as what the server takes it for. So is an option about how a newer server stores documents.
func TestOldCollection(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"4.4", "8.0"} {
		for line, options := range map[string]string{
			`{"create": "a", "idIndex": {"v": 1, "key": {"_id": 1}, "name": "_id_", "ns": "db.a", "unique": true, "background": true}}`: `{}`,
			`{"create": "a", "capped": true, "size": 0}`:                                                                                         `{"capped": true,"size": {"$numberInt":"4096"}}`,
			`{"create": "a", "capped": true, "size": {"$numberLong": "0"}, "max": 5}`:                                                            `{"capped": true,"size": {"$numberInt":"4096"},"max": {"$numberInt":"5"}}`,
			`{"create": "a", "capped": true, "size": {"$numberDouble": "0.0"}}`:                                                                  `{"capped": true,"size": {"$numberInt":"4096"}}`,
			`{"create": "a", "recordIdsReplicated": true}`:                                                                                       `{}`,
			`{"create": "a", "storageEngine": {"mmapv1": {}}, "recordIdsReplicated": true, "validationLevel": "off"}`:                            `{"validationLevel": "off"}`,
			`{"create": "a", "storageEngine": {"wiredTiger": {"configString": "x=1"}}, "indexOptionDefaults": {"storageEngine": {"mmapv1": 1}}}`: `{"storageEngine": {"wiredTiger": {"configString": "x=1"}}}`,
			// Only two of three options are refused.
			`{"create": "a", "storageEngine": {"wiredTiger": {"configString": "x=1"}}, "indexOptionDefaults": {"storageEngine": {"mmapv1": 1}}, "recordIdsReplicated": true}`: `{"storageEngine": {"wiredTiger": {"configString": "x=1"}}}`,
		} {
			t.Run(dialect+" "+line, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, dialect, ddl.Relaxed, scope.Config{})
				must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, "c db.$cmd "+line), ddl.Copied))
				if coll := must.Get(catalog.Look(t.Context(), b, "db.a"))(t); coll.Options.String() != options {
					t.Errorf("%s, want %s", coll.Options, options)
				}
			})
		}
	}
}

// TestRefusedName: an error says that the target does not accept a name, as it has a database whose name differs in case only, or as the name is too
// long: other options would not help.
func TestRefusedName(t *testing.T) {
	t.Parallel()
	for _, code := range []servererr.Code{servererr.InvalidNamespace, 13297} {
		for _, c := range [][2]string{
			{"create", `c db.$cmd {"create": "b"}`},
			{"viewOn", `i db.system.views {"_id": "db.v", "viewOn": "a", "pipeline": []}`},
			{"renameCollection", `c db.$cmd {"renameCollection": "db.a", "to": "db.z"}`},
		} {
			if c[0] == "viewOn" && code == servererr.InvalidNamespace {
				continue // a view is left out
			}
			t.Run(fmt.Sprint(int(code), " ", c[0]), func(t *testing.T) {
				t.Parallel()
				b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
				must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"create": "a"}`), ddl.Once))
				b.refuses(c[0], code)
				err := b.exec.Apply(t.Context(), b.operation(t, c[1]), ddl.Once)
				if e, is := errors.AsType[*ddl.NameError](err); !is || e.NS == "" {
					t.Errorf("%T %v", err, err)
				}
			})
		}
	}
}

// TestOtherCase: the log may drop a database, and make one whose name differs in case only. The target's is only emptied, as it may have other
// collections, so its server refuses the new one until that is dropped.
func TestOtherCase(t *testing.T) {
	t.Parallel()
	b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
	for _, line := range []string{`c Shop.$cmd {"create": "a"}`, `c Shop.$cmd {"drop": "a"}`, `c Shop.$cmd {"dropDatabase": 1}`} {
		must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, line), ddl.Once))
	}
	next := `c shop.$cmd {"create": "a"}`
	if err := b.exec.Apply(t.Context(), b.operation(t, next), ddl.Once); !errors.As(err, new(*ddl.NameError)) {
		t.Errorf("%T %v", err, err)
	}
	body := bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("dropDatabase", 1).Build())
	must.Get(b.Call(t.Context(), mongo.Command{DB: "Shop", Body: body}))(t)
	must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, next), ddl.Once))
}

// TestFirstPrivileges: the target's own first user or role, with which its server has created their collection since the link has read
// the catalog, does not end the link with the source's first one.
func TestFirstPrivileges(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"5.0", "7.0"} {
		for _, coll := range []string{"system.users", "system.roles"} {
			for _, mode := range []ddl.Mode{ddl.Once, ddl.Maybe, ddl.Copied} {
				b := newBench(t, dialect, ddl.Relaxed, scope.Config{UsersAndRoles: true})
				ns := oplog.NewNamespace("admin", coll)
				if _, there, err := b.cfg.Catalog.Get(t.Context(), ns); there || err != nil {
					t.Fatal(there, err)
				}
				b.must(t, "admin", `{"insert": "`+coll+`", "documents": [{"_id": "app.own"}]}`)
				must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c admin.$cmd {"create": "`+coll+`"}`), mode))
				if _, there, err := b.cfg.Catalog.Get(t.Context(), ns); !there || err != nil {
					t.Errorf("%s, %s: the catalog has it: %v, %v", coll, mode, there, err)
				}
			}
		}
	}
}
