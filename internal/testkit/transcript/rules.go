package transcript

import (
	"bytes"
	"encoding/binary"
	"maps"
	"regexp"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// rule decides whether a value that differs from run to run is as it should be.
type rule struct {
	name string
	same func(c *comparer, path string, want, got bson.RawValue) bool
}

var (
	// The cluster time is a clock's; its form is fixed.
	ruleGossip = rule{"gossip", func(_ *comparer, _ string, want, got bson.RawValue) bool { return sameForm(want, got) }}
	// A timestamp of the log stands for that of our entry which is in its place.
	ruleStamp = rule{"timestamp of an entry", func(c *comparer, path string, want, got bson.RawValue) bool {
		return c.stamp(path, want, got)
	}}
	// A prepared transaction is committed by the timestamp that preparing it gave.
	rulePrepare = rule{"timestamp of a prepare", func(c *comparer, path string, want, got bson.RawValue) bool {
		return c.stamp(path, want, got) && c.pairs.match(kindStamp, string(want.Value), string(got.Value))
	}}
	// Terms are counted from the start of a set; the recorded one had elections
	// before.
	ruleTerm = paired("term", kindTerm, bson.TypeInt64)
	// The election id is made of the term.
	ruleElection = rule{"electionId", func(c *comparer, _ string, want, got bson.RawValue) bool {
		return want.Type == got.Type && want.Type == bson.TypeObjectID &&
			bytes.Equal(want.Value[:4], got.Value[:4]) && c.pairs.match(kindTerm, reversed(want.Value[4:]), reversed(got.Value[4:]))
	}}
	// Cursor ids are random; 0 is none.
	ruleCursor = rule{"cursor id", func(c *comparer, _ string, want, got bson.RawValue) bool {
		none := make([]byte, 8)
		return want.Type == got.Type && want.Type == bson.TypeInt64 &&
			bytes.Equal(want.Value, none) == bytes.Equal(got.Value, none) && c.pairs.match(kindCursor, string(want.Value), string(got.Value))
	}}
	// UUIDs are random; one is given out for each that was recorded.
	ruleUUID = paired("uuid", kindUUID, bson.TypeBinary)
	// Members have other hosts.
	ruleHost = paired("host", kindHost, bson.TypeString)
	// How long something took, and when.
	ruleElapsed = sameType("elapsed", bson.TypeInt32)
	ruleWall    = sameType("wall clock", bson.TypeDateTime)
	// Collections on the way to another name or form are called by random letters.
	ruleTemporary = rule{"temporary name", func(c *comparer, _ string, want, got bson.RawValue) bool {
		w, wok := want.StringValueOK()
		g, gok := got.StringValueOK()
		if !wok || !gok {
			return false
		}
		wt, gt := temporary.FindStringSubmatch(w), temporary.FindStringSubmatch(g)
		if wt == nil || gt == nil {
			return w == g
		}
		return wt[1] == gt[1] && wt[3] == gt[3] && c.pairs.match(kindName, wt[2], gt[2])
	}}
)

var temporary = regexp.MustCompile(`^(.*\b)?(tmp[A-Za-z0-9]{5})(\..*)$`)

// replyRules are for replies.
var replyRules = map[string]rule{
	"$clusterTime":     ruleGossip,
	"operationTime":    ruleStamp,
	"opTime.ts":        ruleStamp,
	"opTime.t":         ruleTerm,
	"electionId":       ruleElection,
	"prepareTimestamp": rulePrepare,
	"cursor.id":        ruleCursor,
	"cursorsKilled.*":  ruleCursor, "cursorsNotFound.*": ruleCursor, "cursorsAlive.*": ruleCursor, "cursorsUnknown.*": ruleCursor,
	"host":                          ruleHost,
	"timeMillis":                    ruleElapsed,
	"cursor.firstBatch.*.info.uuid": ruleUUID,
}

// entryRules are for entries of the log.
var entryRules = map[string]rule{
	"ts": ruleStamp, "t": ruleTerm, "wall": ruleWall,
	"ui": ruleUUID, "o.applyOps.*.ui": ruleUUID, "o.dropTarget": ruleUUID,
	"prevOpTime.ts": ruleStamp, "prevOpTime.t": ruleTerm,
	"preImageOpTime.ts": ruleStamp, "preImageOpTime.t": ruleTerm,
	"postImageOpTime.ts": ruleStamp, "postImageOpTime.t": ruleTerm,
	"o.commitTimestamp": rulePrepare,
	"o.$clusterTime":    ruleGossip, // a user's applyOps is logged as it was sent
	"o.indexBuildUUID":  ruleUUID, "o.collectionUUID": ruleUUID,
	"o.create": ruleTemporary, "o.renameCollection": ruleTemporary, "o.to": ruleTemporary, "o.drop": ruleTemporary,
	"o.createIndexes": ruleTemporary, "ns": ruleTemporary,
	"o.diff.i.commitReadyMembers.*": ruleHost,
}

// bucketRules are for entries about the buckets of a time-series collection.
var bucketRules = func() map[string]rule {
	rules := maps.Clone(entryRules)
	for _, path := range []string{"o.data", "o.diff.sdata", "o.diff.sdata.i"} {
		rules[path] = ruleColumns
	}
	return rules
}()

// stamp takes note of a pair of timestamps, to be checked against the logs. Zero
// stands for no entry at all.
func (c *comparer) stamp(path string, want, got bson.RawValue) bool {
	wt, wi, wok := want.TimestampOK()
	gt, gi, gok := got.TimestampOK()
	if !wok || !gok || (wt == 0) != (gt == 0) {
		return false
	}
	c.pairs.stamps = append(c.pairs.stamps, stampPair{c.part, c.at, path, bson.Timestamp{T: wt, I: wi}, bson.Timestamp{T: gt, I: gi}})
	return true
}

func paired(name string, k kind, t bson.Type) rule {
	return rule{name, func(c *comparer, _ string, want, got bson.RawValue) bool {
		if want.Type != t {
			return want.Type == got.Type && bytes.Equal(want.Value, got.Value)
		}
		return got.Type == t && c.pairs.match(k, string(want.Value), string(got.Value))
	}}
}

func sameType(name string, t bson.Type) rule {
	return rule{name, func(_ *comparer, _ string, want, got bson.RawValue) bool { return want.Type == t && got.Type == t }}
}

// sameForm reports whether two values have the same fields, of the same types.
func sameForm(want, got bson.RawValue) bool {
	if want.Type != got.Type {
		return false
	}
	if want.Type != bson.TypeEmbeddedDocument {
		return true
	}
	w, g := rawbson.NewIter(want.Value), rawbson.NewIter(got.Value)
	for w.Next() {
		if !g.Next() || !w.Is(g.Name()) || !sameForm(w.Raw(), g.Raw()) {
			return false
		}
	}
	return !g.Next()
}

// reversed returns eight bytes in the other order: an election id holds the term
// with its highest byte first.
func reversed(b []byte) string {
	return string(binary.LittleEndian.AppendUint64(nil, binary.BigEndian.Uint64(b)))
}
