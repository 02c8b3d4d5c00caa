package pipeline_test

import (
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/preflight"
	"github.com/oplogrep/replicator/scope"
)

// named are members whose names cannot be resolved, as with containers and tunnels. RFC
// 2606 reserves .invalid.
func named(members int) mongosim.Options {
	var o mongosim.Options
	for i := range members {
		o.MemberOptions = append(o.MemberOptions, mongosim.MemberOptions{Name: fmt.Sprintf("db%d.invalid:27017", i)})
	}
	return o
}

// A link copies and follows a source whose members cannot be reached under their own
// names: through a single address, whatever member that is, or with a map of names.
func TestAddresses(t *testing.T) {
	t.Parallel()
	direct := func(m *mongosim.Member) (driver.Config, string) {
		return driver.Config{URI: "mongodb://" + m.Address() + "/?directConnection=true"}, m.Address()
	}
	tests := []struct {
		name string
		// config returns how to connect to the source, and the member that should be
		// read; empty means any.
		config func(s *mongosim.Set) (driver.Config, string)
	}{
		{"direct to the primary", func(s *mongosim.Set) (driver.Config, string) { return direct(s.Primary()) }},
		{"direct to a secondary", func(s *mongosim.Set) (driver.Config, string) { return direct(secondary(s)) }},
		{"host map", func(s *mongosim.Set) (driver.Config, string) {
			hosts := map[string]string{}
			for _, m := range s.Members() {
				hosts[m.Host()] = m.Address()
			}
			return driver.Config{URI: "mongodb://db0.invalid,db1.invalid/?replicaSet=rs0", HostMap: hosts}, ""
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, named(3), mongosim.Options{})
			cfg, reads := tt.config(w.source.Set)
			cfg.SelectionTimeout = 5 * time.Second
			w.connectSource = func() *driver.Set { return open(t, cfg) }
			insert := func(from, to int) {
				t.Helper()
				var docs bson.A
				for i := from; i < to; i++ {
					docs = append(docs, bson.D{{Key: "_id", Value: i}})
				}
				must.Succeed(t, w.source.write(t.Context(), "db", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: docs}}))
			}
			insert(0, 100)
			checked(t, w, preflight.OK)
			began := time.Now()
			must.Succeed(t, w.start("a", pipeline.Config{Writers: 2, Copy: initialsync.Options{Wanted: true, SpoolDir: t.TempDir()}}, scope.Config{}))
			l := w.links["a"]
			insert(100, 200)
			must.Succeed(t, w.caughtUp(l))
			t.Logf("caught up after %s", time.Since(began))
			if report, err := w.equal(l); err != nil || report != "equal" {
				t.Error(report, err)
			}
			if reads == "" {
				return
			}
			// After the copy is consistent one more attempt starts, without a spool: no
			// member is read between the two.
			if err := w.untilOf(l, "a link that reads "+reads, func() bool { return l.p.Snapshot().SourceHost == reads }); err != nil {
				t.Errorf("%v; it reads %q", err, l.p.Snapshot().SourceHost)
			}
		})
	}
}

func secondary(s *mongosim.Set) *mongosim.Member {
	for _, m := range s.Members() {
		if m != s.Primary() {
			return m
		}
	}
	return nil
}

// checked makes the startup checks, and compares the level of the one on the source's
// members.
func checked(t *testing.T, w *world, want preflight.Level) {
	t.Helper()
	s, err := scope.New(scope.Config{})
	if err != nil {
		t.Fatal(err)
	}
	source := w.connectSource()
	report, err := preflight.Run(t.Context(), preflight.Config{
		Source: source, Target: w.target.conn, Members: source, Scope: s, Link: "mirror",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Findings {
		if f.Check == "source members" {
			t.Log(f)
			if f.Level != want {
				t.Errorf("got %s, want %s", f, want)
			}
			return
		}
	}
	t.Error("the members were not checked")
}

// If the run would find no member, the check reports it: the primary can be reached by
// its name, and the others cannot.
func TestAddressesUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, named(2), mongosim.Options{})
	p := w.source.Primary()
	w.connectSource = func() *driver.Set {
		return open(t, driver.Config{
			URI: "mongodb://" + p.Host() + "/?replicaSet=rs0", HostMap: map[string]string{p.Host(): p.Address()}, SelectionTimeout: 5 * time.Second,
		})
	}
	checked(t, w, preflight.Warn)
}
