package driver

import "go.mongodb.org/mongo-driver/v2/x/mongo/driver"

// SetLogin makes a Set reauthenticate with a.
func (s *Set) SetLogin(a driver.Authenticator) { s.sender.login = a }
