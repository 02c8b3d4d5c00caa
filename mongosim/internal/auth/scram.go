package auth

import (
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"

	"github.com/xdg-go/scram"
	"github.com/xdg-go/stringprep"
)

// The mechanisms.
const (
	sha256Name = "SCRAM-SHA-256"
	sha1Name   = "SCRAM-SHA-1"
)

// mechanism says how a mechanism makes its keys: the server's iteration counts,
// and salts such that salt and block number fill one hash.
type mechanism struct {
	hash             scram.HashGeneratorFcn
	iterations, salt int
}

var mechanisms = map[string]mechanism{
	sha256Name: {scram.SHA256, 15_000, 28},
	sha1Name:   {scram.SHA1, 10_000, 16},
}

// errUnknownUser ends a conversation about a user that does not exist.
var errUnknownUser = errors.New("unknown user")

// secret has the keys of a user's password for one mechanism. Deriving them
// takes some milliseconds and is done on first use.
type secret struct {
	client  *scram.Client
	factors scram.KeyFactors
	keys    func() (scram.StoredCredentials, error)
}

func newSecret(name, user, password string, rng *rand.Rand) (*secret, error) {
	mech, ok := mechanisms[name]
	if !ok {
		return nil, fmt.Errorf("mechanism %q is not known", name)
	}
	salt := make([]byte, mech.salt)
	for i := range salt {
		salt[i] = byte(rng.Uint32())
	}
	s := &secret{factors: scram.KeyFactors{Salt: string(salt), Iters: mech.iterations}}
	var err error
	if name == sha1Name {
		sum := md5.Sum([]byte(user + ":mongo:" + password)) //nolint:gosec // see the import
		password = hex.EncodeToString(sum[:])
	} else if password, err = stringprep.SASLprep.Prepare(password); err != nil {
		return nil, fmt.Errorf("prepare the password: %w", err)
	}
	if s.client, err = mech.hash.NewClientUnprepped(user, password, ""); err != nil {
		return nil, err
	}
	s.keys = sync.OnceValues(func() (scram.StoredCredentials, error) {
		return s.client.GetStoredCredentialsWithError(s.factors)
	})
	return s, nil
}

// newConversation begins the server's side of a login to a database.
func (m *Manager) newConversation(name, db string) (*conversation, error) {
	mech, ok := mechanisms[name]
	if !ok {
		return nil, mechanismUnavailable(name)
	}
	talk := &conversation{db: db}
	server, err := mech.hash.NewServer(func(user string) (scram.StoredCredentials, error) {
		u, ok := m.find(userName{user, db})
		if !ok || u.secrets[name] == nil {
			return scram.StoredCredentials{}, errUnknownUser
		}
		talk.who = &identity{u.userName, u.id}
		return u.secrets[name].keys()
	})
	if err != nil {
		return nil, err
	}
	talk.steps = server.NewConversation()
	return talk, nil
}

func index(n int) string { return strconv.Itoa(n) }
