package auth

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"unicode"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

// Config configures a Manager.
type Config struct {
	Users []User
	// Keyfile is the content of the set's keyfile; "" disables logins as __system.
	Keyfile string
	// Seed decides the salts.
	Seed int64
	// Major is the server's major version, whose built-in roles there are. Default 5.
	Major int
}

// User is a user of a database.
type User struct {
	Name, Password string
	// DB is the database that the user logs in to; "" means admin.
	DB    string
	Roles []Role
}

// Role is a role of a database, built-in or made by createRole; an empty DB means
// the user's.
type Role struct{ Name, DB string }

// Manager is access control for the members of a set. It is safe for concurrent
// use.
type Manager struct {
	// mu guards the fields below.
	mu    sync.RWMutex
	users map[userName]*user
	// roles are those that createRole made.
	roles map[Role]*role
	rng   *rand.Rand
	major int
}

var _ dispatch.Authorizer = (*Manager)(nil)

// userName is a user's name as a key.
type userName struct{ name, db string }

func (n userName) String() string { return n.name + "@" + n.db }

// user is a user; it is replaced, never changed.
type user struct {
	userName
	id      [16]byte
	secrets map[string]*secret // by mechanism
	roles   []Role
	powers  []privilege
}

// system is the user that members log in as.
var system = userName{"__system", "local"}

// New checks the users and makes a Manager.
func New(cfg Config) (*Manager, error) {
	m := &Manager{
		users: map[userName]*user{}, roles: map[Role]*role{}, major: cmp.Or(cfg.Major, timeseriesSince),
		rng: rand.New(rand.NewPCG(uint64(cfg.Seed), 0xa117)), //nolint:gosec // salts of a test server need no secrecy
	}
	var faults []error
	for _, u := range cfg.Users {
		if u.DB == "" {
			u.DB = "admin"
		}
		made, err := m.newUser(u, nil)
		switch {
		case err != nil:
			faults = append(faults, fmt.Errorf("auth: user %s@%s: %w", u.Name, u.DB, err))
		case m.users[made.userName] != nil:
			faults = append(faults, fmt.Errorf("auth: user %s is there twice", made.userName))
		default:
			m.users[made.userName] = made
		}
	}
	if cfg.Keyfile != "" {
		key := strings.Map(func(r rune) rune {
			if unicode.IsSpace(r) {
				return -1
			}
			return r
		}, cfg.Keyfile)
		made, err := m.newUser(User{Name: system.name, Password: key, DB: system.db, Roles: []Role{{"__system", "admin"}}}, nil)
		if err != nil {
			faults = append(faults, fmt.Errorf("auth: keyfile: %w", err))
		} else {
			m.users[system] = made
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return m, nil
}

// newUser computes a user's credentials; mechanisms nil means all. Callers hold
// mu or have the Manager for themselves.
func (m *Manager) newUser(u User, mechanisms []string) (*user, error) {
	if u.Name == "" {
		return nil, errors.New("a user needs a name")
	}
	made := &user{userName: userName{u.Name, u.DB}, secrets: map[string]*secret{}}
	for i := range made.id {
		made.id[i] = byte(m.rng.Uint32())
	}
	made.id[6], made.id[8] = made.id[6]&0x0f|0x40, made.id[8]&0x3f|0x80
	if mechanisms == nil {
		mechanisms = []string{sha256Name, sha1Name}
	}
	for _, name := range mechanisms {
		s, err := newSecret(name, u.Name, u.Password, m.rng)
		if err != nil {
			return nil, err
		}
		made.secrets[name] = s
	}
	return made, m.setRoles(made, u.Roles)
}

// setRoles gives a user roles in place of those that it had. Callers hold mu or have
// the Manager for themselves.
func (m *Manager) setRoles(u *user, roles []Role) error {
	u.roles, u.powers = nil, nil
	for _, r := range roles {
		if r.DB == "" {
			r.DB = u.db
		}
		powers, ok := m.powers(r)
		if !ok {
			return noSuchRole(r)
		}
		if !slices.Contains(u.roles, r) {
			u.roles = append(u.roles, r)
			u.powers = append(u.powers, powers...)
		}
	}
	return nil
}

// find returns a user.
func (m *Manager) find(name userName) (*user, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	u, ok := m.users[name]
	return u, ok
}

// Mechanisms returns the mechanisms that a user can log in with, nil for one that
// there is not: saslSupportedMechs of hello.
func (m *Manager) Mechanisms(name, db string) []string {
	u, ok := m.find(userName{name, db})
	if !ok {
		return nil
	}
	return u.mechanisms()
}

func (u *user) mechanisms() []string {
	var names []string
	for _, name := range []string{sha256Name, sha1Name} {
		if u.secrets[name] != nil {
			names = append(names, name)
		}
	}
	return names
}

// UserID is the digest of the connection's user that is part of its session ids;
// that of the empty name without a login.
func (m *Manager) UserID(c *dispatch.Conn) [32]byte {
	users := m.loggedIn(c)
	if len(users) == 0 {
		return sha256.Sum256(nil)
	}
	return sha256.Sum256([]byte(users[0].String()))
}

// Status is authInfo of connectionStatus: {authenticatedUsers,
// authenticatedUserRoles}, and authenticatedUserPrivileges if asked for.
func (m *Manager) Status(c *dispatch.Conn, showPrivileges bool) bson.Raw {
	users := m.loggedIn(c)
	top, doc := bsoncore.AppendDocumentStart(nil)
	i, doc := bsoncore.AppendArrayElementStart(doc, "authenticatedUsers")
	for n, u := range users {
		doc = bsoncore.AppendDocumentElement(doc, index(n), pair("user", u.name, u.db))
	}
	doc, _ = bsoncore.AppendArrayEnd(doc, i)
	i, doc = bsoncore.AppendArrayElementStart(doc, "authenticatedUserRoles")
	n := 0
	for _, u := range users {
		for _, r := range u.roles {
			doc = bsoncore.AppendDocumentElement(doc, index(n), pair("role", r.Name, r.DB))
			n++
		}
	}
	doc, _ = bsoncore.AppendArrayEnd(doc, i)
	if showPrivileges {
		i, doc = bsoncore.AppendArrayElementStart(doc, "authenticatedUserPrivileges")
		n = 0
		for _, u := range users {
			for j := range u.powers {
				doc = bsoncore.AppendDocumentElement(doc, index(n), u.powers[j].document())
				n++
			}
		}
		doc, _ = bsoncore.AppendArrayEnd(doc, i)
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, top)
	return doc
}

// pair is {what: name, db: db}.
func pair(what, name, db string) []byte {
	return bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(bsoncore.AppendStringElement(nil, what, name), "db", db))
}
