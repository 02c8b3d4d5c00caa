package verify

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// TestPassing: what a server answers while its set changes, or while it is busy, does not end a comparison, whether it is
// read at cuts or not.
func TestPassing(t *testing.T) {
	t.Parallel()
	for _, code := range []servererr.Code{
		servererr.InterruptedAtShutdown, servererr.ShutdownInProgress, servererr.PrimarySteppedDown, servererr.InterruptedDueToReplStateChange,
		servererr.CursorNotFound, servererr.CursorKilled, servererr.QueryPlanKilled, servererr.ExceededTimeLimit, servererr.MaxTimeMSExpired,
		servererr.Interrupted, servererr.ExceededMemoryLimit,
	} {
		source, target := cluster(t), cluster(t)
		insertRaw(t, source, "d.c", neighbours(t, 0, 10)...)
		insertRaw(t, target, "d.c", neighbours(t, 0, 9)...)
		for _, cuts := range []Cuts{nil, &rest{source: source, target: target}} {
			var n atomic.Int64
			once := func(mongo.Command) error {
				if n.Add(1) == 1 {
					return servererr.New(code, "planted")
				}
				return nil
			}
			summary, found := check(t, Config{Source: &hook{Caller: source, ns: "d.c", before: once}, Target: target, Cuts: cuts})
			if len(found) != 1 || summary.Unchecked() > 0 || n.Load() < 2 {
				t.Errorf("code %d, at cuts %t: %+v, %+v", code, cuts != nil, found, summary.Collections)
			}
		}
	}
}

// TestOverwritten: a capped collection whose documents are overwritten before they are read cannot be compared. All
// others are.
func TestOverwritten(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	for _, c := range []mongo.Caller{source, target} {
		run(t, c, "d", bson.D{{Key: "create", Value: "c"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
		insertRaw(t, c, "d.c", neighbours(t, 0, 10)...)
		insertRaw(t, c, "d.other", neighbours(t, 0, 10)...)
	}
	lost := func(mongo.Command) error {
		return servererr.New(servererr.CappedPositionLost, "planted")
	}
	summary, found := check(t, Config{Source: &hook{Caller: source, ns: "d.c", before: lost}, Target: target, Cuts: &rest{source: source, target: target}})
	if len(found) > 0 || len(summary.Collections) != 2 || summary.Unchecked() != 1 || summary.Collections[0].Fault == "" || summary.Collections[1].EqualDocs != 10 {
		t.Errorf("%+v, %+v", found, summary.Collections)
	}
}

// TestRefused: a collection that a server does not read, as it is damaged, cannot be compared. All others are.
func TestRefused(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	for _, c := range []mongo.Caller{source, target} {
		insertRaw(t, c, "d.c", neighbours(t, 0, 10)...)
		insertRaw(t, c, "d.other", neighbours(t, 0, 10)...)
	}
	refuse := func(mongo.Command) error { return servererr.New(servererr.InvalidBSON, "planted") }
	for _, cuts := range []Cuts{nil, &rest{source: source, target: target}} {
		summary, found := check(t, Config{Source: &hook{Caller: source, ns: "d.c", before: refuse}, Target: target, Cuts: cuts})
		if len(found) > 0 || summary.Unchecked() != 1 || !strings.Contains(summary.Collections[0].Fault, "planted") || summary.Collections[1].EqualDocs != 10 {
			t.Errorf("at cuts %t: %+v, %+v", cuts != nil, found, summary.Collections)
		}
	}
}

// TestRefusedMetadata: a collection whose progress cannot be stored cannot be compared, and is not one whose documents cannot be read.
// All others are compared.
func TestRefusedMetadata(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	for _, c := range []mongo.Caller{source, target} {
		insertRaw(t, c, "d.c", neighbours(t, 0, 10)...)
		insertRaw(t, c, "d.other", neighbours(t, 0, 10)...)
	}
	metadata := callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
		for _, doc := range append(cmd.Docs, cmd.Body) {
			if text := doc.String(); strings.Contains(text, "l/d.c") && strings.Contains(text, "ranges") {
				return nil, servererr.New(servererr.BSONObjectTooLarge, "planted")
			}
		}
		return target.Call(ctx, cmd)
	})
	summary, found := check(t, Config{Source: source, Target: target, Cuts: &rest{source: source, target: target}, Progress: &Progress{Target: metadata, DB: "replicator", Link: "l"}})
	fault := summary.Collections[0].Fault
	if len(found) > 0 || summary.Unchecked() != 1 || !strings.HasPrefix(fault, "its documents cannot be compared: store results") || summary.Collections[1].EqualDocs != 10 {
		t.Errorf("%+v, %+v", found, summary.Collections)
	}
}

// TestBecomesView: a collection that is dropped while it is compared, and whose name a view has then, is compared as that.
func TestBecomesView(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{
		"read": nil, "refused": servererr.New(servererr.OptionNotSupportedOnView, "planted"), "unavailable": servererr.New(servererr.SnapshotUnavailable, "planted"),
	} {
		source, target := cluster(t), cluster(t)
		for _, c := range []mongo.Caller{source, target} {
			insertRaw(t, c, "d.c", neighbours(t, 0, 10)...)
			insertRaw(t, c, "d.other", neighbours(t, 0, 10)...)
		}
		var once sync.Once
		replace := func(mongo.Command) (err error) {
			once.Do(func() {
				for _, c := range []mongo.Caller{source, target} {
					run(t, c, "d", bson.D{{Key: "drop", Value: "c"}})
					run(t, c, "d", bson.D{{Key: "create", Value: "c"}, {Key: "viewOn", Value: "other"}, {Key: "pipeline", Value: bson.A{}}})
				}
				err = answer
			})
			return err
		}
		summary, found := check(t, Config{Source: &hook{Caller: source, ns: "d.c", before: replace}, Target: target, Cuts: &rest{source: source, target: target}})
		if len(found) > 0 || len(summary.Collections) != 2 || summary.Unchecked() > 0 || summary.Collections[0].Type != typeView {
			t.Errorf("%s: %+v, %+v", name, found, summary.Collections)
		}
	}
}

// TestOrderReadAgain: an error that passes does not end a comparison as it reads a collection again whose documents are at other
// places.
func TestOrderReadAgain(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	docs := neighbours(t, 0, 10)
	for _, c := range []mongo.Caller{source, target} {
		run(t, c, "d", bson.D{{Key: "create", Value: "c"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
		insertRaw(t, c, "d.c", docs...)
		docs[1], docs[2] = docs[2], docs[1]
	}
	n := 0
	second := func(mongo.Command) error {
		if n++; n == 2 {
			return servererr.New(servererr.PrimarySteppedDown, "planted")
		}
		return nil
	}
	summary, found := check(t, Config{Source: &hook{Caller: source, ns: "d.c", before: second}, Target: target, Cuts: &rest{source: source, target: target}})
	if len(found) != 1 || found[0].Kind != Order || summary.Unchecked() > 0 || n < 3 {
		t.Errorf("%+v, %+v, read %d times", found, summary.Collections, n)
	}
}

// TestBecomesViewListed: a collection whose name a view has, as its indexes are listed, is gone.
func TestBecomesViewListed(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	for _, c := range []mongo.Caller{source, target} {
		insertRaw(t, c, "d.c", neighbours(t, 0, 10)...)
		insertRaw(t, c, "d.other", neighbours(t, 0, 10)...)
	}
	var once sync.Once
	replacing := callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
		if it := rawbson.NewIter(cmd.Body); it.Next() && it.Is("listIndexes") {
			if name, _ := it.Text(); name == "c" {
				once.Do(func() { //nolint:contextcheck // These commands are the test's own.
					for _, c := range []mongo.Caller{source, target} {
						run(t, c, "d", bson.D{{Key: "drop", Value: "c"}})
						run(t, c, "d", bson.D{{Key: "create", Value: "c"}, {Key: "viewOn", Value: "other"}, {Key: "pipeline", Value: bson.A{}}})
					}
				})
			}
		}
		return source.Call(ctx, cmd)
	})
	summary, found := check(t, Config{Source: replacing, Target: target, Cuts: &rest{source: source, target: target}})
	if len(found) > 0 || len(summary.Collections) != 2 || summary.Unchecked() > 0 || summary.Collections[0].Type != typeView {
		t.Errorf("%+v, %+v", found, summary.Collections)
	}
}

// TestManyNames: a listing of some collections does not name so many that the server refuses the command.
func TestManyNames(t *testing.T) {
	t.Parallel()
	c := chosen(func(oplog.Namespace) bool { return true })
	for i := range 150_000 {
		c.only[oplog.Namespace(fmt.Sprintf("d.a collection with a name as applications give them %d", i))] = true
	}
	c.only["e.c"] = true
	if size := len(c.filter("d")); size > 8<<20 {
		t.Errorf("the filter of one database has %d bytes", size)
	}
	if got := bson.Raw(c.filter("e")).String(); got != `{"name": "c"}` {
		t.Errorf("the filter of the other one: %s", got)
	}
}

// TestConfirmLarge: as documents are read again, only a few large ones are in memory at the same time.
func TestConfirmLarge(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	for _, c := range []mongo.Caller{source, target} {
		run(t, c, "d", bson.D{{Key: "create", Value: "c"}, {Key: "capped", Value: true}, {Key: "size", Value: 100 << 20}})
	}
	const docs, size = 20, 1 << 20
	for i := range docs {
		insertRaw(t, source, "d.c", doc(element(t, "_id", int32(i)), element(t, "x", strings.Repeat("x", size))))
		insertRaw(t, target, "d.c", doc(element(t, "_id", int32(i)), element(t, "x", strings.Repeat("y", size))))
	}
	var mu sync.Mutex
	reads, most := 0, 0
	counted := func(cmd mongo.Command) error {
		mu.Lock()
		defer mu.Unlock()
		if list, err := cmd.Body.LookupErr("filter", "_id", "$in"); err == nil {
			values, _ := list.Array().Values()
			reads, most = reads+1, max(most, len(values))
		}
		return nil
	}
	summary, found := check(t, Config{Source: &hook{Caller: source, ns: "d.c", before: counted}, Target: target, Cuts: &rest{source: source, target: target}})
	if len(found) != docs || summary.Collections[0].Differs != docs || reads == 0 || most*size > confirmBytes {
		t.Errorf("%d differences, %+v: read again %d times, up to %d documents at once", len(found), summary.Collections, reads, most)
	}
}

// noCuts are the cuts of servers that have no times.
type noCuts struct{}

func (noCuts) Newest(context.Context) (Cut, bool, error) { return Cut{}, false, nil }
func (noCuts) Next(context.Context) (Cut, error) {
	return Cut{Target: bson.Timestamp{T: 1}, At: time.Now()}, nil
}

// TestManyJoined: however many differences a collection has whose documents wait for each other, only so many of them are kept until
// they are reported. Where documents at other places have to be looked for again, there may not be too many.
func TestManyJoined(t *testing.T) {
	t.Parallel()
	const docs = 2*mostJoined + 4000
	capped, collated := bson.D{{Key: "capped", Value: true}}, bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}}}}
	for _, tt := range []struct {
		name                  string
		options               bson.D
		link, swapped, differ bool
		want                  int
		fault                 error
	}{
		{"other places", capped, false, true, false, docs / 2, nil},
		{"other places, of a link", capped, true, true, false, mostJoined, errDisplaced},
		{"other values", capped, false, false, true, docs, nil},
		{"other values, under a collation", collated, false, false, true, docs, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			source, target := &shelf{options: tt.options, batch: 1000}, &shelf{options: tt.options, batch: 1000}
			for i := range docs {
				value := 0
				if tt.differ {
					value = 1
				}
				source.docs = append(source.docs, doc(element(t, "_id", int32(i)), element(t, "v", 0)))
				target.docs = append(target.docs, doc(element(t, "_id", int32(i)), element(t, "v", value)))
			}
			for i := 0; tt.swapped && i < docs; i += 2 {
				target.docs[i], target.docs[i+1] = target.docs[i+1], target.docs[i]
			}
			read, first, n := 0, 0, 0
			counted := func(mongo.Command) error { read++; return nil }
			cfg := Config{
				Source: &hook{Caller: source, ns: "d.c", before: counted}, Target: target, Scope: everything(t),
				Found: func(*Difference) error {
					if n++; n == 1 {
						first = read
					}
					return nil
				},
			}
			if tt.link {
				cfg.Cuts = noCuts{}
			}
			summary := must.Get(must.Get(New(cfg))(t).Run(t.Context()))(t)
			fault := summary.Collections[0].Fault
			if n != tt.want || (fault != "") != (tt.fault != nil) || tt.fault != nil && !strings.Contains(fault, tt.fault.Error()) {
				t.Errorf("%d differences, want %d: %+v", n, tt.want, summary.Collections)
			}
			if !tt.link && first >= docs/1000 {
				t.Errorf("the first one is reported after %d of %d replies", first, read)
			}
		})
	}
}

// TestManyDisplaced: a document at another place stays one if so many others are found that it is not among those that are kept.
func TestManyDisplaced(t *testing.T) {
	t.Parallel()
	const docs = 2*mostJoined + 4000
	capped := bson.D{{Key: "capped", Value: true}}
	source, target := &shelf{options: capped, batch: 1000}, &shelf{options: capped, batch: 1000}
	for i := range docs {
		source.docs = append(source.docs, doc(element(t, "_id", int32(i))))
		target.docs = append(target.docs, doc(element(t, "_id", int32(i^1))))
	}
	v := must.Get(New(Config{Source: source, Target: target, Cuts: noCuts{}, Scope: everything(t), Found: func(*Difference) error { return nil }}))(t)
	s := scan{v: v, p: &pair{"d.c", "d.c", &listed{ns: "d.c"}, &listed{ns: "d.c"}}, order: inserted}
	of := func(n int) Difference { return ofDocument(s.p, Order, idOf(source.docs[n])) }
	found := must.Get(s.displacedStill(t.Context(), []Difference{of(0), of(docs - 2)}))(t)
	if len(found) != 2 {
		t.Errorf("%d are left", len(found))
	}
}
