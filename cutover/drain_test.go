package cutover_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// play is a source and a link: what they answer, in order; the last answer of each is repeated.
type play struct {
	t *testing.T
	// blocks are whether writes are blocked, notes the outcomes of appending entries, cuts the
	// seconds of the source at which cuts are made, 0 for none.
	blocks []bool
	notes  []any
	cuts   []uint32
	asked  []string
	// took is how long a cut takes.
	took time.Duration
	// target is when, by the target, cuts are made.
	target bson.Timestamp
	// written are the entries of the source's oplog after the drain.
	written string
}

func next[T any](list *[]T) T {
	v := (*list)[0]
	if len(*list) > 1 {
		*list = (*list)[1:]
	}
	return v
}

// Call implements mongo.Caller.
func (p *play) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	name := cmd.Body.Index(0).Key()
	p.asked = append(p.asked, name)
	switch name {
	case "find":
		if cmd.DB == "local" {
			return bsongen.FromJSON(p.t, `{"ok":1,"cursor":{"id":0,"ns":"local.oplog.rs","firstBatch":[`+p.written+`]}}`), nil
		}
		doc := ""
		if next(&p.blocks) {
			doc = `{"_id":"","blockUserWrites":true}`
		}
		if level, _ := cmd.Body.Lookup("readConcern", "level").StringValueOK(); level != "majority" || cmd.DB != "config" {
			p.t.Errorf("asked %s of %s", cmd.Body, cmd.DB)
		}
		return bsongen.FromJSON(p.t, `{"ok":1,"cursor":{"id":0,"ns":"config.user_writes_critical_sections","firstBatch":[`+doc+`]}}`), nil
	case "listCollections":
		return bsongen.FromJSON(p.t, `{"ok":1,"cursor":{"id":0,"ns":"shop.$cmd.listCollections","firstBatch":[{"name":"x","options":{}}]}}`), nil
	case "listIndexes": // only sessions end by themselves
		ttl := ""
		if name, _ := cmd.Body.Index(0).Value().StringValueOK(); name == "sessions" {
			ttl = `,{"name":"at_1","expireAfterSeconds":60}`
		}
		return bsongen.FromJSON(p.t, `{"ok":1,"cursor":{"id":0,"ns":"shop.x","firstBatch":[{"name":"_id_"}`+ttl+`]}}`), nil
	case "appendOplogNote":
		if w, _ := cmd.Body.Lookup("writeConcern", "w").StringValueOK(); w != "majority" {
			p.t.Errorf("the entry is appended by %s", cmd.Body)
		}
		switch answer := next(&p.notes).(type) {
		case string:
			return bsongen.FromJSON(p.t, answer), nil
		case error:
			return nil, answer
		}
	}
	p.t.Errorf("asked %s", cmd.Body)
	return nil, errors.New("not expected")
}

// NextCut implements cutover.Cutter.
func (p *play) NextCut(ctx context.Context, by, _ string, within time.Duration, said func(string)) (checkpoint.Cut, error) {
	p.asked = append(p.asked, "cut")
	if by != "me" || within < time.Second {
		p.t.Errorf("a cut for %s within %s", by, within)
	}
	at := next(&p.cuts)
	if at == 0 {
		said("it is paused")
		return checkpoint.Cut{}, request.ErrNoCut
	}
	return checkpoint.Cut{Source: oplog.NewOpTime(at, 1, 7), Target: p.target}, mongo.Pause(ctx, max(p.took, 1))
}

const noted = `{"ok":1,"operationTime":{"$timestamp":{"t":100,"i":1}}}`

// TestDrain: a link is drained if a cut includes an entry that was appended while writes were
// blocked, and they still are; every other end is an error that says so.
func TestDrain(t *testing.T) {
	t.Parallel()
	broken := errors.New("a broken disk")
	for name, tt := range map[string]struct {
		play    play
		stopped bool
		want    error
		asked   string
		said    string
	}{
		"at once":       {play: play{blocks: []bool{true}, notes: []any{noted}, cuts: []uint32{100}}, asked: "find appendOplogNote cut find"},
		"by the word":   {play: play{notes: []any{noted}, cuts: []uint32{100}}, stopped: true, asked: "appendOplogNote cut"},
		"not frozen":    {play: play{blocks: []bool{false}, notes: []any{noted}}, want: cutover.ErrNotFrozen, asked: "find appendOplogNote find"},
		"thawed":        {play: play{blocks: []bool{true, false}, notes: []any{noted}, cuts: []uint32{100}}, want: cutover.ErrThawed, asked: "find appendOplogNote cut find appendOplogNote find"},
		"behind":        {play: play{blocks: []bool{true}, notes: []any{noted}, cuts: []uint32{98, 99, 101}}, asked: "find appendOplogNote cut cut cut find", said: "the target has everything up to 98:1 t7, the source's last entry is 100:1"},
		"no cut":        {play: play{blocks: []bool{true}, notes: []any{noted}, cuts: []uint32{0}}, want: request.ErrNoCut, asked: "find appendOplogNote cut", said: "it is paused"},
		"for ever":      {play: play{blocks: []bool{true}, notes: []any{noted}, cuts: []uint32{99}}, want: context.DeadlineExceeded},
		"a broken note": {play: play{blocks: []bool{true}, notes: []any{broken}}, want: broken, asked: "find appendOplogNote"},
		"notes again": {
			play: play{blocks: []bool{true}, notes: []any{
				&mongo.LostError{Host: "a", Err: broken}, &servererr.Error{Code: servererr.NotWritablePrimary},
				`{"ok":1,"operationTime":{"$timestamp":{"t":90,"i":1}},"writeConcernError":{"code":64,"errmsg":"waiting"}}`, noted,
			}, cuts: []uint32{90, 100}},
			asked: "find appendOplogNote appendOplogNote appendOplogNote appendOplogNote cut cut find", said: "the target has everything up to 90:1 t7, the source's last entry is 100:1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &tt.play
				p.t, p.took, p.target = t, time.Second, bson.Timestamp{T: 5, I: 1}
				var said []string
				d, err := cutover.Drain(t.Context(), &cutover.DrainConfig{
					Source: p, Cuts: p, Link: "dr", By: "me", WritesStopped: tt.stopped, Within: time.Minute, OnWait: func(why string) { said = append(said, why) },
				})
				if !errors.Is(err, tt.want) {
					t.Fatalf("got %v, want %v", err, tt.want)
				}
				if asked := strings.Join(p.asked, " "); tt.asked != "" && asked != tt.asked {
					t.Errorf("asked %s, want %s", asked, tt.asked)
				}
				if tt.said != "" && !slices.Contains(said, tt.said) {
					t.Errorf("said %q, want %q", said, tt.said)
				}
				if err == nil && (d.Last.T != 100 || d.Cut.Source.TS.T < 100 || d.Cut.Target.T != 5 || d.Took < time.Second/2) {
					t.Errorf("%+v", d)
				}
			})
		})
	}
}
