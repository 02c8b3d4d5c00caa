package mongoboard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease/share"
)

// Board is a share.Board in a database of a replica set.
type Board struct {
	target mongo.Caller
	db     string
}

// New returns a Board in the database db. Target runs commands on the primary, and must not
// retry.
func New(target mongo.Caller, db string) *Board { return &Board{target: target, db: db} }

// Open connects to a replica set with connections of its own. Close must be called with
// what it returns.
func Open(ctx context.Context, uri, db string) (board *Board, shut func(), err error) {
	options, err := driver.Parse(driver.Config{URI: uri, AppName: "replicator shares"})
	if err != nil {
		return nil, nil, fmt.Errorf("open the board: %w", err)
	}
	set, err := driver.Open(ctx, options)
	if err != nil {
		return nil, nil, fmt.Errorf("open the board: %w", err)
	}
	return New(set, db), set.Close, nil
}

// id is the _id of a member. A group's name has no slash.
func id(group, member string) string { return group + "/" + member }

// Beat implements share.Board.
func (b *Board) Beat(ctx context.Context, group string, m share.Member, taken time.Duration) (share.Member, error) {
	now, err := b.beat(ctx, group, &m, taken)
	if servererr.IsDuplicateKey(err) { // another process has created the document meanwhile
		now, err = b.beat(ctx, group, &m, taken)
	}
	if err != nil {
		return share.Member{}, fmt.Errorf("record that %s is alive: %w", m.Name, err)
	}
	return now, nil
}

func (b *Board) beat(ctx context.Context, group string, m *share.Member, taken time.Duration) (share.Member, error) {
	body, err := bson.Marshal(bson.D{
		{Key: "findAndModify", Value: metadata.ShareMembers},
		{Key: "query", Value: bson.D{{Key: "_id", Value: id(group, m.Name)}}},
		{Key: "update", Value: bson.A{bson.D{{Key: "$replaceWith", Value: beating(m, taken)}}}},
		{Key: "new", Value: true},
		{Key: "upsert", Value: true},
	})
	if err != nil {
		return share.Member{}, fmt.Errorf("build the statement: %w", err)
	}
	reply, err := b.target.Call(ctx, metadata.PrimaryOnly(mongo.Command{DB: b.db, Body: body}))
	if err != nil {
		return share.Member{}, err
	}
	value, ok := reply.Lookup("value").DocumentOK()
	if !ok {
		return share.Member{}, errors.New("the server returned no document")
	}
	return parseMember(group, value)
}

// Leave implements share.Board.
func (b *Board) Leave(ctx context.Context, group, member, process string) error {
	// In one command, unless it is drained: nothing is left on the board if the next one fails.
	err := b.drop(ctx, group, member, process)
	if err == nil {
		err = b.update(ctx, bson.D{{Key: "_id", Value: id(group, member)}, {Key: fieldProcess, Value: process}}, unset(), false)
	}
	if err == nil {
		err = b.drop(ctx, group, member, "")
	}
	if err != nil {
		return fmt.Errorf("remove %s from the board: %w", member, err)
	}
	return nil
}

// drop removes a member that is not drained and has that process, or none if process is empty.
func (b *Board) drop(ctx context.Context, group, member, process string) error {
	return metadata.Run(ctx, b.target, metadata.Majority(metadata.Delete(b.db, metadata.ShareMembers, func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "_id", id(group, member))
		if process != "" {
			dst = bsoncore.AppendStringElement(dst, fieldProcess, process)
		} else {
			dst = metadata.AppendDoc(dst, fieldProcess, func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, "$exists", false) })
		}
		return metadata.AppendDoc(dst, fieldDrained, func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, "$ne", true) })
	})), -1)
}

// SetDrain implements share.Board.
func (b *Board) SetDrain(ctx context.Context, group, member string, drained bool) error {
	err := b.update(ctx, bson.D{{Key: "_id", Value: id(group, member)}}, bson.D{{Key: "$set", Value: bson.D{{Key: fieldDrained, Value: drained}}}}, true)
	if err == nil && !drained {
		err = b.drop(ctx, group, member, "")
	}
	return err
}

// update changes one member. A majority has it after that.
func (b *Board) update(ctx context.Context, query, change bson.D, upsert bool) error {
	doc, err := bson.Marshal(bson.D{{Key: "q", Value: query}, {Key: "u", Value: change}, {Key: "upsert", Value: upsert}})
	if err != nil {
		return fmt.Errorf("build the statement: %w", err)
	}
	return metadata.Run(ctx, b.target, metadata.Majority(metadata.Write(b.db, "update", metadata.ShareMembers, "updates", doc)), -1)
}

// Members implements share.Board.
func (b *Board) Members(ctx context.Context, group string) ([]share.Member, time.Time, error) {
	list, now, err := b.members(ctx, group)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read the members of %s: %w", group, err)
	}
	return list, now, nil
}

func (b *Board) members(ctx context.Context, group string) ([]share.Member, time.Time, error) {
	now, err := b.clock(ctx) // before the members, so that none of them is older than it says
	if err != nil {
		return nil, time.Time{}, err
	}
	// Beats are no majority's: a member whose beats are not confirmed lives.
	docs, err := b.find(ctx, metadata.ShareMembers, bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: group + "/"}, {Key: "$lt", Value: group + "0"}}}}, nil, "local")
	if err != nil {
		return nil, time.Time{}, err
	}
	list := make([]share.Member, 0, len(docs))
	for _, doc := range docs {
		m, err := parseMember(group, doc)
		if err != nil {
			return nil, time.Time{}, err
		}
		list = append(list, m)
	}
	return list, now, nil
}

// clock is the primary's.
func (b *Board) clock(ctx context.Context) (time.Time, error) {
	reply, err := mongo.Hello(ctx, b.target)
	if err != nil {
		return time.Time{}, fmt.Errorf("ask for the time: %w", err)
	}
	if !mongo.IsPrimary(reply) {
		return time.Time{}, errors.New("ask for the time: the server that answered is no primary")
	}
	r := metadata.NewReader(reply)
	now := date(r, "localTime")
	return now, r.Err()
}

// find returns documents, sorted by _id.
func (b *Board) find(ctx context.Context, collection string, filter, projection bson.D, concern string) ([]bson.Raw, error) {
	command := bson.D{
		{Key: "find", Value: collection},
		{Key: "filter", Value: filter},
		{Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: concern}}},
	}
	if projection != nil {
		command = append(command, bson.E{Key: "projection", Value: projection})
	}
	body, err := bson.Marshal(command)
	if err != nil {
		return nil, fmt.Errorf("build the query: %w", err)
	}
	return mongo.Retry{For: time.Nanosecond}.ReadAll(ctx, b.target, nil, b.db, body)
}

// Plan implements share.Board.
func (b *Board) Plan(ctx context.Context, group, member string, seen int64) (*share.Plan, error) {
	filter := bson.D{{Key: "_id", Value: group}}
	if seen > 0 {
		filter = append(filter, bson.E{Key: fieldVersion, Value: bson.D{{Key: "$gt", Value: seen}}})
	}
	var projection bson.D
	if member != "" {
		for _, field := range []string{fieldVersion, fieldTerm, fieldCoordinator, fieldDeputies, fieldMembers + "." + key(member)} {
			projection = append(projection, bson.E{Key: field, Value: 1})
		}
	}
	docs, err := b.find(ctx, metadata.Shares, filter, projection, "majority")
	if err != nil || len(docs) == 0 {
		if err != nil {
			err = fmt.Errorf("read the plan of %s: %w", group, err)
		}
		return nil, err
	}
	plan, err := parsePlan(docs[0])
	if err != nil {
		return nil, fmt.Errorf("read the plan of %s: %w", group, err)
	}
	return plan, nil
}

// Propose implements share.Board.
func (b *Board) Propose(ctx context.Context, group string, version int64, p *share.Plan) (bool, error) {
	doc, err := planDoc(group, p)
	if err != nil {
		return false, fmt.Errorf("write the plan of %s: %w", group, err)
	}
	command := metadata.Write(b.db, "insert", metadata.Shares, "documents", doc)
	if version > 0 {
		statement, err := bson.Marshal(bson.D{
			{Key: "q", Value: bson.D{
				{Key: "_id", Value: group},
				{Key: fieldVersion, Value: version},
				{Key: fieldTerm, Value: bson.D{{Key: "$lte", Value: p.Term}}},
			}},
			{Key: "u", Value: doc},
		})
		if err != nil {
			return false, fmt.Errorf("build the statement: %w", err)
		}
		command = metadata.Write(b.db, "update", metadata.Shares, "updates", statement)
	}
	reply, err := b.target.Call(ctx, metadata.Majority(command))
	if err != nil {
		return false, fmt.Errorf("write the plan of %s: %w", group, err)
	}
	n, err := metadata.Written(reply)
	switch {
	case version == 0 && servererr.IsDuplicateKey(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("write the plan of %s: %w", group, err)
	}
	return n == 1, nil
}

// key is the name of the field that has a member's partitions: names have dots.
func key(member string) string {
	var text strings.Builder
	text.WriteByte('m')
	for _, c := range []byte(member) {
		fmt.Fprintf(&text, "%02x", c)
	}
	return text.String()
}
