package spool

// Keys of the events' attributes.
const (
	keyDir     = "dir"
	keyFile    = "file"
	keyOffset  = "offset"
	keyBytes   = "bytes"
	keyLimit   = "limit"
	keyFree    = "free" // on the disk, in bytes
	keyEntries = "entries"
	keyFirst   = "first"
	keyLast    = "last"
	keyWhy     = "why"
	keyFor     = "for"
	keyID      = "id"
	keyWas     = "was" // the id of the spool whose files were in the folder
)
