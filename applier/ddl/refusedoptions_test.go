package ddl_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/scope"
)

// What 7.0 and 8.0 refuse of validators and validation actions.
const (
	refusedValidator = `{"mail": {"$regex": "^[\\w-\\.]+@x$"}}`
	otherRefused     = `{"mail": {"$regex": "^[\\d-\\.]+@x$"}}`
	takenValidator   = `{"mail": {"$exists": true}}`
)

// collectionA returns the options of the collection db.a of the target, and which of the source's it lacks.
func (b *bench) collectionA(t testing.TB) string {
	t.Helper()
	coll, err := catalog.Look(t.Context(), b, "db.a")
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{"none"}
	if coll != nil {
		texts[0] = relaxed(coll.Options)
	}
	for _, o := range must.Get(ddl.ReadLacking(t.Context(), b, "replicator", "link"))(t).Options {
		texts = append(texts, fmt.Sprintf("lacks the %s of %s", o.Name, o.NS))
	}
	return strings.Join(texts, ", ")
}

// TestRefusedValidator: a validator, or a validation action, that the target refuses is left out in every mode, and listed as lacking until
// the log changes or removes it. A validator that it replaces does not stay.
func TestRefusedValidator(t *testing.T) {
	t.Parallel()
	const (
		lacksIt  = ", lacks the validator of db.a"
		defaults = `{"validationLevel":"strict","validationAction":"error"}` // servers store them with the first collMod
	)
	for name, c := range map[string]struct {
		lines []string
		want  string
	}{
		"create": {[]string{`c db.$cmd {"create": "a", "validator": ` + refusedValidator + `, "validationLevel": "moderate"}`}, `{"validationLevel":"moderate"}` + lacksIt},
		"with an option that the target does not have": {
			[]string{`c db.$cmd {"create": "a", "recordIdsReplicated": true, "validator": ` + refusedValidator + `, "validationAction": "errorAndLog"}`},
			"{}" + lacksIt + ", lacks the validationAction of db.a",
		},
		"action alone": {
			[]string{`c db.$cmd {"create": "a", "validator": ` + takenValidator + `, "validationAction": "errorAndLog"}`},
			`{"validator":{"mail":{"$exists":true}}}, lacks the validationAction of db.a`,
		},
		"empty":   {[]string{`c db.$cmd {"create": "a", "validator": {}}`}, "{}"},
		"collMod": {[]string{`c db.$cmd {"create": "a"}`, `c db.$cmd {"collMod": "a", "validator": ` + refusedValidator + `}`}, defaults + lacksIt},
		"in place of another": {
			[]string{
				`c db.$cmd {"create": "a", "validator": ` + takenValidator + `, "validationAction": "warn"}`,
				`c db.$cmd {"collMod": "a", "validator": ` + refusedValidator + `, "validationAction": "errorAndLog"}`,
			},
			defaults + lacksIt + ", lacks the validationAction of db.a",
		},
		"another one": {
			[]string{`c db.$cmd {"create": "a", "validator": ` + refusedValidator + `}`, `c db.$cmd {"collMod": "a", "validator": ` + otherRefused + `}`},
			defaults + lacksIt,
		},
		"changed": {
			[]string{`c db.$cmd {"create": "a", "validator": ` + refusedValidator + `}`, `c db.$cmd {"collMod": "a", "validator": ` + takenValidator + `}`},
			`{"validator":{"mail":{"$exists":true}},"validationLevel":"strict","validationAction":"error"}`,
		},
		"removed": {
			[]string{`c db.$cmd {"create": "a", "validator": ` + refusedValidator + `}`, `c db.$cmd {"collMod": "a", "validator": {}}`}, defaults,
		},
		"one of two changed": {
			[]string{
				`c db.$cmd {"create": "a", "validator": ` + refusedValidator + `, "validationAction": "errorAndLog"}`,
				`c db.$cmd {"collMod": "a", "validationAction": "warn"}`,
			},
			`{"validationLevel":"strict","validationAction":"warn"}` + lacksIt,
		},
		"another option": {
			[]string{`c db.$cmd {"create": "a", "validator": ` + refusedValidator + `}`, `c db.$cmd {"collMod": "a", "validationLevel": "off"}`},
			`{"validationLevel":"off","validationAction":"error"}` + lacksIt,
		},
		"renamed": {
			[]string{`c db.$cmd {"create": "b", "validator": ` + refusedValidator + `, "temp": true}`, `c db.$cmd {"renameCollection": "db.b", "to": "db.a"}`},
			"{}" + lacksIt,
		},
		"dropped":       {[]string{`c db.$cmd {"create": "a", "validator": ` + refusedValidator + `}`, `c db.$cmd {"drop": "a"}`}, "none"},
		"database gone": {[]string{`c db.$cmd {"create": "a", "validator": ` + refusedValidator + `}`, `c db.$cmd {"drop": "a"}`, `c db.$cmd {"dropDatabase": 1}`}, "none"},
	} {
		for _, mode := range []ddl.Mode{ddl.Once, ddl.Maybe, ddl.Copied} {
			t.Run(name+" "+mode.String(), func(t *testing.T) {
				t.Parallel()
				b := newBench(t, "8.0", ddl.Relaxed, scope.Config{})
				for _, line := range c.lines {
					op := b.operation(t, line)
					must.Succeed(t, b.exec.Apply(t.Context(), op, mode))
					if mode != ddl.Once { // as after a crash
						b.restart(t)
						must.Succeed(t, b.exec.Apply(t.Context(), op, mode))
					}
				}
				if got := b.collectionA(t); got != c.want {
					t.Errorf("%s, want %s", got, c.want)
				}
			})
		}
	}
}

// TestRefusedValidatorKeepsOthers: what else is deferred of a collection stays so, and the source's options can be shown.
func TestRefusedValidatorKeepsOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t, "8.0", ddl.Relaxed, scope.Config{})
	for _, line := range []string{
		`c db.$cmd {"create": "a", "clusteredIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_", "unique": true}, "expireAfterSeconds": {"$numberLong": "5"}}`,
		`c db.$cmd {"collMod": "a", "validator": ` + refusedValidator + `, "expireAfterSeconds": {"$numberLong": "6"}}`,
	} {
		must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, line), ddl.Once))
	}
	specs := must.Get(ddl.ReadDeferred(t.Context(), b, "replicator", "link"))(t)
	coll := must.Get(catalog.Look(t.Context(), b, "db.a"))(t)
	options, _ := specs.Overlay("db.a", coll.Options, nil)
	for _, want := range []string{`"validator":` + strings.ReplaceAll(refusedValidator, ": ", ":"), `"expireAfterSeconds":6`} {
		if !strings.Contains(relaxed(options), want) {
			t.Errorf("%s has no %s", relaxed(options), want)
		}
	}
	must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"collMod": "a", "validator": {}}`), ddl.Once))
	if specs := must.Get(ddl.ReadDeferred(t.Context(), b, "replicator", "link"))(t); len(specs) != 1 || strings.Join(specs[0].Fields, " ") != "expireAfterSeconds" {
		t.Errorf("deferred is %v", specs)
	}
}

// TestRefusedValidatorIsNotedFirst: a validator is not removed from the target before it is recorded that the target lacks the one in its place,
// wherever the process ends.
func TestRefusedValidatorIsNotedFirst(t *testing.T) {
	t.Parallel()
	b := newBench(t, "8.0", ddl.Relaxed, scope.Config{})
	must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"create": "a", "validator": `+takenValidator+`}`), ddl.Once))
	b.before = func(cmd mongo.Command) error {
		if v, err := cmd.Body.LookupErr("validator"); err == nil && len(v.Value) == len(bson.Raw{5, 0, 0, 0, 0}) {
			return &mongo.LostError{Err: errCut}
		}
		return nil
	}
	op := b.operation(t, `c db.$cmd {"collMod": "a", "validator": `+refusedValidator+`}`)
	if err := b.exec.Apply(t.Context(), op, ddl.Once); !isCut(err) {
		t.Fatal(err)
	}
	b.before = nil
	if got, want := b.collectionA(t), `{"validator":{"mail":{"$exists":true}}}, lacks the validator of db.a`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	b.restart(t)
	must.Succeed(t, b.exec.Apply(t.Context(), op, ddl.Maybe))
	if got, want := b.collectionA(t), `{"validationLevel":"strict","validationAction":"error"}, lacks the validator of db.a`; got != want {
		t.Errorf("again: %s, want %s", got, want)
	}
}

// TestRefusedValidatorOfState: whatever the target says of its state, or of another part of the command, is no refusal of a validator.
func TestRefusedValidatorOfState(t *testing.T) {
	t.Parallel()
	for _, code := range []servererr.Code{
		servererr.InternalError, servererr.Unauthorized, servererr.NotWritablePrimary, servererr.CannotConvertIndexToUnique,
	} {
		for _, line := range []string{`{"create": "b", "validator": ` + takenValidator + `}`, `{"collMod": "a", "validator": ` + takenValidator + `}`} {
			b := newBench(t, "8.0", ddl.Relaxed, scope.Config{})
			must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"create": "a"}`), ddl.Once))
			b.before = func(cmd mongo.Command) error {
				if v, err := cmd.Body.LookupErr("validator"); err == nil && len(v.Value) > len(bson.Raw{5, 0, 0, 0, 0}) {
					return servererr.New(code, "no")
				}
				return nil
			}
			if err := b.exec.Apply(t.Context(), b.operation(t, "c db.$cmd "+line), ddl.Once); err == nil {
				t.Errorf("%d: %s is applied", code, line)
			}
			b.before = nil
			if l := must.Get(ddl.ReadLacking(t.Context(), b, "replicator", "link"))(t); len(l.Options) != 0 {
				t.Errorf("%d: %s: lacking %v", code, line, l.Options)
			}
		}
	}
}

// TestRefusedForAnotherOption: a validator that the target takes is not recorded as lacking because a try without it came first.
func TestRefusedForAnotherOption(t *testing.T) {
	t.Parallel()
	b := newBench(t, "5.0", ddl.Relaxed, scope.Config{})
	for _, line := range []string{
		`c db.$cmd {"create": "a"}`, `c db.$cmd {"collMod": "a", "validator": ` + takenValidator + `, "changeStreamPreAndPostImages": {"enabled": true}}`,
	} {
		must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, line), ddl.Once))
	}
	if got, want := b.collectionA(t), `{"validator":{"mail":{"$exists":true}},"validationLevel":"strict","validationAction":"error"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if specs := must.Get(ddl.ReadDeferred(t.Context(), b, "replicator", "link"))(t); len(specs) > 0 {
		t.Errorf("deferred is %v", specs)
	}
}

// TestRefusedWithoutOptions: a collMod that is refused without its validator, too, leaves what the target lacks as it was.
func TestRefusedWithoutOptions(t *testing.T) {
	t.Parallel()
	for _, code := range []servererr.Code{servererr.InvalidOptions, servererr.CannotConvertIndexToUnique} {
		for validator, want := range map[string]string{
			takenValidator:   `{"validator":{"mail":{"$exists":true}}}`,
			refusedValidator: `{}, lacks the validator of db.a`,
		} {
			b := newBench(t, "8.0", ddl.Relaxed, scope.Config{})
			must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"create": "a", "validator": `+validator+`}`), ddl.Once))
			sent := 0
			b.before = func(cmd mongo.Command) error {
				switch is := cmd.Body.Index(0).Key() == "collMod"; {
				case is && sent == 0:
					sent++
					return servererr.New(servererr.InvalidOptions, "no")
				case is:
					sent++
					return servererr.New(code, "no")
				}
				return nil
			}
			op := b.operation(t, `c db.$cmd {"collMod": "a", "validator": `+otherRefused+`, "validationAction": "warn"}`)
			if err := b.exec.Apply(t.Context(), op, ddl.Once); err == nil || sent < 2 {
				t.Fatalf("%d commands, %v", sent, err)
			}
			b.before = nil
			if got := b.collectionA(t); got != want {
				t.Errorf("%d: %s, want %s", code, got, want)
			}
			specs := must.Get(ddl.ReadDeferred(t.Context(), b, "replicator", "link"))(t)
			for _, h := range specs {
				if got := relaxed(h.Spec); got != relaxed(bsongen.FromJSON(t, `{"validator": `+refusedValidator+`}`)) {
					t.Errorf("%d: deferred is %s", code, got)
				}
			}
		}
	}
}
