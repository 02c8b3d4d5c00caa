// Package metadata is shared by all packages that store documents in the metadata
// database of the target: it has the names of the collections, commands on them, and a
// reader of their documents.
//
// Every document but those of locks, shares and agents belongs to a link. Its _id is the link's name, or begins with the
// name and a slash, or is a document with the name in its field link.
package metadata

import "go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

// The collections. Prepare in package checkpoint creates those that are written in
// transactions: not every server creates a collection within one.
const (
	// Links has one document per link: its lease, its settings, and its checkpoint.
	Links = "links"
	// Lanes has one document per lane: the position of its writer in the oplog.
	Lanes = "lanes"
	// Routes has the collections of the target whose operations all go to one lane.
	Routes = "routes"
	// Copies has the collections of an initial sync and their ranges.
	Copies = "copies"
	// Requests has the requests of operators to links.
	Requests = "requests"
	// Control has the settings that operators have made, one document for each link, and their requests: see
	// package request. Releases that do not know it ignore it.
	Control = "control"
	// Deferred has index options that are deferred until cutover.
	Deferred = "deferred"
	// Builds has index builds that run on the target and are not committed at the source.
	Builds = "builds"
	// Oversized has documents that were too large for the target during a copy.
	Oversized = "oversized"
	// Diverged has the operations that met on the target what they cannot have met at the source, and after which a
	// link has continued: see checkpoint.Diverged. Releases that do not know it ignore it.
	Diverged = "diverged"
	// Missing has the names of collections that a copy lacks.
	Missing = "missing"
	// Terms has the last terms of links that were removed, and a document by which a database that was dropped and made again is known.
	Terms = "terms"
	// Renames has the last rename over another collection that was applied to a copy.
	Renames = "renames"
	// Cuts has the newest consistent cuts of links.
	Cuts = "cuts"
	// Begins has a document for each way back that is about to begin: see checkpoint.Store.Intend.
	Begins = "begins"
	// Cutovers has the newest cutover of each link: see package cutover/record. Releases that do not
	// know it ignore it; the document of the link itself says when it must not apply.
	Cutovers = "cutovers"
	// Guard has the foreign writes to the target, and Commands the commands that links
	// have announced to its oplog: see package guard. Releases that do not know them ignore them.
	Guard    = "guard"
	Commands = "commands"
	// Verified has the ranges of collections that a verification of a link has compared, for
	// one that resumes it: see package verify. The link does not depend on it.
	Verified = "verified"
	// History has the figures and events of the last 24 hours: see package history. They do not
	// depend on it.
	History = "history"
	// Locks has the named locks, LockPings when the processes were last alive that take
	// them: see package lease/locks. They belong to no link.
	Locks     = "locks"
	LockPings = "lockpings"
	// Shares has the assignments of groups, ShareMembers their members: see package
	// lease/share. They belong to no link.
	Shares       = "shares"
	ShareMembers = "sharemembers"
	// AgentFailures has how links have ended that agents run. It belongs to groups of agents.
	AgentFailures = "agentfailures"
)

// Documents are the documents of a link in one collection.
type Documents struct {
	Collection string
	Filter     func(dst []byte) []byte
}

// DocumentsOf returns the documents of a link that have no meaning without it: all but its
// own ones in Links and Terms, and those in Deferred, which belong to the collections of the target.
func DocumentsOf(link string) []Documents {
	return []Documents{
		{Lanes, Below(link)},
		{Routes, Below(link)},
		{Copies, Below(link)},
		{Requests, OfLink(link)},
		{Control, OfLink(link)},
		{Missing, Below(link)},
		{Renames, ByID(link)},
		{Cuts, ByID(link)},
		{Begins, ByID(link)},
		{Cutovers, ByID(link)},
		{Verified, Below(link)},
		{Diverged, Below(link)},
		{History, ByID(link)},
		{Guard, OfLink(link)},
		{Commands, func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "_id.link", link) }},
		{Builds, func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "_id.link", link) }},
		{Oversized, func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "_id.link", link) }},
	}
}
