package cutover_test

import (
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// lacksOptions records options of the collection that the link has left out, as the target refused them.
func (m *moved) lacksOptions(spec string, names ...any) {
	m.t.Helper()
	coll := must.Get(catalog.Look(m.t.Context(), m.target, m.ns()))(m.t)
	must.Succeed(m.t, metadata.Run(m.t.Context(), m.target, metadata.Majority(metadata.Write("replicator", "insert", metadata.Deferred, "documents", reply(bson.D{
		{Key: "_id", Value: bson.D{{Key: "link", Value: m.link}, {Key: "ns", Value: string(m.ns())}, {Key: "index", Value: ""}}},
		{Key: "uuid", Value: bson.Binary{Subtype: 4, Data: coll.UUID[:]}},
		{Key: "deferred", Value: bson.A(names)},
		{Key: "spec", Value: bson.Binary{Data: bsongen.FromJSON(m.t, spec)}},
	}))), 1))
}

func (m *moved) options() string {
	m.t.Helper()
	return must.Get(catalog.Look(m.t.Context(), m.target, m.ns()))(m.t).Options.String()
}

// TestConvertRefusedOptions: the options that the target had refused are tried again, are removed if the cutover is reverted, and keep neither a
// cutover nor a promotion from its end: those that it still refuses are named.
func TestConvertRefusedOptions(t *testing.T) {
	t.Parallel()
	const (
		set    = `{"validator": {"mail": {"$exists": true}},"validationLevel": "strict","validationAction": "error"}`
		unset  = `{"validationLevel": "strict","validationAction": "error"}`
		action = `"validationAction": "errorAndLog"`
	)
	for _, c := range []struct {
		spec, first, converted, reverted, refused string
		names                                     []any
	}{
		{`{"validator": {"mail": {"$exists": true}}, ` + action + `}`, `{}`, set, unset, "validationAction is not set, as the target refuses it", []any{"validator", "validationAction"}},
		{`{"validator": {"mail": {"$regex": "^[\\w-\\.]+@x$"}}}`, `{}`, `{}`, `{}`, "validator is not set, as the target refuses it", []any{"validator"}},
	} {
		target := open(t, "7.0")
		m := newMoved(t, target, "d")
		m.lacksOptions(c.spec, c.names...)
		var said []string
		cfg := &cutover.ConvertConfig{
			Target: target, Fence: unfenced{target}, MetaDB: "replicator", Link: m.link, Said: func(what string) { said = append(said, what) },
		}
		lacking := func() int {
			return len(must.Get(ddl.ReadLacking(t.Context(), target, "replicator", m.link))(t).Options)
		}
		if _, err := cutover.Convert(t.Context(), cfg); err != nil || m.options() != c.converted || !strings.Contains(strings.Join(said, "\n"), "d.a: ") || !strings.Contains(strings.Join(said, "\n"), c.refused) {
			t.Fatalf("%s: %v; %q; %s", c.spec, err, said, m.options())
		}
		for range 2 {
			if _, err := cutover.Revert(t.Context(), cfg); err != nil || m.options() != c.reverted || lacking() != len(c.names) {
				t.Fatalf("%s: put back: %v; %s, lacking %d", c.spec, err, m.options(), lacking())
			}
		}
		if _, refused, err := cutover.Restore(t.Context(), cfg); err != nil || len(refused) > 0 || lacking() != 0 || c.converted != `{}` && m.options() != c.converted {
			t.Errorf("%s: promoted: %v, %v; %s, lacking %d", c.spec, refused, err, m.options(), lacking())
		}
	}
}

// TestRestoreKeepsValidator: a validator that an application has set, or removed, since a promotion stays so if that is repeated.
func TestRestoreKeepsValidator(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	m := newMoved(t, target, "d")
	m.run("d", `{"collMod": "a", "validator": {"own": {"$exists": true}}}`)
	m.lacksOptions(`{"validator": {"mail": {"$exists": true}}}`, "validator")
	cfg := &cutover.ConvertConfig{Target: target, Fence: unfenced{target}, MetaDB: "replicator", Link: m.link, Said: func(string) {}}
	if _, _, err := cutover.Restore(t.Context(), cfg); err != nil || !strings.Contains(m.options(), `"own"`) {
		t.Errorf("an own one: %v; %s", err, m.options())
	}
	m.lacksOptions(`{"validator": {"mail": {"$exists": true}}}`, "validator")
	for n := 1; len(must.Get(ddl.ReadLacking(t.Context(), target, "replicator", m.link))(t).Options) > 0; n++ {
		m.run("d", `{"collMod": "a", "validator": {}}`)
		attempt := *cfg
		attempt.Target = &crash{Caller: target, at: n, sent: true}
		if _, _, err := cutover.Restore(t.Context(), &attempt); err == nil {
			t.Fatal("no attempt has ended between the validator and the rest")
		}
	}
	m.run("d", `{"collMod": "a", "validator": {}}`)
	if _, _, err := cutover.Restore(t.Context(), cfg); err != nil || strings.Contains(m.options(), "mail") {
		t.Errorf("removed: %v; %s", err, m.options())
	}
}

// unsupported is a target that supports no validators.
type unsupported struct{ mongo.Caller }

// Call implements mongo.Caller.
func (u unsupported) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if _, err := cmd.Body.LookupErr("validator"); err == nil {
		return nil, servererr.New(servererr.CommandNotSupported, "no")
	}
	return u.Caller.Call(ctx, cmd)
}

// TestConvertUnsupportedOptions: whatever made the link leave an option out keeps no cutover from its end.
func TestConvertUnsupportedOptions(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	m := newMoved(t, target, "d")
	m.lacksOptions(`{"validator": {"mail": {"$exists": true}}}`, "validator")
	off := unsupported{target}
	cfg := &cutover.ConvertConfig{Target: off, Fence: unfenced{off}, MetaDB: "replicator", Link: m.link, Said: func(string) {}}
	if _, err := cutover.Convert(t.Context(), cfg); err != nil {
		t.Error(err)
	}
}

// TestRestoreUnfinishedKeepsValidator: so it does where the promotion has not ended, as documents violate an index.
func TestRestoreUnfinishedKeepsValidator(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	m := newMoved(t, target, "d")
	m.lacksOptions(`{"validator": {"mail": {"$exists": true}}}`, "validator")
	m.run("d", `{"insert": "a", "documents": [{"_id": 901, "email": "same", "mail": 1}, {"_id": 902, "email": "same", "mail": 1}]}`)
	cfg := &cutover.ConvertConfig{Target: target, Fence: unfenced{target}, MetaDB: "replicator", Link: m.link, Said: func(string) {}}
	for _, want := range []bool{true, false} {
		if _, refused, err := cutover.Restore(t.Context(), cfg); err == nil && len(refused) == 0 || strings.Contains(m.options(), "mail") != want {
			t.Errorf("%v, refused %v; %s, want one: %v", err, refused, m.options(), want)
		}
		m.run("d", `{"collMod": "a", "validator": {}}`)
	}
}

// indexless is a target of which no index can be changed.
type indexless struct{ mongo.Caller }

// Call implements mongo.Caller.
func (i indexless) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	for _, field := range []string{"createIndexes", "dropIndexes", "index"} {
		if _, err := cmd.Body.LookupErr(field); err == nil {
			return nil, gone
		}
	}
	return i.Caller.Call(ctx, cmd)
}

// TestRestoreInterruptedKeepsValidator: so it does where the promotion has ended at an index, whether the validator was the source's or one of
// the applications.
func TestRestoreInterruptedKeepsValidator(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		target := open(t, "7.0")
		m := newMoved(t, target, "d")
		if own {
			m.run("d", `{"collMod": "a", "validator": {"own": {"$exists": true}}}`)
		}
		m.lacksOptions(`{"validator": {"mail": {"$exists": true}}}`, "validator")
		cfg := &cutover.ConvertConfig{Target: indexless{target}, Fence: unfenced{target}, MetaDB: "replicator", Link: m.link, Said: func(string) {}}
		if _, _, err := cutover.Restore(t.Context(), cfg); err == nil || strings.Contains(m.options(), "mail") == own {
			t.Fatalf("own %v: no error at the index: %v; %s", own, err, m.options())
		}
		m.run("d", `{"collMod": "a", "validator": {}}`)
		cfg.Target = target
		if _, refused, err := cutover.Restore(t.Context(), cfg); err != nil || len(refused) > 0 || strings.Contains(m.options(), "mail") {
			t.Errorf("own %v: removed: %v, %v; %s", own, err, refused, m.options())
		}
	}
}
