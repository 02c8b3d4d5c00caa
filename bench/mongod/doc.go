// Package mongod starts real servers from a binary, to time a real secondary on the
// backlog that the replicator is timed on.
package mongod
