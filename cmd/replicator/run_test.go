package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// tell runs a command on a set's primary, which must do all of it.
func tell(t *testing.T, set *mongosim.Set, db string, cmd bson.D) (reply bson.Raw) {
	t.Helper()
	body := must.Get(bson.Marshal(append(cmd, bson.E{Key: "$db", Value: db})))(t)
	err := client.ThroughElections(t.Context(), func() error {
		primary, err := set.AwaitPrimary(t.Context())
		if err != nil {
			return err
		}
		if reply, err = primary.Call(t.Context(), body); err != nil {
			return err
		}
		if err := mongo.Check(reply); err != nil {
			return err
		}
		return refusal(reply)
	})
	if err != nil {
		t.Fatalf("%s: %v", cmd[0].Key, err)
	}
	return reply
}

func insert(t *testing.T, set *mongosim.Set, db, coll string, docs ...any) {
	t.Helper()
	tell(t, set, db, bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A(docs)}})
}

func countDocs(t *testing.T, set *mongosim.Set, db, coll string) int64 {
	t.Helper()
	n, _ := tell(t, set, db, bson.D{{Key: "count", Value: coll}}).Lookup("n").AsInt64OK()
	return n
}

// logLines buffers a log without limit.
type logLines struct {
	mu    sync.Mutex // guards the rest
	more  *sync.Cond
	text  bytes.Buffer
	read  int // of text
	ended bool
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.more.Broadcast()
	return l.text.Write(p)
}

func (l *logLines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.more.Broadcast()
}

// next waits for the next line; it is false after the last.
func (l *logLines) next() ([]byte, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if i := bytes.IndexByte(l.text.Bytes()[l.read:], '\n'); i >= 0 {
			line := bytes.Clone(l.text.Bytes()[l.read : l.read+i])
			l.read += i + 1
			return line, true
		}
		if l.ended {
			return nil, false
		}
		l.more.Wait()
	}
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// runLink is a running link.
type runLink struct {
	t     *testing.T
	drain func()
	kill  context.CancelCauseFunc
	code  chan int
	log   logLines
}

// startLink starts a link with logs as JSON.
func startLink(t *testing.T, args ...string) *runLink {
	t.Helper()
	return startProgram(t, append([]string{"run", "--log-format=json"}, args...)...)
}

// startProgram starts a command that runs until it is ended.
func startProgram(t *testing.T, args ...string) *runLink {
	t.Helper()
	soft, drain := context.WithCancelCause(t.Context())
	hard, kill := context.WithCancelCause(t.Context())
	l := &runLink{t: t, drain: func() { drain(context.Canceled) }, kill: kill, code: make(chan int, 1)}
	l.log.more = sync.NewCond(&l.log.mu)
	var running sync.WaitGroup
	running.Go(func() {
		l.code <- execute(cli.Ends{Soft: soft, Hard: hard}, args, nil, io.Discard, &l.log)
		l.log.end()
	})
	t.Cleanup(func() {
		kill(failure.ErrStopped)
		running.Wait()
		drain(nil)
	})
	return l
}

// await reads the log up to a line with a message and fields, and returns all of
// its fields.
func (l *runLink) await(message string, with ...string) map[string]any {
	l.t.Helper()
	for {
		line, ok := l.log.next()
		if !ok {
			l.t.Fatalf("the log ended before %q came; it has\n%s", message, &l.log)
		}
		var fields map[string]any
		if err := json.Unmarshal(line, &fields); err != nil {
			l.t.Fatalf("no JSON in the log: %q", line)
		}
		match := fields["msg"] == message
		for i := 0; i < len(with); i += 2 {
			match = match && fields[with[i]] == with[i+1]
		}
		if match {
			return fields
		}
	}
}

// end waits for the exit code.
func (l *runLink) end() int { return <-l.code }

// oneRun are the moods of sets on which one command is run and its code is checked: a
// command that asks once ends with the first refusal that it meets.
var oneRun = mongosim.GentleMoods("a command that asks once ends with the first refusal that it meets")

func twoSets(t *testing.T) (source, target *mongosim.Set) {
	t.Helper()
	return mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "src", Seed: 1}), mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "dst", Seed: 2})
}

func uris(source, target *mongosim.Set) []string {
	return []string{"--source=" + source.URI(), "--target=" + target.URI(), "--link=test", "--selection-timeout=1m", "--start-at=now"}
}

func get(t *testing.T, url string) (code int, body string) {
	t.Helper()
	req := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody))(t)
	resp, err := http.DefaultClient.Do(req)
	must.Succeed(t, err)
	defer func() { _ = resp.Body.Close() }()
	all := must.Get(io.ReadAll(resp.Body))(t)
	return resp.StatusCode, string(all)
}

func TestRunMirrorsAndDrains(t *testing.T) {
	source, target := twoSets(t)
	l := startLink(t, append(uris(source, target), "--listen=127.0.0.1:0", "--await=100ms", "--include=shop", "--map=shop=store")...)
	address, _ := l.await("serving status, health and metrics")["listen"].(string)
	l.await("state changed", "to", "steady")
	for path, want := range map[string]string{"/healthz": "steady", "/status": `"state":"`, "/metrics": "replicator_"} {
		if code, body := get(t, "http://"+address+path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d, %s", path, code, body)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}})
	awaitCount(t, target, "store", "a", 2)
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	for _, want := range []string{`"msg":"startup check","link":"test","result":"OK","check":"source topology"`, `"msg":"draining`, `"msg":"drained`} {
		if !strings.Contains(l.log.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, &l.log)
		}
	}

	code, stdout, _ := invoke(t, nil, append([]string{"run", "--check", "--include=shop", "--map=shop=store"}, uris(source, target)...)...)
	// A source that has nothing newer can be read.
	for _, want := range []string{`OK   link: "test" resumes after `, "OK   source members: one member answers; the link would read ", "OK   target data: as the link left them"} {
		if code != cli.ExitOK || !strings.Contains(stdout, want) {
			t.Errorf("code %d, %q is not in\n%s", code, want, stdout)
		}
	}

	// Another link that does the same is suspicious, and the link is of one source.
	code, stdout, _ = invoke(t, nil, append([]string{"run", "--check", "--include=shop", "--map=shop=store", "--allow-existing"},
		append(uris(source, target), "--link=twin")...)...)
	if want := `WARN other links: "test" mirrors to store.a. Make sure that no process runs it`; code != cli.ExitOK || !strings.Contains(stdout, want) {
		t.Errorf("code %d, %q is not in\n%s", code, want, stdout)
	}
	third := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "third", Seed: 33})
	code, _, stderr := invoke(t, nil, append([]string{"run", "--check", "--include=shop", "--map=shop=store"}, uris(third, target)...)...)
	if code != failure.ExitResync || !strings.Contains(stderr, `link "test" follows set src`) || strings.Contains(stderr, `{"time"`) {
		t.Errorf("code %d, %s", code, stderr)
	}

	// The same link again: it continues, and the target need not be empty.
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 3}})
	l = startLink(t, append(uris(source, target), "--await=100ms", "--include=shop", "--map=shop=store")...)
	awaitLink(l)
	awaitCount(t, target, "store", "a", 3)
	// Other settings are not those of the link.
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	l = startLink(t, append(uris(source, target), "--include=shop", "--map=shop=other")...)
	if code := l.end(); code != cli.ExitCheck || !strings.Contains(l.log.String(), "created with other settings") {
		t.Errorf("code %d\n%s", code, &l.log)
	}
	said(t, cli.ExitFailed, `(?m)^ +mirrors with: --include=shop --map=shop=store$`, nil, "status", "--target="+target.URI(), "--link=test")
}

func awaitLink(l *runLink) { l.await("state changed", "to", "steady") }

func awaitCount(t *testing.T, set *mongosim.Set, db, coll string, want int64) {
	t.Helper()
	awaitThat(t, func() bool { return countDocs(t, set, db, coll) == want }, "%s.%s has not come to have %d documents", db, coll, want)
}

// awaitThat waits for what a server says.
func awaitThat(t *testing.T, is func() bool, otherwise string, args ...any) {
	t.Helper()
	for deadline := time.Now().Add(far); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf(otherwise, args...)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestRunStops(t *testing.T) {
	source, target := twoSets(t)
	l := startLink(t, append(uris(source, target), "--await=100ms")...)
	awaitLink(l)
	l.kill(failure.ErrStopped)
	if code := l.end(); code != failure.ExitNotDrained || !strings.Contains(l.log.String(), "resumes from the checkpoint") {
		t.Errorf("code %d\n%s", code, &l.log)
	}
}

// awaitHeld waits until a process has read something that it cannot apply.
func awaitHeld(t *testing.T, address string) {
	t.Helper()
	awaitThat(t, func() bool {
		_, body := get(t, "http://"+address+"/metrics")
		for line := range strings.Lines(body) {
			if value, ok := strings.CutPrefix(line, "replicator_buffer_bytes "); ok {
				return value != "0\n"
			}
		}
		return false
	}, "nothing is read")
	http.DefaultClient.CloseIdleConnections()
}

// A target that does not answer cannot be drained to: the time for it runs out.
func TestDrainTimeout(t *testing.T) {
	source, target := twoSets(t)
	l := startLink(t, append(uris(source, target), "--listen=127.0.0.1:0", "--await=100ms", "--drain-timeout=50ms", "--checkpoint-interval=1h")...)
	address, _ := l.await("serving status, health and metrics")["listen"].(string)
	awaitLink(l)
	target.Member(0).Freeze()
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 1}})
	awaitHeld(t, address)
	l.drain()
	if code := l.end(); code != failure.ExitNotDrained {
		t.Errorf("code %d\n%s", code, &l.log)
	}
	target.Member(0).Thaw()
}

func TestRunRefuses(t *testing.T) {
	source, target := twoSets(t)
	insert(t, target, "shop", "a", bson.D{{Key: "_id", Value: 1}})
	insert(t, target, "other", "b", bson.D{{Key: "_id", Value: 1}})
	closed := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "shut", Users: []mongosim.User{
		{Name: "reader", Password: "sesame42", Roles: []mongosim.Role{{Name: "clusterMonitor", DB: "admin"}}},
	}})
	busy := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer busy.Close() //nolint:errcheck // the test is over
	wrong := strings.Replace(closed.URIFor("reader"), "sesame42", "sesame43", 1)
	tests := []struct {
		name string
		args []string
		code int
		says []string
	}{
		{"target not empty", uris(source, target), cli.ExitCheck, []string{"FAIL target data: the target has data in 2 collections where the link will write: other.b, shop.a. Drop the collections", "--allow-existing", "OK   source version"}},
		{"but not there", append(uris(source, target), "--include=elsewhere", "--check"), cli.ExitOK, nil},
		{"something left", append(uris(source, target), "--include=elsewhere.a", "--include=elsewhere.b", "--exclude=elsewhere.a", "--check"), cli.ExitOK, []string{"WARN filters: nothing of elsewhere.a is mirrored: --exclude takes all of it"}},
		{"nothing left", append(uris(source, target), "--include=shop", "--exclude=shop", "--check"), cli.ExitOK, []string{"WARN filters: nothing is mirrored: --exclude takes all that --include gives: shop.*"}},
		{"same set", uris(source, source), cli.ExitCheck, []string{"FAIL two clusters: source and target are the same replica set", "--map DB=OTHER"}},
		{"same set, other names", append(uris(source, source), "--include=shop", "--map=shop=store", "--check"), cli.ExitOK, nil},
		{"nobody there", append(uris(source, target), "--source=mongodb://127.0.0.1:1/", "--selection-timeout=100ms"), cli.ExitConnect, []string{"no primary in", "127.0.0.1:1", "--selection-timeout"}},
		{"wrong password", append(uris(source, target), "--source="+wrong), cli.ExitConnect, []string{"check the source: log in to", "Check user name, password"}},
		{"wrong password, target", append(uris(source, target), "--target="+wrong), cli.ExitConnect, []string{"log in to", "check the target"}},
		{"no login", append(uris(source, target), "--source="+closed.URI()), cli.ExitConnect, []string{"FAIL source login: no user is given", "--source-username", "says which login or privilege is missing; docs/privileges.md"}},
		{"may not write", append(uris(source, target), "--target="+closed.URIFor("reader")), cli.ExitConnect, []string{"FAIL target privileges: user admin.reader may not find, insert", "docs/privileges.md"}},
		{"address taken", append(uris(source, target), "--listen="+busy.Addr().String()), cli.ExitCheck, []string{"address already in use", "Choose another --listen address"}},
		{"no such domain", append(uris(source, target), "--source=mongodb+srv://nowhere.invalid/"), cli.ExitConnect, []string{"connect to the source", "Check the addresses"}},
		{"too old", append(uris(source, target), "--start-at=1000000000"), cli.ExitCheck, []string{"FAIL source oplog window:", "does not reach back to --start-at"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := append([]string{"run", "--log-format=text"}, tt.args...)
			code, stdout, stderr := invoke(t, nil, args...)
			if code != tt.code {
				t.Errorf("code %d, want %d\n%s%s", code, tt.code, stdout, stderr)
			}
			says := stderr
			if tt.code == cli.ExitOK {
				says = stdout
			}
			for _, want := range tt.says {
				if !strings.Contains(says, want) {
					t.Errorf("%q is not in\n%s", want, says)
				}
			}
			if strings.Contains(stdout+stderr, "sesame") {
				t.Errorf("a password is shown:\n%s%s", stdout, stderr)
			}
			if code == cli.ExitOK && (!strings.Contains(stdout, "OK   source version") || strings.Contains(stdout, "FAIL")) {
				t.Errorf("the checks' lines are\n%s", stdout)
			}
		})
	}
	// No run has left anything in the target.
	for _, set := range []*mongosim.Set{source, target} {
		if names := tell(t, set, "admin", bson.D{{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}}).String(); strings.Contains(names, "replicator") {
			t.Errorf("something was written: %s", names)
		}
	}
}

// TestSignals sends a running program the signals that a supervisor sends.
func TestSignals(t *testing.T) {
	source, target := twoSets(t)
	cmd := process(t, append([]string{"run", "--await=100ms", "--log-format=json", "--listen=127.0.0.1:0"}, uris(source, target)...)...)
	logs := must.Get(cmd.StderrPipe())(t)
	must.Succeed(t, cmd.Start())
	lines := bufio.NewScanner(logs)
	see := func(want string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		t.Fatalf("%q did not come", want)
	}
	see(`"to":"steady"`)
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 1}})
	awaitCount(t, target, "shop", "a", 1)
	// One that comes twice, as timeout(1) sends it, is one.
	for range 2 {
		must.Succeed(t, cmd.Process.Signal(syscall.SIGTERM))
	}
	see("drained: all entries that were read are applied")
	if code := exitCodeOf(t, cmd.Wait()); code != cli.ExitOK {
		t.Errorf("code %d", code)
	}
}

// A second signal stops a run that the first one cannot drain.
func TestSecondSignal(t *testing.T) {
	source, target := twoSets(t)
	cmd := process(t, append([]string{"run", "--await=100ms", "--log-format=json", "--listen=127.0.0.1:0"}, uris(source, target)...)...)
	logs := must.Get(cmd.StderrPipe())(t)
	must.Succeed(t, cmd.Start())
	lines, draining, address := bufio.NewScanner(logs), false, ""
	for lines.Scan() {
		switch text := lines.Text(); {
		case strings.Contains(text, "serving status, health and metrics"):
			var fields struct{ Listen string }
			must.Succeed(t, json.Unmarshal([]byte(text), &fields))
			address = fields.Listen
		case strings.Contains(text, `"to":"steady"`):
			target.Member(0).Freeze()
			insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 1}})
			awaitHeld(t, address)
			fallthrough
		case strings.Contains(text, `"draining:`) && !draining:
			draining = strings.Contains(text, `"draining:`)
			if draining {
				time.Sleep(cli.SameSignal + 100*time.Millisecond) // sooner it would be the same
			}
			must.Succeed(t, cmd.Process.Signal(os.Interrupt))
		}
	}
	target.Member(0).Thaw()
	if code := exitCodeOf(t, cmd.Wait()); code != failure.ExitNotDrained || !draining {
		t.Errorf("code %d, was draining: %v", code, draining)
	}
}

// What docs/privileges.md asks for is enough, with access control on both sides
// and passwords in files.
func TestLeastPrivileges(t *testing.T) {
	admin := mongosim.User{Name: "root", Password: "r", Roles: []mongosim.Role{{Name: "root", DB: "admin"}}}
	source := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "src", Seed: 1, Users: []mongosim.User{
		admin,
		{Name: "mirror", Password: "sesame42", Roles: []mongosim.Role{{Name: "backup", DB: "admin"}, {Name: "clusterMonitor", DB: "admin"}}},
		{Name: "follower", Password: "sesame44", Roles: []mongosim.Role{{Name: "clusterMonitor", DB: "admin"}}},
	}})
	target := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "dst", Seed: 2, Users: []mongosim.User{
		admin, {Name: "mirror", Password: "sesame:/@%43", Roles: []mongosim.Role{
			{Name: "readWriteAnyDatabase", DB: "admin"}, {Name: "dbAdminAnyDatabase", DB: "admin"}, {Name: "restore", DB: "admin"},
		}},
	}})
	into := []string{"--target-username=mirror", "--target-password-file=" + write(t, "sesame:/@%43")}
	// One that only follows needs less, and one that copies gets a list of those
	// it lacks.
	follower := append(append(uris(source, target), into...), "--source-username=follower", "--source-password-file="+write(t, "sesame44"), "--check")
	if code, stdout, stderr := invoke(t, nil, append([]string{"run"}, follower...)...); code != cli.ExitOK {
		t.Errorf("following: code %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr := invoke(t, nil, append([]string{"run"}, append(follower, "--start-at=copy")...)...)
	if want := "FAIL source privileges to copy: user admin.follower may not find, listCollections, listIndexes on any database. Grant the roles backup and clusterMonitor."; code != cli.ExitConnect || !strings.Contains(stdout, want) {
		t.Errorf("copying: code %d, want %q in\n%s%s", code, want, stdout, stderr)
	}
	tell(t, source, "shop", bson.D{{Key: "create", Value: "old"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "at"}}}})
	insert(t, source, "shop", "old", bson.D{{Key: "at", Value: bson.NewDateTimeFromTime(time.Now())}})
	tell(t, source, "shop", bson.D{{Key: "create", Value: "oldView"}, {Key: "viewOn", Value: "c"}, {Key: "pipeline", Value: bson.A{}}})
	fill(t, source, "shop", "c", 20)
	flags, _ := copies(t, source, target, append(into, "--source-username=mirror", "--source-password-file="+write(t, "sesame42\n"))...)
	code, stdout, stderr = invoke(t, nil, append([]string{"run", "--check"}, flags...)...)
	// Writes of others are not noticed without clusterMonitor, and this is said.
	const unwatched = "WARN target privilege to watch for foreign writes: user admin.mirror may not read local.oplog.rs"
	warned := strings.NewReplacer("WARN source oplog window", "", unwatched, "").Replace(stdout)
	if code != cli.ExitOK || strings.Contains(warned, "WARN") || !strings.Contains(stdout, unwatched) {
		t.Fatalf("code %d\n%s%s", code, stdout, stderr)
	}
	l := startLink(t, flags...)
	awaitLink(l)
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 1}})
	tell(t, source, "shop", bson.D{{Key: "createIndexes", Value: "a"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x_1"}, {Key: "unique", Value: true}}}}})
	tell(t, source, "shop", bson.D{{Key: "create", Value: "w"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "at"}}}})
	insert(t, source, "shop", "w", bson.D{{Key: "at", Value: bson.NewDateTimeFromTime(time.Now())}})
	tell(t, source, "shop", bson.D{{Key: "create", Value: "v"}, {Key: "viewOn", Value: "a"}, {Key: "pipeline", Value: bson.A{}}})
	tell(t, source, "shop", bson.D{{Key: "collMod", Value: "a"}, {Key: "validationLevel", Value: "moderate"}})
	tell(t, source, "admin", bson.D{{Key: "renameCollection", Value: "shop.a"}, {Key: "to", Value: "shop.b"}})
	insert(t, source, "shop", "b", bson.D{{Key: "_id", Value: 2}, {Key: "x", Value: 2}})
	tell(t, source, "gone", bson.D{{Key: "create", Value: "c"}})
	tell(t, source, "gone", bson.D{{Key: "dropDatabase", Value: 1}})
	insert(t, source, "shop", "last", bson.D{{Key: "_id", Value: 1}})
	awaitCount(t, target, "shop", "last", 1)
	if n := countDocs(t, target, "shop", "b"); n != 2 {
		t.Errorf("shop.b has %d documents", n)
	}
	if n := countDocs(t, target, "shop", "w"); n != 1 {
		t.Errorf("shop.w has %d measurements", n)
	}
	if n, m, v := countDocs(t, target, "shop", "old"), countDocs(t, target, "shop", "c"), countDocs(t, target, "shop", "oldView"); n != 1 || m != 20 || v != 20 {
		t.Errorf("copied are %d measurements, %d documents, and a view of %d", n, m, v)
	}
	l.drain()
	if code := l.end(); code != cli.ExitOK || strings.Contains(l.log.String(), "sesame") {
		t.Errorf("code %d\n%s", code, &l.log)
	}
}
