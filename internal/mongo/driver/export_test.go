package driver

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
)

// SetLogin makes a Set reauthenticate with a.
func (s *Set) SetLogin(a driver.Authenticator) { s.sender.login = a }

// ThroughDriver makes a Set send and receive many commands in a row as with TLS.
func (s *Set) ThroughDriver() { s.sender.throughDriver = true }

// Fault is what the monitor of a server is given for err.
func Fault(ctx context.Context, err error) error { return new(stream).fault(ctx, err) }
