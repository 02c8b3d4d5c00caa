package driver

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
)

// SetLogin makes a Set reauthenticate with a.
func (s *Set) SetLogin(a driver.Authenticator) { s.sender.login = a }

// ThroughDriver makes a Set send and receive many commands in a row as with TLS.
func (s *Set) ThroughDriver() { s.sender.throughDriver = true }

// Fault is what the monitor of a server is given for err.
func Fault(ctx context.Context, err error) error { return new(stream).fault(ctx, err) }

// Logins returns what begins a login of each new connection, nil if that is left to Auth. DNS has named the database of
// the login.
func Logins(o *Options, source string) (func() (bson.Raw, error), error) {
	client := options.Client().ApplyURI(o.uri.direct().text(false))
	client.Auth.AuthSource = source
	c, err := newCredentials(o, client)
	return func() (bson.Raw, error) {
		early, err := c.CreateSpeculativeConversation()
		if early == nil || err != nil {
			return nil, err
		}
		first, err := early.FirstMessage()
		return bson.Raw(first), err
	}, err
}
