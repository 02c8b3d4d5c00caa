package syncsource

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// optime parses SECONDS:INCREMENT@TERM, where @TERM may be missing.
func optime(t testing.TB, s string) oplog.OpTime {
	t.Helper()
	return must.Get(oplog.ParseOpTime(strings.Replace(s, "@", " t", 1)))(t)
}

func duration(t testing.TB, s string) time.Duration {
	t.Helper()
	return must.Get(time.ParseDuration(s))(t)
}

// tagsOf parses NAME:VALUE+NAME:VALUE.
func tagsOf(s string) map[string]string {
	tags := map[string]string{}
	for pair := range strings.SplitSeq(s, "+") {
		if name, value, ok := strings.Cut(pair, ":"); ok {
			tags[name] = value
		}
	}
	return tags
}

// parseMember parses HOST WORD…: a state, an optime, and properties of the member.
func parseMember(t testing.TB, line string) Member {
	t.Helper()
	words := strings.Fields(line)
	m := Member{Host: words[0], Asked: true, State: oplog.MemberSecondary, Priority: 1, Pings: 5, Term: -1}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "primary":
			m.State = oplog.MemberPrimary
		case "secondary":
		case "recovering":
			m.State = oplog.MemberRecovering
		case "unknown":
			m.State = oplog.MemberUnknown
		case "arbiter":
			m.Arbiter, m.State = true, oplog.MemberArbiter
		case "hidden":
			m.Hidden = true
		case "nonvoter":
			m.NonVoting = true
		case "noindexes":
			m.NoIndexes = true
		case "stranger":
			m.Stranger = true
		case "unasked":
			m.Asked, m.Pings, m.State = false, 0, oplog.MemberUnknown
		case "down":
			m.Fault, m.State = "cannot be reached: connection refused", oplog.MemberDown
		case "unauthorized":
			m.Fault = "refuses to answer: not authorized (Unauthorized, code 13)"
		case "noping":
			m.Pings = 0
		case "delay":
			m.Delay = duration(t, value)
		case "ping":
			m.Ping = duration(t, value)
		case "committed":
			m.Committed = optime(t, value)
		case "term":
			n := must.Get(strconv.ParseInt(value, 10, 64))(t)
			m.Term = n
		case "tags":
			m.Tags = tagsOf(value)
		default:
			m.Applied = optime(t, word)
		}
	}
	return m
}

// scenario is one parsed directive of a scenario file.
type scenario struct {
	view View
	q    Query
	said SourceState
	// hosts has the answers of each host to a probe.
	hosts map[string]*fakeOplog
}

var scenarioNow = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func parseScenario(t testing.TB, td *datadriven.TestData, now time.Time) *scenario {
	t.Helper()
	s := &scenario{q: Query{Now: now, Denied: Denylist{}}, hosts: map[string]*fakeOplog{}, said: SourceState{HasSource: true}}
	for line := range strings.SplitSeq(td.Input, "\n") {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "> "); ok {
			host, answers, _ := strings.Cut(rest, " ")
			s.hosts[host] = &fakeOplog{words: strings.Fields(answers)}
		} else if line != "" {
			s.view.Members = append(s.view.Members, parseMember(t, line))
		}
	}
	s.view.Answers = 5 * len(s.view.Members)
	for _, arg := range td.CmdArgs {
		if !s.set(t, arg, now) {
			td.Fatalf(t, "unknown argument %q", arg.Key)
		}
	}
	return s
}

// set reads an argument of a directive. It reports whether it knows it.
func (s *scenario) set(t testing.TB, arg datadriven.CmdArg, now time.Time) bool {
	t.Helper()
	value := strings.Join(arg.Vals, ",")
	switch arg.Key {
	case "test", "times", "wait", "host":
	case "fetched":
		s.q.LastFetched = optime(t, value)
	case "answers":
		s.view.Answers, _ = strconv.Atoi(value)
	case "nochaining":
		s.view.NoChaining = true
	case "equal":
		s.q.Rules.AcceptEqual = true
	case "mode":
		s.q.Rules.Mode = Mode(value)
	case "tagsets":
		for _, set := range arg.Vals {
			s.q.Rules.TagSets = append(s.q.Rules.TagSets, tagsOf(set))
		}
	case "maxlag":
		s.q.Rules.MaxLag = duration(t, value)
	case "delay":
		s.q.Rules.Delay = duration(t, value)
	case "pinned":
		s.q.Rules.Pinned = value
	case "current":
		s.q.Current = value
	case "denied":
		for _, entry := range arg.Vals {
			host, lasts, _ := strings.Cut(entry, ":")
			s.q.Denied[host] = Denial{Until: now.Add(duration(t, lasts)), Reason: "did not answer"}
		}
	case "history":
		for _, ago := range arg.Vals {
			s.q.History = append(s.q.History, now.Add(-duration(t, ago)))
		}
	case "saysprimary":
		s.said.Primary = true
	case "says":
		s.said.Applied = optime(t, value)
	case "behind":
		s.said.Behind = duration(t, value)
	case "nosource":
		s.said.HasSource = false
	default:
		return false
	}
	return true
}

func choiceText(c Choice) string {
	var b strings.Builder
	host := c.Host
	if host == "" {
		host = "none"
	}
	fmt.Fprintf(&b, "%s: %s", host, c.Reason)
	if c.Equal {
		b.WriteString(" (nothing newer)")
	}
	b.WriteString("\n")
	for _, r := range c.Refused {
		fmt.Fprintf(&b, "  pass %d: %s\n", r.pass, r)
	}
	return b.String()
}

func verdictText(v Verdict) string {
	switch {
	case !v.Change:
		return "stay\n"
	case v.Drop:
		return "drop and change: " + v.Reason + "\n"
	}
	return "change: " + v.Reason + "\n"
}

// TestScenarios runs testdata/*.txt. A directive is a call, its arguments are the
// rules for the source, its lines the members, and, with ">", the contents of their
// oplogs.
func TestScenarios(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				datadriven.RunTest(t, file, runScenario)
			})
		})
	}
}

func runScenario(t *testing.T, td *datadriven.TestData) string {
	t.Helper()
	if td.Cmd == "resolve" {
		return resolveScenario(t, td)
	}
	s := parseScenario(t, td, scenarioNow)
	switch td.Cmd {
	case "choose":
		return choiceText(Choose(s.view, s.q))
	case "change":
		return verdictText(shouldChange(s.view, s.q, s.said))
	case "error":
		return verdictText(shouldChangeOnError(s.view, s.q))
	case "ping":
		return verdictText(pingShouldChange(s.view, s.q))
	}
	td.Fatalf(t, "unknown directive %q", td.Cmd)
	return ""
}

// fakeOplog answers probes as specified in the scenario.
type fakeOplog struct{ words []string }

func (f *fakeOplog) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if cmd.DB != "local" {
		return nil, fmt.Errorf("database %s", cmd.DB)
	}
	entry := bson.A{}
	for i, word := range f.words {
		name, value, _ := strings.Cut(word, "=")
		if name != "oldest" {
			continue
		}
		switch {
		case value == "empty":
		case value == "{}":
			entry = bson.A{bson.D{}}
		case value == "null":
			entry = bson.A{bson.D{{Key: "ts", Value: bson.Timestamp{}}, {Key: "t", Value: int64(1)}}}
		case value == "text":
			entry = bson.A{bson.D{{Key: "ts", Value: "x"}, {Key: "t", Value: int64(1)}}}
		case value == "badterm":
			entry = bson.A{bson.D{{Key: "ts", Value: bson.Timestamp{T: 1}}, {Key: "t", Value: "x"}}}
		case value == "silent":
			<-ctx.Done()
			return nil, context.Cause(ctx)
		case value == "network":
			return nil, &mongo.LostError{Host: "it", Err: errors.New("connection reset")}
		case strings.HasPrefix(value, "code"):
			n, _ := strconv.Atoi(value[4:])
			e := servererr.New(servererr.Code(n), "no")
			if i+1 < len(f.words) && strings.HasPrefix(f.words[i+1], "quiet=") {
				ms, _ := strconv.Atoi(f.words[i+1][6:])
				e.Info, _ = bson.Marshal(bson.D{{Key: "remainingQuiesceTimeMillis", Value: int64(ms)}})
			}
			return nil, e
		default:
			o, err := oplog.ParseOpTime(strings.Replace(value, "@", " t", 1))
			if err != nil {
				return nil, err
			}
			doc := bson.D{{Key: "ts", Value: o.TS}, {Key: "t", Value: o.Term}}
			if slices.Contains(f.words, "extra") {
				doc = append(bson.D{{Key: "op", Value: "n"}}, doc...)
			}
			entry = bson.A{doc}
		}
	}
	return bson.Marshal(bson.D{
		{Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: entry}, {Key: "id", Value: int64(0)}, {Key: "ns", Value: "local.oplog.rs"}}},
		{Key: "ok", Value: 1.0},
	})
}

// fixedViews is a Views with a constant view.
type fixedViews struct {
	view    View
	seeking bool
}

func (f *fixedViews) View() View   { return f.view }
func (f *fixedViews) Seek(on bool) { f.seeking = on }

// Member makes a scenario the Dialer of its hosts.
func (s *scenario) Member(host string) mongo.Caller { return s.hosts[host] }

func eventText(e event.Event) string {
	attrs := e.LogValue().Group()
	parts := []string{e.Message()}
	for _, a := range attrs {
		if a.Key != keyRefused {
			parts = append(parts, a.String())
		}
	}
	return strings.Join(parts, " ")
}

// resolveScenario calls Resolve repeatedly, with pauses.
func resolveScenario(t *testing.T, td *datadriven.TestData) string {
	t.Helper()
	s := parseScenario(t, td, time.Now())
	var out strings.Builder
	views := &fixedViews{view: s.view}
	r, err := NewResolver(ResolverConfig{Rules: s.q.Rules, Observer: func(e event.Event) {
		fmt.Fprintf(&out, "  %s\n", eventText(e))
	}}, views, s)
	if err != nil {
		return err.Error() + "\n"
	}
	times, wait := 1, time.Second
	if arg, ok := td.Arg("times"); ok {
		times, _ = strconv.Atoi(arg.Vals[0])
	}
	if arg, ok := td.Arg("wait"); ok {
		wait = duration(t, arg.Vals[0])
	}
	for i := range times {
		if i > 0 {
			<-time.After(wait)
		}
		source, err := r.Resolve(t.Context(), s.q.LastFetched)
		stale, isStale := errors.AsType[*TooStaleError](err)
		switch {
		case isStale:
			fmt.Fprintf(&out, "too stale, earliest %s: %v\n", stale.Earliest, err)
		case errors.Is(err, ErrNoSource):
			fmt.Fprintf(&out, "no source: %v\n", err)
		case err != nil:
			fmt.Fprintf(&out, "error: %v\n", err)
		default:
			fmt.Fprintf(&out, "%s same=%t\n", source.Host, source.Same)
		}
		if seeking := err != nil && !strings.Contains(err.Error(), "syncsource: resolve"); views.seeking != seeking {
			fmt.Fprintf(&out, "seeking: %t\n", views.seeking)
		}
	}
	return out.String()
}

// TestServersTests compares the scenarios with the list of the server's own tests:
// each test has a scenario, or a reason for not having one.
func TestServersTests(t *testing.T) {
	t.Parallel()
	have := map[string]bool{}
	files, _ := filepath.Glob("testdata/*.txt")
	for _, file := range files {
		data := must.Get(os.ReadFile(file))(t)
		for line := range strings.Lines(string(data)) {
			for word := range strings.FieldsSeq(line) {
				if names, ok := strings.CutPrefix(word, "test="); ok {
					have[names] = true
				}
			}
		}
	}
	list := must.Get(os.Open("testdata/server-tests.list"))(t)
	defer func() { _ = list.Close() }()
	n := 0
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		n++
		name, why, none := strings.Cut(line, ": ")
		switch {
		case none && have[name]:
			t.Errorf("%s has a scenario and a reason to have none", name)
		case !none && !have[name]:
			t.Errorf("%s has neither a scenario nor a reason to have none", name)
		case none && len(why) < 10:
			t.Errorf("%s: the reason %q says nothing", name, why)
		}
		delete(have, name)
	}
	if n != 108 {
		t.Errorf("%d names, the server has 108", n)
	}
	for name := range have {
		if strings.ToLower(name[:1]) != name[:1] {
			t.Errorf("%s is no test of the server", name)
		}
	}
}
