package ends

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mixed is a workload of some hundred operations.
func mixed(t *testing.T) workload.Workload {
	t.Helper()
	w, err := workload.Preset("mixed")
	if err != nil {
		t.Fatal(err)
	}
	w.Ops, w.Documents, w.Seed = 300, 200, 3
	return w
}

// tail reads a log from First on, until last has come.
func tail(t *testing.T, src mongo.Caller, last oplog.OpTime) (entries []oplog.Entry, replies int) {
	t.Helper()
	f, err := fetcher.NewReader(fetcher.ReaderConfig{})
	if err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	_, err = f.Tail(t.Context(), "the source", src, First, false, func(_ context.Context, r oplog.Reply) error {
		replies++
		entries = append(entries, r.Entries...)
		if len(entries) > 0 && entries[len(entries)-1].OpTime == last {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	return entries, replies
}

// log is what a workload's log has.
func log(t *testing.T, w workload.Workload) (entries []bson.Raw, ops int) {
	t.Helper()
	err := eachEntry(w, func(entry bson.Raw, n int) error {
		entries, ops = append(entries, entry), ops+n
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return entries, ops
}

func sameEntries(t *testing.T, got []oplog.Entry, want []bson.Raw) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d entries, want %d", len(got), len(want))
	}
	for i := range got {
		if string(got[i].Raw) != string(want[i]) {
			t.Fatalf("entry %d is %s, want %s", i, got[i].Raw, want[i])
		}
	}
}

func TestMemory(t *testing.T) {
	w := mixed(t)
	want, ops := log(t, w)
	for _, perReply := range []int{0, 2000} {
		m, err := NewMemory(w, perReply)
		if err != nil {
			t.Fatal(err)
		}
		if m.Entries != len(want) || m.Ops != ops {
			t.Errorf("%d entries with %d operations, want %d with %d", m.Entries, m.Ops, len(want), ops)
		}
		for range 2 {
			m.Rewind()
			got, replies := tail(t, m, m.Last)
			sameEntries(t, got, want)
			if perReply == 0 && replies != 1 || perReply > 0 && replies < len(want)/20 {
				t.Errorf("%d entries in %d replies of %d bytes", len(got), replies, perReply)
			}
		}
	}
	m, err := NewMemory(w, 0)
	if err != nil {
		t.Fatal(err)
	}
	// At its end there is nothing but waiting.
	tail(t, m, m.Last)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no longer")
	cancel(cause)
	body := must(bson.Marshal(bson.D{{Key: "getMore", Value: int64(7)}}))
	if _, err := m.Call(ctx, mongo.Command{DB: "local", Body: body}); !errors.Is(err, cause) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := NewMemory(workload.Workload{Name: "bad", Namespaces: -1}, 0); err == nil {
		t.Error("a log of nothing")
	}
}

func must(body []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return body
}

func TestStartPlayed(t *testing.T) {
	w := mixed(t)
	want, _ := log(t, w)
	e, last, err := Start(t.Context(), nil, What{Kind: Played, Seed: 1, Workload: w})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	host, _ := e.Set.Primary()
	got, _ := tail(t, e.Set.Member(host), last)
	sameEntries(t, got, want)
	if want := (result.End{Kind: result.EndEmbedded, Version: "5.0", Members: 1}); e.Is != want {
		t.Errorf("it is %s, want %s", e.Is, want)
	}
}

// TestStartServed: an end may be in another process; here it is one of ours that is
// handed over.
func TestStartServed(t *testing.T) {
	other, err := StartEmbedded(t.Context(), 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	stopped := 0
	last := oplog.NewOpTime(5, 6, 7)
	serve := func(_ context.Context, what What) (Served, error) {
		if what.Seed != 9 {
			t.Errorf("seed %d", what.Seed)
		}
		return Served{URI: other.URI, Last: last, Stop: func() { stopped++; other.Close() }}, nil
	}
	e, got, err := Start(t.Context(), serve, What{Kind: Played, Seed: 9})
	if err != nil {
		t.Fatal(err)
	}
	if got != last || e.Is != other.Is {
		t.Errorf("last %s, it is %s", got, e.Is)
	}
	e.Close()
	if stopped != 1 {
		t.Errorf("stopped %d times", stopped)
	}
	broken := func(context.Context, What) (Served, error) { return Served{}, errors.New("no such program") }
	if _, err := StartNullAt(t.Context(), broken, 1, false); err == nil || !strings.Contains(err.Error(), "no such program") {
		t.Errorf("what cannot be started: %v", err)
	}
	if _, _, err := Start(t.Context(), nil, What{Kind: "other"}); err == nil {
		t.Error("an end of no known kind was started")
	}
}

func TestFill(t *testing.T) {
	e, err := StartEmbedded(t.Context(), 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	w := mixed(t)
	w.Documents = 3000
	collections, err := collectionsOf(w)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time existing databases are dropped
		if err := e.Fill(t.Context(), collections); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range collections {
		reply, err := e.run(t.Context(), c.NS.DB(), bson.D{
			{Key: "find", Value: c.NS.Collection()}, {Key: "batchSize", Value: 100_000},
		})
		if err != nil {
			t.Fatal(err)
		}
		got, err := mongo.ReadBatch(reply)
		if err != nil {
			t.Fatal(err)
		}
		there := map[string]bool{}
		for _, doc := range got.Docs {
			there[string(doc)] = true
		}
		for _, doc := range c.Documents {
			if !there[string(doc)] {
				t.Fatalf("%s has no %s", c.NS, doc)
			}
		}
		if len(got.Docs) != len(c.Documents) {
			t.Errorf("%s has %d documents, want %d", c.NS, len(got.Docs), len(c.Documents))
		}
		reply, err = e.run(t.Context(), c.NS.DB(), bson.D{{Key: "listIndexes", Value: c.NS.Collection()}})
		if err != nil {
			t.Fatal(err)
		}
		if got, err = mongo.ReadBatch(reply); err != nil || len(got.Docs) != len(c.Indexes) {
			t.Errorf("%s has %d indexes, want %d (%v)", c.NS, len(got.Docs), len(c.Indexes), err)
		}
	}
	found, err := e.Existing(t.Context(), append(Databases(collections), "none"))
	if err != nil || len(found) != 1 || found[0] != workload.Database {
		t.Errorf("there are %v, %v", found, err)
	}
	if _, err := Open(t.Context(), "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100"); err == nil {
		t.Error("nobody was connected to")
	}
}
