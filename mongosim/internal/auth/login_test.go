package auth

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"testing"

	"github.com/xdg-go/scram"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

func document(t testing.TB, fields ...any) bson.Raw {
	t.Helper()
	d := bson.D{}
	for i := 0; i < len(fields); i += 2 {
		d = append(d, bson.E{Key: fields[i].(string), Value: fields[i+1]})
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func manager(t testing.TB, cfg Config) *Manager {
	t.Helper()
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// wantCode checks an error's code.
func wantCode(t testing.TB, err error, code servererr.Code) {
	t.Helper()
	if e, ok := errors.AsType[*servererr.Error](err); !ok || e.Code != code {
		t.Fatalf("error %v, want code %v", err, code)
	}
}

// loggedIn returns a connection of a user of the database admin.
func loggedIn(m *Manager, name string) *dispatch.Conn {
	u := m.users[userName{name, "admin"}]
	return &dispatch.Conn{Login: &login{users: []identity{{u.userName, u.id}}}}
}

type client struct {
	mechanism, user, password, db string
	// skip asks for the short form of the exchange.
	skip bool
}

func (c client) steps(t testing.TB) *scram.ClientConversation {
	t.Helper()
	hash, password := scram.SHA256, c.password
	if c.mechanism == sha1Name {
		sum := md5.Sum([]byte(c.user + ":mongo:" + password)) //nolint:gosec // see the import
		hash, password = scram.SHA1, hex.EncodeToString(sum[:])
	}
	made, err := hash.NewClient(c.user, password, "")
	if err != nil {
		t.Fatal(err)
	}
	return made.NewConversation()
}

// logIn has a whole conversation and returns how many replies it took.
func (c client) logIn(t testing.TB, m *Manager, conn *dispatch.Conn) (rounds int, err error) {
	t.Helper()
	steps := c.steps(t)
	first, err := steps.Step("")
	if err != nil {
		t.Fatal(err)
	}
	reply, err := m.Start(conn, c.db, document(t, "saslStart", 1, "mechanism", c.mechanism, "payload", []byte(first),
		"options", bson.D{{Key: "skipEmptyExchange", Value: c.skip}}))
	for err == nil {
		rounds++
		_, payload := reply.Lookup("payload").Binary()
		answer := ""
		if !steps.Done() {
			if answer, err = steps.Step(string(payload)); err != nil {
				return rounds, err
			}
		}
		if reply.Lookup("done").Boolean() {
			if !steps.Valid() {
				t.Fatal("the server says done before it has proven itself")
			}
			return rounds, nil
		}
		reply, err = m.Continue(conn, c.db, document(t, "saslContinue", 1,
			"conversationId", reply.Lookup("conversationId").Int32(), "payload", []byte(answer)))
	}
	return rounds, err
}

func TestLogin(t *testing.T) {
	t.Parallel()
	m := manager(t, Config{
		Users: []User{
			{Name: "ann", Password: "pass word", Roles: []Role{{"root", ""}}},
			{Name: "bob", Password: "pb", DB: "app", Roles: []Role{{"read", ""}}},
		},
		Keyfile: " se\ncr et\n",
	})
	for _, c := range []struct {
		name   string
		client client
		rounds int
		code   servererr.Code
	}{
		{"sha-256", client{sha256Name, "ann", "pass word", "admin", false}, 3, 0},
		{"sha-256, short", client{sha256Name, "ann", "pass word", "admin", true}, 2, 0},
		{"sha-1", client{sha1Name, "ann", "pass word", "admin", true}, 2, 0},
		{"another database", client{sha256Name, "bob", "pb", "app", true}, 2, 0},
		{"the keyfile", client{sha256Name, "__system", "secret", "local", true}, 2, 0},
		{"wrong password", client{sha256Name, "ann", "password", "admin", true}, 1, servererr.AuthenticationFailed},
		{"wrong database", client{sha256Name, "bob", "pb", "admin", true}, 0, servererr.AuthenticationFailed},
		{"nobody", client{sha256Name, "eve", "x", "admin", true}, 0, servererr.AuthenticationFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn := &dispatch.Conn{}
			rounds, err := c.client.logIn(t, m, conn)
			if rounds != c.rounds {
				t.Errorf("%d replies, want %d", rounds, c.rounds)
			}
			who := m.Status(conn, true).Lookup("authenticatedUsers").Array()
			if c.code != 0 {
				wantCode(t, err, c.code)
				wantCode(t, m.Check(conn, "", "", "", document(t, "ping", 1, "$db", "admin")), servererr.Unauthorized)
				if vs, _ := who.Values(); len(vs) != 0 {
					t.Fatalf("logged in as %s", who)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := who.Index(0).Document().Lookup("user").StringValue(); got != c.client.user {
				t.Errorf("logged in as %s", who)
			}
			if want := sha256.Sum256([]byte(c.client.user + "@" + c.client.db)); m.UserID(conn) != want {
				t.Error("the uid is not the digest of the name")
			}
			m.Logout(conn, c.client.db)
			wantCode(t, m.Check(conn, "", "", "", document(t, "ping", 1)), servererr.Unauthorized)
		})
	}
}

// TestConversationFaults sends invalid messages of a client.
func TestConversationFaults(t *testing.T) {
	t.Parallel()
	m := manager(t, Config{Users: []User{{Name: "ann", Password: "p"}}})
	c := client{sha256Name, "ann", "p", "admin", true}
	start := func(conn *dispatch.Conn) string {
		first, err := c.steps(t).Step("")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Start(conn, "admin", document(t, "saslStart", 1, "mechanism", sha256Name, "payload", []byte(first))); err != nil {
			t.Fatal(err)
		}
		return first
	}
	next := func(conn *dispatch.Conn, db string, fields ...any) error {
		_, err := m.Continue(conn, db, document(t, append([]any{"saslContinue", 1}, fields...)...))
		return err
	}

	conn := &dispatch.Conn{}
	wantCode(t, next(conn, "admin", "conversationId", 1, "payload", []byte("x")), servererr.ProtocolError)
	start(conn)
	wantCode(t, next(conn, "admin", "conversationId", 2, "payload", []byte("x")), servererr.ProtocolError)
	wantCode(t, next(conn, "admin", "conversationId", 1, "payload", []byte("x")), servererr.ProtocolError)
	start(conn)
	wantCode(t, next(conn, "test", "conversationId", 1, "payload", []byte("x")), servererr.ProtocolError)
	start(conn)
	wantCode(t, next(conn, "admin", "conversationId", 1, "payload", []byte("x")), servererr.AuthenticationFailed)
	start(conn)
	wantCode(t, next(conn, "admin", "conversationId", 1), servererr.NoSuchKey)
	_, err := m.Start(conn, "admin", document(t, "saslStart", 1, "mechanism", "PLAIN", "payload", []byte("x")))
	wantCode(t, err, servererr.MechanismUnavailable)
	_, err = m.Start(conn, "admin", document(t, "saslStart", 1, "mechanism", sha256Name, "payload", 5))
	wantCode(t, err, servererr.FailedToParse)
	_, err = m.Start(conn, "admin", document(t, "saslStart", 1, "payload", []byte("x")))
	wantCode(t, err, servererr.NoSuchKey)
}

func TestNewFaults(t *testing.T) {
	t.Parallel()
	for _, users := range [][]User{
		{{Name: "", Password: "p"}},
		{{Name: "a", Password: "p", Roles: []Role{{"emperor", "admin"}}}},
		{{Name: "a", Password: "p", DB: "app", Roles: []Role{{"root", ""}}}},
		{{Name: "a", Password: "p"}, {Name: "a", Password: "q"}},
		{{Name: "a", Password: "\u0007"}},
	} {
		if _, err := New(Config{Users: users}); err == nil {
			t.Errorf("users %v are taken", users)
		}
	}
}

func TestMechanisms(t *testing.T) {
	t.Parallel()
	m := manager(t, Config{Users: []User{{Name: "ann", Password: "p"}}})
	if got := m.Mechanisms("ann", "admin"); !slices.Equal(got, []string{sha256Name, sha1Name}) {
		t.Errorf("mechanisms %v", got)
	}
	if got := m.Mechanisms("eve", "admin"); got != nil {
		t.Errorf("mechanisms of nobody: %v", got)
	}
}

// FuzzConversation feeds payloads to both steps.
func FuzzConversation(f *testing.F) {
	f.Add("n,,n=ann,r=abc", "c=biws,r=abc,p=AAAA")
	f.Add("", "")
	f.Add("p=tls-unique,,n=ann,r=abc", "v=1")
	m := manager(f, Config{Users: []User{{Name: "ann", Password: "p"}}})
	f.Fuzz(func(t *testing.T, first, second string) {
		conn := &dispatch.Conn{}
		if _, err := m.Start(conn, "admin", document(t, "saslStart", 1, "mechanism", sha256Name, "payload", []byte(first))); err != nil {
			return
		}
		if _, err := m.Continue(conn, "admin", document(t, "saslContinue", 1, "conversationId", 1, "payload", []byte(second))); err == nil {
			t.Fatal("logged in without the password")
		}
	})
}
