package fetcher_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// TestDriver reads through the driver, as the program does, and is cancelled while it
// waits: on the cursor, and for emit.
func TestDriver(t *testing.T) {
	errDone := errors.New("seen enough")
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})
	limited, cancelAll := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancelAll()
	ctx, cancel := context.WithCancelCause(limited)
	defer cancel(nil)
	opts, err := driver.Parse(driver.Config{URI: set.URI(), AppName: mongosim.Stage})
	if err != nil {
		t.Fatal(err)
	}
	source, err := driver.Open(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	p := set.Primary()
	v, _ := p.Status()
	for i := range 20 {
		cmd, err := bson.Marshal(bson.D{
			{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: i}}}}, {Key: "$db", Value: "app"},
		})
		if err == nil {
			_, err = p.Call(ctx, cmd)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := fetcher.NewReader(fetcher.ReaderConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var asked time.Time
	_, err = f.Tail(ctx, p.Host(), source.Member(p.Host()), v.LastApplied, false, func(_ context.Context, r oplog.Reply) error {
		for i := range r.Entries {
			if e := &r.Entries[i]; e.NS == "app.c" {
				got = append(got, strconv.Itoa(int(e.Raw.Lookup("o", "_id").Int32())))
			}
		}
		if len(got) == 20 {
			time.AfterFunc(50*time.Millisecond, func() {
				asked = time.Now()
				cancel(errDone)
			})
		}
		return nil
	})
	if took := time.Since(asked); took > time.Second {
		t.Errorf("it took %s to stop", took)
	}
	if !errors.Is(err, errDone) || len(got) != 20 || got[19] != "19" {
		t.Errorf("came %s, %v", got, err)
	}
}
