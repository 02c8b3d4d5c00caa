package main

import (
	"context"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// oldMember is a member of an old source: primary, secondary or another state, and the increment of its newest entry.
type oldMember struct {
	state string
	has   uint32
}

// Call implements mongo.Caller.
func (m oldMember) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	it := rawbson.NewIter(cmd.Body)
	switch it.Next(); {
	case m.state == "down":
		return nil, errors.New("no such host")
	case it.Name() == "find":
		entry := bson.D{{Key: "ts", Value: bson.Timestamp{T: 100, I: m.has}}, {Key: "t", Value: int64(1)}}
		return bson.Marshal(bson.D{{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "local.oplog.rs"}, {Key: "firstBatch", Value: bson.A{entry}}}}, {Key: "ok", Value: 1}})
	default:
		return bson.Marshal(bson.D{{Key: "isWritablePrimary", Value: m.state == "primary"}, {Key: "secondary", Value: m.state == "secondary"}, {Key: "setName", Value: "rs"}, {Key: "ok", Value: 1}})
	}
}

// TestFurthest: the member that is read is one whose documents can be read, if there is one; of these the one that has the most, and the
// primary if others have as much. One in RECOVERING, whose oplog is served, is named if it has more.
func TestFurthest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		members      []oldMember
		want, unread string
	}{
		"the primary, of two that tie":              {members: []oldMember{{"secondary", 5}, {"primary", 5}}, want: "1"},
		"the secondary that has more":               {members: []oldMember{{"primary", 5}, {"secondary", 6}}, want: "1"},
		"not one in RECOVERING that ties":           {members: []oldMember{{"recovering", 5}, {"secondary", 5}}, want: "1"},
		"nor if it is asked later":                  {members: []oldMember{{"secondary", 5}, {"recovering", 5}}, want: "0"},
		"nor if it has more":                        {members: []oldMember{{"recovering", 7}, {"secondary", 5}, {"recovering", 6}}, want: "1", unread: "0"},
		"unless there is no other one":              {members: []oldMember{{"down", 0}, {"recovering", 5}, {"recovering", 6}}, want: "2"},
		"a secondary before one that does not tell": {members: []oldMember{{"", 5}, {"down", 9}, {"secondary", 3}}, want: "2", unread: "0"},
		"none": {members: []oldMember{{"down", 0}}},
	} {
		var hosts []string
		for i := range c.members {
			hosts = append(hosts, string(rune('0'+i)))
		}
		best, unread, err := furthest(t.Context(), func(host string) mongo.Caller { return c.members[host[0]-'0'] }, hosts)
		if (err == nil) != (best != nil) || best != nil && best.host != c.want || best == nil && c.want != "" {
			t.Errorf("%s: %+v is read, want %s: %v", name, best, c.want, err)
		}
		if (unread == nil) != (c.unread == "") || unread != nil && unread.host != c.unread {
			t.Errorf("%s: %+v is said to have more, want %q", name, unread, c.unread)
		}
	}
}
