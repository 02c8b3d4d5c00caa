package preflight_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/preflight"
	"github.com/oplogrep/replicator/scope"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server answers each command with a document of the scenario, or else like a healthy
// replica set. It refuses unknown commands: the checks must not write.
type server struct {
	t       *testing.T
	answers map[string]string
	ages    map[int32]int64 // of the newest and the oldest entry, in seconds, by order
	asked   []string
	faults  []error // for the next calls
}

// clock returns the time in a bubble.
func clock() int64 { return time.Now().Unix() }

func newServer(t *testing.T, name string) *server {
	id := map[string]string{"source": "64b000000000000000000001", "target": "64b000000000000000000002"}[name]
	return &server{t: t, ages: map[int32]int64{1: 48 * 3600, -1: 1}, answers: map[string]string{
		"hello": fmt.Sprintf(`{"ok": 1, "setName": %q, "me": "%s1:27017", "hosts": ["%[2]s1:27017", "%[2]s2:27017"], "isWritablePrimary": true,
			"$replData": {"replicaSetId": {"$oid": %q}}}`, name+"Set", name, id),
		"buildInfo":                            `{"ok": 1, "version": "5.0.7", "versionArray": [5, 0, 7, 0]}`,
		"featureCompatibilityVersion":          `{"ok": 1, "featureCompatibilityVersion": {"version": "5.0"}}`,
		"connectionStatus":                     `{"ok": 1, "authInfo": {"authenticatedUsers": [], "authenticatedUserPrivileges": []}}`,
		"enableMajorityReadConcern":            `{"ok": 1, "enableMajorityReadConcern": true}`,
		"config.transactions":                  `{"ok": 1, "cursor": {"id": 0, "ns": "config.transactions", "firstBatch": []}}`,
		"local.replset.initialSyncId":          `{"ok": 1, "cursor": {"id": 0, "ns": "local.replset.initialSyncId", "firstBatch": []}}`,
		"listCollections local":                `{"ok": 1, "cursor": {"id": 0, "ns": "local.$cmd.listCollections", "firstBatch": []}}`,
		"admin.system.version":                 `{"ok": 1, "cursor": {"id": 0, "ns": "admin.system.version", "firstBatch": []}}`,
		"replSetGetConfig":                     `{"ok": 1, "config": {"_id": "s", "members": []}}`,
		"replSetGetStatus":                     `{"ok": 1}`,
		"dbStats":                              `{"ok": 1, "fsUsedSize": 4e11, "fsTotalSize": 1e12}`,
		"listDatabases":                        `{"ok": 1, "databases": [{"name": "admin"}, {"name": "local"}]}`,
		"config.user_writes_critical_sections": `{"ok": 1, "cursor": {"id": 0, "ns": "config.user_writes_critical_sections", "firstBatch": []}}`,
		"replicator.links":                     `{"ok": 1, "cursor": {"id": 0, "ns": "replicator.links", "firstBatch": []}}`,
		"replicator.terms":                     `{"ok": 1, "cursor": {"id": 0, "ns": "replicator.terms", "firstBatch": []}}`,
		"replicator.lanes":                     `{"ok": 1, "cursor": {"id": 0, "ns": "replicator.lanes", "firstBatch": []}}`,
	}}
}

func (s *server) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if len(s.faults) > 0 {
		err := s.faults[0]
		s.faults = s.faults[1:]
		if err != nil {
			return nil, err
		}
	}
	key := s.key(cmd)
	s.asked = append(s.asked, key)
	if key == "local.oplog.rs" {
		order, _ := cmd.Body.Lookup("sort", "$natural").AsInt64OK()
		doc := bson.D{{Key: "ts", Value: bson.Timestamp{T: uint32(clock() - s.ages[int32(order)]), I: 1}}}
		raw, err := bson.Marshal(bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "firstBatch", Value: bson.A{doc}}}}})
		if answer, ok := s.answers[key]; ok {
			return s.answer(answer)
		}
		return raw, err
	}
	answer, ok := s.answers[key]
	if !ok {
		s.t.Errorf("%s is not expected", key)
	}
	return s.answer(answer)
}

func (s *server) answer(text string) (bson.Raw, error) {
	if message, ok := strings.CutPrefix(text, "denied "); ok {
		return nil, &servererr.Error{Code: servererr.Unauthorized, Message: message}
	}
	if message, ok := strings.CutPrefix(text, "refused "); ok {
		return nil, &servererr.Error{Code: servererr.InvalidOptions, Message: message}
	}
	var doc bson.D
	if err := bson.UnmarshalExtJSON([]byte(text), false, &doc); err != nil {
		s.t.Fatalf("%v in %s", err, text)
	}
	if doc[0].Key == "skew" {
		by, err := time.ParseDuration(doc[0].Value.(string))
		if err != nil {
			s.t.Fatal(err)
		}
		doc = append(doc[1:], bson.E{Key: "localTime", Value: bson.NewDateTimeFromTime(time.Now().Add(by))})
	}
	return bson.Marshal(doc)
}

// key names a command: by the collection that it reads, by its parameter, or by its own
// name.
func (s *server) key(cmd mongo.Command) string {
	elements, err := cmd.Body.Elements()
	if err != nil {
		s.t.Fatal(err)
	}
	switch name := elements[0].Key(); name {
	case "find":
		return cmd.DB + "." + elements[0].Value().StringValue()
	case "getParameter":
		return elements[1].Key()
	case "listCollections":
		return "listCollections " + cmd.DB
	case "listIndexes":
		return "listIndexes " + cmd.DB + "." + elements[0].Value().StringValue()
	default:
		return name
	}
}

// TestScenarios runs the files in testdata. A line of input is "source KEY JSON",
// "target KEY denied TEXT", "age 1 SECONDS" (of the oldest entry; -1 the newest), "file
// NAME" (there is one in DIR), or a setting; "cutover" is the checks
// before a cutover. Checks that end OK are counted, unless "all" is said.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) (out string) {
			synctest.Test(t, func(t *testing.T) { out = runScenario(t, d) })
			return out
		})
	})
}

func runScenario(t *testing.T, d *datadriven.TestData) string {
	s := &scenario{source: newServer(t, "source"), target: newServer(t, "target"), dir: t.TempDir()}
	s.cfg = preflight.Config{Source: s.source, Target: s.target, Link: "l", SpoolDir: filepath.Join(s.dir, "spool", "l"), SpoolBytes: 3 << 20}
	for line := range strings.Lines(d.Input) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if err := s.read(word, rest); err != nil {
			d.Fatalf(t, "%s: %v", line, err)
		}
	}
	var err error
	if s.cfg.Scope, err = scope.New(scope.Config{Include: s.cfg.Include, Map: s.maps, UsersAndRoles: s.cfg.UsersAndRoles}); err != nil {
		d.Fatalf(t, "%v", err)
	}
	var told []preflight.Finding
	tell := func(f preflight.Finding) { told = append(told, f) }
	var report preflight.Report
	if s.cutover != nil {
		s.cutover.Source, s.cutover.Target, s.cutover.Link = s.source, s.target, "l"
		report, err = preflight.Cutover(t.Context(), *s.cutover, tell)
	} else {
		report, err = preflight.Run(t.Context(), s.cfg, tell)
	}
	b := printed(t, report, told, err, s.all)
	left, err := filepath.Glob(filepath.Join(s.dir, "*"))
	if err != nil || len(left) > strings.Count(d.Input, "file ") {
		t.Errorf("left in the folder: %v, %v", left, err)
	}
	return diskFree.ReplaceAllString(strings.ReplaceAll(b, s.dir, "DIR"), "has N free")
}

// scenario is what a scenario has said so far.
type scenario struct {
	source, target *server
	dir            string
	cfg            preflight.Config
	maps           []string
	all            bool
	cutover        *preflight.CutoverConfig // the checks before a cutover, not those before a start
}

// read reads a line.
func (s *scenario) read(word, rest string) error {
	var err error
	key, value, _ := strings.Cut(rest, ": ")
	switch word {
	case "source":
		s.source.answers[key] = value
	case "target":
		s.target.answers[key] = value
	case "age":
		var order int32
		var age int64
		_, err = fmt.Sscan(rest, &order, &age)
		s.source.ages[order] = age
	case "include":
		s.cfg.Include = append(s.cfg.Include, rest)
	case "map":
		s.maps = append(s.maps, rest)
	case "copy":
		s.cfg.Copy = true
	case "drop-existing":
		s.cfg.DropExisting = true
	case "spool-free":
		_, err = fmt.Sscan(rest, &s.cfg.SpoolFree)
	case "spool-dir":
		s.cfg.SpoolDir = strings.ReplaceAll(rest, "DIR", s.dir)
	case "file":
		err = os.WriteFile(filepath.Join(s.dir, rest), nil, 0o600)
	case "allow-existing":
		s.cfg.AllowExisting = true
	case "copied":
		s.cfg.Copied = true
	case "users-and-roles":
		s.cfg.UsersAndRoles = true
	case "start-ago":
		var ago int64
		_, err = fmt.Sscan(rest, &ago)
		s.cfg.StartAt = bson.Timestamp{T: uint32(clock() - ago)}
	case "feedback":
		s.cfg.Feedback = map[string]feedback.Mode{"member": feedback.Member, "document": feedback.Document}[rest]
	case "guard":
		s.cfg.Guard = guard.Mode(rest)
	case "all":
		s.all = true
	case "cutover":
		s.cutover = &preflight.CutoverConfig{WritesStopped: rest == "writes-stopped"}
	case "convert":
		s.cutover.Convert = append(s.cutover.Convert, rest)
	default:
		err = errors.New("unknown word")
	}
	return err
}

// printed formats a report for the scenarios; without all, checks that end OK are only
// counted.
func printed(t *testing.T, report preflight.Report, told []preflight.Finding, err error, all bool) string {
	t.Helper()
	var b strings.Builder
	fine := 0
	for i, f := range report.Findings {
		if told[i] != f {
			t.Errorf("told %v, reported %v", told[i], f)
		}
		if f.Level == preflight.OK && !all {
			fine++
			continue
		}
		b.WriteString(f.String() + "\n")
	}
	if fine > 0 {
		fmt.Fprintf(&b, "%d OK\n", fine)
	}
	if err != nil {
		fmt.Fprintf(&b, "error: %v\n", err)
	}
	if failed, ok := errors.AsType[*preflight.FailedError](report.Err()); ok {
		fmt.Fprintf(&b, "%v, denied %v\n", failed, failed.Denied())
	}
	return b.String()
}

// diskFree matches the part that depends on the machine.
var diskFree = regexp.MustCompile(`has [0-9.]+ \S+ free`)

// Transient failures are retried for a second; others are reported at once.
func TestPatience(t *testing.T) {
	passing := &servererr.Error{Code: servererr.NotWritablePrimary, Message: "not primary"}
	for name, tt := range map[string]struct {
		faults      []error
		ok          bool
		least, most time.Duration
	}{
		"a step-down":           {[]error{passing, passing}, true, time.Millisecond, time.Second},
		"a connection broke":    {[]error{&mongo.LostError{Host: "a", Err: errors.New("reset")}}, true, time.Millisecond, time.Second},
		"for ever":              {slices.Repeat([]error{passing}, 100), false, time.Second, 3 * time.Second}, // the last pause is up to 1.5 s
		"nobody there":          {[]error{&mongo.LostError{Err: errors.New("no primary in 30s")}}, false, 0, 0},
		"refused for something": {[]error{&servererr.Error{Code: servererr.InvalidOptions}}, false, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source, target := newServer(t, "source"), newServer(t, "target")
				source.faults = tt.faults
				sc, err := scope.New(scope.Config{})
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				_, err = preflight.Run(t.Context(), preflight.Config{Source: source, Target: target, Scope: sc, Link: "l"}, nil)
				if took := time.Since(begin); (err == nil) != tt.ok || took < tt.least || took > tt.most {
					t.Errorf("%v after %s", err, took)
				}
			})
		})
	}
}

func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, target := newServer(t, "source"), newServer(t, "target")
		source.faults = []error{&servererr.Error{Code: servererr.NotWritablePrimary}}
		sc, err := scope.New(scope.Config{})
		if err != nil {
			t.Fatal(err)
		}
		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Millisecond, func() { cancel(why) })
		if _, err := preflight.Run(ctx, preflight.Config{Source: source, Target: target, Scope: sc, Link: "l"}, nil); !errors.Is(err, why) {
			t.Errorf("got %v", err)
		}
	})
}
