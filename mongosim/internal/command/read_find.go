package command

import (
	"context"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
)

// findArgs are the arguments of find.
type findArgs struct {
	filter, projection, sort, collation, let bson.Raw
	hint                                     hint
	hinted                                   bool
	skip, limit                              int64
	batchSize                                int64 // -1 if not given
	singleBatch, tailable, awaitData         bool
	noTimeout, recordID, token, partial      bool
	readOnce                                 bool
	// after is the record to resume after, nil if not given; its type is null for
	// the start.
	after *rawbson.Elem
	term  *int64
}

var findFields = []string{
	"filter", "projection", "sort", "hint", "collation", "skip", "limit", "batchSize", "ntoreturn", "singleBatch",
	"allowDiskUse", "min", "max", "returnKey", "showRecordId", "tailable", "oplogReplay", "noCursorTimeout", "awaitData",
	"allowPartialResults", "let", "term", "readOnce", "allowSpeculativeMajorityRead", "$_requestResumeToken",
	"$_resumeAfter", "$_use44SortKeys", "runtimeConstants", "legacyRuntimeConstants", "options",
}

func parseFind(cmd bson.Raw) (findArgs, error) {
	a := findArgs{batchSize: -1}
	read := argReader("FindCommandRequest")
	err := eachArg(cmd, func(e *rawbson.Elem) (err error) {
		var unused bool
		switch name := e.Name(); name {
		case "filter":
			err = ownedObject(e, &a.filter)
		case "projection":
			err = ownedObject(e, &a.projection)
		case "sort":
			err = ownedObject(e, &a.sort)
		case "collation":
			err = ownedObject(e, &a.collation)
		case "let":
			err = read.object(e, &a.let)
		case "hint":
			a.hint, err = parseHint(e)
			a.hinted = true
		case "skip":
			err = read.count(e, &a.skip)
		case "limit":
			err = read.count(e, &a.limit)
		case "batchSize":
			err = read.count(e, &a.batchSize)
		case "singleBatch":
			err = read.bool(e, &a.singleBatch)
		case "tailable":
			err = read.bool(e, &a.tailable)
		case "awaitData":
			err = read.bool(e, &a.awaitData)
		case "noCursorTimeout":
			err = read.bool(e, &a.noTimeout)
		case "showRecordId":
			err = read.bool(e, &a.recordID)
		case "allowPartialResults":
			err = read.bool(e, &a.partial)
		case "readOnce":
			err = read.bool(e, &a.readOnce)
		case "$_requestResumeToken":
			err = read.bool(e, &a.token)
		case "$_resumeAfter":
			var doc bson.Raw
			if err = ownedObject(e, &doc); err == nil {
				err = a.parseAfter(doc)
			}
		case "term":
			a.term = new(int64)
			err = read.long(e, a.term)
		case "allowDiskUse", "oplogReplay", "allowSpeculativeMajorityRead", "$_use44SortKeys":
			err = read.bool(e, &unused)
		case "returnKey":
			if err = read.bool(e, &unused); err == nil && unused {
				err = servererr.New(servererr.NotImplemented, "find option returnKey is not implemented here")
			}
		case "min", "max", "ntoreturn", "runtimeConstants", "legacyRuntimeConstants", "options":
			if doc, ok := e.Document(); ok && len(doc) <= rawbson.MinSize {
				return nil
			}
			err = servererr.New(servererr.NotImplemented, "find option %s is not implemented here", name)
		}
		return err
	})
	if err != nil {
		return a, err
	}
	return a, a.check()
}

func (a *findArgs) parseAfter(doc bson.Raw) error {
	if len(doc) <= rawbson.MinSize {
		return nil
	}
	it := rawbson.NewIter(doc)
	it.Next()
	e := it.Elem
	if !e.Is("$recordId") || e.Type != bson.TypeInt64 && e.Type != bson.TypeNull || it.Next() {
		return servererr.New(servererr.BadValue, "Malformed resume token: the '_resumeAfter' object must contain exactly "+
			"one field named '$recordId', of type NumberLong, BinData or jstNULL.")
	}
	a.after = &e
	return nil
}

// check refuses what does not go together.
func (a *findArgs) check() error {
	bad := func(what string) error { return servererr.New(servererr.BadValue, "%s", what) }
	natural, hasNatural := rawbson.Lookup(a.sort, "$natural")
	forward := !hasNatural && len(a.sort) <= rawbson.MinSize
	if hasNatural {
		n, _ := numberArg(&natural)
		if n != 1 && n != -1 {
			return bad("$natural sort cannot be set to a value other than -1 or 1.")
		}
		only := rawbson.NewIter(a.sort)
		only.Next()
		forward = n == 1 && !only.Next()
	}
	switch {
	case a.awaitData && !a.tailable:
		return servererr.New(servererr.FailedToParse, "Cannot set 'awaitData' without also setting 'tailable'")
	case a.tailable && !forward:
		return bad("cannot use tailable option with a sort other than {$natural: 1}")
	case a.tailable && a.singleBatch:
		return bad("cannot use tailable option with the 'singleBatch' option")
	case a.token && a.hint.natural != 1:
		return bad("hint must be {$natural:1} if 'requestResumeToken' is enabled")
	case a.token && !forward:
		return bad("sort must be unset or {$natural:1} if 'requestResumeToken' is enabled")
	case !a.token && a.after != nil:
		return bad("'requestResumeToken' must be true if 'resumeAfter' is specified")
	}
	return refuseLet(a.let)
}

// refuseLet refuses variables, which expressions do not know here.
func refuseLet(let bson.Raw) error {
	if len(let) > rawbson.MinSize {
		return servererr.New(servererr.NotImplemented, "the argument let is not implemented here")
	}
	return nil
}

func formatInt(n int64) string { return strconv.FormatInt(n, 10) }

func runFind(ctx context.Context, r *request, out *reply) error {
	a, err := parseFind(r.cmd)
	if err != nil {
		return err
	}
	look, at, release, err := r.readAt()
	if err != nil {
		return err
	}
	keep := false
	defer func() {
		if release != nil && !keep {
			release()
		}
	}()
	var t target
	if err := look(func(s sight) (err error) { t, err = r.target(s); return err }); err != nil {
		return err
	}
	if err := r.sawTerm(t.ns, a.term); err != nil {
		return err
	}
	if t.view != nil {
		keep = true
		return r.findOnView(ctx, &t, &a, pipelineArgs{look: look, at: at, release: release}, out)
	}
	f, sc, err := t.feed(&a)
	if err != nil {
		return err
	}
	if !t.exists {
		out.Buf = plainCursor(out.Buf, t.ns, 0, nil)
		return nil
	}
	if a.after != nil && a.after.Type == bson.TypeInt64 {
		record, _ := a.after.Int64()
		if err := look(func(s sight) error { return sc.resumeAfter(s, record) }); err != nil {
			return err
		}
	}
	c := r.newCursor(t.ns, f)
	c.at, c.release, keep = at, release, true
	c.tailable, c.awaitData, c.noTimeout, c.scan = a.tailable, a.awaitData, a.noTimeout, sc
	if a.token {
		c.token = sc.token
	}
	limit := a.batchSize
	if limit < 0 {
		limit = firstBatchDocs
	}
	err = r.openCursor(ctx, c, look, limit, a.singleBatch, out)
	return executorError(err, "Executor error during find command")
}

// feed compiles a find on a collection.
func (t *target) feed(a *findArgs) (feed, *scan, error) {
	collator, same, err := t.collator(a.collation)
	if err != nil {
		return nil, nil, err
	}
	o := serverquery.Options{Collator: collator}
	q := &query{filter: a.filter, same: same, sortSpec: a.sort, hint: a.hint}
	if q.match, err = serverquery.Compile(a.filter, o); err != nil {
		return nil, nil, err
	}
	projection, err := serverquery.CompileProjection(a.projection, o)
	if err != nil {
		return nil, nil, err
	}
	if q.sort, err = serverquery.CompileSort(a.sort, o); err != nil {
		return nil, nil, err
	}
	q.debug = func() string { return debugQuery(t.ns, a) }
	if a.tailable && t.exists && !t.capped {
		return nil, nil, planFault(q, "tailable cursor requested on non capped collection")
	}
	sc, sorted, err := t.plan(q)
	if err != nil {
		return nil, nil, err
	}
	sh := shape{projection: projection, match: q.match, recordID: a.recordID}
	if order, err := t.hintedOrder(q, o); err != nil || order != nil {
		return &sortFeed{scan: sc, sort: order, shape: sh, skip: a.skip, limit: a.limit}, sc, err
	}
	if q.sort.Empty() || sorted {
		single := sc.order == byPoints && len(sc.points) == 1 && isSimpleID(a.filter) && !a.hinted
		return &scanFeed{scan: sc, shape: sh, skip: a.skip, limit: a.limit, single: single}, sc, nil
	}
	return &sortFeed{scan: sc, sort: q.sort, shape: sh, skip: a.skip, limit: a.limit}, sc, nil
}

// hintedOrder is the order in which an index that is hinted at gives documents,
// for a find without a sort; nil where nothing has to be sorted.
func (t *target) hintedOrder(q *query, o serverquery.Options) (*serverquery.Sort, error) {
	if !q.sort.Empty() || q.sort.Natural() != 0 || !t.exists {
		return nil, nil
	}
	key, err := t.forced(q)
	if key == nil || err != nil || isIDKey(key) {
		return nil, err
	}
	order, err := serverquery.CompileSort(key, o)
	if err != nil {
		return nil, servererr.New(servererr.NotImplemented, "hint at an index that is not ordered is not implemented here")
	}
	return order, nil
}

// isSimpleID tells whether a filter is {_id: value}: the server then knows after
// one document that there is no other.
func isSimpleID(filter bson.Raw) bool {
	it := rawbson.NewIter(filter)
	if !it.Next() || !it.Is("_id") {
		return false
	}
	if doc, ok := it.Document(); ok {
		first := firstElem(doc)
		if len(first.Key) > 0 && first.Key[0] == '$' {
			return false
		}
	}
	return !it.Next()
}
