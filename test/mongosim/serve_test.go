package mongosim_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// lab is the program replicator-lab as it is, built.
func lab(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "replicator-lab")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "github.com/oplogrep/replicator/cmd/replicator-lab").CombinedOutput()
	if err != nil {
		t.Fatalf("build replicator-lab: %v\n%s", err, out)
	}
	return path
}

// served is replicator-lab serve, as a process.
type served struct {
	uri    string
	cmd    *exec.Cmd
	rest   *bufio.Reader // of standard output
	stderr bytes.Buffer
}

// serve starts it, and reads its first line.
func serve(t *testing.T, program string, args ...string) *served {
	t.Helper()
	s := &served{cmd: exec.CommandContext(t.Context(), program, append([]string{"serve"}, args...)...)}
	s.cmd.Stderr = &s.stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, s.cmd.Start())
	s.rest = bufio.NewReader(out)
	line, err := s.rest.ReadString('\n')
	if err != nil {
		_ = s.cmd.Wait()
		t.Fatalf("the connection string: %v\n%s", err, &s.stderr)
	}
	s.uri = strings.TrimSuffix(line, "\n")
	return s
}

// end sends a signal, and checks that all ends well and that no more was printed.
func (s *served) end(t *testing.T, signal os.Signal) {
	t.Helper()
	must.Succeed(t, s.cmd.Process.Signal(signal))
	late := time.AfterFunc(time.Minute, func() { _ = s.cmd.Process.Kill() })
	defer late.Stop()
	more, _ := s.rest.ReadString(0) // until the end
	if err := s.cmd.Wait(); err != nil || more != "" {
		t.Errorf("after the signal %s: %v, and the output %q\n%s", signal, err, more, &s.stderr)
	}
}

// TestServe runs replicator-lab serve as a process, under clients in several languages.
func TestServe(t *testing.T) {
	t.Parallel()
	program := lab(t)
	for name, test := range map[string]func(t *testing.T, program string){
		"driver": serveDriver, "ports": servePorts, "login": serveLogin, "mongosh": serveMongosh, "pymongo": servePyMongo,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, program)
		})
	}
}

// serveDriver: a client in another process sees a replica set, whose primary changes
// while it writes.
func serveDriver(t *testing.T, program string) {
	s := serve(t, program, "--members=3", "--dialect=7.0", "--port=0", "--replset=app")
	if !strings.HasPrefix(s.uri, "mongodb://127.0.0.1:") || strings.Count(s.uri, "127.0.0.1:") != 3 || !strings.HasSuffix(s.uri, "/?replicaSet=app") {
		t.Errorf("the connection string is %q", s.uri)
	}
	t.Run("client", func(t *testing.T) { useDriver(t, s.uri) })
	s.end(t, syscall.SIGTERM)
}

func useDriver(t *testing.T, uri string) {
	client := connect(t, uri, options.Client().SetWriteConcern(writeconcern.Majority()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	admin := client.Database("admin")
	hello := func() (h struct{ Me, SetName string }) {
		t.Helper()
		must.Succeed(t, admin.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&h))
		return h
	}
	var build struct{ Version string }
	if err := admin.RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&build); err != nil || !strings.HasPrefix(build.Version, "7.0.") {
		t.Errorf("version %q, %v", build.Version, err)
	}
	coll := client.Database("app").Collection("people")
	must.Get(coll.InsertMany(ctx, []any{bson.D{{Key: "_id", Value: 1}, {Key: "name", Value: "ada"}}, bson.D{{Key: "_id", Value: 2}}}))(t)
	before := hello()
	// The primary closes connections or not, by its version; what counts is the next one.
	_ = admin.RunCommand(ctx, bson.D{{Key: "replSetStepDown", Value: 60}}).Err()
	must.Get(coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 3}}))(t)
	if after := hello(); after.Me == before.Me || after.SetName != "app" {
		t.Errorf("the primary is %+v, and was %+v", after, before)
	}
	var found []struct {
		ID   int `bson:"_id"`
		Name string
	}
	must.Succeed(t, must.Get(coll.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}})))(t).All(ctx, &found))
	if len(found) != 3 || found[0].Name != "ada" || found[2].ID != 3 {
		t.Errorf("the documents are %+v", found)
	}
}

// servePorts: fixed ports are those that were asked for, nobody else's, and free
// again once the process has ended.
func servePorts(t *testing.T, program string) {
	first := portsInARow(t, 2)
	args := []string{"--members=2", "--port=" + strconv.Itoa(first), "--host=localhost"}
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		s := serve(t, program, args...)
		if want := "mongodb://localhost:" + strconv.Itoa(first) + ",localhost:" + strconv.Itoa(first+1) + "/?replicaSet=rs0"; s.uri != want {
			t.Errorf("the connection string is %q, want %q", s.uri, want)
		}
		// The connection is there still when the server ends, and closes it.
		conn := must.Get(net.Dial("tcp", "localhost:"+strconv.Itoa(first)))(t)
		t.Cleanup(func() { _ = conn.Close() })
		out, err := exec.CommandContext(t.Context(), program, append([]string{"serve"}, args...)...).CombinedOutput()
		if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != 9 || !bytes.Contains(out, []byte("127.0.0.1:"+strconv.Itoa(first)+": address already in use")) {
			t.Errorf("a second one on the same ports: %v\n%s", err, out)
		}
		s.end(t, signal)
	}
}

// serveLogin: with a user, nobody else may read, and the password is shown nowhere.
func serveLogin(t *testing.T, program string) {
	file := filepath.Join(t.TempDir(), "password")
	must.Succeed(t, os.WriteFile(file, []byte("sesame:42\n"), 0o600))
	s := serve(t, program, "--members=1", "--port=0", "--username=ann", "--password-file="+file, "--verbose")
	t.Run("clients", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		find := bson.D{{Key: "find", Value: "c"}}
		wantUnauthorized(t, "find without a login", connect(t, s.uri).Database("app").RunCommand(ctx, find).Err())
		u := must.Get(url.Parse(s.uri))(t)
		u.User = url.UserPassword("ann", "sesame:42")
		if err := connect(t, u.String()).Database("app").RunCommand(ctx, find).Err(); err != nil {
			t.Error(err)
		}
	})
	s.end(t, syscall.SIGTERM)
	if all := s.uri + s.stderr.String(); strings.Contains(all, "sesame") {
		t.Errorf("the password is shown:\n%s", all)
	}
}

// portsInARow returns the first of n ports in a row that are free. They are not of those that a system gives to
// listeners and connections without a port of their own: other tests would get them meanwhile.
func portsInARow(t *testing.T, n int) int {
	t.Helper()
	for range 100 {
		first := 10_000 + rand.IntN(20_000)
		free := true
		for i := 0; i < n && free; i++ {
			l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(first+i))
			if free = err == nil; free {
				_ = l.Close()
			}
		}
		if free {
			return first
		}
	}
	t.Fatal("there are no ports in a row")
	return 0
}
