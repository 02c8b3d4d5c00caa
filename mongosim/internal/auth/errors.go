package auth

import "github.com/oplogrep/replicator/internal/mongo/servererr"

func authenticationFailed() error {
	return servererr.New(servererr.AuthenticationFailed, "Authentication failed.")
}

func mechanismUnavailable(name string) error {
	return servererr.New(servererr.MechanismUnavailable, "Received authentication for mechanism %s which is not enabled", name)
}

func protocolError(message string) error {
	return servererr.New(servererr.ProtocolError, "%s", message)
}

func noSuchKey(field string) error {
	return servererr.New(servererr.NoSuchKey, "Missing expected field \"%s\"", field)
}

func wrongPayload() error {
	return servererr.New(servererr.FailedToParse, "Wrong type for field; expected BinData or string for payload")
}

func noSuchRole(r Role) error {
	return servererr.New(servererr.RoleNotFound, "No role named %s@%s", r.Name, r.DB)
}

func noSuchUser(name userName) error {
	return servererr.New(servererr.UserNotFound, "User '%s' not found", name)
}
