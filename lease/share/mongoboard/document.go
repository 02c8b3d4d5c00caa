package mongoboard

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/lease/share"
)

// The fields.
const (
	fieldProcess     = "process"
	fieldLimit       = "limit"
	fieldLeaving     = "leaving"
	fieldRefuses     = "refuses"
	fieldJoined      = "joined"
	fieldBeat        = "beat"
	fieldDrained     = "drained"
	fieldVersion     = "version"
	fieldTerm        = "term"
	fieldCoordinator = "coordinator"
	fieldDeputies    = "deputies"
	fieldMembers     = "members"
	fieldPartition   = "p"
	fieldNumber      = "n"
	fieldSince       = "since"
	fieldWhy         = "why"
)

// maxPlan is how large the plan may be, in bytes: a document has 16 MB.
const maxPlan = 15 << 20

// op is an expression: an operator with its arguments.
func op(name string, args ...any) bson.D { return bson.D{{Key: name, Value: bson.A(args)}} }

// literal is a value that is not evaluated as an expression, whatever it contains.
func literal(v any) bson.D { return bson.D{{Key: "$literal", Value: v}} }

// beating is the update of Beat.
func beating(m *share.Member, taken time.Duration) bson.D {
	process := op("$ifNull", "$"+fieldProcess, "")
	own := op("$eq", process, literal(m.Process))
	age := op("$subtract", "$$NOW", "$"+fieldBeat)
	old := op("$or", op("$gte", age, taken.Milliseconds()), op("$lte", age, -taken.Milliseconds()))
	refuses := bson.A{}
	for _, r := range m.Refuses {
		refuses = append(refuses, bson.D{{Key: fieldPartition, Value: r.Partition}, {Key: fieldNumber, Value: int64(r.Failures)}, {Key: fieldWhy, Value: r.Why}})
	}
	next := op("$mergeObjects", "$$ROOT", bson.D{
		{Key: fieldProcess, Value: literal(m.Process)},
		{Key: fieldLimit, Value: int64(m.Limit)},
		{Key: fieldLeaving, Value: m.Leaving},
		{Key: fieldRefuses, Value: literal(refuses)},
		{Key: fieldJoined, Value: op("$cond", own, "$"+fieldJoined, "$$NOW")},
		{Key: fieldBeat, Value: "$$NOW"},
	})
	return op("$cond", op("$or", op("$eq", process, ""), own, old), next, "$$ROOT")
}

// unset is the update of Leave.
func unset() bson.D {
	var fields bson.D
	for _, f := range []string{fieldProcess, fieldLimit, fieldLeaving, fieldRefuses, fieldJoined, fieldBeat} {
		fields = append(fields, bson.E{Key: f, Value: ""})
	}
	return bson.D{{Key: "$unset", Value: fields}}
}

func date(r *metadata.Reader, name string) time.Time { return time.UnixMilli(r.Date(name)).UTC() }

// parseMember reads a member. One that is drained and not there has that field alone.
func parseMember(group string, doc bson.Raw) (share.Member, error) {
	r := metadata.NewReader(doc)
	m := share.Member{Name: strings.TrimPrefix(r.Text("_id"), group+"/"), Drained: r.Has(fieldDrained) && r.Bool(fieldDrained)}
	if r.Has(fieldProcess) {
		m.Process, m.Limit, m.Leaving = r.Text(fieldProcess), int(r.Int64(fieldLimit)), r.Bool(fieldLeaving)
		m.Joined, m.Beat = date(r, fieldJoined), date(r, fieldBeat)
		r.Docs(fieldRefuses, func(sub *metadata.Reader) {
			m.Refuses = append(m.Refuses, share.Refusal{Partition: sub.Text(fieldPartition), Failures: int(sub.Int64(fieldNumber)), Why: sub.Text(fieldWhy)})
		})
	}
	if err := r.Err(); err != nil {
		return share.Member{}, fmt.Errorf("the document of a member is damaged: field %w", err)
	}
	return m, nil
}

// planDoc is the document of a plan.
func planDoc(group string, p *share.Plan) (bson.Raw, error) {
	lists := map[string]bson.A{}
	var members []string
	for _, a := range p.Assignments {
		k := key(a.Member)
		if lists[k] == nil {
			members = append(members, k)
		}
		lists[k] = append(lists[k], bson.D{{Key: fieldPartition, Value: a.Partition}, {Key: fieldSince, Value: bson.NewDateTimeFromTime(a.Since)}, {Key: fieldWhy, Value: a.Why}})
	}
	slices.Sort(members)
	all := bson.D{}
	for _, k := range members {
		all = append(all, bson.E{Key: k, Value: lists[k]})
	}
	deputies := bson.A{}
	for _, d := range p.Deputies {
		deputies = append(deputies, d)
	}
	doc, err := bson.Marshal(bson.D{
		{Key: "_id", Value: group},
		{Key: fieldVersion, Value: p.Version},
		{Key: fieldTerm, Value: p.Term},
		{Key: fieldCoordinator, Value: p.Coordinator},
		{Key: fieldDeputies, Value: deputies},
		{Key: fieldMembers, Value: all},
	})
	if err != nil {
		return nil, fmt.Errorf("build the document: %w", err)
	}
	if len(doc) > maxPlan {
		return nil, fmt.Errorf("the plan of %d partitions has %d bytes, more than a document of the server may have: make several groups", len(p.Assignments), len(doc))
	}
	return doc, nil
}

// parsePlan reads a plan, or the part of a member.
func parsePlan(doc bson.Raw) (*share.Plan, error) {
	r := metadata.NewReader(doc)
	p := &share.Plan{Version: r.Int64(fieldVersion), Term: r.Int64(fieldTerm), Coordinator: r.Text(fieldCoordinator)}
	r.List(fieldDeputies, func(e *rawbson.Elem) bool {
		name, ok := e.Text()
		p.Deputies = append(p.Deputies, name)
		return ok
	})
	members, _ := r.Doc(fieldMembers, false)
	fields, _ := doc.Lookup(fieldMembers).DocumentOK()
	elements, err := fields.Elements()
	if err != nil {
		r.Fail(fieldMembers, err)
	}
	for _, e := range elements {
		name, err := memberOf(e.Key())
		if err != nil {
			members.Fail(e.Key(), err)
		}
		members.Docs(e.Key(), func(a *metadata.Reader) {
			p.Assignments = append(p.Assignments, share.Assignment{Partition: a.Text(fieldPartition), Member: name, Since: date(a, fieldSince), Why: a.Text(fieldWhy)})
		})
	}
	r.Take(members)
	slices.SortFunc(p.Assignments, func(a, b share.Assignment) int { return cmp.Compare(a.Partition, b.Partition) })
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("the document of the plan is damaged: field %w", err)
	}
	return p, nil
}

// memberOf is the member of a field.
func memberOf(key string) (string, error) {
	digits, ok := strings.CutPrefix(key, "m")
	if !ok {
		return "", errors.New("no name of a member")
	}
	name, err := hex.DecodeString(digits)
	if err != nil {
		return "", fmt.Errorf("no name of a member: %w", err)
	}
	return string(name), nil
}
