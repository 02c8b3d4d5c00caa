package mongosim

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/fault"
)

// drawAction makes any action that has a text form.
func drawAction(t *rapid.T) Action {
	verbs := make([]string, 0, len(forms))
	for verb := range forms {
		verbs = append(verbs, verb)
	}
	a := Action{Verb: rapid.SampledFrom(verbs).Draw(t, "verb")}
	form := forms[a.Verb]
	end := rapid.OneOf(rapid.Just("primary"), rapid.Map(rapid.IntRange(0, 60), strconv.Itoa))
	if form.words > 0 {
		a.A = end.Draw(t, "a")
	}
	if form.link {
		a.B = rapid.OneOf(rapid.Just("client"), end).Filter(func(s string) bool { return s != a.A }).Draw(t, "b")
	}
	switch a.Verb {
	case "heal":
		if rapid.Bool().Draw(t, "all") {
			return Action{Verb: "heal"}
		}
	case "link":
		a.Fault = rapid.SampledFrom([]fault.Fault{
			{Kind: fault.Drop},
			{Kind: fault.Cut},
			{Kind: fault.Freeze},
			{Kind: fault.HalfOpen, Direction: fault.In},
			{Kind: fault.Latency, Delay: 5 * time.Millisecond, Jitter: time.Millisecond, Direction: fault.Out},
			{Kind: fault.Reset, Bytes: 120},
			{Kind: fault.Rate, Bytes: 1000},
		}).Draw(t, "fault")
	case "skew":
		a.By = time.Duration(rapid.Int64().Draw(t, "by"))
	case "diskfull":
		a.On = rapid.Bool().Draw(t, "on")
	case "failcommand":
		text := rapid.String().Filter(func(s string) bool { return !strings.ContainsRune(s, 0) })
		a.Arg = marshal(bson.D{
			{Key: "mode", Value: bson.D{{Key: "times", Value: rapid.Int32().Draw(t, "times")}}},
			{Key: "data", Value: bson.D{{Key: "appName", Value: text.Draw(t, "app")}, {Key: "x", Value: rapid.Int64().Draw(t, "x")}}},
		})
	}
	return a
}

func TestActionText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := drawAction(t)
		back, err := ParseAction(a.String())
		if err != nil {
			t.Fatalf("%q: %v", a, err)
		}
		if diff := cmp.Diff(a, back); diff != "" {
			t.Errorf("%q reads back as another action: %s", a, diff)
		}
	})
}

func TestActionFaults(t *testing.T) {
	for _, text := range []string{
		"", "  ", "explode 1", "kill", "kill 1 2", "kill x", "kill -1", "kill +1", "kill 01", "kill client", "stop", "start a",
		"freeze", "stepdown 1", "cut 1", "cut 1 1", "cut client client", "cut 1 2 3", "link 1 2", "link 1 2 melt",
		"link 1 2 half-open", "link 1 2 rate 0", "link primary primary cut", "heal 1", "skew 1", "skew 1 soon", "skew 1 5", "diskfull 1",
		"diskfull 1 maybe", "failcommand 1", "failcommand 1 {", `failcommand 1 {"mode": "alwaysOn"} x`, "failcommand 1 null",
		"failcommand 1 [1]", "failcommand 1 7", "KILL 1",
	} {
		if a, err := ParseAction(text); !errors.Is(err, ErrAction) {
			t.Errorf("%q was read as %+v, %v, want ErrAction", text, a, err)
		}
	}
	a, err := ParseAction(" link  0 client   latency 5ms  jitter=1ms out ")
	succeed(t, err)
	if got := a.String(); got != "link 0 client latency 5ms jitter=1ms out" {
		t.Errorf("the text form is %q", got)
	}
}

func FuzzParseAction(f *testing.F) {
	for _, s := range []string{"kill 1", "heal", "link 0 client reset after=9 in", `failcommand primary {"mode": {"times": 2}}`, "skew 1 -3s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAction(text)
		if err != nil {
			return
		}
		back, err := ParseAction(a.String())
		if err != nil || a.String() != back.String() {
			t.Errorf("%q is %q, which is %q, %v", text, a, back, err)
		}
	})
}

// TestActions does everything that an action can do to a set, and looks whether it
// happened.
func TestActions(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Members: 3, Seed: 1})
	first := s.Primary()
	c := dial(t, first)
	succeed(t, c.insert(ctx, 1, majority))

	do(ctx, t, s, "stepdown")
	if p := must[*Member](t)(s.AwaitPrimary(ctx)); view(t, p).Term < 2 {
		t.Errorf("term %d after a step-down", view(t, p).Term)
	}
	do(ctx, t, s, "kill primary")
	eventually(ctx, t, "another primary", func() bool { return s.Primary() != nil })
	var down *Member
	for _, m := range s.Members() {
		if _, ok := m.view(); !ok {
			down = m
		}
	}
	if down == nil {
		t.Fatal("nobody was killed")
	}
	for text, want := range map[string]error{"kill %d": ErrDown, "stop %d": ErrDown, `failcommand %d {"mode": "off"}`: ErrDown} {
		a := must[Action](t)(ParseAction(strings.Replace(text, "%d", strconv.Itoa(down.ID()), 1)))
		if err := s.Do(ctx, a); !errors.Is(err, want) {
			t.Errorf("%s of a member that is down: %v, want %v", a, err, want)
		}
	}
	do(ctx, t, s, "start %d", down.ID())
	if err := s.Do(ctx, Action{Verb: "start", A: strconv.Itoa(down.ID())}); err == nil {
		t.Error("a member that runs was started")
	}
	succeed(t, s.AwaitReady(ctx))
	do(ctx, t, s, "stop %d", s.Primary().ID())
	old := others(s, must[*Member](t)(s.AwaitPrimary(ctx)))
	for _, m := range old {
		if _, ok := m.view(); !ok {
			do(ctx, t, s, "start %d", m.ID())
		}
	}
	succeed(t, s.AwaitReady(ctx))
	succeed(t, s.AwaitSynced(ctx))

	actOnLinks(ctx, t, s)
	for _, a := range []Action{
		{},
		{Verb: "melt", A: "0"},
		{Verb: "kill", A: "9"},
		{Verb: "kill", A: "client"},
		{Verb: "failcommand", A: "0"},
		{Verb: "cut", A: "0", B: "0"},
		{Verb: "cut", A: "0", B: "7"},
		{Verb: "link", A: "0", B: "1"},
		{Verb: "heal", A: "0", B: "x"},
	} {
		if err := s.Do(ctx, a); err == nil {
			t.Errorf("%+v was done", a)
		}
	}
}

// actOnLinks: actions on links, clocks, disks and commands of running members.
func actOnLinks(ctx context.Context, t *testing.T, s *Set) {
	t.Helper()
	p := s.Primary()
	do(ctx, t, s, "freeze primary")
	_, err := s.AwaitNewPrimary(ctx, p) // the others elect one without the frozen one
	succeed(t, err)
	do(ctx, t, s, "thaw %d", p.ID())
	succeed(t, s.AwaitReady(ctx))

	p = must[*Member](t)(s.AwaitPrimary(ctx))
	o := others(s, p)
	do(ctx, t, s, "cut %d %d", p.ID(), o[0].ID())
	do(ctx, t, s, "link %d %d latency 1ms", p.ID(), o[1].ID())
	// On a machine that is slow enough the member that is cut off is elected before.
	if err := dial(t, p).insert(ctx, 2, majority); err != nil {
		wantCode(t, "insert", err, servererr.PrimarySteppedDown)
	}
	do(ctx, t, s, "heal %d %d", p.ID(), o[0].ID())
	do(ctx, t, s, "heal")
	p = must[*Member](t)(s.AwaitPrimary(ctx))
	do(ctx, t, s, "skew %d 1h", p.ID())
	c := dial(t, p)
	at := c.run(ctx, "app", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{}}}}).Lookup("operationTime")
	if secs, _ := at.Timestamp(); int64(secs) < time.Now().Add(50*time.Minute).Unix() {
		t.Errorf("operationTime %d with a clock an hour ahead", secs)
	}
	do(ctx, t, s, "skew %d 0s", p.ID())
	do(ctx, t, s, "diskfull %d on", p.ID())
	wantCode(t, "insert on a full disk", c.insert(ctx, 3, w(1)), servererr.OutOfDiskSpace)
	do(ctx, t, s, "diskfull %d off", p.ID())
	do(ctx, t, s, `failcommand %d {"mode": {"times": 1}, "data": {"failCommands": ["ping"], "errorCode": 8}}`, p.ID())
	ping := bson.D{{Key: "ping", Value: 1}}
	_, err = c.call(ctx, "admin", ping)
	wantCode(t, "the first ping", err, 8)
	c.run(ctx, "admin", ping)
}
