// Package admin has the commands about the member and its set: hello, serverStatus,
// parameters, the feature compatibility version, users and roles, the replSet…
// commands, and those that members send to each other.
package admin
