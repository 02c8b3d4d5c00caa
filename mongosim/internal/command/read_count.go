package command

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
)

var countFields = []string{"query", "limit", "skip", "hint", "collation", "fields", "queryOptions"}

func runCount(ctx context.Context, r *request, out *reply) error {
	var filter, collation bson.Raw
	var limit, skip int64
	var h hint
	read := argReader("count")
	err := eachArg(r.cmd, func(e *rawbson.Elem) (err error) {
		switch e.Name() {
		case "query":
			err = read.object(e, &filter)
		case "limit":
			if err = read.long(e, &limit); limit < 0 { // an old way to ask for one batch
				limit = -limit
			}
		case "skip":
			err = read.count(e, &skip)
		case "hint":
			h, err = parseHint(e)
		case "collation":
			err = read.object(e, &collation)
		}
		return err
	})
	if err != nil {
		return err
	}
	look, _, release, err := r.readAt()
	if err != nil {
		return err
	}
	if release != nil {
		defer release()
	}
	var t target
	if err := look(func(s sight) (err error) { t, err = r.target(s); return err }); err != nil {
		return err
	}
	var n int64
	if len(filter) <= rawbson.MinSize && t.view == nil && r.readConcern.level != majority && !h.given() {
		// The size is kept; a look at every document is not needed.
		err = look(func(s sight) error {
			if t.ns == oplogNamespace {
				n = int64(s.log.Len())
			} else if coll, ok := s.ByUUID(t.uuid); ok && t.exists {
				n = int64(coll.Len())
			}
			return nil
		})
	} else {
		err = r.eachMatch(ctx, &t, filter, collation, h, look, func(bson.Raw) bool {
			n++
			return limit == 0 || n < skip+limit
		})
	}
	if err != nil {
		return err
	}
	n = max(0, n-skip)
	if limit > 0 {
		n = min(n, limit)
	}
	out.Buf = appendNumber(out.Buf, "n", n)
	return nil
}

// eachMatch visits the documents of a collection or view that a filter finds,
// until visit returns false.
func (r *request) eachMatch(ctx context.Context, t *target, filter, collation bson.Raw, h hint, look looker, visit func(doc bson.Raw) bool) error {
	if t.view != nil {
		var stages []bson.Raw
		if len(filter) > rawbson.MinSize {
			stages = []bson.Raw{bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "$match", filter))}
		}
		f, err := r.pipeline(t, stages, &pipelineArgs{collation: collation, hint: h, look: look})
		if err != nil {
			return err
		}
		defer f.close()
		_, err = f.fill(ctx, look, visit)
		return err
	}
	collator, same, err := t.collator(collation)
	if err != nil {
		return err
	}
	q := &query{filter: filter, same: same, hint: h}
	if q.match, err = serverquery.Compile(filter, serverquery.Options{Collator: collator}); err != nil {
		return err
	}
	q.debug = func() string { return debugQuery(t.ns, &findArgs{batchSize: -1, filter: filter, collation: collation}) }
	sc, _, err := t.plan(q)
	if err != nil {
		return err
	}
	return sc.all(ctx, look, func(f found) bool { return visit(f.doc) })
}

var distinctFields = []string{"key", "query", "collation", "hint"}

func runDistinct(ctx context.Context, r *request, out *reply) error {
	var filter, collation bson.Raw
	var key string
	var h hint
	keyed := false
	read := argReader("distinct")
	err := eachArg(r.cmd, func(e *rawbson.Elem) (err error) {
		switch e.Name() {
		case "key":
			keyed = true
			err = read.text(e, &key)
		case "query":
			err = read.object(e, &filter)
		case "collation":
			err = read.object(e, &collation)
		case "hint":
			if !r.srv.atLeast(7, 1) {
				return unknownField("distinct", "hint")
			}
			h, err = parseHint(e)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case !keyed:
		return missingField("distinct", "key")
	case key == "" || key[0] == '$':
		return servererr.New(servererr.BadValue, "'key' of distinct is no path: '%s'", key)
	}
	look, _, release, err := r.readAt()
	if err != nil {
		return err
	}
	if release != nil {
		defer release()
	}
	var t target
	if err := look(func(s sight) (err error) { t, err = r.target(s); return err }); err != nil {
		return err
	}
	collator, _, err := t.collator(collation)
	if err != nil {
		return err
	}
	values := serverquery.NewDistinct(key, serverquery.Options{Collator: collator})
	err = r.eachMatch(ctx, &t, filter, collation, h, look, func(doc bson.Raw) bool {
		values.Add(doc)
		return true
	})
	if err != nil {
		return err
	}
	start := len(out.Buf)
	i, buf := bsoncore.AppendArrayElementStart(out.Buf, "values")
	for n, v := range values.Values() {
		buf = append(bsoncore.AppendHeader(buf, bsoncore.Type(v.Type), arrayKey(n)), v.Value...)
		if len(buf)-start > maxBatchBytes {
			return servererr.New(servererr.Code(17217), "distinct too big, 16mb cap")
		}
	}
	out.Buf, _ = bsoncore.AppendArrayEnd(buf, i)
	return nil
}

// refuseRead is a command that reads, and that there is not here.
func refuseRead(_ context.Context, r *request, _ *reply) error {
	return servererr.New(servererr.NotImplemented, "the command %s is not implemented here", r.spec.name)
}
