package initialsync

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// Stop returns an entry that is not before anything that the link's copy has read, from
// any member. A member's own newest entry is enough as long as it is the only one and
// unchanged. Otherwise the newest entry of most of the voting members is: everything read
// was majority-committed, so one of them has it, unless it was resynced from one that has
// not. So Stop is not before the last entry of the spool either, nor before the newest entry
// that members have reported to this process.
func (m *Members) Stop(ctx context.Context, c *checkpoint.Copy, spooled oplog.OpTime) (oplog.OpTime, error) {
	shown := m.shown.newest() // before members are asked: their replies may show later entries
	member := m.cfg.Dialer.Member(c.Host)
	stop, err := origin.Stop(ctx, member, c.Begin)
	if err == nil && c.Moves == 0 {
		err = origin.Check(ctx, member, identityOf(c, m.set))
		if err == nil {
			return stop, nil
		}
	}
	if err != nil && !isChanged(err) {
		return stop, err
	}
	view := m.cfg.Watcher.View()
	switch {
	case m.cfg.Direct:
		return stop, &NoMemberError{Err: fmt.Errorf("%w: %w", errUnknownSet, err)}
	case view.ConfigFault != "":
		return stop, fmt.Errorf("%w: find where the copy ends: %w: %s", ErrNoMember, errUnknownSet, view.ConfigFault)
	case view.ConfigUnread:
		return stop, fmt.Errorf("%w: find where the copy ends: %w", ErrNoMember, errUnread)
	}
	if stop, err = m.newestOfMost(ctx, &view, stop); err != nil {
		return stop, err
	}
	if spooled.After(stop) {
		stop = spooled
	}
	if oplog.CompareTimestamps(stop.TS, shown) < 0 {
		// That passes: committed entries come to them.
		return stop, fmt.Errorf("%w: the newest entry of most of the voting members is %s, and the newest entry read is %d.%d: it is asked for again",
			ErrNoMember, stop, shown.T, shown.I)
	}
	return stop, nil
}

// newestOfMost returns the newest entry of more than half of the voting members that have
// data, or stop if that is newer. One that lags, even on purpose, counts too: any majority
// has a member in common with the one that committed the entries that were read.
func (m *Members) newestOfMost(ctx context.Context, view *syncsource.View, stop oplog.OpTime) (oplog.OpTime, error) {
	var failed []error
	voters, asked, electable := 0, 0, 0
	host := ""
	for i := range view.Members {
		v := &view.Members[i]
		if v.Arbiter || v.NonVoting || v.Stranger {
			continue
		}
		voters++
		if v.Fault != "" { // it may be of another set
			failed = append(failed, fmt.Errorf("%s %s", v.Host, v.Fault))
			continue
		}
		newest, err := origin.Stop(ctx, m.cfg.Dialer.Member(v.Host), oplog.OpTime{})
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if asked++; v.Priority > 0 {
			electable++
		}
		host = v.Host
		if newest.After(stop) {
			stop = newest
		}
	}
	if 2*asked > voters {
		return stop, nil
	}
	if n := m.writable(ctx, view, host); n > 0 && 2*electable > n {
		return stop, nil
	}
	return stop, fmt.Errorf("%w: it was read from several members, and its end needs most of the set's voting members: %d of %d were asked for their newest entry: %w",
		ErrNoMember, asked, voters, errors.Join(failed...))
}

// writable returns how many voting members with data a set has, as one of them counts them, 0 if that is not known. A member that was added
// with priority 0, and has not made its first sync, has no vote although the configuration says so. So no member with that priority is
// known to have one; nor any, before a member has said which of the others were added.
func (m *Members) writable(ctx context.Context, view *syncsource.View, host string) int {
	if host == "" || view.VotesUnsure {
		return 0
	}
	reply, err := m.cfg.Dialer.Member(host).Call(ctx, mongo.Command{DB: "admin", Body: bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("replSetGetStatus", 1).Build())})
	if err != nil {
		return 0 // The user may not ask for it, for example.
	}
	members, _ := reply.Lookup("members").ArrayOK()
	list, _ := members.Values()
	for _, v := range list {
		doc, _ := v.DocumentOK()
		self, _ := doc.Lookup("self").BooleanOK()
		if version, ok := doc.Lookup("configVersion").AsInt64OK(); !self || !ok || version != view.ConfigVersion {
			continue // It counts those of another configuration.
		}
		if term, ok := doc.Lookup("configTerm").AsInt64OK(); ok && term != view.ConfigTerm {
			continue // As the primary of an earlier term may have changed it.
		}
		n, _ := reply.Lookup("writableVotingMembersCount").AsInt64OK()
		return int(n)
	}
	return 0
}

// shown is the newest operationTime of the replies of the members that a copy is read from.
// It is safe for concurrent use.
type shown struct {
	mu sync.Mutex
	at bson.Timestamp
}

func (s *shown) newest() bson.Timestamp {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

func (s *shown) raise(at bson.Timestamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if oplog.CompareTimestamps(at, s.at) > 0 {
		s.at = at
	}
}

// observe returns a caller for a member that a copy is read from: its errors are
// *readErrors, and m.shown observes its replies.
func (m *Members) observe(member mongo.Caller, host string) mongo.Caller {
	return &observed{member, host, &m.shown}
}

type observed struct {
	mongo.Caller
	host  string
	shown *shown
}

// Host returns the address of the member.
func (o *observed) Host() string { return o.host }

// Call implements mongo.Caller.
func (o *observed) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := o.Caller.Call(ctx, cmd)
	if err != nil {
		return reply, asReadError(ctx, err)
	}
	if isMajority(cmd.Body) {
		if t, i, ok := reply.Lookup("operationTime").TimestampOK(); ok {
			o.shown.raise(bson.Timestamp{T: t, I: i})
		}
	}
	return reply, nil
}

// isMajority reports whether a command reads with read concern majority. The reply of any
// other one may have a time that is rolled back. Of the commands of a copy, a getMore is
// one: it has the read concern of its cursor.
func isMajority(cmd bson.Raw) bool {
	if _, err := cmd.LookupErr("getMore"); err == nil {
		return true
	}
	level, _ := cmd.Lookup("readConcern", "level").StringValueOK()
	return level == "majority"
}
