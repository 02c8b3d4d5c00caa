package read

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

var countFields = []string{"query", "limit", "skip", "hint", "collation", "fields", "queryOptions"}

func runCount(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	var filter, collation bson.Raw
	var limit, skip int64
	var h Hint
	read := dispatch.ArgReader("count")
	err := dispatch.EachArg(r.Cmd, func(e *rawbson.Elem) (err error) {
		switch e.Name() {
		case "query":
			err = read.Object(e, &filter)
		case "limit":
			if err = read.Long(e, &limit); limit < 0 { // an old way to ask for one batch
				limit = -limit
			}
		case "skip":
			err = read.Count(e, &skip)
		case "hint":
			h, err = ParseHint(e)
		case "collation":
			err = read.Object(e, &collation)
		}
		return err
	})
	if err != nil {
		return err
	}
	t, look, release, err := openRead(r)
	if err != nil {
		return err
	}
	defer release()
	var n int64
	if len(filter) <= rawbson.MinSize && t.view == nil && r.ReadConcern.Level != dispatch.Majority && !h.Given() {
		// The size is stored; documents need not be counted.
		err = look(func(s dispatch.Sight) error {
			if t.NS == dispatch.OplogNamespace {
				n = int64(s.Log.Len())
			} else if coll, ok := s.ByUUID(t.uuid); ok && t.exists {
				n = int64(coll.Len())
			}
			return nil
		})
	} else {
		err = eachMatch(ctx, r, &t, filter, collation, h, look, func(bson.Raw) bool {
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
	out.Buf = dispatch.AppendNumber(out.Buf, "n", n)
	return nil
}

// openRead returns the target and the looker of a read without a cursor. release must
// be called at its end.
func openRead(r *dispatch.Request) (t Target, look dispatch.Looker, release func(), err error) {
	look, _, release, err = r.ReadAt()
	if err != nil {
		return t, nil, nil, err
	}
	if release == nil {
		release = func() {}
	}
	if err := look(func(s dispatch.Sight) (err error) { t, err = namedTarget(r, s); return err }); err != nil {
		release()
		return t, nil, nil, err
	}
	return t, look, release, nil
}

// eachMatch visits the documents of a collection or view that a filter finds,
// until visit returns false.
func eachMatch(ctx context.Context, r *dispatch.Request, t *Target, filter, collation bson.Raw, h Hint, look dispatch.Looker, visit func(doc bson.Raw) bool) error {
	if t.view != nil {
		var stages []bson.Raw
		if len(filter) > rawbson.MinSize {
			stages = []bson.Raw{bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "$match", filter))}
		}
		f, err := pipeline(r, t, stages, &pipelineArgs{collation: collation, hint: h, look: look})
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.Fill(ctx, look, visit)
		return err
	}
	collator, same, err := t.Collator(collation)
	if err != nil {
		return err
	}
	q := &Query{Filter: filter, same: same, Hint: h}
	if q.match, err = serverquery.Compile(filter, serverquery.Options{Collator: collator}); err != nil {
		return err
	}
	q.Debug = func() string { return DebugQuery(t.NS, &FindArgs{BatchSize: -1, Filter: filter, Collation: collation}) }
	sc, _, err := t.plan(q)
	if err != nil {
		return err
	}
	return sc.all(ctx, look, func(f found) bool { return visit(f.doc) })
}

var distinctFields = []string{"key", "query", "collation", "hint"}

func runDistinct(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	var filter, collation bson.Raw
	var key string
	var h Hint
	keyed := false
	read := dispatch.ArgReader("distinct")
	err := dispatch.EachArg(r.Cmd, func(e *rawbson.Elem) (err error) {
		switch e.Name() {
		case "key":
			keyed = true
			err = read.Text(e, &key)
		case "query":
			err = read.Object(e, &filter)
		case "collation":
			err = read.Object(e, &collation)
		case "hint":
			if !r.Server.AtLeast(7, 1) {
				return dispatch.UnknownField("distinct", "hint")
			}
			h, err = ParseHint(e)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case !keyed:
		return dispatch.MissingField("distinct", "key")
	case key == "" || key[0] == '$':
		return servererr.New(servererr.BadValue, "'key' of distinct is no path: '%s'", key)
	}
	t, look, release, err := openRead(r)
	if err != nil {
		return err
	}
	defer release()
	collator, _, err := t.Collator(collation)
	if err != nil {
		return err
	}
	values := serverquery.NewDistinct(key, serverquery.Options{Collator: collator})
	err = eachMatch(ctx, r, &t, filter, collation, h, look, func(doc bson.Raw) bool {
		values.Add(doc)
		return true
	})
	if err != nil {
		return err
	}
	start := len(out.Buf)
	i, buf := bsoncore.AppendArrayElementStart(out.Buf, "values")
	for n, v := range values.Values() {
		buf = append(bsoncore.AppendHeader(buf, bsoncore.Type(v.Type), dispatch.ArrayKey(n)), v.Value...)
		if len(buf)-start > maxBatchBytes {
			return servererr.New(servererr.Code(17217), "distinct too big, 16mb cap")
		}
	}
	out.Buf, _ = bsoncore.AppendArrayEnd(buf, i)
	return nil
}

// refuseRead refuses a read command that is not implemented.
func refuseRead(_ context.Context, r *dispatch.Request, _ *dispatch.Reply) error {
	return servererr.New(servererr.NotImplemented, "the command %s is not implemented here", r.Spec.Name)
}
