package driver

import "go.mongodb.org/mongo-driver/v2/x/mongo/driver"

// SetLogin makes a Set log in again by a.
func (s *Set) SetLogin(a driver.Authenticator) { s.sender.login = a }
