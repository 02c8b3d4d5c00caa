package ddl_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/scope"
)

// TestReservedIndex: an index of buckets whose type users may not name is built, with either code of the refusal, and one
// that the log has not as a client has asked for it is an error, not one that is left out.
func TestReservedIndex(t *testing.T) {
	t.Parallel()
	for _, code := range []servererr.Code{servererr.CannotCreateIndex, servererr.IndexOptionsConflict} {
		for _, mode := range []ddl.Mode{ddl.Once, ddl.Maybe, ddl.Copied} {
			t.Run(fmt.Sprint(code, " ", mode), func(t *testing.T) {
				t.Parallel()
				b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
				b.before = func(cmd mongo.Command) error {
					if name, ok := cmd.Body.Lookup("createIndexes").StringValueOK(); ok && strings.HasPrefix(name, "system.buckets.") {
						return servererr.New(code, "a type of index for __system")
					}
					return nil
				}
				for _, line := range []string{
					`c db.$cmd {"create": "system.buckets.m", "validator": {}, "clusteredIndex": true, "timeseries": {"timeField": "t"}}`,
					`c db.$cmd {"createIndexes": "system.buckets.m", "v": 2, "key": {"data.loc": "2dsphere_bucket"}, "name": "loc", ` +
						`"originalSpec": {"v": 2, "key": {"loc": "2dsphere"}, "name": "loc"}, "2dsphereIndexVersion": 3}`,
				} {
					if err := b.exec.Apply(t.Context(), b.operation(t, line), mode); err != nil {
						t.Fatal(line, err)
					}
				}
				specs, err := catalog.Indexes(t.Context(), b, "db.system.buckets.m")
				if err != nil || len(specs) != 1 || specs[0].Lookup("key", "data.loc").StringValue() != "2dsphere_bucket" {
					t.Errorf("the target has %s, %v", specs, err)
				}
				op := b.operation(t, `c db.$cmd {"createIndexes": "system.buckets.m", "v": 2, "key": {"data.x": "2dsphere_bucket"}, "name": "x"}`)
				if err := b.exec.Apply(t.Context(), op, ddl.Once); err == nil {
					t.Error("one without what the client has asked for is applied")
				}
			})
		}
	}
}

// TestReservedIndexHiddenLater: an index that is hidden, and was not when a client has asked for it, is hidden also where the process
// has ended between building and hiding it.
func TestReservedIndexHiddenLater(t *testing.T) {
	t.Parallel()
	for _, mode := range []ddl.Mode{ddl.Maybe, ddl.Copied} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
			ends := errors.New("the process ends")
			b.before = func(cmd mongo.Command) error {
				if name, ok := cmd.Body.Lookup("createIndexes").StringValueOK(); ok && strings.HasPrefix(name, "system.buckets.") {
					return servererr.New(servererr.CannotCreateIndex, "a type of index for __system")
				}
				if _, err := cmd.Body.LookupErr("collMod"); err == nil {
					return ends
				}
				return nil
			}
			series := b.operation(t, `c db.$cmd {"create": "system.buckets.m", "validator": {}, "clusteredIndex": true, "timeseries": {"timeField": "t"}}`)
			must.Succeed(t, b.exec.Apply(t.Context(), series, mode))
			index := b.operation(t, `c db.$cmd {"createIndexes": "system.buckets.m", "v": 2, "key": {"data.loc": "2dsphere_bucket"}, "name": "loc", `+
				`"hidden": true, "originalSpec": {"v": 2, "key": {"loc": "2dsphere"}, "name": "loc"}, "2dsphereIndexVersion": 3}`)
			must.Fail(t, b.exec.Apply(t.Context(), index, mode), ends)
			refuses := b.before
			b.before = func(cmd mongo.Command) error {
				if err := refuses(cmd); !errors.Is(err, ends) {
					return err
				}
				return nil
			}
			b.restart(t)
			must.Succeed(t, b.exec.Apply(t.Context(), index, mode))
			specs := must.Get(catalog.Indexes(t.Context(), b, "db.system.buckets.m"))(t)
			if hidden, _ := specs[0].Lookup("hidden").BooleanOK(); len(specs) != 1 || !hidden {
				t.Errorf("the target has %s", specs)
			}
		})
	}
}

// TestReservedIndexOfNoSeries: what a client has asked for of a time series is built on nothing else that has such a name.
func TestReservedIndexOfNoSeries(t *testing.T) {
	t.Parallel()
	const (
		series = `{"create": "m", "timeseries": {"timeField": "t"}}`
		lost   = `{"delete": "system.views", "deletes": [{"q": {"_id": "db.m"}, "limit": 1}]}`
	)
	for name, c := range map[string]struct {
		on     string
		target []string
	}{
		"no buckets":   {"m", []string{`{"create": "m"}`}},
		"no series":    {"system.buckets.m", []string{series, lost}},
		"a collection": {"system.buckets.m", []string{series, lost, `{"create": "m"}`}},
		"a view":       {"system.buckets.m", []string{series, lost, `{"create": "m", "viewOn": "a", "pipeline": []}`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
			for _, cmd := range c.target {
				b.must(t, "db", cmd)
			}
			b.restart(t)
			var built []string
			b.before = func(cmd mongo.Command) error {
				on, ok := cmd.Body.Lookup("createIndexes").StringValueOK()
				if !ok {
					return nil
				}
				built = append(built, on)
				return servererr.New(servererr.CannotCreateIndex, "a type of index for __system")
			}
			op := b.operation(t, `c db.$cmd {"createIndexes": "`+c.on+`", "v": 2, "key": {"data.loc": "2dsphere_bucket"}, "name": "loc", "originalSpec": {"v": 2, "key": {"loc": "2dsphere"}, "name": "loc"}}`)
			err := b.exec.Apply(t.Context(), op, ddl.Once)
			if err == nil || slices.ContainsFunc(built, func(on string) bool { return on != c.on }) {
				t.Errorf("%v, and it was to be built on %s", err, built)
			}
		})
	}
}
