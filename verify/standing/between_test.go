package standing

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// killed is a target that a process no longer reaches once it has sent a write of the round's document.
type killed struct {
	mongo.Caller
	is bool
}

var errKilled = errors.New("killed")

// Call implements mongo.Caller.
func (k *killed) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if k.is {
		return nil, errKilled
	}
	k.is = len(cmd.Docs) > 0 && strings.HasSuffix(cmd.Docs[0].Lookup("q", "_id").StringValue(), "//round")
	return k.Caller.Call(ctx, cmd)
}

// TestKilledBegin: a process that is killed as soon as it has begun a round has not marked what another one has found in the round before
// since it read the documents. That stays known all the same, also if a third one goes on with the round, and is killed before it has
// compared the collection.
func TestKilledBegin(t *testing.T) {
	t.Parallel()
	for name, all := range map[string][]Listed{"a collection": list("d.a", "d.b"), "a new collection": list("d.a", "d.b", "d.c")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := begun(t)
			ctx, ns := t.Context(), all[len(all)-1].SourceNS
			must.Succeed(t, s.Mark(ctx, "before it was compared", ns))
			round := s.again(s.Store, 110, all)
			late := &Store{DB: s.DB, Link: s.Link, Target: &killed{Caller: s.Target}}
			seen := must.Get(late.Look(ctx))(t)
			must.Succeed(t, s.SaveTold(ctx, ns, id(ns, 1), round.N, []Found{NewFound("missing", "1", "", "")}, 0))
			if _, _, err := late.Begin(ctx, seen, all, false, cutAt(120, s.future+120), time.Unix(5000, 0)); !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			if st := read(t, s.Store); st.AsOf != nil {
				t.Errorf("verified as of %+v", st.AsOf)
			}
			next, heads, err := beginAs(ctx, s.Store, all, true, cutAt(130, s.future+130), time.Unix(5000, 0))
			must.Succeed(t, err)
			if !heads[ns].Marked {
				t.Error("it is not marked")
			}
			must.Succeed(t, s.SavePass(ctx, ns, &Pass{Made: bson.NewObjectID(), Round: next.N, Source: uuid(id(ns, 1)), Done: map[string]Range{}, Found: []Found{}}))
			if st := read(t, s.Store); st.AsOf != nil {
				t.Errorf("verified as of %+v while it is compared again", st.AsOf)
			}
		})
	}
}

// steps is a target before whose nth command something else happens.
type steps struct {
	mongo.Caller
	n      int
	before map[int]func()
}

// Call implements mongo.Caller.
func (c *steps) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if c.n++; c.before[c.n] != nil {
		c.before[c.n]()
	}
	return c.Caller.Call(ctx, cmd)
}

// TestToldBetween: what a process reports in a collection stays known, whatever other processes have written between its writes, and
// between the last look and the writes of one that begins a round.
func TestToldBetween(t *testing.T) {
	t.Parallel()
	moved := func(at bson.Timestamp) []Listed {
		all := list("d.a", "d.b")
		all[0].Source, all[0].At = id("d.a", 2), at
		all[1].Source, all[1].At = id("d.a", 1), at
		return all
	}
	tell := func(s *Store, n int64) error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		return s.SaveTold(ctx, "d.a", id("d.a", 1), n, []Found{NewFound("missing", "1", "", "")}, 0)
	}
	compares := func(s *book, ns oplog.Namespace, r *Round) {
		must.Succeed(s.t, s.SavePass(s.t.Context(), ns, &Pass{Round: r.N, Source: uuid(id(ns, 1)), Done: map[string]Range{}}))
	}
	for name, do := range map[string]func(s *book, round *Round) error{
		"as a round begins": func(s *book, round *Round) error {
			seen := must.Get(s.Look(s.t.Context()))(s.t)
			must.Succeed(s.t, tell(s.Store, round.N))
			next, _, err := s.Begin(s.t.Context(), seen, list("d.a", "d.b"), false, cutAt(120, s.future+120), time.Unix(5000, 0))
			compares(s, "d.a", &next)
			return err
		},
		"as a round begins that the target has not reached": func(s *book, round *Round) error {
			s.again(s.Store, 120, moved(cutAt(0, s.future+120).Target))
			return tell(s.Store, round.N)
		},
		"the pass is deleted": func(s *book, round *Round) error {
			return tell(s.suspended(2, func() { s.save(round, "d.a", 112) }), round.N)
		},
		"it is renamed, another has its name": func(s *book, round *Round) error {
			next := Round{}
			target := &steps{Caller: s.Target, before: map[int]func(){
				2: func() { next = s.again(s.Store, 120, list("d.a", "d.b")) },
				5: func() { // after it has read the time
					compares(s, "d.a", &next)
					_, _, err := beginAs(s.t.Context(), s.Store, moved(must.Get(mongo.OperationTime(s.t.Context(), s.Target))(s.t)), true, cutAt(130, s.future+130), time.Unix(5000, 0))
					must.Succeed(s.t, err)
				},
			}}
			err := tell(&Store{DB: s.DB, Link: s.Link, Target: target}, round.N)
			if st := read(s.t, s.Store); !slices.ContainsFunc(st.Unverified, func(c Collection) bool { return c.SourceNS == "d.b" }) {
				s.t.Errorf("the collection is not marked under its new name: %+v", st)
			}
			return err
		},
		"it has two names": func(s *book, round *Round) error {
			target := &steps{Caller: s.Target, before: map[int]func(){
				2: func() { s.again(s.Store, 120, list("d.a", "d.b")) },
				3: func() {
					must.Succeed(s.t, s.set(s.t.Context(), metadata.ByID(s.id("d.c")), true, bson.D{{Key: "ns", Value: "td.c"}, {Key: "source", Value: uuid(id("d.a", 1))}, {Key: "joined", Value: 1}}))
				},
			}}
			err := tell(&Store{DB: s.DB, Link: s.Link, Target: target}, round.N)
			marked := 0
			for _, d := range must.Get(s.ofSource(s.t.Context(), id("d.a", 1)))(s.t) {
				if d.Differed != nil {
					marked++
				}
			}
			if marked != 2 {
				s.t.Errorf("%d are marked", marked)
			}
			return err
		},
		"it is found to differ before it is listed": func(s *book, _ *Round) error {
			must.Succeed(s.t, s.Mark(s.t.Context(), WhyDiffers+"planted", "d.c"))
			all := list("d.a", "d.b", "d.c")
			all[2].At = cutAt(0, s.future+120).Target
			s.begin(120, all)
			return nil
		},
		"it is forgotten": func(s *book, round *Round) error {
			target := &steps{Caller: s.Target, before: map[int]func(){
				2: func() { s.again(s.Store, 120, list("d.a", "d.b")) },
				3: func() {
					must.Succeed(s.t, s.write(s.t.Context(), metadata.Delete(s.DB, metadata.Verified, metadata.ByID(s.id("d.a")))))
				},
			}}
			return tell(&Store{DB: s.DB, Link: s.Link, Target: target}, round.N)
		},
		"as its name is forgotten": func(s *book, round *Round) error {
			compares(s, "d.a", round)
			seen := must.Get(s.Look(s.t.Context()))(s.t)
			must.Succeed(s.t, tell(s.Store, round.N))
			_, _, err := s.Begin(s.t.Context(), seen, moved(cutAt(0, s.future+120).Target)[1:], true, cutAt(120, s.future+120), time.Unix(5000, 0))
			return err
		},
		"as its name gets another": func(s *book, round *Round) error {
			compares(s, "d.a", round)
			seen := must.Get(s.Look(s.t.Context()))(s.t)
			must.Succeed(s.t, tell(s.Store, round.N))
			if _, _, err := s.Begin(s.t.Context(), seen, moved(cutAt(0, s.future+120).Target), true, cutAt(120, s.future+120), time.Unix(5000, 0)); !errors.Is(err, ErrOvertaken) {
				s.t.Error(err)
			}
			return nil
		},
		"as its name gets another, which its new one keeps from being recorded": func(s *book, round *Round) error {
			must.Succeed(s.t, tell(s.Store, round.N))
			seen := must.Get(s.Look(s.t.Context()))(s.t)
			compares(s, "d.b", round)
			if _, _, err := s.Begin(s.t.Context(), seen, moved(cutAt(0, s.future+120).Target), true, cutAt(120, s.future+120), time.Unix(5000, 0)); !errors.Is(err, ErrOvertaken) {
				s.t.Error(err)
			}
			s.begin(130, moved(cutAt(0, s.future+130).Target))
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := begun(t)
			round := s.again(s.Store, 110, list("d.a", "d.b"))
			must.Succeed(t, do(s, &round))
			if st := read(t, s.Store); st.AsOf != nil && st.Differences == 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}
