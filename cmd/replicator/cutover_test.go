package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/status"
)

// cutoverLink is a running link with consistent cuts and a deferred unique index.
type cutoverLink struct {
	*runLink
	source, target *mongosim.Set
	args           []string
}

func startCutoverLink(t *testing.T) *cutoverLink {
	t.Helper()
	c := &cutoverLink{
		source: mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "src", Seed: 1, Dialect: "7.0"}),
		target: mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "dst", Seed: 2, Dialect: "7.0"}),
	}
	c.args = []string{"cutover", "--dry-run", "--json", "--source=" + c.source.URI(), "--target=" + c.target.URI(), "--link=test", "--max-lag=1m"}
	c.runLink = startLink(t, append(uris(c.source, c.target), "--await=100ms", "--cut-interval=100ms", "--listen=127.0.0.1:0")...)
	awaitLink(c.runLink)
	tell(t, c.source, "shop", bson.D{{Key: "createIndexes", Value: "a"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "v", Value: 2}, {Key: "name", Value: "email_1"}, {Key: "key", Value: bson.D{{Key: "email", Value: 1}}}, {Key: "unique", Value: true}},
	}}})
	insert(t, c.source, "shop", "a", bson.D{{Key: "_id", Value: 1}, {Key: "email", Value: "x"}})
	awaitCount(t, c.target, "shop", "a", 1)
	c.cut()
	return c
}

// cut waits for a consistent cut of now.
func (c *cutoverLink) cut() {
	c.t.Helper()
	said(c.t, cli.ExitOK, "^source ", nil, "cut", "--wait", "--timeout=5m", "--target="+c.target.URI(), "--link=test")
}

// check runs the command until exactly these preconditions are not met: a busy machine may keep the
// link from being steady for a while.
func (c *cutoverLink) check(want map[string]status.Standing, more ...string) (r cutover.Report) {
	c.t.Helper()
	code, stdout, stderr, diff := 0, "", "", ""
	defer func() {
		if c.t.Failed() {
			c.t.Logf("code %d, %s: %s%s", code, diff, stdout, stderr)
		}
	}()
	awaitThat(c.t, func() bool {
		r = cutover.Report{}
		code, stdout, stderr = invoke(c.t, nil, append(c.args, more...)...)
		must.Succeed(c.t, json.Unmarshal([]byte(stdout), &r))
		open := map[string]status.Standing{}
		for _, p := range r.Preconditions {
			if p.Standing != status.Met {
				open[p.Name] = p.Standing
			}
		}
		diff = cmp.Diff(want, open)
		return diff == ""
	}, "what is not met has not come to be %v", want)
	ready := true
	for _, s := range want {
		ready = ready && s == status.Waived
	}
	if r.Ready != ready || (code == cli.ExitOK) != ready || (code == cli.ExitFailed) == ready {
		c.t.Errorf("ready %v, code %d, want %v: %s%s", r.Ready, code, ready, stdout, stderr)
	}
	return r
}

// TestCutoverDryRun: the command names each precondition that is not met, of the process, the
// metadata and both servers, and changes nothing.
func TestCutoverDryRun(t *testing.T) {
	c := startCutoverLink(t)
	const no, waived, unknown = status.Unmet, status.Waived, status.NotKnown
	type open = map[string]status.Standing
	if r := c.check(open{"verified": no}); r.From != "process" {
		t.Errorf("%+v", r)
	}
	c.check(open{"verified": waived}, "--waive=verified")

	// Somebody else writes to the target, and blocks the source.
	insert(t, c.target, "shop", "a", bson.D{{Key: "_id", Value: 9}, {Key: "email", Value: "x"}})
	c.cut()
	insert(t, c.source, "config", "user_writes_critical_sections", bson.D{{Key: "_id", Value: ""}, {Key: "blockUserWrites", Value: true}})
	r := c.check(open{"verified": waived, "deferred-indexes": no, "foreign-writes": no}, "--waive=verified")
	if diff := cmp.Diff([]cutover.Violation{{Namespace: "shop.a", Index: "email_1", IDs: [2]string{"1", "9"}}}, r.Violations); diff != "" {
		t.Error(diff)
	}
	c.check(open{"verified": waived, "deferred-indexes": waived, "foreign-writes": waived}, "--waive=verified,deferred-indexes,foreign-writes")

	said(t, cli.ExitOK, `test: pause: paused; `, nil, "pause", "--target="+c.target.URI(), "--link=test")
	c.check(open{"verified": no, "deferred-indexes": waived, "foreign-writes": waived, "paused": no}, "--waive=deferred-indexes,foreign-writes")
	c.kill(failure.ErrStopped)
	c.end()
	r = c.check(open{
		"steady": no, "lag": unknown, "paused": unknown, "oplog-window": unknown,
		"verified": waived, "deferred-indexes": waived, "foreign-writes": waived,
	}, "--waive=verified,deferred-indexes,divergences,foreign-writes")
	if r.From != "metadata" {
		t.Errorf("nobody runs the link: %+v", r)
	}
}

// has asks once for a precondition, which the process that leads answers.
func (c *cutoverLink) has(name string, want status.Standing) {
	c.t.Helper()
	_, stdout, stderr := invoke(c.t, nil, c.args...)
	var r cutover.Report
	must.Succeed(c.t, json.Unmarshal([]byte(stdout), &r))
	i := slices.IndexFunc(r.Preconditions, func(p status.Precondition) bool { return p.Name == name })
	if i < 0 || r.Preconditions[i].Standing != want || r.From != "process" {
		c.t.Errorf("%s is not %s: %s%s", name, want, stdout, stderr)
	}
}

// TestCutoverReadsVerified: a comparison that has just ended counts, although the process that leads reads its result seconds later: the
// command is what an operator runs next, and would be told to compare everything once more.
func TestCutoverReadsVerified(t *testing.T) {
	c := startCutoverLink(t)
	c.check(map[string]status.Standing{"verified": status.Unmet})
	said(t, cli.ExitOK, "equal: 0 differences", nil, "verify", "--link=test", "--source="+c.source.URI(), "--target="+c.target.URI())
	c.has("verified", status.Met)
	c.kill(failure.ErrStopped)
	c.end()
}

// TestCutoverReadsDiverged: a divergence that a writer has just recorded counts, although the process reads it seconds later.
func TestCutoverReadsDiverged(t *testing.T) {
	c := startCutoverLink(t)
	c.check(map[string]status.Standing{"verified": status.Unmet})
	now := time.Now()
	at := bson.Timestamp{T: uint32(now.Unix()), I: 1}
	insert(t, c.target, "replicator", metadata.Diverged, bson.D{
		{Key: "_id", Value: "test/0/shop.a"},
		{Key: "ns", Value: "shop.a"},
		{Key: "source", Value: "shop.a"},
		{Key: "ops", Value: int64(1)},
		{Key: "op", Value: int64(0)},
		{Key: "first", Value: at},
		{Key: "last", Value: at},
		{Key: "since", Value: now},
		{Key: "until", Value: now},
		{Key: "what", Value: "the update found no document"},
	})
	c.has("divergences", status.Unmet)
	c.kill(failure.ErrStopped)
	c.end()
}

// TestCutoverDrain: a link is drained once writes are blocked, or the operator says that they are
// stopped; the target then has everything. A failure names how to unblock the source.
func TestCutoverDrain(t *testing.T) {
	c := startCutoverLink(t)
	drain := append([]string{"cutover", "--drain"}, c.args[3:len(c.args)-1]...)
	said(t, cli.ExitFailed, `drain of link test: writes to the source are not blocked(.|\n)*--writes-stopped`, nil, drain...)
	docs := make([]any, 500)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: 1000 + i}}
	}
	insert(t, c.source, "shop", "b", docs...)
	proof := `^Link test is drained: the target has everything up to \d+:\d+, .*\nAt its cluster time \d+:\d+, which a majority has, it is the source as of \d+:\d+ t\d+\. That took .*s\.\n(test: drain: .*\n)*$` // with progress, where it is seen
	said(t, cli.ExitOK, proof, nil, append(drain, "--writes-stopped")...)
	if n := countDocs(t, c.target, "shop", "b"); n != 500 {
		t.Errorf("%d documents after the drain", n)
	}
	insert(t, c.source, "config", "user_writes_critical_sections", bson.D{{Key: "_id", Value: ""}, {Key: "blockUserWrites", Value: true}})
	var d struct {
		Link                 string
		Last, Source, Target struct{ T, I uint32 }
		Seconds              float64
	}
	text := said(t, cli.ExitOK, "^{", nil, append(drain, "--json")...)
	if err := json.Unmarshal([]byte(text), &d); err != nil || d.Link != "test" || d.Last.T == 0 || d.Target.T == 0 || d.Seconds <= 0 ||
		d.Source.T < d.Last.T || d.Source.T == d.Last.T && d.Source.I < d.Last.I {
		t.Errorf("%v: %s", err, text)
	}
	said(t, cli.ExitOK, `test: pause: paused; `, nil, "pause", "--target="+c.target.URI(), "--link=test")
	said(t, cli.ExitFailed, `drain of link test: .*paused(.|\n)*setUserWriteBlockMode: 1, global: false`, nil, append(drain, "--within=10s")...)
	said(t, failure.ExitResync, `link "test" follows set src`, nil, append(drain, "--source="+c.target.URI(), "--writes-stopped")...)
}

// move are the arguments of a cutover of the link.
func (c *cutoverLink) move(more ...string) []string {
	return append(append([]string{"cutover"}, c.args[3:]...), more...)
}

// moves is said for a cutover that is to begin, as soon as the link is ready for it: a busy machine may keep the link from
// being steady for a while, also after check.
func (c *cutoverLink) moves(code int, want string, more ...string) {
	c.t.Helper()
	var got int
	var text string
	awaitThat(c.t, func() bool {
		var stdout, stderr string
		got, stdout, stderr = invoke(c.t, nil, c.move(more...)...)
		text = stdout + stderr
		return !strings.Contains(stderr, "not ready for a cutover")
	}, "the link is not ready for a cutover with %q", more)
	if got != code || !regexp.MustCompile(want).MatchString(text) {
		c.t.Errorf("cutover %s: code %d, want %d and %s:\n%s", strings.Join(more, " "), got, code, want, text)
	}
}

// TestCutoverRun: a cutover blocks the source, restores unique indexes, and ends the link in the
// process that runs it, which says why, and in one that stands by; it is not started again, and every
// command says so.
func TestCutoverRun(t *testing.T) {
	c := startCutoverLink(t)
	other := startLink(t, append(uris(c.source, c.target), "--await=100ms", "--listen=none")...)
	other.await("state changed", "to", "standby")
	said(t, cli.ExitFailed, `not ready for a cutover: verified`, nil, c.move()...)
	docs := make([]any, 300)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: 1000 + i}}
	}
	insert(t, c.source, "shop", "b", docs...)
	awaitCount(t, c.target, "shop", "b", 300)
	c.check(map[string]status.Standing{"verified": status.Waived}, "--waive=verified")
	back := `The way back, without a copy: replicator run --source \S*mongodb://127\.0\.0\.1:\S*replicaSet=dst\S* --target \S*mongodb://127\.0\.0\.1:\S*replicaSet=src\S* --link test-back --start-at=cutover:test\.\nWhile the old source is blocked the way back needs a user there who may bypass that, .*lift the block first, .*setUserWriteBlockMode: 1, global: false.*\n`
	c.moves(cli.ExitOK, `^Link test is cut over: applications can use the target\. Clients could not write for \d+\.\d\d s\.\nThe old source stays blocked; nothing of it is applied any more\.\n`+back+`(.|\n)*\ntest: shop\.a: index email_1: made unique\.\n`, "--waive=verified")
	if code := c.end(); code != failure.ExitResync || !strings.Contains(c.log.String(), `link \"test\" was cut over at `) {
		t.Errorf("the process that ran it: code %d\n%s", code, &c.log)
	}
	if code := other.end(); code != failure.ExitResync {
		t.Errorf("the process that stood by: code %d\n%s", code, &other.log)
	}
	if n := countDocs(t, c.target, "shop", "b"); n != 300 {
		t.Errorf("%d documents", n)
	}
	if text := tell(t, c.target, "shop", bson.D{{Key: "listIndexes", Value: "a"}}).String(); !strings.Contains(text, `"unique": true`) {
		t.Errorf("the target's indexes are %s", text)
	}
	write := must.Get(bson.Marshal(bson.D{{Key: "insert", Value: "b"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}}))(t)
	refused := must.Get(client.Open(t, driver.Config{URI: c.source.URI()}).Call(t.Context(), mongo.Command{DB: "shop", Body: write}))(t)
	if !strings.Contains(refused.String(), "User writes blocked") {
		t.Errorf("the old source takes writes: %s", refused)
	}
	over := `cut over at \d{4}-.* UTC by .*@.*: the target was the source as of \d+:\d+ t\d+, and nothing later is applied`
	said(t, cli.ExitOK, over+`\.\n`+back, nil, c.move()...)
	said(t, cli.ExitFailed, "passed its commit point", nil, c.move("--cancel")...)
	said(t, failure.ExitResync, `link "test" follows set src`, nil, c.move("--resume", "--source="+c.target.URI())...)
	said(t, cli.ExitOK, `^Link test: the cutover that .* is done, at step expire .*\ncheck .*\nfreeze .*writes of users are blocked\ndrain .*\nconvert .*1 indexes were converted\narm .*\ncommit .*\nexpire `, nil, c.move("--status")...)
	// The steps are in the metadata: the source may be gone.
	said(t, cli.ExitOK, `^Link test: the cutover that .* is done, at step expire `, nil, "cutover", "--status", "--link=test", "--target="+c.target.URI())
	said(t, failure.ExitResync, `was cut over at (.|\n)*The way back needs no copy: replicator run --start-at=cutover, `, nil, append([]string{"run", "--once"}, uris(c.source, c.target)...)...)
	said(t, failure.ExitResync, `was cut over at `, nil, c.move("--dry-run")...)
	on := "--target=" + c.target.URI()
	said(t, cli.ExitOK, `^test  good: Cut over at .* UTC by .*: applications use the target`, nil, "status", on, "--max-lag=1s")
	said(t, cli.ExitOK, over, nil, "links", on)
}

// TestCutoverCancel: documents that violate a unique index stop a cutover; its message says how to go
// on, the link stands still meanwhile, and goes on once the cutover is cancelled.
func TestCutoverCancel(t *testing.T) {
	c := startCutoverLink(t)
	insert(t, c.target, "shop", "a", bson.D{{Key: "_id", Value: 9}, {Key: "email", Value: "x"}})
	waive := "--waive=verified,deferred-indexes,foreign-writes"
	c.check(map[string]status.Standing{"verified": status.Waived, "deferred-indexes": status.Waived, "foreign-writes": status.Waived}, waive)
	c.moves(cli.ExitFailed, `cutover of link test: convert: .*index email_1 of shop\.a cannot become unique(.|\n)*Do not remove them before the cutover is cancelled: .*replicator cutover --cancel --link test … takes it back`, waive)
	said(t, cli.ExitOK, `at step convert \(begun (.|\n)*Last error: at step convert, .*cannot become unique(.|\n)*No process works on it\. replicator cutover --cancel `, nil, c.move("--status")...)
	interrupted, on := `A cutover was interrupted at step convert, which .* began at .* UTC: no process works on it\. Writes to the source may still be blocked by it\. Its last error: index email_1 of shop\.a cannot become unique.* It can only be cancelled \(--cancel\): to resume it finds the same again\.`, "--target="+c.target.URI()
	said(t, cli.ExitFailed, `^test  broken: `+interrupted+`\n +next: replicator cutover --link test --cancel …\n`, nil, "status", on)
	said(t, cli.ExitOK, `; `+interrupted, nil, "links", on)
	said(t, cli.ExitFailed, `a cutover of the link is under way`, nil, c.move(waive)...)
	said(t, cli.ExitFailed, `(?i)cutover`, nil, c.move("--dry-run")...)
	for _, flag := range []string{"--resume", "--cancel"} {
		said(t, failure.ExitResync, `link "test" follows set src, and the source is the set dst`, nil, c.move(flag, "--source="+c.target.URI())...)
	}
	rename := func(from, to string) {
		tell(t, c.target, "replicator", bson.D{{Key: "update", Value: "links"}, {Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: "test"}}}, {Key: "u", Value: bson.D{{Key: "$rename", Value: bson.D{{Key: from, Value: to}}}}},
		}}}, majority})
	}
	rename("filters", "was") // as a link has it that an earlier release has created
	said(t, cli.ExitFailed, `way-back is not met any more: what the link mirrors is not recorded(.|\n)*--reverse=none`, nil, c.move("--resume")...)
	rename("was", "filters")
	said(t, cli.ExitOK, `^The cutover of link test is cancelled: `, nil, c.move("--cancel")...)
	said(t, cli.ExitFailed, `no cutover of the link is under way`, nil, c.move("--resume")...)
	insert(t, c.source, "shop", "b", bson.D{{Key: "_id", Value: 1}})
	awaitCount(t, c.target, "shop", "b", 1)
}

// TestCutoverVerify: with --verify both sides are compared once writes are stopped. A difference keeps the link from
// being ended; once that is away the cutover goes on, and compares again, as it was begun with.
func TestCutoverVerify(t *testing.T) {
	c := startCutoverLink(t)
	insert(t, c.target, "shop", "a", bson.D{{Key: "_id", Value: 9}, {Key: "email", Value: "z"}})
	begin := []string{"--verify", "--waive=foreign-writes"}
	c.check(map[string]status.Standing{"verified": status.Waived, "foreign-writes": status.Waived}, begin...)
	c.moves(cli.ExitFailed, `cutover of link test: verify: the target is not what the source is: (.|\n)*Writes to the source are stopped`, begin...)
	said(t, cli.ExitOK, `UTC is at step verify \(begun `, nil, c.move("--status")...)
	said(t, cli.ExitFailed, `cutover of link test: verify: the target is not what the source is: `, nil, c.move("--resume")...)
	said(t, cli.ExitUsage, `--verify: only with --dry-run`, nil, c.move("--resume", "--verify")...)
	tell(t, c.target, "shop", bson.D{{Key: "delete", Value: "a"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 9}}}, {Key: "limit", Value: 1}}}}})
	// The delete is a foreign write, too: it may be seen after the comparison, which is then made again.
	awaitThat(t, func() bool {
		code, stdout, stderr := invoke(t, nil, c.move("--resume")...)
		if code != cli.ExitOK && code != cli.ExitFailed {
			t.Errorf("code %d: %s", code, stderr)
		}
		return code == cli.ExitOK && strings.HasPrefix(stdout, "Link test is cut over: ")
	}, "the cutover is resumed")
	said(t, cli.ExitOK, `\nverify .* collections were compared, as of .* UTC or later: equal\ndrain .*\nconvert `, nil, c.move("--status")...)
	if code := c.end(); code != failure.ExitResync {
		t.Errorf("code %d\n%s", code, &c.log)
	}
}

// TestCutoverUnrenewed: whether a process runs a link that renews no lease is not known.
func TestCutoverUnrenewed(t *testing.T) {
	source, target := twoSets(t)
	client := must.Get(driver.Open(t.Context(), must.Get(driver.Parse(driver.Config{URI: target.URI(), SelectionTimeout: time.Minute}))(t)))(t)
	defer client.Close()
	store := must.Get(checkpoint.New(checkpoint.Config{Target: client, Link: "test", Process: "vm:7"}))(t)
	at := oplog.NewOpTime(100, 1, 1)
	must.Succeed(t, store.Create(t.Context(), checkpoint.State{Writers: 1, Applied: at, FetchFrom: at, Source: checkpoint.Source{SetName: "src"}}))
	must.Get(store.Acquire(t.Context(), 0))(t)
	said(t, cli.ExitFailed, `\n?\? +steady +the process that leads was not asked: vm:7 renews no lease, so that it is not known whether it runs\n`, nil,
		"cutover", "--dry-run", "--source="+source.URI(), "--target="+target.URI(), "--link=test")
}

// TestCutoverFlags: what cannot be checked is said before anything is.
func TestCutoverFlags(t *testing.T) {
	source, target := twoSets(t)
	on := []string{"cutover", "--source=" + source.URI(), "--target=" + target.URI(), "--link=test"}
	for _, tt := range []struct{ flag, want string }{
		{"--dry-run --cancel", "give one of --dry-run, --drain, --resume, --cancel and --status"},
		{"--writes-stopped --await-quiet", "give one of --writes-stopped, --freeze-command and --await-quiet"},
		{"--thaw-command=true", "--thaw-command: only with --freeze-command"},
		{"--resume --waive=verified", "--waive: only with --dry-run, or where a cutover begins"},
		{"--resume --freeze-command=true", "--freeze-command, --thaw-command, --await-quiet, --thaw-source: only where a cutover begins"},
		{"--cancel --thaw-source", "only where a cutover begins"},
		{"--resume --writes-stopped", "only where a cutover begins"},
		{"--cancel --await-quiet", "only where a cutover begins"},
		{"--status --writes-stopped", "only where a cutover begins"},
		{"--within=10ms", "--within: 10ms is not between 1s and 24h0m0s"},
		{"--max-lag=0s", "--max-lag: 0s is not more than 0"},
		{"--waive=lag", `--waive: "lag" cannot be waived; only deferred-indexes, divergences, foreign-writes, lacking, target-disk, verified can`},
		{"--at=here", `--at: "here" is not of the form HOST:PORT`},
		{"--source=", "--source is missing"},
		{"--violations=" + filepath.Join(t.TempDir(), "none", "file"), "--violations: open "},
		{"--dry-run", "there is no link test"},
	} {
		if code, stdout, stderr := invoke(t, nil, append(on, strings.Fields(tt.flag)...)...); code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s: code %d, %s%s", tt.flag, code, stdout, stderr)
		}
	}
}

// TestCutoverText: people read a line for each precondition, with its age, and what to do.
func TestCutoverText(t *testing.T) {
	t.Parallel()
	age := 2.5
	r := &cutover.Report{Link: "dr", From: "process", Violations: []cutover.Violation{{Namespace: "shop.a", Index: "email_1", IDs: [2]string{"1", `"x\x1b"`}}}}
	r.Sum([]status.Precondition{
		{Name: "steady", Standing: status.Met, Value: "steady for 5.0 s"},
		{Name: "lag", Standing: status.NotKnown, Value: "not known", AgeSeconds: &age, Next: "Wait."},
		{Name: "verified", Standing: status.Unmet, Value: "not verified", Next: "Compare."},
		{Name: "deferred-indexes", Standing: status.Unmet, Value: "index \x1b[31m"},
	}, []string{"verified", "steady"})
	var stdout, stderr bytes.Buffer
	c := cutoverCommand{linkFlags: linkFlags{Link: "dr"}}
	must.Succeed(t, c.print(cli.Output{Results: &stdout, Complaints: &stderr}, r))
	want := "ok      steady            steady for 5.0 s\n" +
		"?       lag               not known (2.5 s ago)\n" +
		"                          next: Wait.\n" +
		"waived  verified          not verified\n" +
		"NO      deferred-indexes  index \\x1b[31m\n" +
		"NO      shop.a            index email_1: the same key in _id 1 and _id \"x\\x1b\"\n" +
		"Link dr, asked the process: not ready for a cutover.\n"
	if diff := cmp.Diff(want, stdout.String()); diff != "" {
		t.Error(diff)
	}
	err := c.judge(r)
	if code, hint := explain(err); code != cli.ExitFailed || !strings.Contains(hint, "docs/cutover.md") || err.Error() != "link dr is not ready for a cutover: lag, deferred-indexes" {
		t.Errorf("%v, code %d, %s", err, code, hint)
	}
}
