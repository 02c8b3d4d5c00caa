package ddl_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

var errLost = errors.New("another process has the link")

// guard is a scripted fence.
type guard struct {
	check  func() error
	within func(work func(mongo.Caller) error) error
}

func (g guard) Check(context.Context) error { return g.check() }

func (g guard) Within(_ context.Context, work func(mongo.Caller) error) error { return g.within(work) }

// views returns the replies of a target with a view db.v; change replies to a command
// that changes it.
func views(t *testing.T, change func(cmd mongo.Command) (bson.D, error)) callFunc {
	return func(cmd mongo.Command) (bson.Raw, error) {
		elems, err := cmd.Body.Elements()
		if err != nil {
			return nil, err
		}
		var reply bson.D
		switch elems[0].Key() {
		case "listCollections":
			reply = bson.D{{Key: "cursor", Value: bson.D{
				{Key: "id", Value: int64(0)},
				{Key: "ns", Value: "db.$cmd.listCollections"},
				{Key: "firstBatch", Value: bson.A{bson.D{
					{Key: "name", Value: "v"},
					{Key: "type", Value: "view"},
					{Key: "options", Value: bson.D{{Key: "viewOn", Value: "x"}, {Key: "pipeline", Value: bson.A{}}}},
					{Key: "info", Value: bson.D{}},
				}}},
			}}}
		case "find": // the views that are left out
			reply = bson.D{{Key: "cursor", Value: bson.D{
				{Key: "id", Value: int64(0)}, {Key: "ns", Value: "replicator.deferred"}, {Key: "firstBatch", Value: bson.A{}},
			}}}
		case "drop", "create":
			if reply, err = change(cmd); err != nil {
				return nil, err
			}
		default:
			t.Errorf("%s is sent", elems[0].Key())
		}
		return bson.Marshal(reply)
	}
}

type callFunc func(cmd mongo.Command) (bson.Raw, error)

func (f callFunc) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) { return f(cmd) }

func dropView(t *testing.T, target mongo.Caller, fence ddl.Fence, late func(context.Context, *ddl.LateError)) (*ddl.Executor, *oplog.Op) {
	t.Helper()
	cat := must.Get(catalog.Load(t.Context(), target, nil))(t)
	sc := must.Get(scope.New(scope.Config{}))(t)
	exec := must.Get(ddl.New(ddl.Config{Target: target, Fence: fence, Catalog: cat, Scope: sc, Link: "link", Observer: func(event.Event) {}, Late: late}))(t)
	return exec, (&bench{}).operation(t, `d db.system.views {"_id": "db.v"}`)
}

// TestAsksBeforeEachTry: a command that waits for other work is not sent again once
// another process has the lease.
func TestAsksBeforeEachTry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sent, asked := 0, 0
		target := views(t, func(mongo.Command) (bson.D, error) {
			if sent++; sent > 10 {
				return nil, errCut // the fence was not checked
			}
			return nil, servererr.New(servererr.LockTimeout, "no")
		})
		fence := guard{check: func() error {
			if asked++; asked > 3 {
				return errLost
			}
			return nil
		}}
		exec, op := dropView(t, target, fence, nil)
		if err := exec.Apply(t.Context(), op, ddl.Once); !errors.Is(err, errLost) || sent != 3 || asked != 4 {
			t.Errorf("%v after %d tries and %d questions", err, sent, asked)
		}
	})
}

// TestSendBy: every command has a time by which it must be sent, and one that was not
// sent in time is sent after another check.
func TestSendBy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sent, asked := 0, 0
		target := views(t, func(cmd mongo.Command) (bson.D, error) {
			if left := time.Until(cmd.SendBy); left <= 0 || left > 5*time.Second {
				t.Errorf("it may be sent for %s", left)
			}
			if sent++; sent < 3 {
				return nil, mongo.ErrTooLate
			}
			return nil, errLost
		})
		exec, op := dropView(t, target, guard{check: func() error { asked++; return nil }}, nil)
		// The third try has no reply: whether it was late is checked once more.
		if err := exec.Apply(t.Context(), op, ddl.Once); !errors.Is(err, errLost) || sent != 3 || asked != 4 {
			t.Errorf("%v after %d tries and %d questions", err, sent, asked)
		}
	})
}

// TestLateIsTold: a command without a reply, sent by a process that is shutting down and
// has lost the lease, is reported; but not if it is known to have had no effect, and not
// before it is known which process has the lease.
func TestLateIsTold(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		answer error
		told   int
	}{
		{"no answer", &mongo.LostError{Err: errCut}, 1},
		{"carried out", nil, 1},
		{"its time was over", servererr.New(servererr.MaxTimeMSExpired, "no"), 1},
		{"nothing was there", servererr.New(servererr.NamespaceNotFound, "no"), 0},
		{"not sent", mongo.ErrTooLate, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				asked := 0
				target := views(t, func(mongo.Command) (bson.D, error) {
					cancel(nil)
					return bson.D{{Key: "ok", Value: 1}}, tt.answer
				})
				fence := guard{check: func() error {
					switch asked++; asked {
					case 1:
						return nil
					case 2:
						return &mongo.LostError{Err: errCut} // the target's next primary
					}
					return errLost
				}}
				told := 0
				exec, op := dropView(t, target, fence, func(ctx context.Context, e *ddl.LateError) {
					if told++; ctx.Err() != nil || !slices.Equal(e.Hit, []oplog.Namespace{"db.v"}) || e.NS != "db.v" || e.Name != "drop" {
						t.Errorf("%v: %+v", ctx.Err(), e)
					}
				})
				err := exec.Apply(ctx, op, ddl.Once)
				if _, late := errors.AsType[*ddl.LateError](err); err == nil || told != tt.told || late != (tt.told > 0) {
					t.Errorf("told %d times: %v", told, err)
				}
			})
		})
	}
}

// TestTimeLimit: a command that ran into its limit may have been executed; the executor
// reads the state, once it is majority-committed.
func TestTimeLimit(t *testing.T) {
	t.Parallel()
	for name, done := range map[string]bool{"done": true, "not done": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := connect(t, "5.0")
			s := newProcess(t, target, target)
			for _, line := range []string{`c db.$cmd {"create": "c"}`, `c db.$cmd {"create": "d"}`} {
				must.Succeed(t, s.exec.Apply(t.Context(), s.operation(t, line), ddl.Once))
			}
			var seen []string
			expired := servererr.New(servererr.MaxTimeMSExpired, "operation exceeded time limit")
			hit := func(cmd mongo.Command) error {
				name, _, _ := strings.Cut(strings.TrimPrefix(cmd.Body.String(), `{"`), `"`)
				if seen = append(seen, name); name != "drop" || slices.Contains(seen[:len(seen)-1], "drop") {
					return nil
				}
				if limit, ok := cmd.Body.Lookup("maxTimeMS").AsInt64OK(); !ok || limit > 10_000 {
					t.Errorf("without a limit: %s", cmd.Body)
				}
				return expired
			}
			if s.before = hit; done {
				s.before, s.after = nil, hit
			}
			err := s.exec.Apply(t.Context(), s.operation(t, `c db.$cmd {"drop": "c"}`), ddl.Once)
			s.before, s.after = nil, nil
			if err != nil {
				t.Fatal(err)
			}
			drops := 0
			for _, name := range seen {
				if name == "drop" {
					drops++
				}
			}
			if want := map[bool]int{true: 1, false: 2}[done]; drops != want {
				t.Errorf("sent %d times: %s", drops, seen)
			}
			after := seen[slices.Index(seen, "drop"):]
			if at := slices.Index(after, "commitTransaction"); at < 0 || at > slices.Index(after, "listCollections") {
				t.Errorf("it was looked at before a majority had it: %s", seen)
			}
			if got := len(s.state(t, false).Collections); got != 1 {
				t.Errorf("%d collections are left", got)
			}
		})
	}
}

// TestSlowAnswers: if the lease check takes longer than the time in which a command must
// be sent, the command is sent nevertheless, and the check is not repeated without end.
func TestSlowAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		target := views(t, func(cmd mongo.Command) (bson.D, error) {
			if left := time.Until(cmd.SendBy); left > 16*time.Second {
				t.Errorf("it may be sent for %s", left)
			}
			if cmd.Overdue() {
				return nil, mongo.ErrTooLate
			}
			return bson.D{{Key: "ok", Value: 1}}, nil
		})
		fence := guard{check: func() error {
			time.Sleep(3 * time.Second)
			if asked++; asked > 10 {
				return errLost
			}
			return nil
		}}
		exec, op := dropView(t, target, fence, nil)
		if err := exec.Apply(t.Context(), op, ddl.Once); err != nil {
			t.Errorf("after %d questions: %v", asked, err)
		}
	})
}

// TestMoreTime: a command that exceeds the limit gets more time with each try, and is
// executed in the end.
func TestMoreTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var limits []time.Duration
		target := views(t, func(cmd mongo.Command) (bson.D, error) {
			ms, _ := cmd.Body.Lookup("maxTimeMS").AsInt64OK()
			limit := time.Duration(ms) * time.Millisecond
			limits = append(limits, limit)
			if limit < time.Minute && len(limits) < 10 {
				time.Sleep(limit)
				return nil, servererr.New(servererr.MaxTimeMSExpired, "operation exceeded time limit")
			}
			return bson.D{{Key: "ok", Value: 1}}, nil
		})
		fence := guard{check: func() error { return nil }, within: func(work func(mongo.Caller) error) error { return work(nil) }}
		exec, op := dropView(t, target, fence, nil)
		err := exec.Apply(t.Context(), op, ddl.Once)
		want := []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second}
		if err != nil || !slices.Equal(limits, want) {
			t.Errorf("%v after the limits %s, want %s", err, limits, want)
		}
	})
}

// TestDoneIsNotSentAgain: a command that was executed, or may have been, is not sent
// again as if it had been refused, whatever the target's error. The next attempt reads
// the state.
func TestDoneIsNotSentAgain(t *testing.T) {
	t.Parallel()
	passing := servererr.New(servererr.TemporarilyUnavailable, "no room")
	for _, tt := range []struct{ name, entry string }{
		{"a write concern that failed", `d db.system.views {"_id": "db.v"}`},
		{"a commit of unknown outcome", `c db.$cmd {"create": "c"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sent := 0
				target := views(t, func(mongo.Command) (bson.D, error) {
					if sent++; sent > 1 {
						return nil, servererr.New(servererr.NamespaceNotFound, "ns not found")
					}
					concern := bson.D{{Key: "code", Value: int32(passing.Code)}, {Key: "errmsg", Value: passing.Message}}
					return bson.D{{Key: "ok", Value: 1}, {Key: "writeConcernError", Value: concern}}, nil
				})
				within := func(func(mongo.Caller) error) error {
					if sent++; sent > 1 {
						return servererr.New(servererr.NamespaceExists, "it exists")
					}
					return &mongo.CommitError{Err: passing}
				}
				exec, _ := dropView(t, target, guard{check: func() error { return nil }, within: within}, nil)
				err := exec.Apply(t.Context(), (&bench{}).operation(t, tt.entry), ddl.Once)
				if !errors.Is(err, passing) || sent != 1 {
					t.Errorf("sent %d times: %v", sent, err)
				}
			})
		})
	}
}

// TestTriedForLong: a command's transaction that was refused until the link stopped
// retrying is retried, as the command itself would be.
func TestTriedForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		within := func(func(mongo.Caller) error) error {
			if tries++; tries < 5 {
				return &mongo.StuckError{Err: servererr.New(servererr.LockTimeout, "no")}
			}
			return errLost
		}
		exec, _ := dropView(t, views(t, nil), guard{check: func() error { return nil }, within: within}, nil)
		err := exec.Apply(t.Context(), (&bench{}).operation(t, `c db.$cmd {"create": "c"}`), ddl.Once)
		if !errors.Is(err, errLost) || tries != 5 {
			t.Errorf("tried %d times: %v", tries, err)
		}
	})
}

// TestUUIDNotTaken: a target that does not accept a UUID after all, because it has
// another feature compatibility version or a member of an older release became primary,
// gets the command by name.
func TestUUIDNotTaken(t *testing.T) {
	t.Parallel()
	s := newBench(t, "6.0", ddl.Relaxed, scope.Config{})
	must.Succeed(t, s.exec.Apply(t.Context(), s.operation(t, `c db.$cmd {"create": "c"}`), ddl.Once))
	asked := 0
	s.before = func(cmd mongo.Command) error {
		if _, err := cmd.Body.LookupErr("collectionUUID"); err == nil {
			asked++
			return servererr.New(40415, "BSON field 'drop.collectionUUID' is an unknown field.")
		}
		return nil
	}
	for _, line := range []string{`c db.$cmd {"drop": "c"}`, `c db.$cmd {"create": "c"}`, `c db.$cmd {"drop": "c"}`} {
		must.Succeed(t, s.exec.Apply(t.Context(), s.operation(t, line), ddl.Once))
	}
	if asked != 1 {
		t.Errorf("asked by UUID %d times", asked)
	}
}

// TestOneWay lists the places that send commands which may change more than documents.
// All of them are in this package, behind its gate; the others only name the metadata's
// own collections.
func TestOneWay(t *testing.T) {
	t.Parallel()
	command := regexp.MustCompile(`"(drop|dropDatabase|create|createIndexes|dropIndexes|collMod|renameCollection|emptycapped|convertToCapped|applyOps)"`)
	sent := regexp.MustCompile(`\.Call\(`)
	makes := regexp.MustCompile(`\.create\(ctx, ([^)]*)\)`) // of applier/oversized.go, a collection of the metadata
	allowed := map[string]string{
		"checkpoint/store.go":                            ``,                        // the metadata's own collections, and a session's name
		"applier/ddl/hold.go":                            `h.target.Call`,           // before there is a link: collMod sets a final value
		"internal/mongo/buckets.go":                      `"collMod", series`,       // allows more buckets, whoever sends it, and changes nothing else
		"applier/oversized.go":                           `"create", name).Build()`, // see makes
		"initialsync/inventory/op.go":                    ``,                        // makes operations of the log for this package
		"initialsync/clear.go":                           ``,
		"preflight/privileges.go":                        ``, // names of privileges
		"preflight/cutover.go":                           ``, // the same
		"internal/mongo/waits.go":                        ``, // names of commands that wait
		"internal/mongo/driver/drivertest/drivertest.go": ``, // tests
	}
	root := filepath.Join("..", "..")
	for _, dir := range []string{
		"applier", "batcher", "buffer", "checkpoint", "feedback", "fetcher", "initialsync", "lease", "pipeline", "preflight",
		"request", "resync", "scope", "status", "syncsource", "cmd", "internal/metadata", "internal/mongo",
	} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close() //nolint:errcheck // It was only read.
			own := strings.HasPrefix(name, "applier/ddl/")
			lines := bufio.NewScanner(f)
			for n := 1; lines.Scan(); n++ {
				line := lines.Text()
				if made := makes.FindStringSubmatch(line); !own && made != nil && filepath.Dir(name) == "applier" && !strings.HasPrefix(made[1], "metadata.") {
					t.Errorf("%s:%d creates another collection than one of the metadata: %s", name, n, strings.TrimSpace(line))
				}
				if part, ok := allowed[filepath.ToSlash(name)]; ok && strings.Contains(line, part) || strings.HasPrefix(strings.TrimSpace(line), "//") {
					continue
				}
				if !own && command.MatchString(line) {
					t.Errorf("%s:%d names a command: %s", name, n, strings.TrimSpace(line))
				}
				if own && sent.MatchString(line) && filepath.Base(name) != "fence.go" {
					t.Errorf("%s:%d sends past the gate: %s", name, n, strings.TrimSpace(line))
				}
			}
			return lines.Err()
		})
		if err != nil {
			t.Error(err)
		}
	}
}
